//! Machine code: functions, their control flow, the functions that they call, the addresses that
//! they take.
//!
//! A [`Layout`] describes memory: its bytes, known extents of functions, words that relocations
//! fill. [`Linked`] makes one of an executable or a shared library. A caller that has relocatable
//! sections gives each an address of its own choice, applies the relocations to the bytes, and
//! lists the words that hold addresses. [`Flow::trace`] follows control from any address in a
//! layout: recursive descent into basic blocks, with the jump tables that compilers make of
//! `switch`. It reports what it cannot follow, and then takes all of the function that nothing else
//! leads to as reachable. [`propagate`] follows constants in registers and on the stack through a
//! flow. A value that a function gets from its caller stays symbolic ([`Input`]), to be looked up
//! at each call.
//!
//! Only the module of a processor's name knows this processor, behind the trait [`Architecture`]:
//! [`x86_64`] so far.
//!
//! All input is hostile. Counts, tables and work have limits, counted in instructions and never in
//! time. Code beyond a limit is reported as not followed.

pub mod x86_64;

mod architecture;
mod discover;
mod extent;
mod flow;
mod frames;
mod layout;
mod linked;
mod propagate;
mod space;
mod state;
mod step;
mod value;

pub use architecture::Architecture;
pub use discover::{add_starts, discover};
pub use extent::{Extent, Extents};
pub use flow::{Block, Call, Callee, Flow, Reference, Table};
pub use frames::{Frame, frames};
pub use layout::{Layout, Word};
pub use linked::{Export, Kind, Linked};
pub use propagate::propagate;
pub use space::{Region, Space};
pub use state::{REGISTERS, State};
pub use step::{Action, Gate, Step, TargetSource, Use};
pub use value::{Atom, Input, LOADS_MAX, Origin, POSSIBILITIES_MAX, Value, Width};

/// Instructions one function may have; the largest interpreter loops have about 30,000.
pub const FUNCTION_STEPS_MAX: usize = 400_000;

/// Entries of one jump table; the kernel's table of system calls has 470, generated parsers a few
/// thousand.
pub const TABLE_ENTRIES_MAX: usize = 16_384;

/// Symbols we accept in one file, as in the symbol tables of a browser.
pub const SYMBOLS_MAX: usize = 4 << 20;

/// Relocations we accept in one linked file; a large office suite has about a million.
pub const RELOCATIONS_MAX: usize = 8 << 20;

/// Bytes of memory that a file may ask for without having them (`.bss`) are never allocated, only
/// bounded: 1 TiB.
pub const REGION_BYTES_MAX: u64 = 1 << 40;

#[cfg(test)]
mod tests;
