//! Answers to demands that have to be made first.

use bytes::Bytes;
use codec::Codec;
use units::{PAGE_BYTES, PageId};
use wire::Reply;

use crate::error::Failure;
use crate::published::Published;

/// zstd level of single pages: they are compressed while a program waits.
const PAGES_LEVEL: i32 = 3;

/// A range of the chunk hashes of an image that does not store them; the first to ask waits until
/// they are derived.
pub(crate) fn chunk_hashes(image: &Published, offset: u64, bytes: u32) -> Result<Reply, Failure> {
    let outside = || Failure::bad_request(format!("bytes {offset} and on are no range of the chunk hashes"));
    let start = offset.checked_sub(image.metadata.chunk_hash_region().start).ok_or_else(outside)? as usize;
    let end = start.checked_add(bytes as usize).ok_or_else(outside)?;
    Ok(Reply::MetaData { offset, bytes: image.chunk_hashes(start..end)? })
}

/// Single pages, as one piece, compressed if that makes it smaller and the device is not near.
pub(crate) fn pages(image: &Published, pages: &[PageId], is_near: bool) -> Result<Reply, Failure> {
    let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
    for page in pages {
        image.page(*page, &mut raw)?;
    }
    if is_near {
        return Ok(Reply::Pages { codec: Codec::Stored.to_u8(), bytes: Bytes::from(raw) });
    }
    let mut stored = Vec::new();
    let compressed = codec::encode(Codec::Zstd, PAGES_LEVEL, &raw, &mut stored).is_ok() && stored.len() < raw.len();
    let (codec, bytes) = if compressed { (Codec::Zstd, stored) } else { (Codec::Stored, raw) };
    Ok(Reply::Pages { codec: codec.to_u8(), bytes: Bytes::from(bytes) })
}
