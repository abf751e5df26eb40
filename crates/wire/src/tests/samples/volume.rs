//! Random requests to volumes and answers of them.

use units::{InodeId, LockKind, LockRange, PageId};

use super::Samples;
use crate::format::COPY_BYTES_MAX;
use crate::message::{ClientMessage, Notice};
use crate::volume::{
    Allocation, Change, FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, LockAsk, Owner, Secret, Seen, Share,
    Space, VolumeAsk, VolumeReply, Xattr, XattrHow,
};
use crate::{Reply, Request};

impl Samples {
    fn path(&mut self) -> Vec<u8> {
        self.bytes(0, 60).to_vec()
    }

    fn seen(&mut self) -> Seen {
        Seen { file: self.number(), version: self.number() }
    }

    fn base(&mut self) -> Option<Seen> {
        self.flag().then(|| self.seen())
    }

    fn mode(&mut self) -> u16 {
        self.below(0o10000) as u16
    }

    fn time(&mut self) -> i64 {
        self.number().cast_signed()
    }

    fn info(&mut self) -> FileInfo {
        let kind = FileKind::from_u8(self.below(7) as u8).unwrap_or_default();
        let (mtime_ns, ctime_ns, atime_ns) = (self.time(), self.time(), self.time());
        FileInfo {
            seen: self.seen(),
            kind,
            size: self.number(),
            mtime_ns,
            ctime_ns,
            atime_ns,
            mode: self.mode(),
            owner: Owner { uid: self.u32(), gid: self.u32() },
            rdev: self.u32(),
            links: self.u32(),
            stored_bytes: self.number(),
            has_xattrs: self.flag(),
        }
    }

    fn owner(&mut self) -> Option<Owner> {
        self.flag().then(|| Owner { uid: self.u32(), gid: self.u32() })
    }

    fn file(&mut self) -> InodeId {
        InodeId(self.u32().max(2))
    }

    fn change(&mut self) -> Change {
        match self.below(20) {
            17 => Change::Copy {
                path: self.path(),
                base: self.base(),
                offset: self.number(),
                from: self.path(),
                from_base: self.base(),
                from_offset: self.number(),
                length: 1 + self.below(COPY_BYTES_MAX.into()) as u32,
            },
            16 => {
                let (zero, extend) = (self.flag(), self.flag());
                let allocation = Allocation { zero, reserve: !zero || self.flag(), extend };
                let (path, base, offset, length) = (self.path(), self.base(), self.number(), self.number().max(1));
                Change::Allocate { path, base, offset, length, allocation }
            }
            19 => Change::RemoveXattr { path: self.path(), base: self.base(), name: self.bytes(1, 255).to_vec() },
            18 => {
                let (path, base, Xattr { name, value }) = (self.path(), self.base(), self.xattr());
                let how = [XattrHow::Any, XattrHow::Create, XattrHow::Replace][self.below(3) as usize];
                Change::SetXattr { path, base, name, value, how }
            }
            15 => Change::OnlyName { path: self.path() },
            14 => Change::Link { from: self.path(), base: self.base(), to: self.path() },
            13 => Change::SetAccessTime { path: self.path(), base: self.base(), atime_ns: self.time() },
            12 => Change::SetOwner {
                path: self.path(),
                base: self.base(),
                uid: self.flag().then(|| self.u32() >> 1),
                gid: self.flag().then(|| self.u32() >> 1),
            },
            11 => Change::MakeNode {
                path: self.path(),
                kind: FileKind::from_u8(3 + self.below(4) as u8).unwrap_or_default(),
                mode: self.mode(),
                rdev: self.u32(),
                owner: self.owner(),
            },
            10 => Change::MakeLink { path: self.path(), target: self.bytes(1, 300), owner: self.owner() },
            0 => {
                Change::Write { path: self.path(), base: self.base(), offset: self.number(), bytes: self.bytes(0, 300) }
            }
            1 => Change::Append { path: self.path(), base: self.base(), bytes: self.bytes(0, 300) },
            2 => Change::Truncate { path: self.path(), base: self.base(), size: self.number() },
            3 => Change::Create { path: self.path(), mode: self.mode(), exclusive: self.flag(), owner: self.owner() },
            4 => Change::MakeFolder { path: self.path(), mode: self.mode(), owner: self.owner() },
            5 => Change::Rename { from: self.path(), base: self.base(), to: self.path(), replace: self.flag() },
            6 => Change::Unlink { path: self.path(), base: self.base() },
            7 => Change::RemoveFolder { path: self.path() },
            8 => Change::SetTime { path: self.path(), base: self.base(), mtime_ns: self.time() },
            _ => Change::SetMode { path: self.path(), base: self.base(), mode: self.mode() },
        }
    }

    fn xattr(&mut self) -> Xattr {
        Xattr { name: self.bytes(1, 255).to_vec(), value: self.bytes(0, 300) }
    }

    fn lock_range(&mut self) -> LockRange {
        let (a, b) = (self.number(), self.number());
        let kind = if self.flag() { LockKind::Shared } else { LockKind::Exclusive };
        LockRange { start: a.min(b), end: a.max(b), kind }
    }

    fn volume_ask(&mut self) -> VolumeAsk {
        match self.below(12) {
            10 => VolumeAsk::XattrsRead { path: self.path() },
            8 => VolumeAsk::SpaceStat,
            9 => {
                let (range, test) = (self.lock_range(), self.flag());
                let kind = Some(range.kind).filter(|_| test || self.flag());
                let (file, owner, is_flock, pid) = (self.number(), self.number(), self.flag(), self.u32());
                VolumeAsk::Lock(LockAsk { file, owner, is_flock, test, start: range.start, end: range.end, kind, pid })
            }
            0 => VolumeAsk::FileOpen { token: self.token(), path: self.path() },
            1 => VolumeAsk::FileStat { path: self.path() },
            2 => VolumeAsk::FolderList {
                path: self.path(),
                after: self.bytes(0, 255).to_vec(),
                limit: 1 + self.below(4096) as u16,
            },
            3 => VolumeAsk::LinkRead { path: self.path() },
            4 => {
                let file = self.file();
                let blocks = (0..1 + self.below(32)).map(|_| PageId::new(file, self.u32())).collect();
                VolumeAsk::PullBlocks { token: self.token(), blocks, force: self.flag() }
            }
            5 => {
                let changes = (0..1 + self.below(6)).map(|_| self.change()).collect();
                VolumeAsk::Commit { number: self.number().max(1), mtime_ns: self.time(), changes }
            }
            6 => VolumeAsk::Enrol,
            7 => {
                let (number, previous) = (self.u128().max(1), self.u128());
                VolumeAsk::Prove { number, proof: self.secret(), previous }
            }
            _ => {
                let kind = [None, Some(LeaseKind::Shared), Some(LeaseKind::Exclusive)][self.below(3) as usize];
                VolumeAsk::Lease { file: self.number(), kind, duration_ms: self.u32() }
            }
        }
    }

    pub fn volume_request(&mut self) -> Request {
        match self.below(6) {
            0 => Request::VolumeOpen { name: self.text(1, 255) },
            _ => Request::Volume { volume: self.image(), ask: self.volume_ask() },
        }
    }

    pub fn volume_reply(&mut self) -> Reply {
        Reply::Volume(match self.below(13) {
            11 => {
                let xattrs = (0..self.below(4)).map(|_| self.xattr()).collect();
                VolumeReply::Xattrs { info: self.info(), xattrs }
            }
            10 => {
                let held =
                    self.flag().then(|| HeldLock { range: self.lock_range(), pid: self.u32(), is_own: self.flag() });
                VolumeReply::Locked(held)
            }
            0 => VolumeReply::FileOpened {
                file: self.file(),
                info: FileInfo { kind: FileKind::File, ..self.info() },
                profiled: self.flag(),
                present: self.ranges(),
                cut: self.flag(),
            },
            1 => VolumeReply::Attributes(self.info()),
            2 => {
                let entry =
                    |samples: &mut Samples| FolderEntry { name: samples.bytes(1, 255).to_vec(), info: samples.info() };
                let entries = (0..self.below(6)).map(|_| entry(self)).collect();
                VolumeReply::Entries { folder: self.seen(), more: self.flag(), entries }
            }
            3 => VolumeReply::LinkTarget(self.bytes(0, 300)),
            4 => VolumeReply::Blocks {
                version: self.number(),
                size: self.number(),
                codec: self.number() as u8,
                bytes: self.bytes(0, 300),
            },
            5 => VolumeReply::Committed { versions: (0..self.below(6)).map(|_| self.seen()).collect() },
            6 => VolumeReply::Leased { duration_ms: self.u32() },
            7 => VolumeReply::Enrolled { number: self.u128().max(1), secret: Secret(self.secret()) },
            8 => VolumeReply::Proven,
            9 => VolumeReply::Space(Space {
                bytes: self.number(),
                free_bytes: self.number(),
                files: self.number(),
                free_files: self.number(),
            }),
            _ => {
                let (volume, id, writable, nonce) = (self.image(), self.u128(), self.flag(), self.u128());
                return Reply::VolumeOpened { volume, id, block_bytes: 512 << self.below(8), writable, nonce };
            }
        })
    }

    pub fn volume_message(&mut self) -> ClientMessage {
        match self.below(3) {
            0 => ClientMessage::Notice(Notice::FileClose { volume: self.image(), file: self.file() }),
            1 => {
                let share = match self.below(3) {
                    0 => Share::Rest,
                    1 => Share::Percent(1 + self.below(100) as u8),
                    _ => Share::Rate(self.number().max(1)),
                };
                ClientMessage::Notice(Notice::FileShare { volume: self.image(), file: self.file(), share })
            }
            _ => ClientMessage::Notice(Notice::RateLimit { bytes_per_second: self.number() }),
        }
    }
}
