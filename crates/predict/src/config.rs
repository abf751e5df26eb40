//! The constants of [`crate::ActionPredictor`], with their defaults.

use std::time::Duration;

use profile::MergeConfig;
use units::SEGMENT_PAGES_MAX;

/// How pages are generated after a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// As SYSFLOW: match at set positions, one segment per match, at once rescan or construct on a
    /// mismatch. Wants to see every touch, pushed pages included.
    Paper,
    /// A window of segments ahead of the program. Needs to see only misses and the first page of
    /// each pushed segment.
    #[default]
    Streaming,
}

impl Mode {
    /// The mode for a push window in bytes, as on the command line: 0 is the paper's behaviour.
    pub fn from_push_window(bytes: u64) -> Mode {
        if bytes == 0 { Mode::Paper } else { Mode::Streaming }
    }
}

/// Which pushes of an action at a cold start are audits, in which every touch is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audits {
    /// The first audit, counted from 1; 0 for no audits.
    pub first: u64,
    /// Every so many pushes after the first audit comes the next; 0 for no more.
    pub every: u64,
}

/// Constants of the action predictor. The defaults that SYSFLOW gives are marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How pages are generated.
    pub mode: Mode,
    /// Pages in a segment (SYSFLOW's SEG_MAX: 32). At least 2.
    pub segment_pages: u32,
    /// An action under construction, or at its end, is closed after this long without a touch
    /// (SYSFLOW: 3 s).
    pub construction_timer: Duration,
    /// A run in the middle of an action is closed after this long without a touch. Longer than the
    /// construction timer, because a program that works within pushed pages is silent.
    pub linger: Duration,
    /// Segments ahead of the program at a cold start (streaming): 8 x 128 KiB fill a 25 Mbit/s link
    /// for a third of a second.
    pub lookahead_first: u32,
    /// Segments ahead when a run is found in the middle of an action by its first visible touch
    /// (streaming). Such a device is warm, and one page in common is little evidence.
    pub lookahead_found: u32,
    /// Most segments ahead (streaming): 64 x 128 KiB = 8 MiB.
    pub lookahead_max: u32,
    /// Most segments ahead in an audit (streaming): 2 MiB. A device holds 3 MiB of an audit back.
    /// What comes on top counts as touched when it comes, which is not the order of the program.
    pub lookahead_audit: u32,
    /// Part of what a run was pushed (percent) that may be in vain if it turns out to be of another
    /// action that begins alike (streaming).
    pub waste_percent: u32,
    /// Misses without a hit after which the action is given up (streaming).
    pub miss_limit: u32,
    /// Files in which misses may lie before the action is given up for them (streaming): one that
    /// has changed, and the program that works on it.
    pub detour_files: usize,
    /// Misses without a hit after which another action takes over if it has them all and starts
    /// with the same first page, or with one of them (streaming). 2: the paper's match at positions
    /// 1 and 2.
    pub narrow_misses: u32,
    /// Which pushes are audits (streaming).
    pub audits: Audits,
    /// Pages that a run must have to become an action of its own: fewer are noise of a warm device.
    pub construct_pages_min: u32,
    /// Tokens tracked; the one idle longest is closed to make room.
    pub tokens_max: usize,
    /// Page numbers recorded for all tokens together: a million, about 32 MB. The token idle
    /// longest makes room.
    pub recorded_pages_max: usize,
    /// How runs become actions.
    pub merge: MergeConfig,
    /// Predict by the known actions and learn nothing new.
    pub frozen: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mode: Mode::Streaming,
            segment_pages: SEGMENT_PAGES_MAX as u32,
            construction_timer: Duration::from_secs(3),
            linger: Duration::from_secs(60),
            lookahead_first: 8,
            lookahead_found: 1,
            lookahead_max: 64,
            lookahead_audit: 16,
            waste_percent: 15,
            miss_limit: 8,
            detour_files: 2,
            narrow_misses: 2,
            audits: Audits { first: 2, every: 8 },
            construct_pages_min: 4,
            tokens_max: 4096,
            recorded_pages_max: 1 << 20,
            frozen: false,
            merge: MergeConfig::default(),
        }
    }
}

impl Audits {
    /// No audits.
    pub const NONE: Audits = Audits { first: 0, every: 0 };

    /// Whether the `push`-th push of an action (from 1) is an audit.
    pub fn include(self, push: u64) -> bool {
        let later = self.every != 0 && push > self.first && (push - self.first).is_multiple_of(self.every);
        self.first != 0 && (push == self.first || later)
    }

    /// Whether the `push`-th push comes before the first audit. It is an audit all the same if the
    /// action may lack pages, which are best found at once.
    pub fn precede(self, push: u64) -> bool {
        push < self.first
    }
}
