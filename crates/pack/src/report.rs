//! What was packed, in numbers.

use std::time::Duration;

use image::Filter;
use serde::Serialize;
use units::ImageId;

use crate::arrange::Arrangement;
use crate::emit::Emitted;
use crate::survey::Survey;

/// What was packed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Identity of the image.
    #[serde(serialize_with = "as_text")]
    pub id: ImageId,
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of the regular files, holes included; a file with several names counts once.
    pub bytes_in: u64,
    /// Chunks that are not zero.
    pub chunks: u64,
    /// Distinct ones among them.
    pub chunks_unique: u64,
    /// Bytes of the distinct chunks.
    pub bytes_unique: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the image.
    pub bytes_out: u64,
    /// Bytes of its metadata.
    pub bytes_metadata: u64,
    /// Bytes of the dictionaries, before compression; part of the metadata.
    pub bytes_dictionaries: u64,
    /// What opening a file costs: different blocks that the chunks of a file lie in, mean over the files that have
    /// any; of chunks that no trace calls hot.
    pub blocks_per_file: f64,
    /// The same without regard to heat.
    pub blocks_per_file_all: f64,
    /// Blocks that hold what programs read when they start.
    pub hot_blocks: u64,
    /// Their bytes after decoding.
    pub hot_bytes: u64,
    /// Their bytes in the image, one sequential run.
    pub hot_bytes_stored: u64,
    /// Files that are kept as their text.
    pub deflate_files: u64,
    /// Bytes of the blocks that they lie in, as files, as texts, and in the image.
    pub deflate_bytes: u64,
    /// See `deflate_bytes`.
    pub deflate_bytes_expanded: u64,
    /// See `deflate_bytes`.
    pub deflate_bytes_stored: u64,
    /// Wall time from listing to durable.
    pub seconds: f64,
    /// Wall time of each part.
    pub times: Times,
    /// What each stage saved, if that was asked for.
    pub stages: Option<Vec<StageReport>>,
    /// What the user should know about the source.
    pub notes: Vec<String>,
}

/// Wall time of the parts of packing, serialised in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Times {
    /// Reading, hashing, judging.
    #[serde(serialize_with = "as_seconds")]
    pub survey: Duration,
    /// Looking for deflate streams that can be made anew.
    #[serde(serialize_with = "as_seconds")]
    pub expand: Duration,
    /// Sorting chunks into blocks.
    #[serde(serialize_with = "as_seconds")]
    pub sort: Duration,
    /// Learning dictionaries.
    #[serde(serialize_with = "as_seconds")]
    pub learn: Duration,
    /// Reading again, filtering, compressing, writing.
    #[serde(serialize_with = "as_seconds")]
    pub compress: Duration,
}

/// The blocks of the image as they would be with some of the stages.
#[derive(Clone, Debug, Serialize)]
pub struct StageReport {
    /// The stage that was added last.
    pub stage: &'static str,
    /// Bytes of all blocks and dictionaries.
    pub bytes: u64,
    /// See [`Report::blocks_per_file_all`].
    pub blocks_per_file: f64,
}

impl Report {
    pub(crate) fn new(survey: &Survey, arrangement: &Arrangement, emitted: &Emitted) -> Report {
        let blocks = &emitted.blocks;
        let hot = &blocks[..arrangement.hot_blocks as usize];
        let is_expanded = |block: u32| blocks[block as usize].filter == Filter::Deflate;
        let deflate = || blocks.iter().filter(|block| block.filter == Filter::Deflate);
        let streams = survey.streams.list.iter();
        let expanded = streams.filter(|stream| is_expanded(emitted.chunks[stream.chunk_first as usize].block.0));
        let block_of: Vec<u32> = emitted.chunks.iter().map(|chunk| chunk.block.0).collect();
        Report {
            chunks: survey.chunks.uses.len() as u64,
            chunks_unique: survey.chunks.list.len() as u64,
            bytes_unique: survey.bytes(),
            blocks: blocks.len() as u64,
            blocks_per_file: survey.blocks_per_file(&block_of, |chunk| !chunk.group.is_hot()),
            blocks_per_file_all: survey.blocks_per_file(&block_of, |_| true),
            hot_blocks: hot.len() as u64,
            hot_bytes: hot.iter().map(|block| u64::from(block.raw_bytes)).sum(),
            hot_bytes_stored: hot.iter().map(|block| u64::from(block.stored_bytes)).sum(),
            deflate_files: expanded.count() as u64,
            deflate_bytes: deflate().map(|block| u64::from(block.raw_bytes)).sum(),
            deflate_bytes_expanded: deflate().map(|block| u64::from(block.expansion_bytes)).sum(),
            deflate_bytes_stored: deflate().map(|block| u64::from(block.stored_bytes)).sum(),
            ..Report::default()
        }
    }
}

fn as_text<S: serde::Serializer>(id: &ImageId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn as_seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
