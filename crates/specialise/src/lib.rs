//! Specialises the Linux kernel at link time: removes from its relocatable object what one device
//! cannot reach.
//!
//! [`specialise`] reads the object of the kernel's build, which has one section per function. It
//! divides the object into atoms, builds the graph of the whole program with conditional side
//! tables, runs the passes, and writes a smaller object for the kernel's own final link. [`why`]
//! prints what keeps a symbol alive. After Chanet et al., "Automated reduction of the memory
//! footprint of the Linux kernel", TECS 6(4), 2007, on a current kernel.
//!
//! The crate is pure: bytes and texts in, bytes and a report out. All input is hostile until
//! parsed. Something that is not understood stays as it is, with a warning, or the object is
//! refused. Nothing is removed on a guess.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

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
