//! Reads records from the bytes of a frame.

use super::{EntryName, Record};
use crate::disk::{Identity, Kind, Owner};
use crate::format::*;
use crate::inode::from_number;
use crate::path::NAME_BYTES_MAX;
use crate::transaction::{OPERATIONS_MAX, is_link_target};
use crate::xattrs::{XATTR_VALUE_BYTES_MAX, is_served};
use crate::{FileId, Peer, Seen, Writer};

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
                at: self.name()?,
                identity: Identity { inode: self.u64()?, born_ns: self.u64()? as i64 },
                kind: self.kind()?,
                several: tag == TAG_KNOWN_LINKED,
            },
            TAG_NEW => {
                let (at, kind, mode) = (self.name()?, self.kind()?, self.mode()?);
                if !matches!(kind, Kind::File | Kind::Folder) {
                    return Err("something else than a file or folder is made");
                }
                Record::New { file, at, kind, mode }
            }
            TAG_LINK => Record::Link { file, at: self.name()?, target: self.target()? },
            TAG_LINK_OWNED => {
                Record::LinkOwned { file, at: self.name()?, owner: self.owner()?, target: self.target()? }
            }
            TAG_NODE => {
                let (at, kind, mode) = (self.name()?, self.kind()?, self.mode()?);
                if matches!(kind, Kind::File | Kind::Folder | Kind::Symlink) {
                    return Err("a special file is none");
                }
                Record::Node { file, at, kind, mode, rdev: self.u32()? }
            }
            TAG_OWNER => Record::Owner { file, owner: self.owner()?, mode: self.mode()? },
            TAG_HARD_LINK => Record::HardLink { file, at: self.name()? },
            TAG_UNLINK => Record::Unlink { file, at: self.name()?, version: self.u64()? },
            TAG_MOVE => Record::Move {
                file,
                from: self.name()?,
                to: self.name()?,
                replaced: Some(FileId(self.u64()?)).filter(|file| file.0 != 0),
            },
            TAG_GONE => Record::Gone { file, at: self.name()? },
            TAG_WRITE => {
                let (offset, bytes) = self.written()?;
                Record::Write { file, offset, bytes }
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
                Record::Zero { file, offset, length, reserved: self.flag()? }
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

    /// Where bytes are written, and the bytes.
    fn written(&mut self) -> Result<(u64, Vec<u8>), &'static str> {
        let (offset, count) = (self.u64()?, self.u32()?);
        if offset.checked_add(count.into()).is_none_or(|end| end > i64::MAX as u64) {
            return Err("a write ends after the longest file");
        }
        Ok((offset, self.take(count as usize)?.to_vec()))
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        match self.array::<1>()?[0] {
            flag @ (0 | 1) => Ok(flag == 1),
            _ => Err("a flag that is neither 0 nor 1"),
        }
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

    fn name(&mut self) -> Result<EntryName, &'static str> {
        let folder = self.file()?;
        let count = self.array::<1>()?[0] as usize;
        let name = self.take(count)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name == b"." || name == b".." {
            return Err("a name that cannot be");
        }
        if name.contains(&b'/') || name.contains(&0) {
            return Err("a name that cannot be");
        }
        Ok(EntryName { folder, name: name.to_vec() })
    }
}
