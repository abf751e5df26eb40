//! How to pack.

use std::path::PathBuf;

use image::Codec;

use crate::PackError;

/// Smallest raw size of a block: one page, where every fault pulls exactly what it asks for.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Largest raw size of a block: as much as any writer of images may use.
pub const BLOCK_BYTES_MAX: u32 = image::limits::BLOCK_BYTES_WRITTEN;
/// Raw size of a block unless told otherwise.
pub const BLOCK_BYTES_DEFAULT: u32 = 64 << 10;

/// Level of zstd unless told otherwise: the highest that packs 60 MB/s on two cores with half as much to spare.
/// Measured on shared libraries in blocks of 64 KiB, two cores, bytes of input and size of the image: level 6 about
/// 130 MB/s and 33.6 %, level 8 105 and 33.4 %, level 9 90 and 33.3 %, level 10 80 and 33.3 %, level 11 50 and 33.3 %.
pub const LEVEL_DEFAULT: i32 = 8;

/// Threads we start at most; more than any machine we pack on has cores.
const THREADS_MAX: usize = 256;

/// How to pack. The image depends on all of these except `threads` and `spool_directory`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How blocks are compressed. A block that does not get smaller is stored as it is.
    pub codec: Codec,
    /// Level of the codec; `None` for [`LEVEL_DEFAULT`] (zstd) or 6 (xz).
    pub level: Option<i32>,
    /// Raw bytes of a block, a multiple of 4096.
    pub block_bytes: u32,
    /// Worker threads; 0 for as many as there are cores.
    pub threads: usize,
    /// Where contents of compressed or piped archives go meanwhile; `None` for [`crate::default_directory`].
    pub spool_directory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { codec: Codec::Zstd, level: None, block_bytes: BLOCK_BYTES_DEFAULT, threads: 0, spool_directory: None }
    }
}

impl Options {
    /// Checks all that can be checked without data.
    ///
    /// # Errors
    /// Names the option that is out of range.
    pub fn validate(&self) -> Result<(), PackError> {
        let wrong = |name, found: String, expected: String| Err(PackError::Option { name, found, expected });
        let page = units::PAGE_BYTES as u32;
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&self.block_bytes) || !self.block_bytes.is_multiple_of(page) {
            let expected = format!("a multiple of {page} from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}");
            return wrong("block size", self.block_bytes.to_string(), expected);
        }
        if self.threads > THREADS_MAX {
            return wrong("threads", self.threads.to_string(), format!("at most {THREADS_MAX}"));
        }
        let levels = match self.codec {
            Codec::Zstd => 1..=22,
            // 10 to 19 are the slower variants of 0 to 9.
            Codec::Xz => 0..=19,
            Codec::Lz4 | Codec::Stored => 0..=0,
        };
        match self.level {
            Some(level) if !levels.contains(&level) => {
                let expected = format!("{} to {} for {}", levels.start(), levels.end(), self.codec);
                wrong("level", level.to_string(), expected)
            }
            _ => Ok(()),
        }
    }

    /// The level that blocks are compressed with.
    pub(crate) fn effective_level(&self) -> i32 {
        self.level.unwrap_or(match self.codec {
            Codec::Zstd => LEVEL_DEFAULT,
            codec => codec.default_level(),
        })
    }

    /// Threads to start.
    pub(crate) fn effective_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX),
            count => count,
        }
    }
}
