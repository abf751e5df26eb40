//! What a server tells about itself: the list of images and the status document. Both are JSON.

use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::error::Failure;
use crate::lock::locked;
use crate::published::Published;
use crate::shared::Shared;
use crate::volumes::Served;

/// Longest document in one reply, with room for the frame's other fields.
const JSON_BYTES_MAX: usize = wire::format::FRAME_BYTES_MAX_WRITTEN - 1024;

/// The status document. Fields are only ever added.
#[derive(Debug, Serialize)]
struct Status {
    version: &'static str,
    uptime_seconds: u64,
    connections: u64,
    /// Peers that lately had to give way to others, and go last.
    slow_peers: usize,
    uploads_interrupted: usize,
    bundles_waiting: usize,
    memory: Memory,
    metrics: BTreeMap<&'static str, u64>,
    images: Vec<ImageStatus>,
    volumes: Vec<VolumeStatus>,
}

/// Bytes held now.
#[derive(Debug, Serialize)]
struct Memory {
    limit_bytes: usize,
    received_bytes: usize,
    replies_bytes: usize,
    pushes_bytes: usize,
    decoded_blocks_bytes: usize,
    held_blocks_bytes: usize,
    metadata_bytes: usize,
    learned_bytes: usize,
    devices_bytes: usize,
}

/// One open image.
#[derive(Debug, Serialize)]
struct ImageStatus {
    id: String,
    file_bytes: u64,
    inodes: u32,
    blocks: u32,
    metadata_memory_bytes: usize,
    actions: usize,
    action_pages: usize,
    tokens: usize,
    bundles: usize,
    bundle_bytes: u64,
    predictor: PredictorStatus,
}

/// One volume.
#[derive(Debug, Serialize)]
struct VolumeStatus {
    name: String,
    id: String,
    writable: bool,
    block_bytes: u32,
    journal_bytes: u64,
    files_followed: usize,
    tokens: usize,
}

/// What the Predictor of one image did since the image was opened.
#[derive(Debug, Serialize)]
struct PredictorStatus {
    touches: u64,
    constructs: u64,
    actions_created: u64,
    actions_refined: u64,
    pages_extended: u64,
    matches: u64,
    mismatches: u64,
    rescans: u64,
    pages_ordered: u64,
    audits: u64,
    expired: u64,
    crowded_out: u64,
}

/// The status document. Takes every lock for a moment; made on a blocking thread.
pub(crate) fn status(shared: &Shared) -> Result<Bytes, Failure> {
    let opened = shared.catalog.opened();
    let (decoded, held) = shared.blocks.bytes();
    let mut status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: shared.now().0 / 1_000_000,
        connections: shared.metrics.connections.get(),
        slow_peers: shared.buffers.slow().count(),
        uploads_interrupted: shared.uploads.interrupted().len(),
        bundles_waiting: shared.bundler.as_ref().map_or(0, |bundler| bundler.waiting()),
        memory: Memory {
            limit_bytes: shared.config.memory_bytes_max,
            received_bytes: shared.buffers.received().taken(),
            replies_bytes: shared.buffers.replies().taken(),
            pushes_bytes: shared.builders.memory().taken(),
            decoded_blocks_bytes: decoded,
            held_blocks_bytes: held,
            metadata_bytes: shared.catalog.memory.taken_bytes(),
            learned_bytes: shared.catalog.learned.taken_bytes(),
            devices_bytes: shared.devices.memory().taken(),
        },
        metrics: shared.metrics.values(),
        images: opened.iter().map(|image| image_status(image)).collect(),
        volumes: shared.volumes.iter().map(|served| volume_status(served)).collect(),
    };
    status.images.sort_by(|a, b| a.id.cmp(&b.id));
    json(&status)
}

/// The published images, of those for which `may` holds; the list is cut until it fits one reply.
pub(crate) fn listing(shared: &Shared, may: impl Fn(&str) -> bool) -> Result<Bytes, Failure> {
    let mut listing = shared.catalog.names().listing()?;
    listing.images.retain(|image| may(&format!("{}:{}", image.name, image.tag)));
    loop {
        let bytes = json(&listing)?;
        if bytes.len() <= JSON_BYTES_MAX {
            return Ok(bytes);
        }
        listing.images.truncate(listing.images.len() / 2);
        listing.truncated = true;
    }
}

pub(crate) fn json(document: &impl Serialize) -> Result<Bytes, Failure> {
    let bytes = serde_json::to_vec(document);
    bytes.map(Bytes::from).map_err(|error| Failure::new(wire::ErrorCode::Internal, error.to_string()))
}

fn volume_status(served: &Served) -> VolumeStatus {
    let (files_followed, tokens) = {
        let profiles = locked(&served.profiles);
        (profiles.files(), profiles.tokens())
    };
    VolumeStatus {
        name: served.name.clone(),
        id: format!("{:032x}", served.id),
        writable: served.options.mode == volume::Mode::ReadWrite,
        block_bytes: served.options.block_bytes,
        journal_bytes: served.volume().map_or(0, |volume| volume.journal_bytes()),
        files_followed,
        tokens,
    }
}

fn image_status(image: &Published) -> ImageStatus {
    let (bundles, bundle_bytes) = image.bundles.count_and_bytes();
    let predictor = locked(&image.predictor);
    let counters = predictor.counters();
    ImageStatus {
        id: image.id.to_string(),
        file_bytes: image.metadata.file_bytes(),
        inodes: image.metadata.inode_count(),
        blocks: image.metadata.block_count(),
        metadata_memory_bytes: image.metadata.memory_bytes(),
        actions: predictor.actions().len(),
        action_pages: predictor.actions().pages_total(),
        tokens: predictor.tokens(),
        bundles,
        bundle_bytes,
        predictor: PredictorStatus {
            touches: counters.touches,
            constructs: counters.constructs,
            actions_created: counters.created,
            actions_refined: counters.refined,
            pages_extended: counters.extended_pages,
            matches: counters.matches,
            mismatches: counters.mismatches,
            rescans: counters.rescans,
            pages_ordered: counters.generated_pages,
            audits: counters.audits,
            expired: counters.expired,
            crowded_out: counters.crowded_out,
        },
    }
}
