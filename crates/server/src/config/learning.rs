//! What is learned, and what is in memory before it is asked for.

use std::time::Duration;

/// Settings of learning and of pushes.
#[derive(Clone, Debug)]
pub struct LearningConfig {
    /// Learn and push at all. Without it the server only answers demands: the baseline to compare
    /// with.
    pub enabled: bool,
    /// Constants of the Predictor; `predict.mode` chooses between streaming and the paper's one
    /// segment per round trip.
    pub predict: predict::Config,
    /// What is in memory before it is asked for; without learning nothing is, whatever this says.
    pub provider: Provider,
    /// Variance of normalised block indices over which the Provider keeps a segment in memory, from
    /// 0 for a segment in one place over 1/12, spread evenly, to 1/4, half at each end.
    pub provider_threshold: f64,
    /// Segments the Provider reads ahead of a push (SYSFLOW: three).
    pub provider_ahead: usize,
    /// How often the server looks for what other servers of a shared store learned of an image that
    /// is open.
    pub look_every: Duration,
}

impl Default for LearningConfig {
    fn default() -> LearningConfig {
        LearningConfig {
            enabled: true,
            predict: predict::Config::default(),
            provider: Provider::default(),
            provider_threshold: 0.04,
            provider_ahead: 3,
            look_every: Duration::from_secs(20),
        }
    }
}

impl LearningConfig {
    /// Whether new actions are learned.
    pub(crate) fn learns(&self) -> bool {
        self.enabled && !self.predict.frozen
    }

    /// Pages after a push that the Provider wants to know of.
    pub(crate) fn pages_ahead(&self) -> u32 {
        let segments = if self.provider.uses_segments() { self.provider_ahead as u32 } else { 0 };
        segments.saturating_mul(self.predict.segment_pages)
    }
}

/// What the server does so that pages are in memory before they are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// Nothing: every block is read when a demand or a push needs it.
    None,
    /// When an image is opened, the kernel is told that the whole file will be needed, from front
    /// to back (`posix_fadvise` SEQUENTIAL and WILLNEED, which is what `madvise` does to a file
    /// that is mapped); the rest is the kernel's affair. Linux reads one readahead window at once
    /// and doubles the window of sequential reads.
    Madvise,
    /// The first segment of every action and those of large normalised variance are held in memory
    /// from the start. Before a piece of a push is sent, the segments after it are read too.
    Nv,
    /// The same, but the segments after a piece are read while it is on its way.
    NvAsync,
    /// The same, and learned actions are pushed from bundles, which need no blocks.
    #[default]
    Bundle,
}

impl Provider {
    /// Whether segments are held in memory from the start, and read ahead of pushes.
    pub(crate) fn uses_segments(self) -> bool {
        matches!(self, Provider::Nv | Provider::NvAsync | Provider::Bundle)
    }
}
