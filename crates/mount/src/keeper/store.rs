//! Descriptors that a service manager keeps while a service is restarted: systemd's descriptor
//! store, for keepers that are services.
//!
//! A keeper that is told to leave (`RestartKillSignal=SIGUSR1` of its unit) ends its daemon, and
//! itself, without unmounting. What the next one needs is kept by the manager: the descriptors of
//! the mount, and a state of a few words. The manager gives them to the next process of the service
//! as it does with sockets that it listens on (sd_listen_fds(3), sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

use host::fork::inherited;
use host::signals::Signals;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::Signal;

use super::link::{decode, encode};
use super::serve::send;
use super::{CLONES, MEMORIES_MAX};
use crate::MountError;
use crate::fuse_mount::{Live, MountPoint};

/// The first descriptor that is given.
const FIRST: i32 = 3;

/// Names in the store. The manager gives descriptors back in any order, and a request is answered
/// by the clone that it was read from: so the number of a clone follows.
const DEVICE: &str = "runnel-device";
const CLONE: &str = "runnel-clone-";
const MEMORY: &str = "runnel-memory";
const JOURNAL: &str = "runnel-journal-";
const CONTROL: &str = "runnel-control";
const STATE: &str = "runnel-state";

/// Begins a state; the digit is the version of the rest: deaths in four bytes, the path of the
/// control socket, a zero, and the mount as a daemon is told of it.
const MAGIC: &[u8] = b"runnel-mount-1\0";

/// Longest state: three paths.
const STATE_BYTES_MAX: usize = 16 << 10;

/// The service manager that has started this process.
pub struct ServiceManager {
    socket: UnixDatagram,
    leave: Signals,
    given: Vec<(String, OwnedFd)>,
    state: OwnedFd,
}

/// What a keeper leaves to the next one.
pub(super) struct Left {
    pub(super) live: Live,
    pub(super) device: OwnedFd,
    pub(super) clones: Vec<OwnedFd>,
    pub(super) memories: Vec<OwnedFd>,
    pub(super) control: UnixListener,
    /// The path of the control socket.
    pub(super) socket: PathBuf,
    pub(super) deaths: u32,
}

impl ServiceManager {
    /// `None` if this process is no service that tells of itself (`Type=notify`). From now on the
    /// signal to leave does not end it: call it before the first thread.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub fn find() -> Result<Option<ServiceManager>, MountError> {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let failed = |error: io::Error| MountError::step("tell the service manager at", &address, error);
        let connect = || -> io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            match address.as_bytes().strip_prefix(b"@") {
                Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                None => socket.connect(&address)?,
            }
            Ok(socket)
        };
        let socket = connect().map_err(failed)?;
        let leave = Signals::block([Signal::USR1.as_raw()]).map_err(failed)?;
        let state = memfd_create("runnel-state", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        Ok(Some(ServiceManager { socket, leave, given: given(), state }))
    }

    /// Whether an earlier keeper has left a mount.
    pub fn has_mount(&self) -> bool {
        !self.given.is_empty()
    }

    /// What an earlier keeper has left at `place`; once only. What is mounted elsewhere, or of no
    /// use, is taken away.
    pub(super) fn take(&mut self, place: &MountPoint) -> Option<Left> {
        let given = std::mem::take(&mut self.given);
        if given.is_empty() {
            return None;
        }
        let left = self.sort(given).filter(|left| place.adopt(&left.live, &left.device));
        if left.is_none() {
            self.forget();
        }
        left
    }

    fn sort(&mut self, mut given: Vec<(String, OwnedFd)>) -> Option<Left> {
        given.sort_by(|(first, _), (second, _)| first.cmp(second));
        let clones = given.extract_if(.., |(name, _)| name.starts_with(CLONE)).map(|(_, clone)| clone).collect();
        let journals: Vec<OwnedFd> =
            given.extract_if(.., |(name, _)| name.starts_with(JOURNAL)).map(|(_, journal)| journal).collect();
        let mut one = |name: &str| given.extract_if(.., |(known, _)| known == name).next().map(|(_, found)| found);
        let (device, memory, control, state) = (one(DEVICE)?, one(MEMORY)?, one(CONTROL)?, one(STATE)?);
        let mut text = vec![0; STATE_BYTES_MAX];
        let length = rustix::io::pread(&state, &mut text, 0).ok()?;
        let (deaths, socket, live) = read(&text[..length])?;
        // This one is in the store.
        self.state = state;
        let memories = std::iter::once(memory).chain(journals).collect();
        Some(Left { live, device, clones, memories, control: UnixListener::from(control), socket, deaths })
    }

    /// Has the descriptors of a mount kept.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub(super) fn keep(
        &self,
        [device, control]: [BorrowedFd<'_>; 2],
        memories: &[OwnedFd],
        clones: &[OwnedFd],
    ) -> io::Result<()> {
        let named = [(DEVICE, device), (CONTROL, control), (STATE, self.state.as_fd())];
        let memories = memories.iter().enumerate().map(|(number, memory)| (memory_name(number), memory.as_fd()));
        let clones = clones.iter().enumerate().map(|(number, clone)| (clone_name(number), clone.as_fd()));
        let named = named.into_iter().map(|(name, descriptor)| (name.to_string(), descriptor));
        for (name, descriptor) in named.chain(memories).chain(clones) {
            send(self.socket.as_fd(), format!("FDSTORE=1\nFDNAME={name}").as_bytes(), &[descriptor])?;
        }
        Ok(())
    }

    /// Keeps what is not a descriptor.
    ///
    /// # Errors
    /// There is no memory left.
    pub(super) fn note(&self, deaths: u32, socket: &Path, live: &Live) -> io::Result<()> {
        let text = [MAGIC, &deaths.to_le_bytes(), socket.as_os_str().as_bytes(), b"\0", &encode(live)].concat();
        rustix::io::pwrite(&self.state, &text, 0)?;
        Ok(ftruncate(&self.state, text.len() as u64)?)
    }

    /// What was kept is of no use any more.
    pub(super) fn forget(&self) {
        let named = [DEVICE, CONTROL, STATE].map(String::from).into_iter().chain((0..MEMORIES_MAX).map(memory_name));
        for name in named.chain((0..CLONES).map(clone_name)) {
            let _ = send(self.socket.as_fd(), format!("FDSTOREREMOVE=1\nFDNAME={name}").as_bytes(), &[]);
        }
    }

    /// The mount is served.
    pub(super) fn ready(&self) {
        // A manager that does not answer ends its services.
        let _ = send(self.socket.as_fd(), b"READY=1", &[]);
    }

    /// Readable when it is to leave.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.leave.fd()
    }

    /// Whether it was told to leave since the last time.
    pub(super) fn leaves(&self) -> bool {
        matches!(self.leave.next(), Ok(Some(_)))
    }
}

/// The requests, or a journal.
fn memory_name(number: usize) -> String {
    if number == 0 { MEMORY.to_string() } else { format!("{JOURNAL}{number}") }
}

fn clone_name(number: usize) -> String {
    format!("{CLONE}{number}")
}

/// The descriptors that this process was given, with their names.
fn given() -> Vec<(String, OwnedFd)> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("LISTEN_PID") != std::process::id().to_string() {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES");
    let count = variable("LISTEN_FDS").parse().unwrap_or(0);
    let numbered = (FIRST..).take(count).zip(names.split(':'));
    // What is not ours stays open, and in nobody's way.
    numbered
        .filter(|(_, name)| {
            [DEVICE, MEMORY, CONTROL, STATE].contains(name) || name.starts_with(CLONE) || name.starts_with(JOURNAL)
        })
        .filter_map(|(number, name)| Some((name.to_string(), inherited(number).ok()?)))
        .collect()
}

fn read(text: &[u8]) -> Option<(u32, PathBuf, Live)> {
    let (deaths, rest) = text.strip_prefix(MAGIC)?.split_first_chunk()?;
    let zero = rest.iter().position(|byte| *byte == 0)?;
    Some((u32::from_le_bytes(*deaths), OsStr::from_bytes(&rest[..zero]).into(), decode(&rest[zero + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_nonsense_is_none() {
        let (socket, _other) = UnixDatagram::pair().expect("sockets");
        let state = memfd_create("state", MemfdFlags::CLOEXEC).expect("a memory");
        let leave = Signals::block([]).expect("no signals");
        let manager = ServiceManager { socket, leave, given: Vec::new(), state };
        let live = Live { mountpoint: "/mnt/a".into(), path: "/mnt/a".into(), device: (0, 77) };
        manager.note(7, "/run/long-name".as_ref(), &live).expect("written");
        manager.note(8, "/run/a".as_ref(), &live).expect("written");
        let mut text = vec![0; STATE_BYTES_MAX];
        let length = rustix::io::pread(&manager.state, &mut text, 0).expect("read");
        assert_eq!(read(&text[..length]), Some((8, "/run/a".into(), live)));
        for broken in [&b""[..], b"runnel-mount-2\0", &text[..20], &text[..length - 13]] {
            assert_eq!(read(broken), None);
        }
    }
}
