//! Specialises the Linux kernel at link time: from its relocatable object goes what one device image cannot reach.
//!
//! [`specialise`] reads the object that the kernel's build leaves (one section per function), divides it into atoms, builds
//! the graph of the whole program with conditional side tables, walks it from the roots, and writes a smaller object
//! that the kernel's own final link takes. [`why`] prints what keeps a symbol alive. After Chanet et al., "Automated
//! reduction of the memory footprint of the Linux kernel", TECS 6(4), 2007, on a current kernel.
//!
//! The crate is pure: bytes and texts in, bytes and a report out. All input is hostile until parsed. What is not
//! understood stays as it is, with a warning, or the object is refused; nothing is removed on a guess.

mod abi;
mod analysis;
mod arch;
mod atom;
mod atoms;
mod class;
mod decisions;
mod device;
mod divide;
mod edit;
mod entries;
mod error;
mod freeze;
mod graph;
mod incoming;
mod instrument;
mod object;
mod options;
mod pass;
mod reference;
mod report;
mod routine;
mod run;
mod schema;
mod tally;
mod value;
mod writer;

#[cfg(test)]
mod tests;

pub use device::Device;
pub use error::SpecialiseError;
pub use instrument::{CountedBlock, CountedFunction};
pub use options::{Freeze, Options, Passes};
pub use pass::syscalls::entry_points;
pub use report::{DeviceReport, FreezeReport, PassReport, Removal, Report, Sizes, TableReport};
pub use run::{Outcome, specialise, why};
pub use schema::check_release;
