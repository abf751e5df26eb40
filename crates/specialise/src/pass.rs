//! The passes: each makes a few references or entries go away, and the walk of the graph finds what that frees.

pub(crate) mod blocks;
pub(crate) mod constants;
pub(crate) mod drivers;
pub(crate) mod duplicates;
pub(crate) mod entries;
pub(crate) mod freeze;
pub(crate) mod initialisation;
pub(crate) mod instrument;
pub(crate) mod names;
pub(crate) mod parameters;
pub(crate) mod quirks;
pub(crate) mod syscalls;
pub(crate) mod variables;
