//! Records as the bytes of a frame.

use super::{EntryName, Record};
use crate::disk::Owner;
use crate::format::*;
use crate::inode::to_number;
use crate::{FileId, Peer, Seen, Writer};

/// Appends the records of one frame.
pub(crate) fn encode(records: &[Record], out: &mut Vec<u8>) {
    let mut out = Sink { out };
    for record in records {
        out.record(record);
    }
}

struct Sink<'a> {
    out: &'a mut Vec<u8>,
}

impl Sink<'_> {
    fn record(&mut self, record: &Record) -> &mut Self {
        match record {
            Record::Known { file, at, identity, kind, several } => {
                let tag = if *several { TAG_KNOWN_LINKED } else { TAG_KNOWN };
                let number = to_number(*kind);
                self.head(tag, *file).name(at).u64(identity.inode).u64(identity.born_ns as u64).u8(number)
            }
            Record::New { file, at, kind, mode } => self.head(TAG_NEW, *file).name(at).u8(to_number(*kind)).u16(*mode),
            Record::Link { file, at, target } => self.head(TAG_LINK, *file).name(at).target(target),
            Record::LinkOwned { file, at, owner, target } => {
                self.head(TAG_LINK_OWNED, *file).name(at).owner(*owner).target(target)
            }
            Record::Node { file, at, kind, mode, rdev } => {
                self.head(TAG_NODE, *file).name(at).u8(to_number(*kind)).u16(*mode).u32(*rdev)
            }
            Record::HardLink { file, at } => self.head(TAG_HARD_LINK, *file).name(at),
            Record::Unlink { file, at, version } => self.head(TAG_UNLINK, *file).name(at).u64(*version),
            Record::Move { file, from, to, replaced } => {
                self.head(TAG_MOVE, *file).name(from).name(to).u64(replaced.map_or(0, |file| file.0))
            }
            Record::Gone { file, at } => self.head(TAG_GONE, *file).name(at),
            Record::Write { file, offset, bytes } => {
                self.head(TAG_WRITE, *file).u64(*offset).u32(bytes.len() as u32).bytes(bytes)
            }
            Record::Size { file, size } => self.head(TAG_SIZE, *file).u64(*size),
            Record::Reserve { file, offset, length } => self.head(TAG_RESERVE, *file).u64(*offset).u64(*length),
            Record::Zero { file, offset, length, reserved } => {
                self.head(TAG_ZERO, *file).u64(*offset).u64(*length).u8((*reserved).into())
            }
            Record::Time { file, mtime_ns } => self.head(TAG_TIME, *file).u64(*mtime_ns as u64),
            Record::AccessTime { file, atime_ns } => self.head(TAG_ACCESS_TIME, *file).u64(*atime_ns as u64),
            Record::Mode { file, mode } => self.head(TAG_MODE, *file).u16(*mode),
            Record::Owner { file, owner, mode } => self.head(TAG_OWNER, *file).owner(*owner).u16(*mode),
            Record::SetXattr { file, name, value } => {
                self.head(TAG_SET_XATTR, *file).short(name).u32(value.len() as u32).bytes(value)
            }
            Record::RemoveXattr { file, name } => self.head(TAG_REMOVE_XATTR, *file).short(name),
            Record::Version { file, version } => self.head(TAG_VERSION, *file).u64(*version),
            Record::Answer { writer, peer, versions } => self.answer(*writer, *peer, versions),
            Record::Inherit { device, peer, from } => {
                self.u8(TAG_INHERIT).bytes(&device.to_le_bytes()).u64(peer.0).bytes(&from.to_le_bytes())
            }
        }
    }

    fn answer(&mut self, writer: Writer, peer: Peer, versions: &[Seen]) -> &mut Self {
        self.u8(TAG_ANSWER).bytes(&writer.device.to_le_bytes()).u64(peer.0).u64(writer.number);
        self.u32(versions.len() as u32);
        for seen in versions {
            self.u64(seen.file.0).u64(seen.version);
        }
        self
    }

    fn head(&mut self, tag: u8, file: FileId) -> &mut Self {
        self.u8(tag).u64(file.0)
    }

    fn name(&mut self, name: &EntryName) -> &mut Self {
        self.u64(name.folder.0).short(&name.name)
    }

    fn owner(&mut self, owner: Owner) -> &mut Self {
        self.u32(owner.uid).u32(owner.gid)
    }

    fn target(&mut self, target: &[u8]) -> &mut Self {
        self.u16(target.len() as u16).bytes(target)
    }

    /// At most 255 bytes, after their number.
    fn short(&mut self, bytes: &[u8]) -> &mut Self {
        self.u8(bytes.len() as u8).bytes(bytes)
    }

    fn u8(&mut self, number: u8) -> &mut Self {
        self.bytes(&[number])
    }

    fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }
}
