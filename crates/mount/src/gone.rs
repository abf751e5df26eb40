//! A mount whose image is nowhere any more: every request fails with EIO, and what the kernel holds
//! goes on.
//!
//! That is what is left when a daemon has ended and the next one is told by the server that it has
//! no such image. Programs fail instead of waiting for what never comes.

use std::ffi::OsStr;
use std::sync::Arc;

use fuse::{
    Errno, FileHandle, Filesystem, INodeNo, Read, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::MountError;
use crate::backend::MountBackend;
use crate::control::{Controlled, MountStatus, Server};
use crate::counters::FuseCounters;
use crate::fuse_mount::Action;
use crate::hint::HintedFile;
use crate::keeper::Keeper;
use crate::mounted::Options;
use crate::report::UnmountReport;
use crate::served::{Made, Served, wait_any};
use crate::stop::Stop;

/// Serves errors until the mount is over, for the keeper in `options`.
///
/// # Errors
/// The keeper has ended.
pub fn serve_gone(options: Options, stop: &Stop) -> Result<(), MountError> {
    let no_keeper = || MountError::Keeper { problem: "there is no keeper".into() };
    let keeper = options.keeper.clone().ok_or_else(no_keeper)?;
    let mut made = Made::new(Gone, MountBackend::Keeper(keeper.clone()), true, 1)?;
    let listener = made.control.take();
    let served = made.serve(Box::new(|_| {}))?;
    let shared = Arc::new(Shared { served: served.clone(), options });
    let _control = listener.map(|listener| Server::start_on(listener, None, shared)).transpose()?;
    keeper.ready()?;
    if wait_any(&[&served], stop) { served.wait() } else { served.unmount() }
}

struct Shared {
    served: Arc<Served>,
    options: Options,
}

impl Controlled for Shared {
    fn status(&self) -> MountStatus {
        let keeper = self.options.keeper.as_ref();
        MountStatus {
            mountpoint: self.served.live.mountpoint.clone(),
            target: self.options.target.clone(),
            name: self.options.name.clone(),
            image: keeper.and_then(|keeper| keeper.image()).map(|image| image.to_string()).unwrap_or_default(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            refused: keeper.and_then(|keeper| keeper.refused()).map(str::to_string),
            cache_problem: None,
            overlay: self.options.overlay.clone(),
            session: client::Counters::default(),
            fuse: FuseCounters::default(),
            device: Some(self.served.live.device),
            restarts: keeper.map_or(0, |keeper| keeper.deaths()),
            volume: None,
        }
    }

    fn detach(&self) -> Result<UnmountReport, MountError> {
        self.served.backend.act(Action::Detach)?;
        Ok(UnmountReport::default())
    }

    /// The next daemon looks again.
    fn keeper(&self) -> Option<&Keeper> {
        self.options.keeper.as_deref()
    }

    fn hint(&self, _files: &[HintedFile]) -> Result<usize, String> {
        Err("the server has this image no more".into())
    }
}

struct Gone;

impl Filesystem for Gone {
    fn lookup(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::IO);
    }

    fn getattr(&self, _request: &Request, _inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.error(Errno::IO);
    }

    fn readlink(&self, _request: &Request, _inode: INodeNo, reply: ReplyData) {
        reply.error(Errno::IO);
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: i32, reply: ReplyOpen) {
        reply.error(Errno::IO);
    }

    fn read(&self, _request: &Request, _inode: INodeNo, _read: Read, reply: ReplyData) {
        reply.error(Errno::IO);
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: i32, reply: ReplyOpen) {
        reply.error(Errno::IO);
    }

    fn readdir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _offset: u64, reply: ReplyDirectory) {
        reply.error(Errno::IO);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        reply.error(Errno::IO);
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        reply.error(Errno::IO);
    }

    fn getxattr(&self, _request: &Request, _inode: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::IO);
    }

    fn listxattr(&self, _request: &Request, _inode: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::IO);
    }

    fn access(&self, _request: &Request, _inode: INodeNo, _mask: u32, reply: ReplyEmpty) {
        reply.error(Errno::IO);
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::IO);
    }
}
