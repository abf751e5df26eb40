//! The files that the volume has changed: their ids and versions, and their size, times and inode
//! after our last change. These show a change behind our back. The table is always in memory, and
//! on disk as of the last checkpoint.

use std::collections::{HashMap, VecDeque};
use std::io;

use crate::answers::Answers;
use crate::disk::{Disk, FileStat, Identity, Stamp};
use crate::format::*;
use crate::journal::Key;
use crate::record::Record;
use crate::{FileId, Peer, Seen, VolumeError};

/// Name in the journal folder.
pub(crate) const TABLE: &[u8] = b"table";
/// A table being written.
const TABLE_NEW: &[u8] = b"table.new";

/// Ids with this bit are derived from a file's identity; without it they are counted.
const DERIVED: u64 = 1 << 63;

/// A file that the volume has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tracked {
    pub identity: Identity,
    pub version: u64,
    pub stamp: Stamp,
    /// Sequence of the frame that last changed it.
    pub changed: u64,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Which volume this is, wherever its folder lies; 0 until it is given one.
    pub id: u128,
    /// The key of the secrets of devices; zeros until it is drawn.
    pub device_key: [u8; SECRET_BYTES],
    /// Key of the journal that follows this table.
    pub key: Key,
    /// The last frame that is in the files.
    pub sequence: u64,
    /// The next id to count.
    pub next: u64,
    /// Answers to transactions of devices.
    pub answers: Answers,
    files: HashMap<FileId, Tracked>,
    by_inode: HashMap<u64, FileId>,
}

impl Table {
    pub fn new(key: Key) -> Table {
        Table { key, next: FileId::TOP.0 + 1, ..Table::default() }
    }

    /// The id and version of a file as it is now. A tracked file that looks different was changed
    /// behind our back: its version becomes the time of that change, or the next one if that is
    /// later. The version of an untracked file is that time, so it grows over restarts too.
    pub fn seen(&mut self, stat: &FileStat) -> Seen {
        let changed = u64::try_from(stat.stamp.ctime_ns).unwrap_or(0).max(1);
        if let Some(file) = self.by_inode.get(&stat.identity.inode).copied() {
            if let Some(tracked) = self.files.get_mut(&file).filter(|tracked| tracked.identity == stat.identity) {
                if tracked.stamp == Stamp::UNKNOWN {
                    tracked.stamp = stat.stamp;
                }
                if tracked.stamp != stat.stamp {
                    tracked.version = changed.max(tracked.version + 1);
                    tracked.stamp = stat.stamp;
                }
                return Seen { file, version: tracked.version };
            }
            self.remove(file);
        }
        Seen { file: derived(stat.identity), version: changed }
    }

    /// Takes what a record says of devices; other records change nothing.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Answer { writer, peer, versions } => self.answers.insert(*writer, *peer, versions.clone()),
            Record::Inherit { device, peer, from } => self.answers.inherit(*device, *peer, *from),
            _ => {}
        }
    }

    /// The secret of a device.
    pub fn secret(&self, device: u128) -> [u8; SECRET_BYTES] {
        *blake3::keyed_hash(&self.device_key, &device.to_le_bytes()).as_bytes()
    }

    /// The tracked state of a file.
    pub fn get(&self, file: FileId) -> Option<&Tracked> {
        self.files.get(&file)
    }

    /// Remembers a file after our own change.
    pub fn insert(&mut self, file: FileId, tracked: Tracked) {
        self.remove(file);
        if let Some(before) = self.by_inode.insert(tracked.identity.inode, file) {
            self.files.remove(&before);
        }
        self.files.insert(file, tracked);
    }

    pub fn remove(&mut self, file: FileId) {
        if let Some(tracked) = self.files.remove(&file)
            && self.by_inode.get(&tracked.identity.inode) == Some(&file)
        {
            self.by_inode.remove(&tracked.identity.inode);
        }
    }

    /// Forgets those that were changed longest ago, so that `files_max` remain. They go on with
    /// derived ids.
    pub fn shrink(&mut self, files_max: usize) {
        if self.files.len() <= files_max {
            return;
        }
        let mut oldest: Vec<_> = self.files.iter().map(|(file, tracked)| (tracked.changed, *file)).collect();
        oldest.sort_unstable();
        let excess = oldest.len() - files_max;
        for (_, file) in oldest.into_iter().filter(|(_, file)| *file != FileId::TOP).take(excess) {
            self.remove(file);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TABLE_HEADER_BYTES + self.files.len() * TABLE_FILE_BYTES + TABLE_HASH_BYTES);
        out.extend(TABLE_MAGIC);
        out.extend(self.key);
        for number in [self.sequence, self.next, self.files.len() as u64] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.id.to_le_bytes());
        out.extend(self.device_key);
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(file, _)| **file);
        for (file, tracked) in files {
            let Tracked { identity, version, stamp, changed } = tracked;
            for number in [file.0, identity.inode, identity.born_ns as u64, *version, stamp.size] {
                out.extend(number.to_le_bytes());
            }
            for number in [stamp.mtime_ns as u64, stamp.ctime_ns as u64, *changed] {
                out.extend(number.to_le_bytes());
            }
        }
        for (id, device) in self.answers.devices() {
            out.extend(id.to_le_bytes());
            out.extend(device.peer.0.to_le_bytes());
            out.extend(device.last.to_le_bytes());
            out.extend((device.answers.len() as u32).to_le_bytes());
            for (number, versions) in &device.answers {
                out.extend(number.to_le_bytes());
                out.extend((versions.len() as u32).to_le_bytes());
                for Seen { file, version } in versions {
                    out.extend(file.0.to_le_bytes());
                    out.extend(version.to_le_bytes());
                }
            }
        }
        let hash = *blake3::hash(&out).as_bytes();
        out.extend_from_slice(&hash[..TABLE_HASH_BYTES]);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Table, VolumeError> {
        let corrupt = |offset: usize, why: &str| {
            Err(VolumeError::Corrupt { file: "table", offset: offset as u64, why: why.to_owned() })
        };
        if bytes.len() < TABLE_HEADER_1_BYTES + TABLE_HASH_BYTES {
            return corrupt(bytes.len(), "it ends too early");
        }
        let header_bytes = match bytes.first_chunk::<8>() {
            Some(&TABLE_MAGIC) => TABLE_HEADER_BYTES,
            Some(&TABLE_MAGIC_2) => TABLE_HEADER_2_BYTES,
            Some(&TABLE_MAGIC_1) => TABLE_HEADER_1_BYTES,
            _ => return corrupt(0, "it does not begin with RNLVTBL3"),
        };
        let (has_devices, has_peers) = (header_bytes > TABLE_HEADER_1_BYTES, header_bytes == TABLE_HEADER_BYTES);
        let (covered, hash) = bytes.split_at(bytes.len() - TABLE_HASH_BYTES);
        if blake3::hash(covered).as_bytes()[..TABLE_HASH_BYTES] != *hash {
            return corrupt(covered.len(), "its hash does not match");
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| covered[at + index]));
        let count = number(40);
        let files_bytes = count.saturating_mul(TABLE_FILE_BYTES as u64);
        let room = covered.len().checked_sub(header_bytes).map_or(0, |room| room as u64);
        if covered.len() < header_bytes {
            return corrupt(covered.len(), "it ends too early");
        }
        if count > TABLE_FILES_ACCEPTED_MAX || files_bytes > room || (!has_devices && files_bytes < room) {
            return corrupt(40, "its length is not that of the files it should hold");
        }
        let (files, devices) = covered.split_at(header_bytes + files_bytes as usize);
        let mut table = Table::new(std::array::from_fn(|index| bytes[8 + index]));
        (table.sequence, table.next) = (number(24), number(32));
        if has_devices {
            table.id = u128::from_le_bytes(std::array::from_fn(|index| covered[TABLE_HEADER_1_BYTES + index]));
        }
        if has_peers {
            table.device_key = std::array::from_fn(|index| covered[TABLE_HEADER_2_BYTES + index]);
        }
        for at in (header_bytes..files.len()).step_by(TABLE_FILE_BYTES) {
            let field = |index: usize| number(at + 8 * index);
            let identity = Identity { inode: field(1), born_ns: field(2) as i64 };
            let stamp = Stamp { size: field(4), mtime_ns: field(5) as i64, ctime_ns: field(6) as i64 };
            table.insert(FileId(field(0)), Tracked { identity, version: field(3), stamp, changed: field(7) });
        }
        match decode_devices(devices, has_peers, &mut table.answers) {
            Ok(()) => Ok(table),
            Err(left) => corrupt(covered.len() - left, "what devices were answered makes no sense"),
        }
    }

    /// Reads the table of a journal folder; `None` if there is none yet.
    pub fn load(disk: &dyn Disk) -> Result<Option<Table>, VolumeError> {
        match disk.open(TABLE, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(VolumeError::io("opening", TABLE, error)),
            Ok(file) => {
                let limit = TABLE_FILES_ACCEPTED_MAX * TABLE_FILE_BYTES as u64 + TABLE_DEVICES_BYTES_MAX;
                let bytes = read_whole(file.as_ref(), limit).map_err(|e| VolumeError::io("reading", TABLE, e))?;
                Table::decode(&bytes).map(Some)
            }
        }
    }

    /// Puts the table in the place of the one before, on stable storage.
    pub fn store(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = match disk.create(TABLE_NEW, 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.unlink(TABLE_NEW)?;
                disk.create(TABLE_NEW, 0o600)?
            }
            other => other?,
        };
        file.write_at(0, &self.encode())?;
        file.sync()?;
        disk.rename(TABLE_NEW, TABLE)?;
        disk.sync_folder(b"")
    }
}

/// Reads the devices up to the end; the error is how many bytes are left where they make no sense.
fn decode_devices(mut from: &[u8], has_peers: bool, answers: &mut Answers) -> Result<(), usize> {
    fn taken<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], usize> {
        let (taken, rest) = from.split_first_chunk().ok_or(from.len())?;
        *from = rest;
        Ok(*taken)
    }
    let from = &mut from;
    while !from.is_empty() {
        let device = u128::from_le_bytes(taken(from)?);
        let peer = if has_peers { Peer(u64::from_le_bytes(taken(from)?)) } else { Peer::UNKNOWN };
        let last = u64::from_le_bytes(taken(from)?);
        let mut told = VecDeque::new();
        for _ in 0..u32::from_le_bytes(taken(from)?) {
            let number = u64::from_le_bytes(taken(from)?);
            let mut versions = Vec::new();
            for _ in 0..u32::from_le_bytes(taken(from)?) {
                let (file, version) = (FileId(u64::from_le_bytes(taken(from)?)), u64::from_le_bytes(taken(from)?));
                versions.push(Seen { file, version });
            }
            if number > last || told.back().is_some_and(|(before, _)| *before >= number) {
                return Err(from.len());
            }
            told.push_back((number, versions));
        }
        answers.restore(device, peer, last, told);
    }
    Ok(())
}

/// All bytes of a file, at most `limit`.
pub(crate) fn read_whole(file: &dyn crate::DiskFile, limit: u64) -> io::Result<Vec<u8>> {
    let size = file.stat()?.stamp.size;
    if size > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; size as usize];
    let count = file.read_at(0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The id of a volume: that of its folder when it was first served, kept in the table from then on.
pub(crate) fn volume_id(top: Identity) -> u128 {
    let hash = blake3::Hasher::new()
        .update(b"volume")
        .update(&top.inode.to_le_bytes())
        .update(&top.born_ns.to_le_bytes())
        .finalize();
    u128::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index])).max(1)
}

/// Whether an id follows from what a file is on the disk, so that it was never counted.
pub(crate) fn is_derived(file: FileId) -> bool {
    file.0 & DERIVED != 0
}

/// The id of a file that the volume did not make: it follows from the identity, so that it is the
/// same after a restart and another one when the inode number is used again.
fn derived(identity: Identity) -> FileId {
    let hash =
        blake3::Hasher::new().update(&identity.inode.to_le_bytes()).update(&identity.born_ns.to_le_bytes()).finalize();
    FileId(u64::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index])) | DERIVED)
}
