//! Flow graphs: in which order the blocks of a data file are used (Kuacharoen, Mooney and
//! Madisetti: stream-enabled file I/O, where they are called transmission profiles).
//!
//! A data file is cut into fixed blocks ([`Layout`]). The nodes of its [`FlowGraph`] are the blocks
//! that are used; the weight of an edge is how often one block was used right after the other.
//! Blocks are sent in the order of the graph's traversal ([`FlowGraph::traversal`]): blocks that
//! are likely to be used soon come early, and blocks that are never used do not come at all. An
//! action is the special case of a path. [`Stage`]s give parts of the file their own share of the
//! link.
//!
//! Graphs come from runs ([`FlowGraph::from_runs`]), from live use ([`FlowGraph::observe`]), or are
//! written by hand in a small text form ([`text`]). The file is described in docs/formats/flow.md.
//! Everything is pure and bounded: see [`format`] for the limits.

mod edges;
mod error;
mod expansion;
mod file;
pub mod format;
mod graph;
mod layout;
mod learn;
pub mod picture;
mod stage;
pub mod text;

pub use edges::Edge;
pub use error::{FlowError, StageFault, TextError};
pub use expansion::{Expansion, Scheduled, Step};
pub use file::decode;
pub use graph::{FlowGraph, Updates};
pub use layout::Layout;
pub use learn::{FileRuns, file_runs, learn};
pub use stage::{BlockRange, Share, Stage};

#[cfg(test)]
mod tests;
