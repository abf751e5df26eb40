//! What a transaction does, in absolute terms: each record says what is so afterwards, with file ids and offsets, never
//! "append" or "if". Applied in order by `apply`, or turned into a final state by `recover`.

use crate::disk::{Identity, Kind, Owner};
use crate::format::*;
use crate::inode::{from_number, to_number};
use crate::path::NAME_BYTES_MAX;
use crate::transaction::{OPERATIONS_MAX, is_link_target};
use crate::xattrs::{XATTR_VALUE_BYTES_MAX, is_served};
use crate::{FileId, Peer, Seen, Writer};

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub folder: FileId,
    pub name: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// `file` is not made by this journal and lies here; comes before whatever else names it.
    Known {
        file: FileId,
        at: Place,
        identity: Identity,
        kind: Kind,
        /// It has other names, too.
        several: bool,
    },
    New {
        file: FileId,
        at: Place,
        kind: Kind,
        mode: u16,
    },
    /// A symbolic link is made.
    Link {
        file: FileId,
        at: Place,
        target: Vec<u8>,
    },
    /// A symbolic link of that owner is made, in the place of one with that id if there is one.
    LinkOwned {
        file: FileId,
        at: Place,
        owner: Owner,
        target: Vec<u8>,
    },
    /// A special file is made.
    Node {
        file: FileId,
        at: Place,
        kind: Kind,
        mode: u16,
        rdev: u32,
    },
    /// A file gets one more name.
    HardLink {
        file: FileId,
        at: Place,
    },
    /// A name is removed, and the file has others, which need not be in the journal. Its version
    /// stays this one.
    Unlink {
        file: FileId,
        at: Place,
        version: u64,
    },
    Move {
        file: FileId,
        from: Place,
        to: Place,
        replaced: Option<FileId>,
    },
    Gone {
        file: FileId,
        at: Place,
    },
    Write {
        file: FileId,
        offset: u64,
        bytes: Vec<u8>,
    },
    Size {
        file: FileId,
        size: u64,
    },
    /// A range reads as zeros, and has room of its own afterwards or none; the size stays.
    Zero {
        file: FileId,
        offset: u64,
        length: u64,
        reserved: bool,
    },
    /// Room is kept for a range, also behind the end; content and size stay. As long as the disk
    /// has it: others beside the server may have taken what there was.
    Reserve {
        file: FileId,
        offset: u64,
        length: u64,
    },
    Time {
        file: FileId,
        mtime_ns: i64,
    },
    AccessTime {
        file: FileId,
        atime_ns: i64,
    },
    Mode {
        file: FileId,
        mode: u16,
    },
    /// With the permission bits, below which the server's own ones may have to change.
    Owner {
        file: FileId,
        owner: Owner,
        mode: u16,
    },
    SetXattr {
        file: FileId,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        file: FileId,
        name: Vec<u8>,
    },
    Version {
        file: FileId,
        version: u64,
    },
    /// The records before, back to the last of these, are a transaction of this device, and this was the answer.
    Answer {
        writer: Writer,
        peer: Peer,
        versions: Vec<Seen>,
    },
    /// What the number `from` was answered, `device` was answered, if it was answered nothing yet.
    Inherit {
        device: u128,
        peer: Peer,
        from: u128,
    },
}

impl Record {
    /// Bytes in a journal, at most: what the fixed fields take, and names and contents.
    pub fn bytes_max(&self) -> u64 {
        let names = match self {
            Record::Known { at, .. }
            | Record::New { at, .. }
            | Record::Node { at, .. }
            | Record::HardLink { at, .. }
            | Record::Unlink { at, .. }
            | Record::Gone { at, .. } => at.name.len(),
            Record::Link { at, target, .. } | Record::LinkOwned { at, target, .. } => at.name.len() + target.len(),
            Record::Move { from, to, .. } => from.name.len() + to.name.len(),
            Record::Write { bytes, .. } => bytes.len(),
            Record::SetXattr { name, value, .. } => name.len() + value.len(),
            Record::RemoveXattr { name, .. } => name.len(),
            Record::Answer { versions, .. } => size_of_val(&versions[..]),
            _ => 0,
        };
        64 + names as u64
    }
}

/// Appends the records of one frame.
pub(crate) fn encode(records: &[Record], out: &mut Vec<u8>) {
    for record in records {
        match record {
            Record::Known { file, at, identity, kind, several } => {
                put(out, if *several { TAG_KNOWN_LINKED } else { TAG_KNOWN }, *file);
                put_place(out, at);
                out.extend(identity.inode.to_le_bytes());
                out.extend(identity.born_ns.to_le_bytes());
                out.push(to_number(*kind));
            }
            Record::New { file, at, kind, mode } => {
                put(out, TAG_NEW, *file);
                put_place(out, at);
                out.push(to_number(*kind));
                out.extend(mode.to_le_bytes());
            }
            Record::Link { file, at, target } => {
                put(out, TAG_LINK, *file);
                put_place(out, at);
                out.extend((target.len() as u16).to_le_bytes());
                out.extend_from_slice(target);
            }
            Record::LinkOwned { file, at, owner, target } => {
                put(out, TAG_LINK_OWNED, *file);
                put_place(out, at);
                put_owner(out, *owner);
                out.extend((target.len() as u16).to_le_bytes());
                out.extend_from_slice(target);
            }
            Record::Node { file, at, kind, mode, rdev } => {
                put(out, TAG_NODE, *file);
                put_place(out, at);
                out.push(to_number(*kind));
                out.extend(mode.to_le_bytes());
                out.extend(rdev.to_le_bytes());
            }
            Record::HardLink { file, at } => {
                put(out, TAG_HARD_LINK, *file);
                put_place(out, at);
            }
            Record::Unlink { file, at, version } => {
                put(out, TAG_UNLINK, *file);
                put_place(out, at);
                out.extend(version.to_le_bytes());
            }
            Record::Move { file, from, to, replaced } => {
                put(out, TAG_MOVE, *file);
                put_place(out, from);
                put_place(out, to);
                out.extend(replaced.map_or(0, |file| file.0).to_le_bytes());
            }
            Record::Gone { file, at } => {
                put(out, TAG_GONE, *file);
                put_place(out, at);
            }
            Record::Write { file, offset, bytes } => {
                put(out, TAG_WRITE, *file);
                out.extend(offset.to_le_bytes());
                out.extend((bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Record::Size { file, size } => {
                put(out, TAG_SIZE, *file);
                out.extend(size.to_le_bytes());
            }
            Record::Reserve { file, offset, length } => {
                put(out, TAG_RESERVE, *file);
                out.extend(offset.to_le_bytes());
                out.extend(length.to_le_bytes());
            }
            Record::Zero { file, offset, length, reserved } => {
                put(out, TAG_ZERO, *file);
                out.extend(offset.to_le_bytes());
                out.extend(length.to_le_bytes());
                out.push(u8::from(*reserved));
            }
            Record::Time { file, mtime_ns } => {
                put(out, TAG_TIME, *file);
                out.extend(mtime_ns.to_le_bytes());
            }
            Record::AccessTime { file, atime_ns } => {
                put(out, TAG_ACCESS_TIME, *file);
                out.extend(atime_ns.to_le_bytes());
            }
            Record::Mode { file, mode } => {
                put(out, TAG_MODE, *file);
                out.extend(mode.to_le_bytes());
            }
            Record::Owner { file, owner, mode } => {
                put(out, TAG_OWNER, *file);
                put_owner(out, *owner);
                out.extend(mode.to_le_bytes());
            }
            Record::SetXattr { file, name, value } => {
                put(out, TAG_SET_XATTR, *file);
                out.push(name.len() as u8);
                out.extend_from_slice(name);
                out.extend((value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
            Record::RemoveXattr { file, name } => {
                put(out, TAG_REMOVE_XATTR, *file);
                out.push(name.len() as u8);
                out.extend_from_slice(name);
            }
            Record::Version { file, version } => {
                put(out, TAG_VERSION, *file);
                out.extend(version.to_le_bytes());
            }
            Record::Answer { writer, peer, versions } => {
                out.push(TAG_ANSWER);
                out.extend(writer.device.to_le_bytes());
                out.extend(peer.0.to_le_bytes());
                out.extend(writer.number.to_le_bytes());
                out.extend((versions.len() as u32).to_le_bytes());
                for seen in versions {
                    out.extend(seen.file.0.to_le_bytes());
                    out.extend(seen.version.to_le_bytes());
                }
            }
            Record::Inherit { device, peer, from } => {
                out.push(TAG_INHERIT);
                out.extend(device.to_le_bytes());
                out.extend(peer.0.to_le_bytes());
                out.extend(from.to_le_bytes());
            }
        }
    }
}

fn put(out: &mut Vec<u8>, tag: u8, file: FileId) {
    out.push(tag);
    out.extend(file.0.to_le_bytes());
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    out.extend(place.folder.0.to_le_bytes());
    out.push(place.name.len() as u8);
    out.extend_from_slice(&place.name);
}

fn put_owner(out: &mut Vec<u8>, owner: Owner) {
    out.extend(owner.uid.to_le_bytes());
    out.extend(owner.gid.to_le_bytes());
}

/// Reads `count` records that fill `payload`.
///
/// # Errors
/// Where the payload makes no sense, and why.
pub(crate) fn decode(payload: &[u8], count: u32) -> Result<Vec<Record>, (usize, &'static str)> {
    let mut from = Source { bytes: payload, at: 0 };
    let mut records = Vec::new();
    for _ in 0..count {
        let start = from.at;
        records.push(from.record().map_err(|why| (start, why))?);
    }
    if from.at != payload.len() { Err((from.at, "bytes follow the last record")) } else { Ok(records) }
}

struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Source<'a> {
    fn record(&mut self) -> Result<Record, &'static str> {
        let tag = self.array::<1>()?[0];
        match tag {
            TAG_ANSWER_1 | TAG_ANSWER => return self.answer(tag == TAG_ANSWER),
            TAG_INHERIT => return self.inherit(),
            _ => {}
        }
        let file = self.file()?;
        Ok(match tag {
            TAG_KNOWN | TAG_KNOWN_LINKED => Record::Known {
                file,
                at: self.place()?,
                identity: Identity { inode: self.u64()?, born_ns: self.u64()? as i64 },
                kind: self.kind()?,
                several: tag == TAG_KNOWN_LINKED,
            },
            TAG_NEW => {
                let (at, kind, mode) = (self.place()?, self.kind()?, self.mode()?);
                if !matches!(kind, Kind::File | Kind::Folder) {
                    return Err("something else than a file or folder is made");
                }
                Record::New { file, at, kind, mode }
            }
            TAG_LINK => Record::Link { file, at: self.place()?, target: self.target()? },
            TAG_LINK_OWNED => {
                Record::LinkOwned { file, at: self.place()?, owner: self.owner()?, target: self.target()? }
            }
            TAG_NODE => {
                let (at, kind, mode) = (self.place()?, self.kind()?, self.mode()?);
                if matches!(kind, Kind::File | Kind::Folder | Kind::Symlink) {
                    return Err("a special file is none");
                }
                Record::Node { file, at, kind, mode, rdev: self.u32()? }
            }
            TAG_OWNER => Record::Owner { file, owner: self.owner()?, mode: self.mode()? },
            TAG_HARD_LINK => Record::HardLink { file, at: self.place()? },
            TAG_UNLINK => Record::Unlink { file, at: self.place()?, version: self.u64()? },
            TAG_MOVE => Record::Move {
                file,
                from: self.place()?,
                to: self.place()?,
                replaced: Some(FileId(self.u64()?)).filter(|file| file.0 != 0),
            },
            TAG_GONE => Record::Gone { file, at: self.place()? },
            TAG_WRITE => {
                let offset = self.u64()?;
                let count = u32::from_le_bytes(self.array()?) as usize;
                if offset.checked_add(count as u64).is_none_or(|end| end > i64::MAX as u64) {
                    return Err("a write ends after the longest file");
                }
                Record::Write { file, offset, bytes: self.take(count)?.to_vec() }
            }
            TAG_SIZE => match self.u64()? {
                size if size > i64::MAX as u64 => return Err("a size is over that of the longest file"),
                size => Record::Size { file, size },
            },
            TAG_RESERVE => {
                let (offset, length) = self.range()?;
                Record::Reserve { file, offset, length }
            }
            TAG_ZERO => {
                let (offset, length) = self.range()?;
                let reserved = match self.array::<1>()?[0] {
                    flag @ (0 | 1) => flag == 1,
                    _ => return Err("a flag that is neither 0 nor 1"),
                };
                Record::Zero { file, offset, length, reserved }
            }
            TAG_TIME => Record::Time { file, mtime_ns: self.u64()? as i64 },
            TAG_ACCESS_TIME => Record::AccessTime { file, atime_ns: self.u64()? as i64 },
            TAG_MODE => Record::Mode { file, mode: self.mode()? },
            TAG_SET_XATTR => Record::SetXattr { file, name: self.xattr_name()?, value: self.xattr_value()? },
            TAG_REMOVE_XATTR => Record::RemoveXattr { file, name: self.xattr_name()? },
            TAG_VERSION => Record::Version { file, version: self.u64()? },
            _ => return Err("a record of an unknown kind"),
        })
    }

    fn inherit(&mut self) -> Result<Record, &'static str> {
        let device = u128::from_le_bytes(self.array()?);
        let peer = Peer(self.u64()?);
        Ok(Record::Inherit { device, peer, from: u128::from_le_bytes(self.array()?) })
    }

    fn answer(&mut self, has_peer: bool) -> Result<Record, &'static str> {
        let device = u128::from_le_bytes(self.array()?);
        let peer = if has_peer { Peer(self.u64()?) } else { Peer::UNKNOWN };
        let number = self.u64()?;
        let count = u32::from_le_bytes(self.array()?) as usize;
        if count > OPERATIONS_MAX {
            return Err("an answer to too many operations");
        }
        let mut versions = Vec::new();
        for _ in 0..count {
            versions.push(Seen { file: self.file()?, version: self.u64()? });
        }
        Ok(Record::Answer { writer: Writer { device, number }, peer, versions })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or("a record ends after the payload")?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|index| taken[index]))
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn file(&mut self) -> Result<FileId, &'static str> {
        match self.u64()? {
            0 => Err("file id 0"),
            id => Ok(FileId(id)),
        }
    }

    fn range(&mut self) -> Result<(u64, u64), &'static str> {
        let (offset, length) = (self.u64()?, self.u64()?);
        match offset.checked_add(length).is_some_and(|end| end <= i64::MAX as u64) {
            true => Ok((offset, length)),
            false => Err("a range ends after the longest file"),
        }
    }

    fn mode(&mut self) -> Result<u16, &'static str> {
        match u16::from_le_bytes(self.array()?) {
            mode if mode > 0o7777 => Err("permission bits over 07777"),
            mode => Ok(mode),
        }
    }

    fn kind(&mut self) -> Result<Kind, &'static str> {
        from_number(self.array::<1>()?[0]).ok_or("an unknown kind of file")
    }

    fn owner(&mut self) -> Result<Owner, &'static str> {
        Ok(Owner { uid: self.u32()?, gid: self.u32()? })
    }

    fn target(&mut self) -> Result<Vec<u8>, &'static str> {
        let count = u16::from_le_bytes(self.array()?) as usize;
        let target = self.take(count)?;
        if is_link_target(target) { Ok(target.to_vec()) } else { Err("a symbolic link that cannot be") }
    }

    fn xattr_name(&mut self) -> Result<Vec<u8>, &'static str> {
        let count = self.array::<1>()?[0] as usize;
        let name = self.take(count)?;
        if is_served(name) { Ok(name.to_vec()) } else { Err("an extended attribute that nobody may set") }
    }

    fn xattr_value(&mut self) -> Result<Vec<u8>, &'static str> {
        match self.u32()? as usize {
            count if count > XATTR_VALUE_BYTES_MAX => Err("the value of an extended attribute is too long"),
            count => Ok(self.take(count)?.to_vec()),
        }
    }

    fn place(&mut self) -> Result<Place, &'static str> {
        let folder = self.file()?;
        let count = self.array::<1>()?[0] as usize;
        let name = self.take(count)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name == b"." || name == b".." {
            return Err("a name that cannot be");
        }
        if name.contains(&b'/') || name.contains(&0) {
            return Err("a name that cannot be");
        }
        Ok(Place { folder, name: name.to_vec() })
    }
}
