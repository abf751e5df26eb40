//! The second read of the source: reads chunks again when their block is made.
//!
//! The first pass kept a hash of every chunk and no data, so memory stays small whatever the tree.
//! Each chunk is compared with that hash: a file that changed in between is an error, never an
//! image that differs from its source.

use crate::PackError;
use crate::chunks::{self, Chunk};
use crate::content::{Content, OpenContent};
use crate::inodes::FileWork;

/// Appends the bytes of `wanted` to `out`, in that order.
pub(crate) fn gather(
    files: &[FileWork<'_>],
    chunk_bytes: u64,
    wanted: &[&Chunk],
    out: &mut Vec<u8>,
) -> Result<(), PackError> {
    let mut places = Vec::with_capacity(wanted.len());
    let mut end = out.len();
    for chunk in wanted {
        places.push(end);
        end += chunk.bytes as usize;
    }
    out.resize(end, 0);
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|&index| (wanted[index].file, wanted[index].position));
    let mut open: Option<(u32, OpenContent<'_>)> = None;
    for index in order {
        let chunk = wanted[index];
        let file = &files[chunk.file as usize];
        if open.as_ref().is_none_or(|(number, _)| *number != chunk.file) {
            open = Some((chunk.file, file.content.open()?));
        }
        let Some((_, content)) = &open else { continue };
        let bytes = &mut out[places[index]..places[index] + chunk.bytes as usize];
        content.read_at(u64::from(chunk.position) * chunk_bytes, bytes)?;
    }
    let parts: Vec<&[u8]> =
        places.iter().zip(wanted).map(|(start, chunk)| &out[*start..*start + chunk.bytes as usize]).collect();
    for (chunk, hash) in wanted.iter().zip(chunks::hashes(&parts)) {
        if hash != Some(chunk.hash) {
            return Err(changed(files[chunk.file as usize].content));
        }
    }
    Ok(())
}

fn changed(content: &Content) -> PackError {
    let path = match content {
        Content::Local(about) => about.path.clone(),
        Content::Stored { name, .. } => name.as_ref().into(),
        // A hole has no chunks.
        Content::Hole => Default::default(),
    };
    PackError::Changed { path }
}
