//! Packing: the changes of a file as transactions of a bounded size.

use bytes::Bytes;
use wire::volume::Change;

use super::dirty::Dirty;
use super::transaction::{Effect, Transaction};

/// Changes of one transaction; the protocol allows 4096.
const CHANGES_MAX: usize = wire::format::TRANSACTION_CHANGES_MAX - 8;

/// The rest of a transaction is left empty rather than a large write cut below this size.
const WRITE_BYTES_MIN: usize = 16 << 10;

/// Makes transactions of at most `limit` bytes of what was changed of a file: changes, and extents
/// that were written. The file has this size then.
pub(super) fn pack(
    path: &[u8],
    dirty: &Dirty,
    extents: Vec<(u64, Bytes)>,
    size: u64,
    limit: usize,
) -> Vec<Transaction> {
    let mut parts = Packing { limit, path, mtime_ns: dirty.wrote_ns, done: Vec::new(), open: None };
    if let Some((mode, owner)) = dirty.create {
        let exclusive = !dirty.appends && !dirty.replaces;
        parts.add(Change::Create { path: path.to_vec(), mode, exclusive, owner }).created = true;
        if dirty.replaces {
            parts.add(Change::Truncate { path: path.to_vec(), base: None, size: 0 }).cut = Some(0);
        }
    }
    if let Some(cut) = dirty.cut {
        parts.add(Change::Truncate { path: path.to_vec(), base: None, size: cut }).cut = Some(cut);
    }
    let mut end = dirty.cut.unwrap_or(0);
    for (mut offset, mut bytes) in extents {
        while !bytes.is_empty() {
            let now = bytes.split_to(parts.room().min(bytes.len()));
            let length = now.len() as u64;
            let (path, base) = (path.to_vec(), None);
            if dirty.appends {
                parts.add(Change::Append { path, base, bytes: now.clone() }).appended += length;
            } else {
                parts.add(Change::Write { path, base, offset, bytes: now.clone() });
            }
            parts.effect().writes.push((offset, now));
            offset += length;
            end = end.max(offset);
        }
    }
    // A file that was cut may have become longer since by a write of which a later cut left only
    // the length.
    if (dirty.extended || dirty.cut.is_some()) && size > end {
        parts.add(Change::Truncate { path: path.to_vec(), base: None, size }).extended = Some(size);
    }
    add_attributes(&mut parts, dirty);
    parts.finish()
}

fn add_attributes(packing: &mut Packing<'_>, dirty: &Dirty) {
    let path = packing.path;
    if let (uid, gid) = dirty.owner
        && (uid.is_some() || gid.is_some())
    {
        packing.add(Change::SetOwner { path: path.to_vec(), base: None, uid, gid });
    }
    if let Some(mode) = dirty.mode {
        packing.add(Change::SetMode { path: path.to_vec(), base: None, mode });
    }
    if let Some(atime_ns) = dirty.atime {
        packing.add(Change::SetAccessTime { path: path.to_vec(), base: None, atime_ns });
    }
    if let Some(mtime_ns) = dirty.mtime {
        packing.add(Change::SetTime { path: path.to_vec(), base: None, mtime_ns });
    }
}

/// Changes on their way into transactions of a bounded size.
struct Packing<'a> {
    limit: usize,
    path: &'a [u8],
    mtime_ns: i64,
    done: Vec<Transaction>,
    open: Option<(Vec<Change>, Effect, usize)>,
}

impl Packing<'_> {
    /// Bytes that a write may have now.
    fn room(&mut self) -> usize {
        let taken = self.open.as_ref().map_or(0, |(_, _, bytes)| *bytes);
        let room = self.limit.saturating_sub(taken + self.path.len() + 64);
        if room >= WRITE_BYTES_MIN {
            return room;
        }
        self.close();
        self.limit - self.path.len() - 64
    }

    fn add(&mut self, change: Change) -> &mut Effect {
        // With the base that it gets later.
        let bytes = change.encoded_bytes() + 16;
        if self.open.as_ref().is_some_and(|(changes, _, taken)| {
            changes.len() >= CHANGES_MAX || (taken + bytes > self.limit && !changes.is_empty())
        }) {
            self.close();
        }
        let (changes, effect, taken) = self.open.get_or_insert_default();
        changes.push(change);
        *taken += bytes;
        effect
    }

    fn effect(&mut self) -> &mut Effect {
        &mut self.open.get_or_insert_default().1
    }

    fn close(&mut self) {
        if let Some((changes, effect, _)) = self.open.take() {
            self.done.push(Transaction::of_file(self.path, changes, self.mtime_ns, effect));
        }
    }

    fn finish(mut self) -> Vec<Transaction> {
        self.close();
        self.done
    }
}
