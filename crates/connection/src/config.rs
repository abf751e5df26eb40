//! Settings of a connection.

use std::time::Duration;

use wire::ClientConfig;
use wire::format::{FEATURE_LONE_PAGES, FEATURES_USUAL, FRAME_BYTES_PER_SECOND_MIN};

use crate::trust::Trust;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whom to trust over TLS, and who we are.
    pub trust: Trust,
    /// Whether the server may push at all.
    pub push: bool,
    /// Push bytes that may stand uncredited.
    pub push_bytes_max: u32,
    /// Largest zstd window of a push stream, as a power of two: what one stream's decoder costs in
    /// memory.
    pub window_log_max: u8,
    /// Time to connect, and to get an answer while something is being opened.
    pub open_deadline: Duration,
    /// Time without an answer after which a connection is given up.
    pub answer_deadline: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            trust: Trust::default(),
            push: true,
            push_bytes_max: 1 << 20,
            window_log_max: 21,
            open_deadline: Duration::from_secs(10),
            answer_deadline: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// As the protocol's state machine takes it. `device` names this device while it is connected.
    pub fn wire(&self, device: u128) -> ClientConfig {
        ClientConfig {
            device,
            window_log_max: self.window_log_max,
            push_bytes_max: if self.push { self.push_bytes_max } else { 0 },
            hello_deadline: self.open_deadline,
            request_deadline: self.open_deadline,
            silence_max: self.answer_deadline,
            features: FEATURES_USUAL | FEATURE_LONE_PAGES,
            ..ClientConfig::default()
        }
    }

    /// Time in which an answer of so many bytes must come.
    pub fn answer_time(&self, bytes: u64) -> Duration {
        answer_time(self.answer_deadline, bytes)
    }
}

/// The stated deadline, and the time that the slowest link which we serve takes for so many bytes.
pub fn answer_time(deadline: Duration, bytes: u64) -> Duration {
    deadline + Duration::from_micros(bytes.saturating_mul(1_000_000) / FRAME_BYTES_PER_SECOND_MIN)
}

/// What to do when the server is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Calls wait for its return.
    #[default]
    Hard,
    /// Calls fail after this time.
    Soft(Duration),
}

impl Waiting {
    /// Soft mode with its usual time: long enough for a server to restart.
    pub const SOFT_DEFAULT: Waiting = Waiting::Soft(Duration::from_secs(30));
}
