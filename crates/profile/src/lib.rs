//! Profiles: what traces teach, in the form that predicting, pushing and packing use.
//!
//! An [`Action`] is the ordered list of pages that one task of one program touches, over its executable and every library
//! and data file (SYSFLOW's "action": startup, workload, exit). Segment `k` of an action is its pages
//! `k * 32 .. (k + 1) * 32`. An [`ActionSet`] holds the actions of one image: bounded, ranked, saved in one file
//! (docs/formats/actions.md).
//!
//! How a set learns ([`ActionSet::learn`], [`ActionSet::extend`]): an *exact* run is a complete first-touch order, from a
//! cold start in which no push hid a touch. It refines the action of the same first page that it overlaps by at least
//! 70 % (Jaccard: pages in both / pages in either), or else becomes a variant beside it. Jaccard and not containment,
//! because a program that stops early is contained in every longer run of itself; as a refinement it would tear down
//! the longer action. A run in which pushes hid touches can only add the pages that it missed.
//!
//! [`Hot`] is what traces and actions become for the packer: paths and the pages of them to lay together.
//!
//! A [`plan::LaunchPlan`] is what traces of a local program become for `launch`: prefetch groups and their breakpoints.
//!
//! A [`flow::FlowGraph`] says in which order the blocks of one data file are used.
//!
//! Everything is a pure function of its arguments. Callers: `predict`, `server`, `pack`, `launch`, `cli`.

mod action;
mod dump;
mod error;
mod file;
pub mod flow;
pub mod format;
mod hot;
mod merge;
mod order;
pub mod plan;
mod set;

pub use action::{Action, PageMark};
pub use dump::dump;
pub use error::{HotError, ProfileError};
pub use file::{Limits, decode};
pub use format::{ACCEPTED_ACTION_PAGES_MAX, ACCEPTED_ACTIONS_MAX, ACCEPTED_PAGES_TOTAL_MAX, VERSION};
pub use hot::{Hot, HotFile, HotFit, HotPage, HotRun, Names};
pub use merge::{Extra, MergeConfig, overlap_percent};
pub use order::{Order, first_touches, orders};
pub use set::{ActionSet, Change, Outcome};

#[cfg(test)]
mod tests;
