//! Ranges of files: zeros, room, and copies made on the server.

use super::{NAME_ROOM_BYTES, Plan};
use crate::record::Record;
use crate::transaction::COPY_BYTES_MAX;
use crate::{Allocation, FileId, Operation, Transaction, VolumeError, VolumePath};

impl Plan<'_> {
    /// Plans the operations on ranges.
    pub(super) fn range(&mut self, operation: &Operation, by: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Allocate { path, base, offset, length, allocation } => {
                let file = self.file(path, base, by)?;
                self.allocate(path, file, (*offset, *length), *allocation, by)
            }
            Operation::Copy { path, base, offset, from, from_base, from_offset, length } => {
                let source = self.file(from, from_base, by)?;
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
        let (end, limit) = (offset.saturating_add(length), super::FILE_BYTES_MAX);
        if end > limit {
            return Err(VolumeError::TooLarge { what: "bytes of a file", found: end, limit });
        }
        let size = self.overlay.nodes[&file].size;
        if allocation.extend && end > size {
            self.resize(file, end)?;
            self.records.push(Record::Size { file, size: end });
        }
        if allocation.reserve {
            // A quota counts sizes; room behind the end would be counted by nobody.
            if let Some(quota_bytes) = self.quota_bytes.filter(|_| end > self.overlay.nodes[&file].size) {
                return Err(VolumeError::OverQuota { quota_bytes });
            }
            let Some(disk) = self.overlay.nodes[&file].disk.clone() else {
                // It is not on the disk before the group is applied.
                return Err(match self.made_here(file) {
                    true => VolumeError::Invalid { path: path.to_string(), why: "the same transaction makes it" },
                    false => VolumeError::Busy { path: path.to_string() },
                });
            };
            self.reservations.push((disk, offset, length));
        }
        if allocation.zero {
            self.records.push(Record::Zero { file, offset, length, reserved: allocation.reserve });
        }
        self.overlay.needs.bytes += NAME_ROOM_BYTES;
        if allocation.zero || allocation.extend {
            self.times.insert(file, by.mtime_ns);
        }
        Ok(self.change(file))
    }

    /// Keeps the room that the running transaction asks for, once nothing else refuses it and before
    /// anything is promised. No reader sees it.
    pub(super) fn reserve(&mut self) -> Result<(), VolumeError> {
        for (disk, offset, length) in &self.reservations {
            let kept = crate::apply::open_for_writing(self.disk, disk).and_then(|open| open.allocate(*offset, *length));
            let path = || String::from_utf8_lossy(disk).into_owned();
            kept.map_err(|source| match source.kind() {
                _ if crate::disk::is_full(&source) => VolumeError::NoSpace { what: "the disk is full" },
                std::io::ErrorKind::NotFound => VolumeError::Busy { path: path() },
                std::io::ErrorKind::Unsupported => VolumeError::Unsupported { path: path(), what: "room" },
                _ => VolumeError::io("reserving room of", disk, source),
            })?;
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
        if length > COPY_BYTES_MAX || self.copied.saturating_add(length) > COPY_BYTES_MAX {
            let (found, limit) = (u64::from(length) + u64::from(self.copied), u64::from(COPY_BYTES_MAX));
            return Err(VolumeError::TooLarge { what: "bytes that a transaction copies", found, limit });
        }
        self.copied += length;
        // What it will hold is not on the disk yet.
        if self.writes(source, self.from_record) {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "the same transaction writes it before" });
        }
        if self.writes(source, 0) {
            return Err(VolumeError::Busy { path: path.to_string() });
        }
        let node = &self.overlay.nodes[&source];
        let disk = node.disk.clone().ok_or_else(|| VolumeError::Busy { path: path.to_string() })?;
        let until = from.saturating_add(length.into()).min(node.size);
        let failed = |source| VolumeError::io("copying from", &disk, source);
        let open = self.disk.open(&disk, false).map_err(failed)?;
        let to = |at: u64| offset.saturating_add(at - from);
        let mut at = from;
        while at < until {
            let data = open.data_after(at).map_err(failed)?;
            let (start, end) =
                data.map_or((until, until), |(start, end)| (start.clamp(at, until), end.clamp(at, until)));
            if start > at {
                self.records.push(Record::Zero { file, offset: to(at), length: start - at, reserved: false });
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
        if until > from && to(until) > self.overlay.nodes[&file].size {
            self.resize(file, to(until))?;
            self.records.push(Record::Size { file, size: to(until) });
        }
        self.overlay.needs.bytes += NAME_ROOM_BYTES;
        self.times.insert(file, by.mtime_ns);
        Ok(self.change(file))
    }

    /// Whether the running transaction makes the file.
    fn made_here(&self, wanted: FileId) -> bool {
        let made = |record: &Record| matches!(record, Record::New { file, .. } if *file == wanted);
        self.records[self.from_record..].iter().any(made)
    }

    /// Whether the records from there on write the file.
    fn writes(&self, wanted: FileId, from: usize) -> bool {
        self.records[from..].iter().any(|record| match record {
            Record::Write { file, .. } | Record::Size { file, .. } | Record::Zero { file, .. } => *file == wanted,
            _ => false,
        })
    }
}
