//! Why a pin is not complete.

use std::io;

use crate::error::ClientError;

/// Why a pin is not complete. What came is kept.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The server, or the image.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// All of it is more than the cache can hold beside what else is pinned.
    #[error(
        "the image needs {} of the device cache, and of the {} that it may take others have {} pinned\nhint: give it \
         more (--cache-size, or `size` in /etc/runnel/config.toml for all commands), or `runnel cache unpin` another image",
        mib(*needed), mib(*max), mib(*pinned)
    )]
    TooLarge {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are pinned of others.
        pinned: u64,
        /// Bytes that the cache may take.
        max: u64,
    },
    /// The budget of this month is used up.
    #[error(
        "the budget of this month is used up: {} of {}{}\nhint: what came is kept; `runnel pin` goes on next month, or \
         with a larger --budget",
        mib(*spent), mib(*budget), still(*missing)
    )]
    Budget {
        /// Bytes of this month, of all pins.
        spent: u64,
        /// Bytes that there may be.
        budget: u64,
        /// Bytes of blocks that are not there yet; 0 before that is known.
        missing: u64,
    },
    /// Other processes write so much at the moment that there is no room.
    #[error("the device cache is full of what other processes are writing\nhint: try again when they have ended")]
    Busy,
    /// The disk of the cache fails.
    #[error("the device cache: {}{}", .0, if_full(.0))]
    Cache(#[from] io::Error),
    /// Another process brings the name up to date.
    #[error("another `runnel pin` brings {0} up to date\nhint: try again when it has ended")]
    Running(String),
    /// Somebody wants it to end.
    #[error("stopped before all came\nhint: `runnel pin` goes on from there")]
    Stopped,
}

/// What helps against a full disk.
fn if_full(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "\nhint: make room on its disk, or `runnel cache unpin` another image; what came is kept"
        }
        _ => "",
    }
}

/// A number of bytes as people read it, not less than it is.
fn mib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

fn still(missing: u64) -> String {
    if missing == 0 { String::new() } else { format!("; {} of the image are missing", mib(missing)) }
}
