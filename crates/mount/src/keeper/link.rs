//! The daemon's end of the connection to its keeper.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuse::handover;
use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use units::ImageId;

use super::{ACCEPT, ANSWER_BYTES_MAX, Before, DESCRIPTORS_MAX, DONE, END, ERROR, MOUNT, READY, REPLACE};
use crate::MountError;
use crate::fuse_mount::{Action, Fresh, Live};

/// How long an answer may take: `fusermount3` has ten seconds.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// Stack of the thread that holds the lifeline.
const STACK_BYTES: usize = 64 << 10;

/// The process that mounts for this one, the daemon, and starts another one when this one has died.
#[derive(Debug)]
pub struct Keeper {
    /// `None` once there is nothing to ask any more.
    socket: Mutex<Option<OwnedFd>>,
    /// What the next daemon gets; nothing if there is to be none.
    memories: Vec<OwnedFd>,
    before: Before,
    /// Why the program that is installed now does not serve.
    refused: Option<String>,
    /// Closed by the death of this process, which tells the keeper.
    lifeline: Mutex<Option<OwnedFd>>,
}

/// An answer with its descriptors.
type Answer = (Vec<u8>, Vec<OwnedFd>);

impl Keeper {
    pub(super) fn new(
        socket: OwnedFd,
        lifeline: OwnedFd,
        memories: Vec<OwnedFd>,
        (before, refused): (Before, Option<String>),
    ) -> Result<Arc<Keeper>, MountError> {
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT))
            .map_err(|error| MountError::step("ask the keeper of", "/proc/self", error))?;
        let (socket, lifeline) = (Mutex::new(Some(socket)), Mutex::new(Some(lifeline)));
        Ok(Arc::new(Keeper { socket, memories, before, refused, lifeline }))
    }

    /// How many daemons of this mount have died.
    pub fn deaths(&self) -> u32 {
        self.before.deaths
    }

    /// Whether an earlier daemon has served the mount: programs use it, and nobody waits to be told
    /// that it is ready.
    pub fn was_served(&self) -> bool {
        self.before.was_served
    }

    /// Why the program that is installed now does not serve, and this one, that of the keeper,
    /// does; `None` if it is the same.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// This program understands the keeper.
    pub(super) fn accept(&self) -> Result<(), MountError> {
        self.ask(ACCEPT).map(drop)
    }

    /// Whether another daemon can take the place of this one.
    pub(crate) fn can_replace(&self) -> bool {
        !self.memories.is_empty()
    }

    /// Whether the keeper runs.
    pub(crate) fn is_there(&self) -> bool {
        let socket = self.lock();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Asked for nothing, it tells only that the other side was closed.
        let is_open = |socket| rustix::event::poll(&mut [PollFd::new(socket, PollFlags::empty())], Some(&now)) == Ok(0);
        socket.as_ref().is_some_and(is_open)
    }

    /// Has another daemon started in the place of this process, which ends at once. What it has not
    /// answered is left to the next one.
    ///
    /// # Errors
    /// The keeper has ended.
    pub(crate) fn replace(&self) -> Result<(), MountError> {
        self.ask(REPLACE).map(drop)
    }

    /// The image that an earlier daemon has served, which is the only one that can be served now.
    pub fn image(&self) -> Option<ImageId> {
        self.note().map(ImageId)
    }

    fn note(&self) -> Option<[u8; handover::NOTE_BYTES]> {
        let note = self.memories.first().and_then(|memory| handover::note(memory).ok())?;
        (note != [0; handover::NOTE_BYTES]).then_some(note)
    }

    /// The image that will be served, for the next daemon.
    ///
    /// # Errors
    /// An earlier daemon has served another one.
    pub(crate) fn set_image(&self, image: ImageId) -> Result<(), MountError> {
        self.set_note(image.0, |earlier| {
            let earlier = ImageId(earlier);
            format!("image {earlier} was replaced by {image} while it was mounted; unmount and mount again")
        })
    }

    /// The volume that will be served, for the next daemon.
    ///
    /// # Errors
    /// An earlier daemon has served another one.
    pub(crate) fn set_volume(&self, volume: u128) -> Result<(), MountError> {
        let mut note = [0; handover::NOTE_BYTES];
        note[..16].copy_from_slice(&volume.to_le_bytes());
        self.set_note(note, |_| {
            "the server has another volume of this name than when it was mounted; unmount and mount again".into()
        })
    }

    fn set_note(
        &self,
        note: [u8; handover::NOTE_BYTES],
        replaced: impl FnOnce([u8; handover::NOTE_BYTES]) -> String,
    ) -> Result<(), MountError> {
        if let Some(earlier) = self.note().filter(|earlier| *earlier != note) {
            return Err(MountError::Keeper { problem: replaced(earlier) });
        }
        let Some(memory) = self.memories.first() else { return Ok(()) };
        handover::set_note(memory, &note).map_err(|error| MountError::step("keep the state of", "/proc/self", error))
    }

    /// The memory of the journal of a volume, for `stream`; `None` if the mount ends with its
    /// daemon.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn stream_journal(&self) -> Result<Option<OwnedFd>, MountError> {
        self.memory(1)
    }

    /// The same for the mount itself.
    ///
    /// # Errors
    /// As [`Keeper::stream_journal`].
    pub(crate) fn mount_journal(&self) -> Result<Option<OwnedFd>, MountError> {
        self.memory(2)
    }

    fn memory(&self, index: usize) -> Result<Option<OwnedFd>, MountError> {
        let copy = self.memories.get(index).map(OwnedFd::try_clone).transpose();
        copy.map_err(|error| MountError::step("keep the state of", "/proc/self", error))
    }

    /// The mount is served.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn ready(&self) -> Result<(), MountError> {
        self.ask(READY).map(drop)
    }

    pub(crate) fn mount(&self, read_only: bool) -> Result<Fresh, MountError> {
        self.hold_lifeline().map_err(|error| MountError::step("start a thread in", "/proc/self", error))?;
        let (text, descriptors) = self.ask(MOUNT[usize::from(read_only)])?;
        let bad = || MountError::Keeper { problem: "the answer of its keeper makes no sense".into() };
        let live = decode(&text).ok_or_else(bad)?;
        let mut descriptors = descriptors.into_iter();
        let (device, control) = descriptors.next().zip(descriptors.next_back()).ok_or_else(bad)?;
        let memory = self.memory(0)?;
        let mount = fuse::Mount { device, clones: descriptors.collect(), memory, gives_up: self.before.gives_up };
        Ok(Fresh { mount, live, control: Some(UnixListener::from(control)) })
    }

    /// Gives the lifeline to a thread that has a descriptor table of its own.
    ///
    /// A thread that stores a page waits in the kernel while the READ of that page has no answer,
    /// also if this process was killed. The descriptors that it shares stay open until then, and
    /// the process does not end: only the next daemon can answer that READ. So what tells of the
    /// death must be closed by a thread that never waits there.
    fn hold_lifeline(&self) -> io::Result<()> {
        let Some(lifeline) = self.lifeline.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let (give_back, given_back) = channel();
        thread::Builder::new().name("runnel-alive".into()).stack_size(STACK_BYTES).spawn(move || {
            let is_own = nix::sched::unshare(CloneFlags::CLONE_FILES).is_ok();
            if is_own {
                // The lifeline also replaces what this thread must not keep open, as of a terminal.
                // There is room for them, since they are open.
                let _ = rustix::stdio::dup2_stdin(&lifeline);
                let _ = rustix::stdio::dup2_stdout(&lifeline);
                let _ = rustix::stdio::dup2_stderr(&lifeline);
            }
            // In the table of all others it is closed by one of them.
            let _ = give_back.send((lifeline, is_own));
            loop {
                thread::park();
            }
        })?;
        match given_back.recv() {
            Ok((lifeline, true)) => drop(lifeline),
            // A kernel or a container that refuses: the death is told later.
            Ok((lifeline, false)) => *self.lifeline.lock().unwrap_or_else(PoisonError::into_inner) = Some(lifeline),
            Err(_) => {}
        }
        Ok(())
    }

    pub(crate) fn act(&self, action: Action) -> Result<bool, MountError> {
        self.ask(action.byte()).map(|(text, _)| text.first() == Some(&DONE))
    }

    /// Lets the keeper end, after it has taken away what it had made.
    pub(crate) fn end(&self) {
        // If it has ended already, there is nothing to end.
        let _ = self.ask(END);
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: u8) -> Result<Answer, MountError> {
        let mut socket = self.lock();
        let gone = |error: io::Error| MountError::Keeper { problem: format!("its keeper has ended ({error})") };
        let asked = match socket.as_ref() {
            Some(socket) => exchange(socket.as_fd(), request).map_err(gone),
            None => Err(gone(io::ErrorKind::NotConnected.into())),
        };
        match asked {
            Ok((text, _)) if text.first() == Some(&ERROR) => {
                Err(MountError::Keeper { problem: String::from_utf8_lossy(&text[1..]).into_owned() })
            }
            Ok(answer) => Ok(answer),
            Err(error) => {
                // A late answer must not be taken for that to another request.
                drop(socket.take());
                Err(error)
            }
        }
    }
}

fn exchange(socket: BorrowedFd<'_>, request: u8) -> io::Result<Answer> {
    retry_on_intr(|| rustix::net::send(socket, &[request], SendFlags::NOSIGNAL))?;
    let mut text = vec![0; ANSWER_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut text)];
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            done => break done?,
        }
    };
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    text.truncate(received.bytes);
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    Ok((text, descriptors))
}

/// `1`, two numbers in four bytes each, and two paths with a zero between.
pub(super) fn encode(live: &Live) -> Vec<u8> {
    let mut text = vec![DONE];
    text.extend(live.device.0.to_le_bytes());
    text.extend(live.device.1.to_le_bytes());
    text.extend(live.mountpoint.as_os_str().as_bytes());
    text.push(0);
    text.extend(live.path.as_os_str().as_bytes());
    text
}

pub(super) fn decode(text: &[u8]) -> Option<Live> {
    let (&DONE, text) = text.split_first()? else { return None };
    let (major, text) = text.split_first_chunk()?;
    let (minor, text) = text.split_first_chunk()?;
    let zero = text.iter().position(|byte| *byte == 0)?;
    let path = |bytes| OsStr::from_bytes(bytes).into();
    Some(Live {
        mountpoint: path(&text[..zero]),
        path: path(&text[zero + 1..]),
        device: (u32::from_le_bytes(*major), u32::from_le_bytes(*minor)),
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn lifeline() -> OwnedFd {
        io::pipe().expect("a pipe").1.into()
    }

    #[test]
    fn what_is_mounted_travels() {
        let live =
            Live { mountpoint: OsStr::from_bytes(b"/a\xff b").into(), path: "/run/x".into(), device: (0, 70000) };
        assert_eq!(decode(&encode(&live)), Some(live));
        for broken in [&b""[..], b"0", b"1", b"1abcdefg", b"1abcdefgh/without-a-zero"] {
            assert_eq!(decode(broken), None);
        }
    }

    #[test]
    fn a_keeper_that_has_ended_is_an_error_and_not_a_wait() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("sockets");
        let keeper = Keeper::new(ours, lifeline(), Vec::new(), (Before::default(), None)).expect("a keeper");
        assert!(keeper.is_there());
        drop(theirs);
        assert!(!keeper.is_there());
        let error = keeper.mount(true).err().expect("nobody mounts").to_string();
        assert!(error.contains("its keeper has ended"), "{error}");
        assert!(keeper.act(Action::Detach).is_err());
        keeper.end();
    }

    #[test]
    fn the_next_daemon_serves_the_same_image() {
        let memory = handover::create().expect("a memory");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, _theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("sockets");
        let keeper = Keeper::new(ours, lifeline(), vec![memory], (Before::default(), None)).expect("a keeper");
        assert_eq!(keeper.image(), None);
        keeper.set_image(ImageId([5; 32])).expect("kept");
        assert_eq!(keeper.image(), Some(ImageId([5; 32])));
        let error = keeper.set_image(ImageId([6; 32])).expect_err("another one").to_string();
        assert!(error.contains("was replaced"), "{error}");
    }
}
