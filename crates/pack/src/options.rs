//! Options of packing.

use std::path::PathBuf;
use std::sync::Arc;

use image::Codec;
use profile::Hot;

use crate::PackError;
use crate::sort::{Method, Sorter};

/// Smallest raw size of a block: one page, where every fault pulls exactly what it asks for.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Largest raw size of a block: as much as any writer of images may use.
pub const BLOCK_BYTES_MAX: u32 = image::limits::BLOCK_BYTES_WRITTEN;
/// Raw size of a block by default.
pub const BLOCK_BYTES_DEFAULT: u32 = 64 << 10;

/// Raw size of a block of hot chunks in an image made small, whose hot code is not filtered. Debian
/// minbase with python3, a start of Python and a shell, zstd 19, cold blocks of 128 KiB, each page
/// of the device 75 us: 128 KiB filtered are 5.27 MB, 101 ms to read and 38 to decode; 256 KiB not
/// filtered 5.60 MB, 107 and 18 ms; 1 MiB not filtered 5.43 MB, 104 and 17 ms. The price is paid by
/// a start that no trace covers: the shell reads 10.2 MB instead of 8.6 where only Python was
/// traced.
pub const HOT_BLOCK_BYTES_SMALL: u32 = 1 << 20;

/// Level of zstd by default: the highest that packs 60 MB/s on two cores with half as
/// much to spare. Measured on shared libraries in blocks of 64 KiB, two cores, bytes of input and
/// size of the image: level 6 about 130 MB/s and 33.6 %, level 8 105 and 33.4 %, level 9 90 and
/// 33.3 %, level 10 80 and 33.3 %, level 11 50 and 33.3 %.
pub const LEVEL_DEFAULT: i32 = 8;

/// Threads we start at most; more than any machine we pack on has cores.
const THREADS_MAX: usize = 256;

/// Weight of locality by default.
pub const LOCALITY_DEFAULT: u32 = crate::sort::LOCALITY_DEFAULT;
/// Largest weight of locality.
pub const LOCALITY_MAX: u32 = 10_000;
/// Chunks that a block holds at least, as in RubikFS: smaller blocks have chunks below a page.
const CHUNKS_PER_BLOCK_MIN: u32 = 16;
/// Smallest chunk that an image may have.
const CHUNK_BYTES_MIN: u32 = 256;

/// The stages of packing, each of which can be left out to see what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// Equal chunks are kept once.
    pub deduplicate: bool,
    /// Kinds of data lie apart.
    pub group: bool,
    /// How chunks are sorted.
    pub sort: Method,
    /// Machine code goes through a branch filter.
    pub filter: bool,
    /// With `filter`: machine code of hot chunks does so too. Undoing it takes a start longer than
    /// the bytes it saves take to read, see [`HOT_BLOCK_BYTES_SMALL`].
    pub filter_hot: bool,
    /// Small blocks get dictionaries; only with zstd.
    pub dictionary: bool,
    /// Hot chunks lie apart, if there is a trace.
    pub hot: bool,
    /// `.gz` files are kept as their text where they come out bit for bit.
    pub recompress: bool,
}

impl Stages {
    /// For streaming, the default: files lie together as in the tree, so that the first start of a
    /// program over a network, before anything was learned, asks for few blocks; and nothing makes
    /// the metadata larger, which a device fetches before it starts. Sorted chunks with
    /// dictionaries cost such a start 8.1 s instead of 5.7 (Python with 200 modules, 20 ms, 25
    /// Mbit/s). What a trace calls hot lies apart: that helps every start.
    pub const STREAM: Stages = Stages {
        deduplicate: true,
        group: false,
        sort: Method::None,
        filter: false,
        filter_hot: false,
        dictionary: false,
        hot: true,
        recompress: false,
    };

    /// Everything that reading hardly pays for: small images. `recompress` makes them smaller, but
    /// a block of such files takes forty times as long to decode as another.
    pub const SMALL: Stages = Stages {
        deduplicate: true,
        group: true,
        sort: Method::Greedy,
        filter: true,
        filter_hot: false,
        dictionary: true,
        hot: true,
        recompress: false,
    };

    /// Everything on: the smallest image.
    pub const ALL: Stages = Stages { recompress: true, ..Stages::SMALL };

    /// Whether the sorter looks at contents.
    pub(crate) fn needs_features(&self) -> bool {
        self.sort != Method::None
    }
}

impl Default for Stages {
    fn default() -> Stages {
        Stages::STREAM
    }
}

/// How to pack. The image depends on all of these except `threads`, `spool_directory` and
/// `explain`.
#[derive(Clone, Debug)]
pub struct Options {
    /// How blocks are compressed. A block that does not get smaller is stored as it is.
    pub codec: Codec,
    /// Level of the codec; `None` for [`LEVEL_DEFAULT`] (zstd) or 6 (xz).
    pub level: Option<i32>,
    /// Raw bytes of a block, a multiple of 4096.
    pub block_bytes: u32,
    /// Raw bytes of a block of hot chunks, a multiple of 4096 and at least `block_bytes`; `None`
    /// for `block_bytes`. Hot blocks are read all together, so large ones cost a start nothing.
    pub hot_block_bytes: Option<u32>,
    /// Bytes of a chunk, a power of two from 256 to 4096; `None` for a sixteenth of a block and at
    /// most 4096.
    pub chunk_bytes: Option<u32>,
    /// The stages that run.
    pub stages: Stages,
    /// An older image of which blocks are kept as they are, see [`crate::pack`].
    pub base: Option<PathBuf>,
    /// What programs read when they start; nothing if that is not known.
    pub hot: Hot,
    /// How much keeping the chunks of a file together counts against size, in percent of the
    /// default; 0 sorts for size alone.
    pub locality: u32,
    /// What sorts in place of ours where the stages ask for sorting; for comparisons.
    pub sorter: Option<Arc<dyn Sorter>>,
    /// Leave the chunk hashes out of the image, 1 to 2 % of it. Local mounts need none; a server
    /// derives them when a device first asks, which decodes the whole image once.
    pub derive_hashes: bool,
    /// Refuse a tree that no system can start from, and what the kernel's reader cannot read.
    pub bootable: bool,
    /// Find out what each stage saves, at the cost of compressing everything several times.
    pub explain: bool,
    /// Worker threads; 0 for as many as there are cores.
    pub threads: usize,
    /// Where contents of compressed or piped archives go meanwhile; `None` for
    /// [`crate::default_directory`].
    pub spool_directory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            codec: Codec::Zstd,
            level: None,
            block_bytes: BLOCK_BYTES_DEFAULT,
            hot_block_bytes: None,
            chunk_bytes: None,
            stages: Stages::STREAM,
            base: None,
            hot: Hot::default(),
            locality: LOCALITY_DEFAULT,
            sorter: None,
            derive_hashes: false,
            bootable: false,
            explain: false,
            threads: 0,
            spool_directory: None,
        }
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
        let hot = self.hot_block_bytes();
        if !(self.block_bytes..=BLOCK_BYTES_MAX).contains(&hot) || !hot.is_multiple_of(page) {
            let expected =
                format!("a multiple of {page} from the block size, {}, to {BLOCK_BYTES_MAX}", self.block_bytes);
            return wrong("size of hot blocks", hot.to_string(), expected);
        }
        let chunk = self.chunk_bytes();
        if !(CHUNK_BYTES_MIN..=page).contains(&chunk) || !chunk.is_power_of_two() {
            return wrong("chunk size", chunk.to_string(), format!("a power of two from {CHUNK_BYTES_MIN} to {page}"));
        }
        if self.locality > LOCALITY_MAX {
            return wrong("locality", self.locality.to_string(), format!("at most {LOCALITY_MAX}"));
        }
        for (stage, found, needed) in
            [("deduplication", self.stages.deduplicate, "on"), ("explaining", !self.explain, "off")]
        {
            if self.base.is_some() && !found {
                let found = if needed == "on" { "off" } else { "on" };
                return wrong(stage, found.into(), format!("{needed} with a base"));
            }
        }
        // The module for the kernel lacks the first, and before Linux 6.12 the second.
        for (stage, is_on) in [("recompression", self.stages.recompress), ("dictionaries", self.stages.dictionary)] {
            if self.bootable && is_on {
                return wrong(stage, "on".into(), "off in a bootable image".into());
            }
        }
        if self.threads > THREADS_MAX {
            return wrong("threads", self.threads.to_string(), format!("at most {THREADS_MAX}"));
        }
        let levels = match self.codec {
            Codec::Zstd => 1..=22,
            // 10 to 19 are the slower variants of 0 to 9.
            Codec::Xz => 0..=19,
            // 0 is the fast one.
            Codec::Lz4 => 0..=12,
            Codec::Stored => 0..=0,
        };
        match self.level {
            Some(level) if !levels.contains(&level) => {
                let expected = format!("{} to {} for {}", levels.start(), levels.end(), self.codec);
                wrong("level", level.to_string(), expected)
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a block of hot chunks.
    pub fn hot_block_bytes(&self) -> u32 {
        self.hot_block_bytes.unwrap_or(self.block_bytes)
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u32 {
        let share = self.block_bytes / CHUNKS_PER_BLOCK_MIN;
        let rounded = if share == 0 { CHUNK_BYTES_MIN } else { 1 << share.ilog2() };
        self.chunk_bytes.unwrap_or(rounded.min(units::PAGE_BYTES as u32))
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
