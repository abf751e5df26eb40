//! Kernel coverage: the code of a kernel that a device executes, recorded by scenario, merged, kept
//! as a text file.
//!
//! A [`Coverage`] lists functions of one release of the kernel, with the blocks that ran before and
//! after the device's service began. It is made from QEMU's log of translated blocks ([`LogParser`]
//! into a [`Collector`] with the [`Symbols`] of the linked kernel), from the counters of an
//! instrumented kernel ([`from_counters`] with its [`BlockMap`]), or from a device's list of
//! functions that had to be thawed ([`from_thawed`]). [`merge`] unites scenarios; `specialise`
//! freezes the functions that are in none.
//!
//! The crate is pure: bytes and texts in, values and texts out. Functions are known by their names,
//! since addresses and sizes differ between links. A name that several functions of a kernel have
//! (static ones) stands for all of them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod blocks;
mod collector;
mod counters;
mod dump;
mod error;
pub mod format;
mod merge;
mod model;
mod qemu;
mod reader;
mod symbols;
mod thawed;
mod writer;

#[cfg(test)]
mod tests;

pub use collector::{Collector, Seen};
pub use counters::{BlockMap, MappedFunction, from_counters};
pub use dump::dump;
pub use error::CoverageError;
pub use merge::merge;
pub use model::{Block, Coverage, Function, How, ORDER_UNKNOWN, Phase, Scenario};
pub use qemu::LogParser;
pub use reader::read;
pub use symbols::Symbols;
pub use thawed::from_thawed;
pub use writer::write;
