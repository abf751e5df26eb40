//! The Redirector: chosen local paths come from an image, everything else stays local
//! (`runnel redirect -c FILE`).
//!
//! Each image is mounted at a private directory. Each listed path is bound over the local one. A
//! local path that is missing gets an empty placeholder while the redirect is active. Each step is
//! written to a small state file before it is done, so that `--stop` can undo it even after the
//! redirecting process was killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::Session;
use connection::Target;
use image::Kind;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::mounted::{Mounted, Options};
use crate::runtime::{self, PrivateDirectory, Purpose};
use crate::served::{Served, wait_any};
use crate::stop::Stop;
use crate::{MountError, mountpoint, process};

mod config;

pub use config::{ImageRedirects, PathRedirect, Redirects};

/// How long `--stop` waits for the redirecting process: each of its images may take six seconds to
/// unmount.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// The steps that were done, so that another process can undo them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The redirecting process and its start time.
    pid: u32,
    ticks: u64,
    /// The configuration file.
    config: PathBuf,
    /// Bound paths, in order.
    binds: Vec<PathBuf>,
    /// Empty files and directories made to bind over, in order.
    placeholders: Vec<PathBuf>,
}

/// Activates the redirects of `file` and keeps them until a signal (TERM, INT, HUP) or [`stop`];
/// then undoes them. `open` opens an image, `ready` is told of the bound local paths once all are
/// in place. Must be called while the process has one thread, so that signals reach this call.
///
/// # Errors
/// The configuration is wrong, it is active already, an image cannot be opened or lacks a path, the
/// caller is not root, or an image stopped being served. In every case nothing stays bound.
pub fn run(
    file: &Path,
    mut open: impl FnMut(&Target) -> Result<Arc<Session>, MountError>,
    ready: impl FnOnce(&[PathBuf]),
) -> Result<(), MountError> {
    let redirects = Redirects::load(file)?;
    if !rustix::process::geteuid().is_root() {
        return Err(MountError::NeedsRoot { what: "binding over local paths" });
    }
    let file = fs::canonicalize(file).map_err(|error| MountError::step("find", file, error))?;
    let stop = Stop::listen()?;
    let mut active = Active::begin(&file)?;
    let result = active.start(&redirects, &mut open).and_then(|()| {
        ready(&active.state.binds);
        active.wait(&stop)
    });
    let undone = active.end();
    result.and(undone)
}

/// Ends the redirects of `file`: asks the process that made them, or undoes them itself if that is
/// gone.
///
/// # Errors
/// They are not active, or the process does not end in time.
pub fn stop(file: &Path) -> Result<(), MountError> {
    let file = fs::canonicalize(file).map_err(|error| MountError::step("find", file, error))?;
    let path = state_path(&file)?;
    let Some(state) = State::load(&path) else {
        return Err(MountError::Redirect { file, problem: "is not active".into() });
    };
    let watched = Pid::from_raw(state.pid as i32)
        .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
        .filter(|_| state.is_alive());
    let Some(watched) = watched else { return state.undo(&path) };
    // It may have ended since.
    let _ = rustix::process::pidfd_send_signal(&watched, Signal::TERM);
    let timeout = Timespec { tv_sec: STOP_WAIT.as_secs() as i64, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&timeout));
    if state.is_alive() {
        let problem = format!("process {} does not end\nhint: `kill -9 {}`, then stop again", state.pid, state.pid);
        return Err(MountError::Redirect { file, problem });
    }
    // Usually it has undone everything and its state is gone.
    State::load(&path).map_or(Ok(()), |state| state.undo(&path))
}

/// One file per configuration, named by a hash of its path.
fn state_path(file: &Path) -> Result<PathBuf, MountError> {
    use std::os::unix::ffi::OsStrExt;
    // FNV-1a: the same in every build, so that a newer `runnel` finds what an older one did.
    let hash = file
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    Ok(runtime::directory()?.join(format!("redirect-{hash:016x}.json")))
}

impl State {
    fn load(path: &Path) -> Option<State> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn save(&self, path: &Path) -> Result<(), MountError> {
        let fail = |error: io::Error| MountError::step("write", path, error);
        let bytes = serde_json::to_vec(self).map_err(|error| fail(error.into()))?;
        let new = path.with_extension("new");
        fs::write(&new, bytes).map_err(fail)?;
        fs::rename(&new, path).map_err(fail)
    }

    fn is_alive(&self) -> bool {
        // Start times tell a process from a later one with its number; one that ended but was not
        // waited for is a zombie.
        let zombie = fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')));
        process::start_ticks(self.pid) == Some(self.ticks) && !zombie
    }

    /// Takes all binds and placeholders away, and the state file if that worked.
    fn undo(&self, path: &Path) -> Result<(), MountError> {
        let mut first = Ok(());
        for bound in self.binds.iter().rev() {
            // Recorded before it was made, so it may not be there.
            if mountpoint::mounted_at(bound).is_ok_and(|entry| entry.is_some_and(|entry| entry.image().is_some())) {
                first = first.and(mountpoint::detach(bound));
            }
        }
        // A process that was killed could not unmount its images either.
        runtime::sweep();
        for made in self.placeholders.iter().rev() {
            let Ok(metadata) = fs::symlink_metadata(made) else { continue };
            // Only what is still empty is ours; directories that got contents refuse to go by
            // themselves.
            let removed = if metadata.is_dir() {
                fs::remove_dir(made)
            } else if metadata.is_file() && metadata.len() == 0 {
                fs::remove_file(made)
            } else {
                Ok(())
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                    first = first.and(Err(MountError::step("remove the placeholder", made, error)));
                }
                _ => {}
            }
        }
        if first.is_ok() {
            let _ = fs::remove_file(path);
        }
        first
    }
}

/// An active redirect.
struct Active {
    file: PathBuf,
    path: PathBuf,
    state: State,
    /// The mounts, with the directories they are on; the order of fields is the order of their end.
    images: Vec<(Mounted, PrivateDirectory)>,
}

impl Active {
    fn begin(file: &Path) -> Result<Active, MountError> {
        let path = state_path(file)?;
        if let Some(old) = State::load(&path) {
            if old.is_alive() {
                let problem =
                    format!("is already active, by process {}\nhint: `runnel redirect --stop -c` ends it", old.pid);
                return Err(MountError::Redirect { file: file.to_path_buf(), problem });
            }
            old.undo(&path)?;
        }
        let pid = std::process::id();
        let ticks = process::start_ticks(pid).unwrap_or(0);
        let state = State { pid, ticks, config: file.to_path_buf(), ..State::default() };
        state.save(&path)?;
        Ok(Active { file: file.to_path_buf(), path, state, images: Vec::new() })
    }

    fn start(
        &mut self,
        redirects: &Redirects,
        open: &mut dyn FnMut(&Target) -> Result<Arc<Session>, MountError>,
    ) -> Result<(), MountError> {
        for image in &redirects.images {
            let session = open(&image.target)?;
            let mut binds = Vec::new();
            for path in &image.paths {
                binds.push((locate(&session, image, &path.from)?, &path.to));
            }
            let place = PrivateDirectory::new(Purpose::Redirect)?;
            let name = image.source.rsplit('/').next().unwrap_or(&image.source).to_string();
            let options = Options { name, target: image.source.clone(), allow_other: true, ..Options::default() };
            let mounted = Mounted::start(session, place.path(), options)?;
            let root = place.path().to_path_buf();
            self.images.push((mounted, place));
            for ((inside, is_directory), to) in binds {
                self.bind(&root.join(inside), is_directory, to)?;
            }
        }
        Ok(())
    }

    /// Binds `source` over the local path `to`.
    fn bind(&mut self, source: &Path, is_directory: bool, to: &Path) -> Result<(), MountError> {
        self.make_placeholder(to, is_directory)?;
        // A link is followed: what it leads to is what programs open.
        let target = fs::canonicalize(to).map_err(|error| MountError::step("find", to, error))?;
        if target.is_dir() != is_directory {
            let (here, there) = if is_directory { ("a file", "a directory") } else { ("a directory", "a file") };
            let problem = format!("{} is {here} on this machine but {there} in the image", to.display());
            return Err(MountError::Redirect { file: self.file.clone(), problem });
        }
        if self.state.binds.contains(&target) {
            let problem = format!("{} leads to {}, which is redirected already", to.display(), target.display());
            return Err(MountError::Redirect { file: self.file.clone(), problem });
        }
        self.state.binds.push(target.clone());
        self.state.save(&self.path)?;
        rustix::mount::mount_bind(source, &target).map_err(|error| MountError::step("bind over", target, error))
    }

    /// Makes `to`, and what is missing on the way, if it does not exist.
    fn make_placeholder(&mut self, to: &Path, is_directory: bool) -> Result<(), MountError> {
        let missing: Vec<&Path> = to.ancestors().take_while(|path| fs::metadata(path).is_err()).collect();
        for path in missing.into_iter().rev() {
            // Never overwrites: a dangling link, say, is an error here.
            self.state.placeholders.push(path.to_path_buf());
            self.state.save(&self.path)?;
            let made = if path == to && !is_directory {
                fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
            } else {
                fs::create_dir(path)
            };
            if let Err(error) = made {
                self.state.placeholders.pop();
                return Err(MountError::step("make the placeholder", path, error));
            }
        }
        Ok(())
    }

    /// Waits for a signal, or for the end of one of the mounts.
    fn wait(&self, stop: &Stop) -> Result<(), MountError> {
        let mounts: Vec<&Mounted> = self.images.iter().map(|(mounted, _)| mounted).collect();
        let served: Vec<&Served> = mounts.iter().map(|mounted| mounted.served()).collect();
        if !wait_any(&served, stop) {
            return Ok(());
        }
        for mounted in mounts.iter().filter(|mounted| mounted.is_over()) {
            mounted.wait()?;
        }
        let problem = "the mount of one of its images was taken away, so all redirects were undone".to_string();
        Err(MountError::Redirect { file: self.file.clone(), problem })
    }

    fn end(mut self) -> Result<(), MountError> {
        let undone = self.state.undo(&self.path);
        let mut first = undone;
        for (mounted, place) in self.images.drain(..) {
            first = first.and(mounted.unmount());
            drop(mounted);
            drop(place);
        }
        first
    }
}

/// Where `from` really is in the image, relative to its root, and whether it is a directory.
fn locate(session: &Session, image: &ImageRedirects, from: &Path) -> Result<(PathBuf, bool), MountError> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let metadata = session.metadata();
    let missing = || MountError::NotInImage { source_name: image.source.clone(), path: from.to_path_buf() };
    let inode = metadata.resolve_following(from.as_os_str().as_bytes()).ok_or_else(missing)?;
    let path = metadata.path(inode).ok_or_else(missing)?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path));
    let relative = path.strip_prefix("/").unwrap_or(&path).to_path_buf();
    let is_directory = metadata.inode(inode).is_some_and(|inode| inode.kind() == Kind::Dir);
    Ok((relative, is_directory))
}

#[cfg(test)]
mod tests;
