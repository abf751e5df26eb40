//! A mount point on which this process mounts: FUSE, and an overlay above it if one is wanted.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::device::{self, Access};
use crate::runtime::{PrivateDirectory, Purpose};
use crate::{MountError, connection, mountpoint, overlay};

/// A mount point that this process mounts on.
pub struct MountPoint {
    mountpoint: PathBuf,
    access: Access,
    overlay: Option<PathBuf>,
    /// Set once the overlay was mounted.
    overlaid: OnceLock<()>,
    live: OnceLock<Live>,
    held: Mutex<Option<Held>>,
}

/// Resources that are kept until the mount is gone.
struct Held {
    /// A duplicate of the device, which tells whether the connection is alive: its number may
    /// belong to another one later.
    device: OwnedFd,
    /// Where FUSE is mounted, if an overlay lies above it.
    _private: Option<PrivateDirectory>,
}

/// The mounted file system: where it is, and its device number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Where the user sees it, absolute.
    pub(crate) mountpoint: PathBuf,
    /// The same, or a private directory if an overlay lies above it.
    pub(crate) path: PathBuf,
    /// Device number, `(major, minor)`.
    pub(crate) device: (u32, u32),
}

/// A FUSE mount that is not served yet.
pub(crate) struct Fresh {
    /// The descriptors to serve it with.
    pub(crate) mount: fuse::Mount,
    pub(crate) live: Live,
    /// Where `runnel status` asks, from a keeper; it has a name as long as the keeper lives.
    pub(crate) control: Option<UnixListener>,
}

/// An action on a mount point that is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Mount the overlay, once FUSE is served.
    Overlay,
    /// Unmount unless programs use it. True if it is not mounted any more.
    Unmount,
    /// Unmount, and let waiting requests fail. False if that is not allowed.
    Force,
    /// Take it out of the mount table; programs that use it keep it until they end.
    Detach,
    /// End the FUSE connection. False if it has ended, or if that is not allowed.
    Abort,
}

impl MountPoint {
    pub(crate) fn new(mountpoint: &Path, access: Access, overlay: Option<PathBuf>) -> MountPoint {
        let mountpoint = mountpoint.to_path_buf();
        MountPoint {
            mountpoint,
            access,
            overlay,
            overlaid: OnceLock::new(),
            live: OnceLock::new(),
            held: Mutex::new(None),
        }
    }

    /// Resolves links in the path of the mount point now, so that they cannot change later.
    pub(crate) fn resolve(&mut self) {
        // Mounting reports what is wrong with it. There may be a mount that is taken over.
        if let Ok(absolute) = mountpoint::resolve(&self.mountpoint) {
            self.mountpoint = absolute;
        }
    }

    /// Takes over what an earlier process has mounted here, instead of mounting. False if it cannot
    /// be used: then it is taken away.
    pub(crate) fn adopt(&self, live: &Live, device: &OwnedFd) -> bool {
        if live.mountpoint == self.mountpoint && !self.is_overlaid() {
            *self.lock() = device.try_clone().ok().map(|device| Held { device, _private: None });
            if self.is_connected() {
                return self.live.set(live.clone()).is_ok();
            }
        }
        drop(self.lock().take());
        if live.is_there() {
            // Mounting tells what is in the way.
            let _ = mountpoint::detach(&live.path);
        }
        false
    }

    /// Whether an overlay lies above it.
    pub(crate) fn is_overlaid(&self) -> bool {
        self.overlay.is_some()
    }

    /// Mounts; once only.
    pub(crate) fn mount(&self, read_only: bool) -> Result<Fresh, MountError> {
        let mountpoint = mountpoint::validate(&self.mountpoint)?;
        let mut held = self.lock();
        if self.live.get().is_some() {
            return Err(MountError::step("mount again on", mountpoint, Errno::BUSY));
        }
        let private = self.overlay.as_ref().map(|_| PrivateDirectory::new(Purpose::Lower)).transpose()?;
        let path = private.as_ref().map_or_else(|| mountpoint.clone(), |private| private.path().to_path_buf());
        let access = Access { is_read_only: self.access.is_read_only || read_only, ..self.access.clone() };
        let device = device::mount(&path, &access)?;
        let found = || -> Result<(OwnedFd, (u32, u32)), std::io::Error> {
            let entry = mountpoint::mounted_at(&path)?.ok_or(std::io::ErrorKind::NotFound)?;
            Ok((device.try_clone()?, entry.device))
        };
        let (duplicate, number) = found().map_err(|error| {
            // The mount would outlive us as a dead one.
            let _ = mountpoint::detach(&path);
            MountError::step("start FUSE on", &path, error)
        })?;
        *held = Some(Held { device: duplicate, _private: private });
        let live = self.live.get_or_init(|| Live { mountpoint, path, device: number }).clone();
        Ok(Fresh { mount: device.into(), live, control: None })
    }

    /// Where it is to be mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// What is mounted, with a duplicate of the device.
    pub(crate) fn live(&self) -> Option<(Live, OwnedFd)> {
        let device = self.lock().as_ref()?.device.try_clone().ok()?;
        Some((self.live.get()?.clone(), device))
    }

    pub(crate) fn act(&self, action: Action) -> Result<bool, MountError> {
        let Some(live) = self.live.get() else { return Ok(false) };
        match action {
            Action::Overlay => self.mount_overlay(live),
            Action::Unmount => self.unmount(live),
            Action::Force => {
                let force = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                Ok(live.is_there() && rustix::mount::unmount(&live.path, force).is_ok())
            }
            Action::Detach => self.detach(live).map(|()| true),
            Action::Abort => Ok(self.is_connected() && connection::abort(live.device.1).is_ok()),
        }
    }

    pub(crate) fn end(&self) {
        drop(self.lock().take());
    }

    /// Whether it, or its overlay, is still in the mount table.
    pub(crate) fn is_there(&self) -> bool {
        self.live.get().is_some_and(|live| live.is_there() || self.has_overlay(live))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel still has requests for whoever serves it, or may get some.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().as_ref().is_some_and(|held| {
            let mut fds = [PollFd::new(&held.device, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
        })
    }

    fn has_overlay(&self, live: &Live) -> bool {
        self.overlay.is_some() && live.overlay_is_there()
    }

    fn mount_overlay(&self, live: &Live) -> Result<bool, MountError> {
        let Some(folder) = &self.overlay else { return Ok(false) };
        if self.overlaid.get().is_some() {
            // An earlier daemon has had it mounted.
            return Ok(true);
        }
        overlay::mount(&live.path, folder, &live.mountpoint, &device::shown(&self.access.name))?;
        let _ = self.overlaid.set(());
        Ok(true)
    }

    fn unmount(&self, live: &Live) -> Result<bool, MountError> {
        // Detached rather than unmounted: programs that still use it must not keep the image below.
        mountpoint::detach_if(&live.mountpoint, || self.has_overlay(live))?;
        if !live.is_there() {
            // Somebody has taken it away already; what is mounted there now is not ours.
            return Ok(true);
        }
        match rustix::mount::unmount(&live.path, UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => mountpoint::detach(&live.path).map(|()| true),
            Err(_) => Ok(!live.is_there()),
        }
    }

    fn detach(&self, live: &Live) -> Result<(), MountError> {
        mountpoint::detach_if(&live.mountpoint, || self.has_overlay(live))?;
        // The thread that watches for the end of an overlay may be quicker.
        if self.overlay.is_none() && !live.is_there() {
            return Err(MountError::NotMounted { path: live.path.clone() });
        }
        mountpoint::detach_if(&live.path, || live.is_there())
    }
}

impl Live {
    /// Whether our FUSE mount is in the mount table.
    fn is_there(&self) -> bool {
        mountpoint::mounted_at(&self.path).is_ok_and(|entry| entry.is_some_and(|entry| entry.device == self.device))
    }

    /// Whether an overlay is on the mount point.
    pub(crate) fn overlay_is_there(&self) -> bool {
        // If the table cannot be read, assume nothing changed.
        mountpoint::mounted_at(&self.mountpoint)
            .map_or(true, |entry| entry.is_some_and(|entry| entry.kind == "overlay"))
    }
}
