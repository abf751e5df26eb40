//! Limits of a tree that is read from an archive. They are checked before memory is taken, since a
//! few kilobytes of a compressed archive can name millions of files.

use image::limits::{DEPTH_WRITTEN, INODES_WRITTEN, METADATA_BYTES_WRITTEN};

use super::{Body, Node, PathError};
use crate::content::{Content, Stretch};

/// Files, at most what an image holds; and as many again that upper layers replaced, which stay in
/// memory.
const NODES_MAX: u64 = INODES_WRITTEN as u64;

/// Entries: more than files where there are hard links, as in an image.
const ENTRIES_MAX: u64 = 2 * NODES_MAX;

/// Bytes of names, link targets, attributes and sparse maps. An image holds 56 MiB of them; four
/// times as much leaves room for attributes that many files share, which it keeps once, and for
/// layers that replace others.
const BYTES_MAX: u64 = 4 * METADATA_BYTES_WRITTEN;

/// What a tree holds.
#[derive(Debug, Default)]
pub(super) struct Room {
    nodes: u64,
    /// Entries that were replaced or removed: at least so many nodes may be of no use any more.
    gone: u64,
    entries: u64,
    bytes: u64,
}

impl Room {
    /// Whether one more node fits; called before it is placed.
    pub(super) fn check_node(&self, node: &Node) -> Result<(), PathError> {
        let within = |what, found, limit| if found <= limit { Ok(()) } else { Err(PathError::Limit { what, limit }) };
        within("files", (self.nodes + 1).saturating_sub(self.gone), NODES_MAX)?;
        within("files that are replaced", self.gone, NODES_MAX)?;
        within("bytes of names and attributes", self.bytes + bytes(node), BYTES_MAX)
    }

    /// Whether one more entry of this name fits.
    pub(super) fn check_entry(&self, name: &[u8]) -> Result<(), PathError> {
        if self.entries >= ENTRIES_MAX {
            return Err(PathError::Limit { what: "names of files", limit: ENTRIES_MAX });
        }
        if self.bytes + name.len() as u64 > BYTES_MAX {
            return Err(PathError::Limit { what: "bytes of names and attributes", limit: BYTES_MAX });
        }
        Ok(())
    }

    /// Whether a directory may lie so deep.
    pub(super) fn check_depth(depth: usize) -> Result<(), PathError> {
        if depth > DEPTH_WRITTEN as usize {
            return Err(PathError::Limit { what: "directories in one path", limit: DEPTH_WRITTEN.into() });
        }
        Ok(())
    }

    pub(super) fn node(&mut self, node: &Node) {
        self.nodes += 1;
        self.bytes += bytes(node);
    }

    pub(super) fn entry(&mut self, name: &[u8], replaced: bool) {
        self.bytes += name.len() as u64;
        if replaced {
            self.gone += 1;
        } else {
            self.entries += 1;
        }
    }

    pub(super) fn removed(&mut self, entries: usize) {
        self.gone += entries as u64;
        self.entries = self.entries.saturating_sub(entries as u64);
    }
}

/// Bytes that a node holds beside its fixed part.
fn bytes(node: &Node) -> u64 {
    let xattrs: usize = node.attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
    let body = match &node.body {
        Body::Symlink(target) => target.len(),
        Body::File { content: Content::Stored { stretches, .. }, .. } => size_of::<Stretch>() * stretches.len(),
        _ => 0,
    };
    (xattrs + body) as u64
}
