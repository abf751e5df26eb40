//! The changes of a transaction, as bytes.

use bytes::Bytes;

use super::mode;
use crate::coding::{Reader, Writer};
use crate::error::WireError;
use crate::format::{COPY_BYTES_MAX, LINK_BYTES_MAX};
use crate::volume::{Allocation, Change, FileKind, Xattr, XattrHow};

/// The number before each change, which tells its kind.
mod kind {
    pub const WRITE: u8 = 1;
    pub const APPEND: u8 = 2;
    pub const TRUNCATE: u8 = 3;
    pub const CREATE: u8 = 4;
    pub const MAKE_FOLDER: u8 = 5;
    pub const RENAME: u8 = 6;
    pub const UNLINK: u8 = 7;
    pub const REMOVE_FOLDER: u8 = 8;
    pub const SET_TIME: u8 = 9;
    pub const SET_MODE: u8 = 10;
    pub const MAKE_LINK: u8 = 11;
    pub const MAKE_NODE: u8 = 12;
    pub const SET_OWNER: u8 = 13;
    pub const SET_ACCESS_TIME: u8 = 14;
    pub const LINK: u8 = 15;
    pub const ONLY_NAME: u8 = 16;
    pub const ALLOCATE: u8 = 19;
    pub const COPY: u8 = 20;
    pub const SET_XATTR: u8 = 17;
    pub const REMOVE_XATTR: u8 = 18;
}

/// Stands for a user or group that does not change: no file can belong to it.
const STAYS: u32 = u32::MAX;

/// Writes one change.
pub(super) fn write(writer: Writer, change: &Change) -> Writer {
    match change {
        Change::Write { path, base, offset, bytes } => {
            let writer = writer.u8(kind::WRITE).path(path).base(base).u64(*offset);
            writer.u32(bytes.len() as u32).raw(bytes)
        }
        Change::Append { path, base, bytes } => {
            writer.u8(kind::APPEND).path(path).base(base).u32(bytes.len() as u32).raw(bytes)
        }
        Change::Truncate { path, base, size } => writer.u8(kind::TRUNCATE).path(path).base(base).u64(*size),
        Change::Allocate { path, base, offset, length, allocation } => {
            let writer = writer.u8(kind::ALLOCATE).path(path).base(base);
            writer.u64(*offset).u64(*length).u8(allocation.to_bits())
        }
        Change::Copy { path, base, offset, from, from_base, from_offset, length } => {
            let writer = writer.u8(kind::COPY).path(path).base(base).u64(*offset);
            writer.path(from).base(from_base).u64(*from_offset).u32(*length)
        }
        Change::Create { path, mode, exclusive, owner } => {
            writer.u8(kind::CREATE).path(path).u16(*mode).u8(u8::from(*exclusive)).owner(owner)
        }
        Change::MakeFolder { path, mode, owner } => writer.u8(kind::MAKE_FOLDER).path(path).u16(*mode).owner(owner),
        Change::MakeNode { path, kind, mode, rdev, owner } => {
            writer.u8(kind::MAKE_NODE).path(path).u8(*kind as u8).u16(*mode).u32(*rdev).owner(owner)
        }
        Change::MakeLink { path, target, owner } => {
            writer.u8(kind::MAKE_LINK).path(path).owner(owner).u16(target.len() as u16).raw(target)
        }
        Change::Link { from, base, to } => writer.u8(kind::LINK).path(from).base(base).path(to),
        Change::Rename { from, base, to, replace } => {
            writer.u8(kind::RENAME).path(from).base(base).path(to).u8(u8::from(*replace))
        }
        Change::Unlink { path, base } => writer.u8(kind::UNLINK).path(path).base(base),
        Change::OnlyName { path } => writer.u8(kind::ONLY_NAME).path(path),
        Change::RemoveFolder { path } => writer.u8(kind::REMOVE_FOLDER).path(path),
        Change::SetTime { path, base, mtime_ns } => {
            writer.u8(kind::SET_TIME).path(path).base(base).u64(mtime_ns.cast_unsigned())
        }
        Change::SetAccessTime { path, base, atime_ns } => {
            writer.u8(kind::SET_ACCESS_TIME).path(path).base(base).u64(atime_ns.cast_unsigned())
        }
        Change::SetOwner { path, base, uid, gid } => {
            let writer = writer.u8(kind::SET_OWNER).path(path).base(base);
            writer.u32(uid.unwrap_or(STAYS)).u32(gid.unwrap_or(STAYS))
        }
        Change::SetMode { path, base, mode } => writer.u8(kind::SET_MODE).path(path).base(base).u16(*mode),
        Change::SetXattr { path, base, name, value, how } => {
            let writer = writer.u8(kind::SET_XATTR).path(path).base(base).xattr(name, value);
            writer.u8(*how as u8)
        }
        Change::RemoveXattr { path, base, name } => {
            writer.u8(kind::REMOVE_XATTR).path(path).base(base).u8(name.len() as u8).raw(name)
        }
    }
}

/// Reads what [`write`] writes.
pub(super) fn read(reader: &mut Reader) -> Result<Change, WireError> {
    let kind = reader.u8("kind of change")?;
    let path = reader.path()?;
    Ok(match kind {
        kind::WRITE => {
            let (base, offset) = (reader.base()?, reader.u64("offset")?);
            Change::Write { path, base, offset, bytes: data(reader)? }
        }
        kind::APPEND => Change::Append { path, base: reader.base()?, bytes: data(reader)? },
        kind::TRUNCATE => Change::Truncate { path, base: reader.base()?, size: reader.u64("size")? },
        kind::ALLOCATE => {
            let (base, offset, length) = (reader.base()?, reader.u64("offset")?, reader.u64("length")?);
            reader.check(length > 0, "length", 0, "at least 1")?;
            Change::Allocate { path, base, offset, length, allocation: allocation(reader)? }
        }
        kind::COPY => {
            let (base, offset) = (reader.base()?, reader.u64("offset")?);
            let (from, from_base) = (reader.path()?, reader.base()?);
            let (from_offset, length) = (reader.u64("offset")?, reader.u32("length")?);
            reader.check((1..=COPY_BYTES_MAX).contains(&length), "length", length.into(), "1 to 1048576")?;
            Change::Copy { path, base, offset, from, from_base, from_offset, length }
        }
        kind::CREATE => {
            let (mode, exclusive) = (mode(reader)?, reader.flag("exclusive")?);
            Change::Create { path, mode, exclusive, owner: reader.owner()? }
        }
        kind::MAKE_FOLDER => Change::MakeFolder { path, mode: mode(reader)?, owner: reader.owner()? },
        kind::MAKE_NODE => {
            let (kind, mode) = (node_kind(reader)?, mode(reader)?);
            Change::MakeNode { path, kind, mode, rdev: reader.u32("device")?, owner: reader.owner()? }
        }
        kind::SET_ACCESS_TIME => {
            let base = reader.base()?;
            Change::SetAccessTime { path, base, atime_ns: reader.u64("time")?.cast_signed() }
        }
        kind::SET_OWNER => {
            let base = reader.base()?;
            let (uid, gid) = (reader.u32("user")?, reader.u32("group")?);
            let [uid, gid] = [uid, gid].map(|number| Some(number).filter(|number| *number != STAYS));
            Change::SetOwner { path, base, uid, gid }
        }
        kind::LINK => Change::Link { from: path, base: reader.base()?, to: reader.path()? },
        kind::RENAME => {
            let (base, to) = (reader.base()?, reader.path()?);
            Change::Rename { from: path, base, to, replace: reader.flag("replace")? }
        }
        kind::UNLINK => Change::Unlink { path, base: reader.base()? },
        kind::ONLY_NAME => Change::OnlyName { path },
        kind::REMOVE_FOLDER => Change::RemoveFolder { path },
        kind::SET_TIME => Change::SetTime { path, base: reader.base()?, mtime_ns: reader.u64("time")?.cast_signed() },
        kind::SET_MODE => Change::SetMode { path, base: reader.base()?, mode: mode(reader)? },
        kind::MAKE_LINK => {
            let owner = reader.owner()?;
            let bytes = reader.u16("length of a target")?;
            let fits = (1..=LINK_BYTES_MAX as u16).contains(&bytes);
            reader.check(fits, "length of a target", bytes.into(), "1 to 4095")?;
            Change::MakeLink { path, target: reader.raw("target", bytes.into())?, owner }
        }
        kind::SET_XATTR => {
            let (base, Xattr { name, value }) = (reader.base()?, reader.xattr()?);
            Change::SetXattr { path, base, name, value, how: xattr_how(reader)? }
        }
        kind::REMOVE_XATTR => Change::RemoveXattr { path, base: reader.base()?, name: reader.xattr_name()? },
        _ => return Err(reader.bad("kind of change", kind.into(), "1 to 20")),
    })
}

fn allocation(reader: &mut Reader) -> Result<Allocation, WireError> {
    let bits = reader.u8("flags")?;
    Allocation::from_bits(bits).ok_or_else(|| reader.bad("flags", bits.into(), "1 to 7, and not 4"))
}

fn node_kind(reader: &mut Reader) -> Result<FileKind, WireError> {
    let number = reader.u8("kind")?;
    let kind = FileKind::from_u8(number).filter(|kind| *kind as u8 >= FileKind::Fifo as u8);
    kind.ok_or_else(|| reader.bad("kind", number.into(), "3 to 6"))
}

fn xattr_how(reader: &mut Reader) -> Result<XattrHow, WireError> {
    let number = reader.u8("flags")?;
    let mut known = [XattrHow::Any, XattrHow::Create, XattrHow::Replace].into_iter();
    known.find(|how| *how as u8 == number).ok_or_else(|| reader.bad("flags", number.into(), "0 to 2"))
}

fn data(reader: &mut Reader) -> Result<Bytes, WireError> {
    let bytes = reader.u32("data length")? as usize;
    reader.raw("data", bytes)
}
