//! Profiles: what is learned from traces, in the form that predicting, pushing and packing use.
//!
//! An [`Action`] is the ordered list of pages that one task of one program touches, over its
//! executable and every library and data file (SYSFLOW's "action": startup, workload, exit).
//! Segment `k` of an action is its pages `k * 32 .. (k + 1) * 32`. An [`ActionSet`] holds the
//! actions of one image: bounded, ranked, saved in one file (docs/formats/actions.md).
//!
//! A set learns from runs ([`ActionSet::learn`], [`ActionSet::extend`]). An *exact* run is a
//! complete first-touch order, from a cold start in which no push hid a touch. It refines the
//! action of the same first page that it overlaps by at least 70 % (Jaccard: pages in both / pages
//! in either), unless one of the two goes a way of its own for long. Without such an action it
//! becomes a variant. Containment would be the wrong measure:
//! a program that stops early is contained in every longer run of itself, and as a refinement it
//! would shorten the longer action. A run in which pushes hid touches can only add the pages that
//! it missed.
//!
//! [`Hot`] is for the packer: paths, and the pages of them to lay together.
//!
//! A [`plan::LaunchPlan`] is for `launch`: the prefetch groups of a local program, and their
//! breakpoints.
//!
//! A [`flow::FlowGraph`] is the order in which the blocks of one data file are used.
//!
//! Everything is a pure function of its arguments.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod action;
mod adopt;
mod dump;
mod error;
mod file;
pub mod flow;
pub mod format;
mod hot;
mod join;
mod merge;
mod order;
pub mod plan;
mod set;
mod teachers;
mod weave;

pub use action::{Action, PageMark};
pub use adopt::Placed;
pub use dump::dump;
pub use error::{HotError, ProfileError};
pub use file::{Limits, decode};
pub use format::{ACCEPTED_ACTION_PAGES_MAX, ACCEPTED_ACTIONS_MAX, ACCEPTED_PAGES_TOTAL_MAX, VERSION};
pub use hot::{Hot, HotFile, HotFit, HotPage, HotRun, Names};
pub use merge::{Extra, MergeConfig, overlap_percent};
pub use order::{Order, first_touches, orders};
pub use set::{ActionSet, Change, Outcome};
pub use teachers::Teacher;

#[cfg(test)]
mod tests;
