//! The choice between mounting in this process and by a [`Keeper`].
//!
//! Under Landlock nobody can mount or unmount anything. So a daemon in a sandbox has a keeper, a
//! process beside it that is in no sandbox.

use std::sync::Arc;

use crate::MountError;
use crate::fuse_mount::{Action, Fresh, MountPoint};
use crate::keeper::Keeper;

/// The process that mounts and unmounts: this one, or one beside it.
pub(crate) enum MountBackend {
    /// This process.
    Own(MountPoint),
    /// A process beside it.
    Keeper(Arc<Keeper>),
}

impl MountBackend {
    /// Mounts FUSE; read-only also if `read_only` says so.
    ///
    /// # Errors
    /// The mount point is missing, no directory, in use or stale; FUSE cannot be used, or not by
    /// this user.
    pub(crate) fn mount(&self, read_only: bool) -> Result<Fresh, MountError> {
        match self {
            MountBackend::Own(own) => own.mount(read_only),
            MountBackend::Keeper(keeper) => keeper.mount(read_only),
        }
    }

    /// See [`Action`]. False also if nothing was mounted yet.
    ///
    /// # Errors
    /// The system call, `fusermount3` or the keeper failed.
    pub(crate) fn act(&self, action: Action) -> Result<bool, MountError> {
        match self {
            MountBackend::Own(own) => own.act(action),
            MountBackend::Keeper(keeper) => keeper.act(action),
        }
    }

    /// Cleans up after the connection has ended.
    pub(crate) fn end(&self) {
        match self {
            MountBackend::Own(own) => own.end(),
            MountBackend::Keeper(keeper) => keeper.end(),
        }
    }
}
