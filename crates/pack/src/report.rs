//! The numbers of what was packed.

use std::time::Duration;

use image::Filter;
use serde::Serialize;
use units::ImageId;

use crate::base::Kept;
use crate::emit::Emitted;
use crate::survey::Survey;

/// What was packed. Serialised as one flat object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Identity of the image.
    #[serde(serialize_with = "as_text")]
    pub id: ImageId,
    /// The source.
    #[serde(flatten)]
    pub source: SourceReport,
    /// The chunks of its files.
    #[serde(flatten)]
    pub chunks: ChunkReport,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the image.
    pub bytes_out: u64,
    /// Bytes of its metadata.
    pub bytes_metadata: u64,
    /// Bytes of the dictionaries, before compression; part of the metadata.
    pub bytes_dictionaries: u64,
    /// How files are spread over blocks.
    #[serde(flatten)]
    pub spread: SpreadReport,
    /// What was kept of a base, if there was one.
    #[serde(flatten)]
    pub base: Option<BaseReport>,
    /// Blocks that hold what programs read when they start.
    #[serde(flatten)]
    pub hot: HotReport,
    /// Files that are kept as their text.
    #[serde(flatten)]
    pub deflate: DeflateReport,
    /// Wall time from listing to durable.
    pub seconds: f64,
    /// Wall time of each part.
    pub times: Times,
    /// What each stage saved, if that was asked for.
    pub stages: Option<Vec<StageReport>>,
    /// What the user should know about the source.
    pub notes: Vec<String>,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of the regular files, holes included; a file with several names counts once.
    #[serde(rename = "bytes_in")]
    pub bytes: u64,
}

/// What deduplication found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChunkReport {
    /// Chunks that are not zero.
    #[serde(rename = "chunks")]
    pub count: u64,
    /// Distinct ones among them.
    #[serde(rename = "chunks_unique")]
    pub unique: u64,
    /// Bytes of the distinct chunks.
    #[serde(rename = "bytes_unique")]
    pub unique_bytes: u64,
}

/// The number of different blocks that the chunks of a file lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SpreadReport {
    /// Mean over the files that have chunks, without the chunks that a trace calls hot.
    #[serde(rename = "blocks_per_file")]
    pub cold: f64,
    /// The same for all chunks, hot ones too.
    #[serde(rename = "blocks_per_file_all")]
    pub all: f64,
}

/// What an image has of its base. Bytes are those of the image unless something else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BaseReport {
    /// Identity of the base.
    #[serde(serialize_with = "as_text")]
    pub base: ImageId,
    /// Its blocks.
    pub base_blocks: u64,
    /// Blocks that are those of the base, byte for byte.
    pub reused_blocks: u64,
    /// Their bytes.
    pub reused_bytes: u64,
    /// Blocks that are new.
    pub new_blocks: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Bytes of reused blocks, after decoding, that no file has any more.
    pub dead_bytes: u64,
}

/// The hot blocks, which lie together at the start of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HotReport {
    /// Blocks.
    #[serde(rename = "hot_blocks")]
    pub blocks: u64,
    /// Their bytes after decoding.
    #[serde(rename = "hot_bytes")]
    pub bytes: u64,
    /// Their bytes in the image.
    #[serde(rename = "hot_bytes_stored")]
    pub stored_bytes: u64,
}

/// Deflate streams that are kept as their text. Bytes are those of the blocks that they lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeflateReport {
    /// Files.
    #[serde(rename = "deflate_files")]
    pub files: u64,
    /// Bytes as files.
    #[serde(rename = "deflate_bytes")]
    pub bytes: u64,
    /// Bytes as texts.
    #[serde(rename = "deflate_bytes_expanded")]
    pub expanded_bytes: u64,
    /// Bytes in the image.
    #[serde(rename = "deflate_bytes_stored")]
    pub stored_bytes: u64,
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
    /// See [`SpreadReport::all`].
    pub blocks_per_file: f64,
}

impl Report {
    pub(crate) fn new(survey: &Survey, kept: &Kept<'_>, emitted: &Emitted) -> Report {
        let blocks = &emitted.blocks;
        let hot = &blocks[..emitted.hot_blocks as usize];
        let is_expanded = |block: u32| blocks[block as usize].filter == Filter::Deflate;
        let deflate = || blocks.iter().filter(|block| block.filter == Filter::Deflate);
        // Such a file has all of its chunks in one block, and for itself.
        let places = survey.chunks.list.iter().zip(&emitted.chunks);
        let expanded = places.filter(|(chunk, place)| chunk.position == 0 && is_expanded(place.block.0));
        let block_of: Vec<u32> = emitted.chunks.iter().map(|chunk| chunk.block.0).collect();
        Report {
            chunks: ChunkReport {
                count: survey.chunks.uses.len() as u64,
                unique: survey.chunks.list.len() as u64,
                unique_bytes: survey.bytes(),
            },
            blocks: blocks.len() as u64,
            spread: SpreadReport {
                cold: survey.blocks_per_file(&block_of, |chunk| !chunk.group.is_hot()),
                all: survey.blocks_per_file(&block_of, |_| true),
            },
            base: kept.report.map(|base| BaseReport {
                new_blocks: blocks.len() as u64 - base.reused_blocks,
                new_bytes: blocks.iter().map(|block| u64::from(block.stored_bytes)).sum::<u64>() - base.reused_bytes,
                ..base
            }),
            hot: HotReport {
                blocks: hot.len() as u64,
                bytes: hot.iter().map(|block| u64::from(block.raw_bytes)).sum(),
                stored_bytes: hot.iter().map(|block| u64::from(block.stored_bytes)).sum(),
            },
            deflate: DeflateReport {
                files: expanded.count() as u64,
                bytes: deflate().map(|block| u64::from(block.raw_bytes)).sum(),
                expanded_bytes: deflate().map(|block| u64::from(block.expansion_bytes)).sum(),
                stored_bytes: deflate().map(|block| u64::from(block.stored_bytes)).sum(),
            },
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
