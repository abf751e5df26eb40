//! How the memory of a server is divided.

/// What a connection may hold of what arrived without asking for memory.
pub(crate) const RECEIVED_FREE_BYTES: usize = 16 << 10;

/// How the memory of a server is divided. Prediction must not starve demand, so each has its own
/// share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// What arrives, until it is taken up or answered: a sixteenth. Of each connection the first
    /// [`RECEIVED_FREE_BYTES`] do not count, as its buffers do not: requests are small and must not
    /// wait.
    pub received: usize,
    /// Replies to demands, queued or being read: five thirty-second parts.
    pub replies: usize,
    /// Pieces of push streams, queued or being built: three thirty-second parts.
    pub pushes: usize,
    /// Encoders of pushes that are compressed live: three thirty-second parts.
    pub encoders: usize,
    /// Decoded blocks from which pages are built: three thirty-second parts.
    pub decoded: usize,
    /// Decoded blocks that the Provider holds from the start: a sixteenth.
    pub provider: usize,
    /// What devices were sent, so that it is not pushed again: a thirty-second part.
    pub devices: usize,
    /// What is learned of open images: a sixteenth.
    pub learned: usize,
    /// What is learned of volumes: a sixteenth, the same part of it for each.
    pub profiles: usize,
    /// Metadata of open images and of uploads: nine thirty-second parts.
    pub metadata: usize,
}

impl Shares {
    /// The shares of `all` bytes.
    pub fn of(all: usize) -> Shares {
        Shares {
            received: all / 16,
            replies: all / 32 * 5,
            pushes: all / 32 * 3,
            encoders: all / 32 * 3,
            decoded: all / 32 * 3,
            provider: all / 16,
            devices: all / 32,
            learned: all / 16,
            profiles: all / 16,
            metadata: all / 32 * 9,
        }
    }
}
