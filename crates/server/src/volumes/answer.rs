//! What a volume answers to one request: a function of the volume, the files that the caller has
//! open, and the request. The server's connections call it on blocking threads; simulations of
//! clients call it too. A device that proves who it is ([`VolumeAsk::Prove`]) is known for the rest
//! of its handle; [`Caller`] says which it is.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use codec::Codec;
use units::{BlockId, InodeId, LockRange, Moment, PageId};
use volume::{FileId, Holder, LockOwner, Mode, Operation, Peer, Transaction, Volume, VolumeError, VolumePath, Writer};
use wire::format::{FRAME_BYTES_MAX_WRITTEN, NEED_RANGES_MAX, PULL_BLOCKS_BYTES_MAX, PUSH_PAGES_MAX};
use wire::volume::{
    Allocation, Change, FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, LockAsk, Owner, Secret, Seen, Space,
    VolumeAsk, VolumePiece, VolumeReply, Xattr, XattrHow,
};
use wire::{BlockRange, ErrorCode};

use super::files::OpenFiles;
use crate::error::Failure;
use crate::lock::locked;

/// zstd level of blocks: they are compressed while a program waits.
const LEVEL: i32 = 3;

/// Bytes of an entry of a listing besides its name, and of the listing itself.
const ENTRY_BYTES: usize = 80;

/// How often opening a file is repeated that changes meanwhile.
const OPEN_TRIES: usize = 4;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Number of the device, as it was proven on the handle; 0 if none was.
    pub device: u128,
    /// Whose device it is, for shares.
    pub peer: Peer,
    /// What the handle's proofs are made over.
    pub nonce: u128,
    /// The present moment, for leases.
    pub now: Moment,
    /// Bytes of the largest reply that the caller takes.
    pub reply_bytes_max: usize,
}

impl Caller {
    /// A device that takes the largest replies there are.
    pub fn new(device: u128, now: Moment) -> Caller {
        Caller { device, peer: Peer(1), nonce: 0, now, reply_bytes_max: FRAME_BYTES_MAX_WRITTEN }
    }
}

/// Answers `ask`. Never panics on what it says, and reads and allocates within the limits of the
/// wire.
///
/// # Errors
/// The code and text of an error frame; nothing was changed then.
pub fn answer(
    volume: &Volume,
    files: &Mutex<OpenFiles>,
    caller: &Caller,
    ask: &VolumeAsk,
) -> Result<VolumeReply, Failure> {
    match ask {
        VolumeAsk::FileOpen { path, .. } => open(volume, files, &VolumePath::new(path)?),
        VolumeAsk::FileStat { path } => Ok(VolumeReply::Attributes(info(&volume.stat(&VolumePath::new(path)?)?))),
        VolumeAsk::FolderList { path, after, limit } => {
            list(volume, &VolumePath::new(path)?, after, usize::from(*limit), caller.reply_bytes_max)
        }
        VolumeAsk::LinkRead { path } => {
            Ok(VolumeReply::LinkTarget(Bytes::from(volume.read_link(&VolumePath::new(path)?)?)))
        }
        VolumeAsk::XattrsRead { path } => {
            let (found, xattrs) = volume.xattrs(&VolumePath::new(path)?)?;
            let xattr = |(name, value): (Vec<u8>, Vec<u8>)| Xattr { name, value: value.into() };
            Ok(VolumeReply::Xattrs { info: info(&found), xattrs: xattrs.into_iter().map(xattr).collect() })
        }
        VolumeAsk::Lock(ask) => lock(volume, caller, ask),
        VolumeAsk::SpaceStat => {
            let volume::Space { all_bytes, bytes, all_files, files } = volume.space()?;
            Ok(VolumeReply::Space(Space { bytes: all_bytes, free_bytes: bytes, files: all_files, free_files: files }))
        }
        VolumeAsk::PullBlocks { blocks, .. } => {
            let VolumePiece { version, size, codec, bytes } = read(volume, files, blocks)?;
            Ok(VolumeReply::Blocks { version, size, codec, bytes })
        }
        VolumeAsk::Commit { .. } => {
            let committed = volume.commit(transaction(volume, caller, ask)?);
            committed_reply(files, ask, committed)
        }
        VolumeAsk::Lease { file, kind, duration_ms } => {
            lease(volume, files, caller, FileId(*file), *kind, *duration_ms)
        }
        VolumeAsk::Enrol => {
            let (number, secret) = volume.enrol()?;
            Ok(VolumeReply::Enrolled { number, secret: Secret(secret) })
        }
        VolumeAsk::Prove { number, proof, previous } => {
            if !Secret(volume.secret(*number)?).accepts(proof, volume.id(), caller.nonce, *number) {
                let text = "this is no proof that the device number is yours; ask for one (Enrol)";
                return Err(Failure::new(ErrorCode::Unproven, text));
            }
            if *previous != 0 {
                let inherits = Some((*number, *previous));
                volume.commit(Transaction { peer: caller.peer, inherits, ..Transaction::default() })?;
            }
            Ok(VolumeReply::Proven)
        }
    }
}

/// Whether the caller may change files and hold leases: it has said which device it is, and has
/// shown it.
fn check_writer(volume: &Volume, caller: &Caller) -> Result<(), Failure> {
    if volume.options().mode == Mode::ReadOnly {
        return Err(VolumeError::ReadOnly.into());
    }
    if caller.device == 0 {
        let text = "prove a device number on this handle before transactions and leases (Prove)";
        return Err(Failure::new(ErrorCode::Unproven, text));
    }
    Ok(())
}

fn open(volume: &Volume, files: &Mutex<OpenFiles>, path: &VolumePath) -> Result<VolumeReply, Failure> {
    for _ in 0..OPEN_TRIES {
        let found = volume.stat(path)?;
        if found.kind != volume::Kind::File {
            return Err(VolumeError::NotFile { path: path.to_string() }.into());
        }
        let table = match volume.block_table(path, Some(found.seen.file), 0, volume::TABLE_BLOCKS_MAX) {
            Err(VolumeError::Stale { .. }) => continue,
            other => other?,
        };
        if table.seen != found.seen {
            continue;
        }
        let (present, cut) = ranges(&table.present);
        let cut = cut || found.size.div_ceil(found.block_bytes.into()) > table.present.len() as u64;
        let file = locked(files).open(path, found.seen.file)?;
        return Ok(VolumeReply::FileOpened { file, info: info(&found), profiled: false, present, cut });
    }
    Err(VolumeError::Busy { path: path.to_string() }.into())
}

/// Ranges of blocks that are present, at most so many as an answer can name, and whether there are
/// more.
fn ranges(present: &[bool]) -> (Vec<BlockRange>, bool) {
    let mut ranges = Vec::new();
    let mut first = 0;
    for run in present.chunk_by(|a, b| a == b) {
        if run.first() == Some(&true) {
            if ranges.len() >= NEED_RANGES_MAX {
                return (ranges, true);
            }
            ranges.push(BlockRange { first: BlockId(first), count: run.len() as u32 });
        }
        first += run.len() as u32;
    }
    (ranges, false)
}

fn list(
    volume: &Volume,
    path: &VolumePath,
    after: &[u8],
    limit: usize,
    bytes_max: usize,
) -> Result<VolumeReply, Failure> {
    let listing = volume.list_infos(path, after, limit)?;
    let (mut bytes, mut more) = (2 * ENTRY_BYTES, listing.more);
    let mut entries = Vec::with_capacity(listing.entries.len());
    for (name, found) in listing.entries {
        bytes += ENTRY_BYTES + name.len();
        if bytes > bytes_max {
            more = true;
            break;
        }
        entries.push(FolderEntry { name, info: info(&found) });
    }
    Ok(VolumeReply::Entries { folder: seen(listing.seen), more, entries })
}

/// Reads blocks of one open file, all of one version, and compresses them.
pub(crate) fn read(volume: &Volume, files: &Mutex<OpenFiles>, blocks: &[PageId]) -> Result<VolumePiece, Failure> {
    let file = blocks.first().map_or(InodeId(0), |block| block.inode);
    let (path, id) = locked(files).get(file).ok_or_else(|| unknown_file(file))?;
    if blocks.iter().any(|block| block.inode != file) {
        return Err(Failure::bad_request("blocks of several files were asked for at once"));
    }
    let bytes = blocks.len() * volume.options().block_bytes as usize;
    if bytes > PULL_BLOCKS_BYTES_MAX || blocks.len() > PUSH_PAGES_MAX {
        return Err(Failure::bad_request(format!("{bytes} bytes in {} blocks are too many at once", blocks.len())));
    }
    let indexes: Vec<u64> = blocks.iter().map(|block| block.index.into()).collect();
    let read = volume.read_each(&path, Some(id), &indexes)?;
    let mut stored = Vec::new();
    let smaller =
        codec::encode(Codec::Zstd, LEVEL, &read.bytes, &mut stored).is_ok() && stored.len() < read.bytes.len();
    let (codec, bytes) = if smaller { (Codec::Zstd, stored) } else { (Codec::Stored, read.bytes) };
    let (version, codec, bytes) = (read.seen.version, codec.to_u8(), Bytes::from(bytes));
    Ok(VolumePiece { version, size: read.size, codec, bytes })
}

/// The error of a file number that the connection does not have.
pub(crate) fn unknown_file(file: InodeId) -> Failure {
    Failure::bad_request(format!("file {} is not open on this connection", file.0))
}

/// What a Commit asks of the volume.
///
/// # Errors
/// A volume for reading, a device that was not proven, a path that cannot be; any other request.
pub fn transaction(volume: &Volume, caller: &Caller, ask: &VolumeAsk) -> Result<Transaction, Failure> {
    let VolumeAsk::Commit { number, mtime_ns, changes } = ask else {
        return Err(Failure::bad_request("the request is no transaction"));
    };
    check_writer(volume, caller)?;
    let operations = changes.iter().map(operation).collect::<Result<_, VolumeError>>()?;
    let &Caller { device, peer, now, .. } = caller;
    let (writer, holder) = (Some(Writer { device, number: *number }), Holder(device));
    Ok(Transaction { writer, peer, inherits: None, holder, now, mtime_ns: *mtime_ns, operations })
}

/// The answer to a Commit. Open files that it renamed go on under their new names.
pub(crate) fn committed_reply(
    files: &Mutex<OpenFiles>,
    ask: &VolumeAsk,
    committed: Result<volume::Committed, VolumeError>,
) -> Result<VolumeReply, Failure> {
    let changes = match ask {
        VolumeAsk::Commit { changes, .. } => changes.as_slice(),
        _ => &[],
    };
    let committed = committed.map_err(|error| named(files, changes, error))?;
    for change in changes {
        if let Change::Rename { from, to, .. } = change {
            locked(files).renamed(from, to);
        }
    }
    // A repeated transaction is known by its number; that it says something else now is the
    // device's mistake.
    if committed.versions.len() != changes.len() {
        let text = "another transaction of this number was committed before";
        return Err(Failure::new(ErrorCode::Outdated, text));
    }
    Ok(VolumeReply::Committed { versions: committed.versions.into_iter().map(seen).collect() })
}

/// The failure; where a file is leased, with its path in place of its number, as far as the caller
/// can know it.
fn named(files: &Mutex<OpenFiles>, changes: &[Change], error: VolumeError) -> Failure {
    let VolumeError::Leased { file } = error else { return error.into() };
    let target = |change: &Change| match change {
        Change::Write { path, base, .. }
        | Change::Append { path, base, .. }
        | Change::Truncate { path, base, .. }
        | Change::Allocate { path, base, .. }
        | Change::Copy { path, base, .. }
        | Change::Rename { from: path, base, .. }
        | Change::Unlink { path, base }
        | Change::SetTime { path, base, .. }
        | Change::SetAccessTime { path, base, .. }
        | Change::Link { from: path, base, .. }
        | Change::SetOwner { path, base, .. }
        | Change::SetXattr { path, base, .. }
        | Change::RemoveXattr { path, base, .. }
        | Change::SetMode { path, base, .. } => Some((path.clone(), base.map(|seen| seen.file))),
        Change::Create { .. }
        | Change::MakeFolder { .. }
        | Change::MakeNode { .. }
        | Change::MakeLink { .. }
        | Change::OnlyName { .. }
        | Change::RemoveFolder { .. } => None,
    };
    let changed = || changes.iter().filter_map(target);
    let known = changed().find(|(_, base)| *base == Some(file.0));
    let open = || {
        let files = locked(files);
        files.number(file).and_then(|number| files.get(number)).map(|(path, _)| path.as_bytes().to_vec())
    };
    // A change that names no version is of the file if it is the only one.
    let only = || changed().next().filter(|_| changes.len() == 1);
    let path = known.map(|(path, _)| path).or_else(open).or_else(|| only().map(|(path, _)| path));
    match path {
        None => error.into(),
        Some(path) => {
            let path = String::from_utf8_lossy(&path).into_owned();
            Failure::new(ErrorCode::Leased, format!("{path} is leased by another device; try again later"))
        }
    }
}

fn operation(change: &Change) -> Result<Operation, VolumeError> {
    let at = |path: &[u8]| VolumePath::new(path);
    let base = |base: &Option<Seen>| base.map(|seen| volume::Seen { file: FileId(seen.file), version: seen.version });
    Ok(match change {
        Change::Write { path, base: seen, offset, bytes } => {
            Operation::Write { path: at(path)?, base: base(seen), offset: *offset, bytes: bytes.to_vec() }
        }
        Change::Append { path, base: seen, bytes } => {
            Operation::Append { path: at(path)?, base: base(seen), bytes: bytes.to_vec() }
        }
        Change::Truncate { path, base: seen, size } => {
            Operation::Truncate { path: at(path)?, base: base(seen), size: *size }
        }
        Change::Allocate { path, base: seen, offset, length, allocation } => {
            let &Allocation { zero, reserve, extend } = allocation;
            let allocation = volume::Allocation { zero, reserve, extend };
            Operation::Allocate { path: at(path)?, base: base(seen), offset: *offset, length: *length, allocation }
        }
        Change::Copy { path, base: to, offset, from, from_base, from_offset, length } => {
            let (path, from, offset, from_offset) = (at(path)?, at(from)?, *offset, *from_offset);
            let (base, from_base) = (base(to), base(from_base));
            Operation::Copy { path, base, offset, from, from_base, from_offset, length: *length }
        }
        Change::Create { path, mode, exclusive, owner: whose } => {
            Operation::Create { path: at(path)?, mode: *mode, exclusive: *exclusive, owner: owner(whose) }
        }
        Change::MakeFolder { path, mode, owner: whose } => {
            Operation::MakeFolder { path: at(path)?, mode: *mode, owner: owner(whose) }
        }
        Change::MakeNode { path, kind, mode, rdev, owner: whose } => {
            let kind = volume_kind(*kind);
            Operation::MakeNode { path: at(path)?, kind, mode: *mode, rdev: *rdev, owner: owner(whose) }
        }
        Change::MakeLink { path, target, owner: whose } => {
            Operation::MakeLink { path: at(path)?, target: target.to_vec(), owner: owner(whose) }
        }
        Change::Link { from, base: seen, to } => Operation::Link { from: at(from)?, base: base(seen), to: at(to)? },
        Change::Rename { from, base: seen, to, replace } => {
            Operation::Rename { from: at(from)?, base: base(seen), to: at(to)?, replace: *replace }
        }
        Change::Unlink { path, base: seen } => Operation::Unlink { path: at(path)?, base: base(seen) },
        Change::OnlyName { path } => Operation::OnlyName { path: at(path)? },
        Change::RemoveFolder { path } => Operation::RemoveFolder { path: at(path)? },
        Change::SetTime { path, base: seen, mtime_ns } => {
            Operation::SetTime { path: at(path)?, base: base(seen), mtime_ns: *mtime_ns }
        }
        Change::SetAccessTime { path, base: seen, atime_ns } => {
            Operation::SetAccessTime { path: at(path)?, base: base(seen), atime_ns: *atime_ns }
        }
        Change::SetOwner { path, base: seen, uid, gid } => {
            Operation::SetOwner { path: at(path)?, base: base(seen), uid: *uid, gid: *gid }
        }
        Change::SetMode { path, base: seen, mode } => {
            Operation::SetMode { path: at(path)?, base: base(seen), mode: *mode }
        }
        Change::SetXattr { path, base: seen, name, value, how } => {
            let (name, value) = (name.clone(), value.to_vec());
            let how = match how {
                XattrHow::Any => volume::XattrHow::Any,
                XattrHow::Create => volume::XattrHow::Create,
                XattrHow::Replace => volume::XattrHow::Replace,
            };
            Operation::SetXattr { path: at(path)?, base: base(seen), name, value, how }
        }
        Change::RemoveXattr { path, base: seen, name } => {
            Operation::RemoveXattr { path: at(path)?, base: base(seen), name: name.clone() }
        }
    })
}

fn owner(owner: &Option<Owner>) -> Option<volume::Owner> {
    owner.map(|Owner { uid, gid }| volume::Owner { uid, gid })
}

fn volume_kind(kind: FileKind) -> volume::Kind {
    match kind {
        FileKind::File => volume::Kind::File,
        FileKind::Folder => volume::Kind::Folder,
        FileKind::Symlink => volume::Kind::Symlink,
        FileKind::Fifo => volume::Kind::Fifo,
        FileKind::Socket => volume::Kind::Socket,
        FileKind::CharDevice => volume::Kind::CharDevice,
        FileKind::BlockDevice => volume::Kind::BlockDevice,
    }
}

fn lock(volume: &Volume, caller: &Caller, ask: &LockAsk) -> Result<VolumeReply, Failure> {
    check_writer(volume, caller)?;
    let (file, holder) = (FileId(ask.file), Holder(caller.device));
    let owner = LockOwner { holder, is_flock: ask.is_flock, number: ask.owner };
    let locks = volume.locks();
    let Some(kind) = ask.kind else {
        locks.unlock(file, owner, ask.start, ask.end)?;
        return Ok(VolumeReply::Locked(None));
    };
    let range = LockRange { start: ask.start, end: ask.end, kind };
    let held = match ask.test {
        true => locks.test(file, owner, range, caller.now),
        false => locks.lock(file, owner, (caller.peer, ask.pid), range, caller.now)?,
    };
    let held = held.map(|held| HeldLock { range: held.range, pid: held.pid, is_own: held.holder == holder });
    Ok(VolumeReply::Locked(held))
}

fn lease(
    volume: &Volume,
    files: &Mutex<OpenFiles>,
    caller: &Caller,
    file: FileId,
    kind: Option<LeaseKind>,
    duration_ms: u32,
) -> Result<VolumeReply, Failure> {
    let kind = match kind {
        None => {
            volume.leases().release(file, Holder(caller.device));
            return Ok(VolumeReply::Leased { duration_ms: 0 });
        }
        Some(LeaseKind::Shared) => volume::LeaseKind::Shared,
        Some(LeaseKind::Exclusive) => volume::LeaseKind::Exclusive,
    };
    // Where nobody can write it would only be a nuisance.
    check_writer(volume, caller)?;
    let wanted = Duration::from_millis(duration_ms.into());
    let taken = volume.leases().take(file, (Holder(caller.device), caller.peer), kind, wanted, caller.now);
    let until = taken.map_err(|error| named(files, &[], error))?;
    Ok(VolumeReply::Leased { duration_ms: until.since(caller.now).as_millis() as u32 })
}

fn seen(seen: volume::Seen) -> Seen {
    Seen { file: seen.file.0, version: seen.version }
}

fn info(info: &volume::Info) -> FileInfo {
    let kind = match info.kind {
        volume::Kind::Folder => FileKind::Folder,
        volume::Kind::Symlink => FileKind::Symlink,
        volume::Kind::Fifo => FileKind::Fifo,
        volume::Kind::Socket => FileKind::Socket,
        volume::Kind::CharDevice => FileKind::CharDevice,
        volume::Kind::BlockDevice => FileKind::BlockDevice,
        // A volume tells of nothing else.
        volume::Kind::File | volume::Kind::Special => FileKind::File,
    };
    FileInfo {
        seen: seen(info.seen),
        kind,
        size: info.size,
        mtime_ns: info.mtime_ns,
        ctime_ns: info.ctime_ns,
        atime_ns: info.atime_ns,
        mode: info.mode,
        owner: Owner { uid: info.owner.uid, gid: info.owner.gid },
        rdev: info.rdev,
        links: info.links,
        stored_bytes: info.stored_bytes,
        has_xattrs: info.has_xattrs,
    }
}

/// The code of what the file system refused.
fn refused(kind: std::io::ErrorKind) -> ErrorCode {
    use std::io::ErrorKind::*;
    match kind {
        PermissionDenied | ResourceBusy | ExecutableFileBusy => ErrorCode::Denied,
        TooManyLinks | FileTooLarge => ErrorCode::TooLarge,
        InvalidInput | InvalidFilename => ErrorCode::BadRequest,
        Unsupported => ErrorCode::Unsupported,
        _ => ErrorCode::Storage,
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Failure {
        let code = match &error {
            VolumeError::InvalidPath { .. } | VolumeError::Invalid { .. } => ErrorCode::BadRequest,
            VolumeError::NotFound { .. } => ErrorCode::NotFound,
            VolumeError::Exists { .. } => ErrorCode::Exists,
            VolumeError::NotFolder { .. } => ErrorCode::NotFolder,
            VolumeError::NotFile { .. } => ErrorCode::NotFile,
            VolumeError::NotEmpty { .. } => ErrorCode::NotEmpty,
            VolumeError::Special { .. } | VolumeError::Denied { .. } => ErrorCode::Denied,
            VolumeError::Conflict { .. } => ErrorCode::Conflict,
            VolumeError::Outdated { .. } => ErrorCode::Outdated,
            VolumeError::Stale { .. } => ErrorCode::Stale,
            VolumeError::Leased { .. } => ErrorCode::Leased,
            VolumeError::NoSpace { .. } => ErrorCode::NoSpace,
            VolumeError::OverQuota { .. } => ErrorCode::OverQuota,
            VolumeError::TooLarge { .. } => ErrorCode::TooLarge,
            VolumeError::ReadOnly => ErrorCode::ReadOnly,
            VolumeError::Unsupported { .. } => ErrorCode::Unsupported,
            VolumeError::Linked { .. } => ErrorCode::Linked,
            VolumeError::NoAttribute { .. } => ErrorCode::NoAttribute,
            // The server opens a volume that stopped again; a transaction may be done by then, and
            // is not done twice.
            VolumeError::Busy { .. } | VolumeError::InUse { .. } | VolumeError::Broken { .. } => ErrorCode::Busy,
            VolumeError::Corrupt { .. } => ErrorCode::Corrupt,
            VolumeError::Refused { source } => refused(source.kind()),
            // What stopped, what the system refused, and whatever a later version adds.
            _ => ErrorCode::Storage,
        };
        Failure::new(code, error.to_string())
    }
}
