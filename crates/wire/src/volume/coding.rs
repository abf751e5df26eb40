//! Requests to volumes and their replies, as bytes. docs/formats/wire.md describes them.

mod change;

use units::{InodeId, LockKind, LockRange};

use super::{
    FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, LockAsk, Owner, Secret, Seen, Share, Space, VolumeAsk,
    VolumeReply, Xattr,
};
use crate::coding::{Frame, Reader, Writer};
use crate::error::WireError;
use crate::format::{
    ClientKind, FILE_NAME_BYTES_MAX, FILE_NUMBER_MIN, FOLDER_ENTRIES_MAX, FRAME_BYTES_MAX, LINK_BYTES_MAX,
    NEED_RANGES_MAX, PATH_BYTES_MAX, PULL_BLOCKS_BYTES_MAX, PUSH_PAGES_MAX, ServerKind, TRANSACTION_CHANGES_MAX,
    XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XATTRS_MAX,
};

/// The kind of frame that carries a request.
pub(crate) fn ask_kind(ask: &VolumeAsk) -> ClientKind {
    match ask {
        VolumeAsk::FileOpen { .. } => ClientKind::FileOpen,
        VolumeAsk::FileStat { .. } => ClientKind::FileStat,
        VolumeAsk::FolderList { .. } => ClientKind::FolderList,
        VolumeAsk::LinkRead { .. } => ClientKind::LinkRead,
        VolumeAsk::SpaceStat => ClientKind::SpaceStat,
        VolumeAsk::XattrsRead { .. } => ClientKind::XattrsRead,
        VolumeAsk::Lock(_) => ClientKind::Lock,
        VolumeAsk::PullBlocks { .. } => ClientKind::PullBlocks,
        VolumeAsk::Commit { .. } => ClientKind::Commit,
        VolumeAsk::Lease { .. } => ClientKind::Lease,
        VolumeAsk::Enrol => ClientKind::Enrol,
        VolumeAsk::Prove { .. } => ClientKind::Prove,
    }
}

/// The kind of frame that carries a reply.
pub(crate) fn reply_kind(reply: &VolumeReply) -> ServerKind {
    match reply {
        VolumeReply::FileOpened { .. } => ServerKind::FileOpened,
        VolumeReply::Attributes(_) => ServerKind::Attributes,
        VolumeReply::Entries { .. } => ServerKind::Entries,
        VolumeReply::LinkTarget(_) => ServerKind::LinkTarget,
        VolumeReply::Space(_) => ServerKind::Space,
        VolumeReply::Xattrs { .. } => ServerKind::Xattrs,
        VolumeReply::Locked(_) => ServerKind::Locked,
        VolumeReply::Blocks { .. } => ServerKind::Blocks,
        VolumeReply::Committed { .. } => ServerKind::Committed,
        VolumeReply::Leased { .. } => ServerKind::Leased,
        VolumeReply::Enrolled { .. } => ServerKind::Enrolled,
        VolumeReply::Proven => ServerKind::Proven,
    }
}

/// The fields of a request, behind those of all requests to volumes.
pub(crate) fn write_ask(writer: Writer, ask: &VolumeAsk) -> Frame {
    match ask {
        VolumeAsk::FileOpen { token, path } => writer.u128(token.0).path(path),
        VolumeAsk::FileStat { path } | VolumeAsk::LinkRead { path } | VolumeAsk::XattrsRead { path } => {
            writer.path(path)
        }
        VolumeAsk::FolderList { path, after, limit } => writer.u16(*limit).path(path).u8(after.len() as u8).raw(after),
        VolumeAsk::PullBlocks { token, blocks, force } => writer.u128(token.0).u8(u8::from(*force)).pages(blocks),
        VolumeAsk::Commit { number, mtime_ns, changes } => {
            let writer = writer.u64(*number).u64(mtime_ns.cast_unsigned()).u16(changes.len() as u16);
            changes.iter().fold(writer, change::write)
        }
        VolumeAsk::Lease { file, kind, duration_ms } => {
            writer.u64(*file).u8(kind.map_or(0, |kind| kind as u8)).u32(*duration_ms)
        }
        VolumeAsk::Lock(lock) => {
            let flags = u8::from(lock.is_flock) | u8::from(lock.test) << 1;
            let writer = writer.u64(lock.file).u64(lock.owner).u8(flags).u8(lock.kind.map_or(0, lock_kind));
            writer.u64(lock.start).u64(lock.end).u32(lock.pid)
        }
        VolumeAsk::Enrol | VolumeAsk::SpaceStat => writer,
        VolumeAsk::Prove { number, proof, previous } => writer.u128(*number).raw(proof).u128(*previous),
    }
    .finish()
}

/// Reads what [`write_ask`] writes.
pub(crate) fn read_ask(kind: ClientKind, reader: &mut Reader) -> Result<VolumeAsk, WireError> {
    Ok(match kind {
        ClientKind::FileOpen => VolumeAsk::FileOpen { token: reader.token()?, path: reader.path()? },
        ClientKind::FileStat => VolumeAsk::FileStat { path: reader.path()? },
        ClientKind::LinkRead => VolumeAsk::LinkRead { path: reader.path()? },
        ClientKind::XattrsRead => VolumeAsk::XattrsRead { path: reader.path()? },
        ClientKind::SpaceStat => VolumeAsk::SpaceStat,
        ClientKind::Lock => VolumeAsk::Lock(read_lock(reader)?),
        ClientKind::FolderList => {
            let limit = reader.u16("limit")?;
            let allowed = (1..=FOLDER_ENTRIES_MAX).contains(&usize::from(limit));
            reader.check(allowed, "limit", limit.into(), "1 to 4096")?;
            let path = reader.path()?;
            let bytes = reader.u8("name length")?;
            VolumeAsk::FolderList { path, after: reader.raw("name", bytes.into())?.to_vec(), limit }
        }
        ClientKind::PullBlocks => {
            let token = reader.token()?;
            let force = reader.flag("flags")?;
            let blocks = reader.pages(PUSH_PAGES_MAX)?;
            let file = blocks.first().map(|block| block.inode);
            let one = blocks.iter().all(|block| Some(block.inode) == file);
            reader.check(one, "blocks", blocks.len() as u64, "blocks of one file")?;
            VolumeAsk::PullBlocks { token, blocks, force }
        }
        ClientKind::Commit => {
            let number = reader.u64("number")?;
            reader.check(number > 0, "number", 0, "at least 1")?;
            let mtime_ns = reader.u64("time")?.cast_signed();
            let count = usize::from(reader.u16("changes")?);
            let allowed = (1..=TRANSACTION_CHANGES_MAX).contains(&count);
            reader.check(allowed, "changes", count as u64, "1 to 4096")?;
            let changes = (0..count).map(|_| change::read(reader)).collect::<Result<_, _>>()?;
            VolumeAsk::Commit { number, mtime_ns, changes }
        }
        ClientKind::Enrol => VolumeAsk::Enrol,
        ClientKind::Prove => {
            let number = device_number(reader)?;
            VolumeAsk::Prove { number, proof: reader.id("proof")?, previous: reader.u128("previous")? }
        }
        // the caller passes kinds of requests to volumes only
        _ => {
            let file = reader.u64("file")?;
            let number = reader.u8("lease")?;
            let kind = match number {
                0 => None,
                1 => Some(LeaseKind::Shared),
                2 => Some(LeaseKind::Exclusive),
                _ => return Err(reader.bad("lease", number.into(), "0 to 2")),
            };
            VolumeAsk::Lease { file, kind, duration_ms: reader.u32("duration")? }
        }
    })
}

fn mode(reader: &mut Reader) -> Result<u16, WireError> {
    let mode = reader.u16("mode")?;
    reader.check(mode <= 0o7777, "mode", mode.into(), "permission bits")?;
    Ok(mode)
}

/// The fields of a reply, behind the number of its request.
pub(crate) fn write_reply(writer: Writer, reply: &VolumeReply) -> Frame {
    match reply {
        VolumeReply::FileOpened { file, info, profiled, present, cut } => {
            let flags = u8::from(*profiled) | u8::from(*cut) << 1;
            writer.u32(file.0).info(info).u8(flags).ranges(present).finish()
        }
        VolumeReply::Attributes(info) => writer.info(info).finish(),
        VolumeReply::Entries { folder, more, entries } => {
            let writer = writer.u64(folder.file).u64(folder.version).u8(u8::from(*more)).u16(entries.len() as u16);
            let entry = |writer: Writer, entry: &FolderEntry| {
                writer.u8(entry.name.len() as u8).raw(&entry.name).info(&entry.info)
            };
            entries.iter().fold(writer, entry).finish()
        }
        VolumeReply::LinkTarget(target) => writer.finish_with(target.clone()),
        VolumeReply::Xattrs { info, xattrs } => {
            let writer = writer.info(info).u16(xattrs.len() as u16);
            xattrs.iter().fold(writer, |writer, xattr| writer.xattr(&xattr.name, &xattr.value)).finish()
        }
        VolumeReply::Locked(None) => writer.u8(0).finish(),
        VolumeReply::Locked(Some(HeldLock { range, pid, is_own })) => {
            let writer = writer.u8(lock_kind(range.kind)).u64(range.start).u64(range.end);
            writer.u32(*pid).u8(u8::from(*is_own)).finish()
        }
        VolumeReply::Space(Space { bytes, free_bytes, files, free_files }) => {
            writer.u64(*bytes).u64(*free_bytes).u64(*files).u64(*free_files).finish()
        }
        VolumeReply::Blocks { version, size, codec, bytes } => {
            writer.u64(*version).u64(*size).u8(*codec).finish_with(bytes.clone())
        }
        VolumeReply::Committed { versions } => {
            let writer = writer.u16(versions.len() as u16);
            versions.iter().fold(writer, |writer, seen| writer.u64(seen.file).u64(seen.version)).finish()
        }
        VolumeReply::Leased { duration_ms } => writer.u32(*duration_ms).finish(),
        VolumeReply::Enrolled { number, secret } => writer.u128(*number).raw(&secret.0).finish(),
        VolumeReply::Proven => writer.finish(),
    }
}

/// Reads what [`write_reply`] writes.
pub(crate) fn read_reply(kind: ServerKind, reader: &mut Reader) -> Result<VolumeReply, WireError> {
    Ok(match kind {
        ServerKind::FileOpened => {
            let file = file_number(reader)?;
            let (info, flags) = (reader.info()?, reader.u8("flags")?);
            reader.check(flags <= 3, "flags", flags.into(), "0 to 3")?;
            let present = reader.ranges(NEED_RANGES_MAX)?;
            VolumeReply::FileOpened { file, info, profiled: flags & 1 != 0, present, cut: flags & 2 != 0 }
        }
        ServerKind::Attributes => VolumeReply::Attributes(reader.info()?),
        ServerKind::Entries => {
            let folder = Seen { file: reader.u64("file")?, version: reader.u64("version")? };
            let (more, count) = (reader.flag("more")?, usize::from(reader.u16("entries")?));
            reader.check(count <= FOLDER_ENTRIES_MAX, "entries", count as u64, "at most 4096")?;
            let entry = |reader: &mut Reader| {
                let bytes = reader.u8("name length")?;
                reader.check(bytes > 0, "name length", 0, "1 to 255")?;
                let name = reader.raw("name", bytes.into())?.to_vec();
                Ok(FolderEntry { name, info: reader.info()? })
            };
            let entries = (0..count).map(|_| entry(reader)).collect::<Result<_, WireError>>()?;
            VolumeReply::Entries { folder, more, entries }
        }
        ServerKind::Xattrs => {
            let (info, count) = (reader.info()?, usize::from(reader.u16("attributes")?));
            reader.check(count <= XATTRS_MAX, "attributes", count as u64, "at most 16384")?;
            let (mut xattrs, mut bytes) = (Vec::new(), 0);
            for _ in 0..count {
                let xattr = reader.xattr()?;
                bytes += xattr.name.len() + xattr.value.len();
                reader.check(bytes <= XATTRS_BYTES_MAX, "bytes of attributes", bytes as u64, "at most 65536")?;
                xattrs.push(xattr);
            }
            VolumeReply::Xattrs { info, xattrs }
        }
        ServerKind::Locked => VolumeReply::Locked(match read_lock_kind(reader)? {
            None => None,
            Some(kind) => {
                let (start, end) = read_lock_range(reader)?;
                let range = LockRange { start, end, kind };
                Some(HeldLock { range, pid: reader.u32("process")?, is_own: reader.flag("own")? })
            }
        }),
        ServerKind::Space => VolumeReply::Space(Space {
            bytes: reader.u64("bytes")?,
            free_bytes: reader.u64("free bytes")?,
            files: reader.u64("files")?,
            free_files: reader.u64("free files")?,
        }),
        ServerKind::LinkTarget => VolumeReply::LinkTarget(reader.bulk("target", 0, LINK_BYTES_MAX)?),
        ServerKind::Blocks => VolumeReply::Blocks {
            version: reader.u64("version")?,
            size: reader.u64("size")?,
            codec: reader.u8("codec")?,
            bytes: reader.bulk("bytes", 0, PULL_BLOCKS_BYTES_MAX + PULL_BLOCKS_BYTES_MAX / 16)?,
        },
        ServerKind::Committed => {
            let count = usize::from(reader.u16("versions")?);
            reader.check(count <= TRANSACTION_CHANGES_MAX, "versions", count as u64, "at most 4096")?;
            let seen = |reader: &mut Reader| Ok(Seen { file: reader.u64("file")?, version: reader.u64("version")? });
            VolumeReply::Committed { versions: (0..count).map(|_| seen(reader)).collect::<Result<_, WireError>>()? }
        }
        ServerKind::Enrolled => {
            VolumeReply::Enrolled { number: device_number(reader)?, secret: Secret(reader.id("secret")?) }
        }
        ServerKind::Proven => VolumeReply::Proven,
        // the caller passes kinds of replies of volumes only
        _ => VolumeReply::Leased { duration_ms: reader.u32("duration")? },
    })
}

/// Number of a kind of lock; 0 is none.
fn lock_kind(kind: LockKind) -> u8 {
    match kind {
        LockKind::Shared => 1,
        LockKind::Exclusive => 2,
    }
}

fn read_lock_kind(reader: &mut Reader) -> Result<Option<LockKind>, WireError> {
    let kind = reader.u8("kind of lock")?;
    reader.check(kind <= 2, "kind of lock", kind.into(), "0 to 2")?;
    Ok([None, Some(LockKind::Shared), Some(LockKind::Exclusive)][usize::from(kind)])
}

/// First and last byte.
fn read_lock_range(reader: &mut Reader) -> Result<(u64, u64), WireError> {
    let (start, end) = (reader.u64("first byte")?, reader.u64("last byte")?);
    reader.check(start <= end, "last byte", end, "not before the first")?;
    Ok((start, end))
}

fn read_lock(reader: &mut Reader) -> Result<LockAsk, WireError> {
    let (file, owner, flags) = (reader.u64("file")?, reader.u64("owner")?, reader.u8("flags")?);
    reader.check(flags <= 3, "flags", flags.into(), "0 to 3")?;
    let (kind, test) = (read_lock_kind(reader)?, flags & 2 != 0);
    reader.check(!test || kind.is_some(), "kind of lock", 0, "1 or 2 in a test")?;
    let (start, end) = read_lock_range(reader)?;
    Ok(LockAsk { file, owner, is_flock: flags & 1 != 0, test, start, end, kind, pid: reader.u32("process")? })
}

/// Number of a device.
fn device_number(reader: &mut Reader) -> Result<u128, WireError> {
    let number = reader.u128("device")?;
    reader.check(number > 0, "device", 0, "at least 1")?;
    Ok(number)
}

/// Number of an open file.
pub(crate) fn file_number(reader: &mut Reader) -> Result<InodeId, WireError> {
    let number = reader.u32("file")?;
    reader.check(number >= FILE_NUMBER_MIN, "file", number.into(), "at least 2")?;
    Ok(InodeId(number))
}

/// The share of the link of a file.
pub(crate) fn write_share(writer: Writer, share: Share) -> Writer {
    let (kind, value) = match share {
        Share::Rest => (0, 0),
        Share::Percent(percent) => (1, percent.into()),
        Share::Rate(rate) => (2, rate),
    };
    writer.u8(kind).u64(value)
}

/// Reads what [`write_share`] writes.
pub(crate) fn read_share(reader: &mut Reader) -> Result<Share, WireError> {
    let (kind, value) = (reader.u8("share")?, reader.u64("value")?);
    match (kind, value) {
        (0, 0) => Ok(Share::Rest),
        (1, 1..=100) => Ok(Share::Percent(value as u8)),
        (2, 1..) => Ok(Share::Rate(value)),
        _ => Err(reader.bad("share", value, "0 for the rest, 1 to 100 percent, or a rate")),
    }
}

impl Writer {
    fn path(self, path: &[u8]) -> Writer {
        self.u16(path.len() as u16).raw(path)
    }

    fn base(self, base: &Option<Seen>) -> Writer {
        match base {
            None => self.u8(0),
            Some(seen) => self.u8(1).u64(seen.file).u64(seen.version),
        }
    }

    fn owner(self, owner: &Option<Owner>) -> Writer {
        match owner {
            None => self.u8(0),
            Some(owner) => self.u8(1).u32(owner.uid).u32(owner.gid),
        }
    }

    fn info(self, info: &FileInfo) -> Writer {
        let mut writer = self.u64(info.seen.file).u64(info.seen.version).u8(info.kind as u8).u64(info.size);
        for time in [info.mtime_ns, info.ctime_ns, info.atime_ns] {
            writer = writer.u64(time.cast_unsigned());
        }
        let writer = writer.u16(info.mode).u32(info.owner.uid).u32(info.owner.gid).u32(info.rdev).u32(info.links);
        writer.u64(info.stored_bytes).u8(u8::from(info.has_xattrs))
    }

    fn xattr(self, name: &[u8], value: &[u8]) -> Writer {
        self.u8(name.len() as u8).raw(name).u32(value.len() as u32).raw(value)
    }
}

impl Reader {
    fn path(&mut self) -> Result<Vec<u8>, WireError> {
        let bytes = usize::from(self.u16("path length")?);
        self.check(bytes <= PATH_BYTES_MAX, "path length", bytes as u64, "at most 4095")?;
        Ok(self.raw("path", bytes)?.to_vec())
    }

    fn base(&mut self) -> Result<Option<Seen>, WireError> {
        let given = self.flag("base")?;
        given.then(|| Ok(Seen { file: self.u64("file")?, version: self.u64("version")? })).transpose()
    }

    fn info(&mut self) -> Result<FileInfo, WireError> {
        let seen = Seen { file: self.u64("file")?, version: self.u64("version")? };
        let number = self.u8("kind")?;
        let kind = FileKind::from_u8(number).ok_or_else(|| self.bad("kind", number.into(), "0 to 6"))?;
        let size = self.u64("size")?;
        let [mtime_ns, ctime_ns, atime_ns] = [self.u64("time")?, self.u64("time")?, self.u64("time")?];
        let [mtime_ns, ctime_ns, atime_ns] = [mtime_ns, ctime_ns, atime_ns].map(u64::cast_signed);
        let (mode, owner) = (mode(self)?, Owner { uid: self.u32("user")?, gid: self.u32("group")? });
        let (rdev, links) = (self.u32("device")?, self.u32("links")?);
        let (stored_bytes, has_xattrs) = (self.u64("stored bytes")?, self.flag("flags")?);
        Ok(FileInfo {
            seen,
            kind,
            size,
            mtime_ns,
            ctime_ns,
            atime_ns,
            mode,
            owner,
            rdev,
            links,
            stored_bytes,
            has_xattrs,
        })
    }

    fn xattr_name(&mut self) -> Result<Vec<u8>, WireError> {
        let bytes = self.u8("name length")?;
        self.check(bytes > 0, "name length", 0, "1 to 255")?;
        Ok(self.raw("name", bytes.into())?.to_vec())
    }

    fn xattr(&mut self) -> Result<Xattr, WireError> {
        let (name, bytes) = (self.xattr_name()?, self.u32("value length")? as usize);
        self.check(bytes <= XATTR_VALUE_BYTES_MAX, "value length", bytes as u64, "at most 65536")?;
        Ok(Xattr { name, value: self.raw("value", bytes)? })
    }

    fn owner(&mut self) -> Result<Option<Owner>, WireError> {
        let given = self.flag("owner")?;
        given.then(|| Ok(Owner { uid: self.u32("user")?, gid: self.u32("group")? })).transpose()
    }
}

/// Bytes of the attributes of a file.
const INFO_BYTES: usize = 8 + 8 + 1 + 8 + 3 * 8 + 2 + 4 * 4 + 8 + 1;
const _: () = assert!(FILE_NAME_BYTES_MAX == u8::MAX as usize && PATH_BYTES_MAX <= u16::MAX as usize);
// Before names and attributes, an entry has a length; a whole page of the longest names fits a
// frame.
const _: () = assert!(FOLDER_ENTRIES_MAX * (FILE_NAME_BYTES_MAX + 1 + INFO_BYTES) + 64 <= FRAME_BYTES_MAX);
