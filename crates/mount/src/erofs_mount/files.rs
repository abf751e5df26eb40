//! The FUSE file system below EROFS: one directory with two files, the metadata and the virtual
//! blob.
//!
//! The metadata go through the page cache as any file, and EROFS uses these very pages. The blob is
//! opened for direct reads: its pages go straight into those of the files that EROFS shows, and are
//! not kept twice. That also makes each read of EROFS one request, which succeeds or fails as a
//! whole. Through the page cache a read could end early at a damaged page, and EROFS completes
//! short reads with zeros (`erofs_fileio_ki_complete` in fs/erofs/fileio.c).
//!
//! A READ decodes blocks on the serving thread that got it.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use client::{BlockFailure, FileBlocks, NearBlock};
use erofs::Volume;
use fuse::{
    FileAttr, FileHandle, FileType, Filesystem, INodeNo, KernelConfig, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, Request, capability, open_flag,
};
use units::PAGE_BYTES;

use crate::counters::{Operations, count};
use crate::errno;

/// Name of the blob.
pub(super) const BLOB_NAME: &str = "blob";

const ROOT: u64 = 1;
const METADATA: u64 = 2;
const BLOB: u64 = 3;

/// The two files never change.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Largest READ: a run of slots, and what FUSE sends at most.
const REQUEST_BYTES_MAX: u32 = ((erofs::RUN_SLOTS_MAX + 1) as usize * PAGE_BYTES) as u32;

/// Larger answers give their memory back: most are smaller.
const ANSWER_BYTES_MAX: usize = 256 << 10;

thread_local! {
    /// Memory of a serving thread's answers.
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The two files.
pub(super) struct Files {
    blocks: Arc<FileBlocks>,
    volume: Volume,
    /// Name of the metadata, which the mount table shows.
    name: String,
    operations: Arc<Operations>,
}

impl Files {
    pub(super) fn new(blocks: Arc<FileBlocks>, volume: Volume, name: String, operations: Arc<Operations>) -> Files {
        Files { blocks, volume, name, operations }
    }

    fn attributes(&self, number: u64) -> Option<FileAttr> {
        let (kind, size, perm) = match number {
            ROOT => (FileType::Directory, 0, 0o500),
            METADATA => (FileType::RegularFile, self.volume.metadata_bytes(), 0o400),
            BLOB => (FileType::RegularFile, self.volume.blob_bytes(), 0o400),
            _ => return None,
        };
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE_BYTES as u32,
        })
    }

    /// Fills `out` with the blob at `offset`; all of it or nothing.
    fn read_blob(&self, offset: u64, out: &mut [u8]) -> Result<(), BlockFailure> {
        let page = PAGE_BYTES as u64;
        let mut near = NearBlock::default();
        let mut scratch = [0; PAGE_BYTES];
        let mut at = 0;
        while at < out.len() {
            let (slot, skip) = ((offset + at as u64) / page, ((offset + at as u64) % page) as usize);
            let bytes = (PAGE_BYTES - skip).min(out.len() - at);
            let part = &mut out[at..at + bytes];
            // EROFS reads whole slots; anybody else goes through a page of our own.
            if bytes == PAGE_BYTES {
                self.read_slot(slot, &mut near, part)?;
            } else {
                scratch.fill(0);
                self.read_slot(slot, &mut near, &mut scratch)?;
                part.copy_from_slice(&scratch[skip..skip + bytes]);
            }
            at += bytes;
        }
        Ok(())
    }

    /// Fills a slot that holds zeros.
    fn read_slot(&self, slot: u64, near: &mut NearBlock, out: &mut [u8]) -> Result<(), BlockFailure> {
        let slot = u32::try_from(slot).map_err(|_| BlockFailure::Corrupt)?;
        let mut result = Ok(());
        self.volume.slot_chunks(self.blocks.metadata(), slot, |start, chunk| {
            if result.is_ok() {
                result = self.blocks.copy_chunk(chunk, near, &mut out[start..]);
            }
        });
        result
    }
}

impl Filesystem for Files {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = capability::ASYNC_READ | capability::EXPLICIT_INVAL_DATA;
        // Each is an improvement only; a kernel that lacks one works without.
        config.add_capabilities(wanted);
        // Also the largest READ.
        config.set_max_write(REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        count(&self.operations.lookup);
        let number = match name.to_str() {
            Some(BLOB_NAME) => BLOB,
            Some(name) if name == self.name => METADATA,
            _ => return reply.error(errno::NOT_FOUND),
        };
        match self.attributes(number).filter(|_| parent.0 == ROOT) {
            // Look-ups are not counted, so one that did not arrive changes nothing.
            Some(attributes) => drop(reply.entry(&FOR_EVER, &attributes, 0)),
            None => reply.error(errno::NOT_FOUND),
        }
    }

    fn forget(&self, _request: &Request, _number: INodeNo, _lookups: u64) {
        count(&self.operations.forget);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        count(&self.operations.getattr);
        match self.attributes(number.0) {
            Some(attributes) => reply.attr(&FOR_EVER, &attributes),
            None => reply.error(errno::NOT_FOUND),
        }
    }

    fn open(&self, _request: &Request, number: INodeNo, _flags: i32, reply: ReplyOpen) {
        count(&self.operations.open);
        let flags = if number.0 == BLOB { open_flag::DIRECT_IO } else { open_flag::KEEP_CACHE };
        let _ = reply.opened(FileHandle(0), flags | open_flag::NOFLUSH);
    }

    fn read(&self, _request: &Request, number: INodeNo, read: fuse::Read, reply: ReplyData) {
        count(&self.operations.read);
        let end = match number.0 {
            METADATA => self.volume.metadata_bytes(),
            BLOB => self.volume.blob_bytes(),
            _ => return reply.error(errno::NOT_FOUND),
        };
        let fuse::Read { offset, size, .. } = read;
        let bytes = u64::from(size.min(REQUEST_BYTES_MAX)).min(end.saturating_sub(offset)) as usize;
        let mut out = ANSWER.take();
        // All of it is filled: only what a READ before left in slots with holes must not show.
        out.clear();
        out.resize(bytes, 0);
        if number.0 == METADATA {
            self.volume.read(self.blocks.metadata(), offset, &mut out);
            reply.data(&out);
        } else if self.read_blob(offset, &mut out).is_ok() {
            reply.data(&out);
        } else {
            self.blocks.count_error();
            reply.error(errno::DAMAGED);
        }
        if out.capacity() <= ANSWER_BYTES_MAX {
            ANSWER.set(out);
        }
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flocks: Option<u64>,
        reply: ReplyEmpty,
    ) {
        count(&self.operations.release);
        reply.ok();
    }
}
