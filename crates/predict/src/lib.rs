//! Predictors: from the pages that running programs touch to the pages that should be on their way.
//!
//! One small trait, [`Predictor`], and four implementations:
//!
//! - [`ActionPredictor`]: SYSFLOW's Predictor. It *constructs* an action from the touches of an
//!   unknown run, *matches* the touches of a later run against known actions, and *generates* the
//!   pages that follow. [`Mode::Paper`] pushes one segment per round trip, as in the paper.
//!   [`Mode::Streaming`] keeps a window of segments ahead of the program.
//! - [`FlowPredictor`]: the flow graphs of data files (SIO). It knows several ways through a file,
//!   and follows the one taken.
//! - [`LinuxReadahead`]: the kernel's readahead, a sequential window per file.
//! - [`MajorityTrend`]: Leap's majority of recent strides.
//!
//! [`evaluate`] replays first-touch orders over a modelled link, to compare predictors on the same
//! traces. [`provider`] chooses the segments that a server keeps in memory.
//!
//! Everything is deterministic and pure: time is a parameter.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod action_pages;
mod action_predictor;
mod config;
mod flow_predictor;
mod follow;
mod index;
mod majority_trend;
mod predictor;
pub mod provider;
mod readahead;
mod replay;
mod siblings;
mod speculation;

pub use action_predictor::{ActionPredictor, Counters};
pub use config::{Audits, Config, Mode};
pub use flow_predictor::{FlowConfig, FlowPredictor, chance};
pub use majority_trend::MajorityTrend;
pub use predictor::{Ended, Phase, Predictor, PushOrder, Reader, Verdict};
pub use readahead::LinuxReadahead;
pub use replay::{CostModel, Evaluation, Visible, evaluate};
pub use speculation::{SURE, Speculation};

#[cfg(test)]
mod tests;
