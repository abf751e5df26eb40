//! Stages changes of ranges: zeros, room, and copies made on the server.

use super::{FILE_BYTES_MAX, NAME_ROOM_BYTES, Staging};
use crate::disk::Kind;
use crate::record::Record;
use crate::reserve::RangeSupport;
use crate::{Allocation, FileId, Operation, Seen, Transaction, VolumeError, VolumePath};

/// What stays free when room is reserved, for the transactions of others.
const SPARE_BYTES: u64 = 4 << 20;

impl Staging<'_> {
    /// Stages the operations on ranges.
    pub(super) fn range(&mut self, operation: &Operation, by: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Allocate { path, base, offset, length, allocation } => {
                let file = self.file(path, base, by)?;
                self.allocate(path, file, (*offset, *length), *allocation, by)
            }
            Operation::Copy { path, base, offset, from, from_base, from_offset, length } => {
                let source = self.source(from, from_base)?;
                let file = self.file(path, base, by)?;
                self.copy((from, source, *from_offset), (file, *offset), *length, by)
            }
            // Asked of the others by nobody.
            _ => Err(VolumeError::Invalid { path: String::new(), why: "no range is meant" }),
        }
    }

    fn allocate(
        &mut self,
        path: &VolumePath,
        file: FileId,
        (offset, length): (u64, u64),
        allocation: Allocation,
        by: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (end, limit) = (offset.saturating_add(length), FILE_BYTES_MAX);
        if end > limit {
            return Err(VolumeError::TooLarge { what: "bytes of a file", found: end, limit });
        }
        let RangeSupport { room, holes, zeros } = self.limits.ranges;
        let supported = match (allocation.zero, allocation.reserve) {
            (true, true) => zeros && room,
            (true, false) => holes,
            (false, _) => room,
        };
        if !supported {
            let what = if allocation.reserve { "room" } else { "holes" };
            return Err(VolumeError::Unsupported { path: path.to_string(), what });
        }
        if allocation.extend && end > self.tree.node(file).size {
            self.tree.set_size(file, end)?;
        }
        if allocation.reserve {
            self.check_room(file, length, end)?;
        }
        self.tree.need_bytes(NAME_ROOM_BYTES);
        match (allocation.zero, allocation.reserve) {
            (true, reserved) => self.tree.record(Record::Zero { file, offset, length, reserved }),
            (false, _) => self.tree.record(Record::Reserve { file, offset, length }),
        }
        self.running.set_time(file, by.mtime_ns);
        Ok(self.change(file))
    }

    /// Whether the disk has room for a range that ends at `end`, asked before anything is promised:
    /// who asks for more must not leave a full disk behind. What the file has already may all lie
    /// in the range.
    fn check_room(&mut self, file: FileId, length: u64, end: u64) -> Result<(), VolumeError> {
        let node = &self.tree.node(file);
        // A quota counts sizes; room behind the end would be counted by nobody.
        if let Some(quota_bytes) = self.limits.quota_bytes.filter(|_| end > node.size) {
            return Err(VolumeError::OverQuota { quota_bytes });
        }
        let lacking = length.saturating_sub(node.stored_bytes);
        let space = self.tree.disk().space().map_err(|error| VolumeError::io("asking for room in", b"", error))?;
        if lacking > 0 && lacking.saturating_add(SPARE_BYTES) > space.bytes {
            return Err(VolumeError::NoSpace { what: "the disk is full" });
        }
        Ok(())
    }

    /// Writes what another file holds. Its holes become holes, so nothing is read of them.
    fn copy(
        &mut self,
        (path, source, from): (&VolumePath, FileId, u64),
        (file, offset): (FileId, u64),
        length: u32,
        by: &Transaction,
    ) -> Result<FileId, VolumeError> {
        self.running.copy(length)?;
        // What it will hold is not on the disk yet.
        if self.writes(source, self.running.first_record()) {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "the same transaction writes it before" });
        }
        if self.writes(source, 0) {
            return Err(VolumeError::Busy { path: path.to_string() });
        }
        let node = &self.tree.node(source);
        let disk = node.disk.clone().ok_or_else(|| VolumeError::Busy { path: path.to_string() })?;
        let until = from.saturating_add(length.into()).min(node.size);
        let failed = |source| VolumeError::io("copying from", &disk, source);
        let open = self.tree.disk().open(&disk, false).map_err(failed)?;
        let to = |at: u64| offset.saturating_add(at - from);
        let mut at = from;
        while at < until {
            let data = open.data_after(at).map_err(failed)?;
            let (start, end) =
                data.map_or((until, until), |(start, end)| (start.clamp(at, until), end.clamp(at, until)));
            if start > at && self.limits.ranges.holes {
                self.tree.record(Record::Zero { file, offset: to(at), length: start - at, reserved: false });
            } else if start > at {
                self.write(file, to(at), &vec![0; (start - at) as usize], by)?;
            }
            if end > start {
                let mut bytes = vec![0; (end - start) as usize];
                let count = open.read_at(start, &mut bytes).map_err(failed)?;
                if count < bytes.len() {
                    // Somebody else cut it meanwhile.
                    return Err(VolumeError::Busy { path: path.to_string() });
                }
                self.write(file, to(start), &bytes, by)?;
            }
            at = end;
        }
        if until > from && to(until) > self.tree.node(file).size {
            self.tree.set_size(file, to(until))?;
        }
        self.tree.need_bytes(NAME_ROOM_BYTES);
        self.running.set_time(file, by.mtime_ns);
        Ok(self.change(file))
    }

    /// A regular file that is read.
    fn source(&mut self, path: &VolumePath, base: &Option<Seen>) -> Result<FileId, VolumeError> {
        let (_, found) = self.tree.resolve(path)?;
        let file = found.ok_or_else(|| VolumeError::not_found(path))?;
        let node = &self.tree.node(file);
        if node.kind() != Kind::File {
            return Err(VolumeError::NotFile { path: path.to_string() });
        }
        let found = Some(Seen { file, version: self.running.version_before(file, node.version) });
        if base.is_some() && *base != found {
            return Err(VolumeError::Conflict { path: path.to_string(), found });
        }
        Ok(file)
    }

    /// Whether the records from there on write the file.
    fn writes(&self, wanted: FileId, from: usize) -> bool {
        self.records()[from..].iter().any(|record| match record {
            Record::Write { file, .. } | Record::Size { file, .. } | Record::Zero { file, .. } => *file == wanted,
            _ => false,
        })
    }
}
