//! A mounter: the process that mounts and unmounts for a daemon in a sandbox.
//!
//! It gets one mount point when it starts, before the daemon reads the first foreign byte. The
//! daemon sends it single bytes and gets answers; no request names a path. When the daemon has
//! ended, for whatever reason, the mounter detaches what is still mounted, and ends too. So a
//! daemon that was killed leaves no dead mount.
//!
//! Requests and answers are packets of a pair of Unix sockets. An answer is `1` (done), `0` (not
//! done) or `e` and the text of an error. The answer to a mount request holds the numbers of the
//! device and two paths instead, and comes with the device and the control socket.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType,
};

use crate::MountError;
use crate::control::{self, SocketName};
use crate::fuse_mount::{Action, Fresh, Live, MountPoint};
use crate::stop::Stop;

/// How long an answer may take: `fusermount3` has ten seconds.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// Longest answer: two paths of 4 KiB each, or the text of an error; what is longer is cut off.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Descriptors in an answer: the device, and the control socket.
const DESCRIPTORS_MAX: usize = 2;

/// Asks for the mount; the second for one that is read-only.
const MOUNT: [u8; 2] = [b'm', b'r'];

const DONE: u8 = b'1';
const NOT_DONE: u8 = b'0';
const ERROR: u8 = b'e';

/// The daemon's end of the connection to its mounter.
#[derive(Debug)]
pub struct Mounter {
    /// `None` once there is nothing to ask any more.
    socket: Mutex<Option<OwnedFd>>,
}

/// An answer with its descriptors.
type Answer = (Vec<u8>, Vec<OwnedFd>);

impl Action {
    const ALL: [(u8, Action); 5] = [
        (b'o', Action::Overlay),
        (b'u', Action::Unmount),
        (b'f', Action::Force),
        (b'd', Action::Detach),
        (b'a', Action::Abort),
    ];

    fn byte(self) -> u8 {
        Action::ALL.iter().find(|(_, action)| *action == self).map_or(0, |(byte, _)| *byte)
    }
}

impl Mounter {
    /// Starts `command`, which has to call [`serve`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> Result<Arc<Mounter>, MountError> {
        let program = command.get_program().to_owned();
        let mut start = || -> io::Result<OwnedFd> {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
            set_socket_timeout(&ours, Timeout::Recv, Some(ANSWER_WAIT))?;
            // Nothing of a terminal may stay open, which would keep it from closing.
            command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            Ok(ours)
        };
        let socket = start().map_err(|error| MountError::step("start", program, error))?;
        Ok(Arc::new(Mounter { socket: Mutex::new(Some(socket)) }))
    }

    pub(crate) fn mount(&self, read_only: bool) -> Result<Fresh, MountError> {
        let (text, mut descriptors) = self.ask(MOUNT[usize::from(read_only)])?;
        let bad = || MountError::Mounter { problem: "the answer of its mounter makes no sense".into() };
        let live = decode(&text).ok_or_else(bad)?;
        let control = (descriptors.len() > 1).then(|| descriptors.pop()).flatten().map(UnixListener::from);
        Ok(Fresh { device: descriptors.pop().ok_or_else(bad)?, live, control })
    }

    pub(crate) fn act(&self, action: Action) -> Result<bool, MountError> {
        self.ask(action.byte()).map(|(text, _)| text.first() == Some(&DONE))
    }

    /// Lets the mounter end, and waits for it: what it had made is gone then.
    pub(crate) fn end(&self) {
        let Some(socket) = self.lock().take() else { return };
        if rustix::net::shutdown(&socket, Shutdown::Write).is_ok() {
            // Ends with the end of the mounter. If that takes too long, nobody waits for it.
            let _ = retry_on_intr(|| rustix::net::recv(&socket, &mut [0u8; 1], RecvFlags::empty()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: u8) -> Result<Answer, MountError> {
        let mut socket = self.lock();
        let gone = |error: io::Error| MountError::Mounter { problem: format!("its mounter has ended ({error})") };
        let asked = match socket.as_ref() {
            Some(socket) => exchange(socket.as_fd(), request).map_err(gone),
            None => Err(gone(io::ErrorKind::NotConnected.into())),
        };
        match asked {
            Ok((text, _)) if text.first() == Some(&ERROR) => {
                Err(MountError::Mounter { problem: String::from_utf8_lossy(&text[1..]).into_owned() })
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

/// Serves the daemon at the other end of standard input until that has ended.
///
/// # Errors
/// Signals cannot be blocked.
pub fn serve(mut mount_point: MountPoint) -> Result<(), MountError> {
    // Signals of a terminal or a service manager to the whole group are meant for the daemon.
    let _held_back = Stop::listen()?;
    mount_point.resolve();
    let socket = rustix::stdio::stdin();
    let mut name = None;
    let mut request = [0u8];
    while retry_on_intr(|| rustix::net::recv(socket, &mut request, RecvFlags::empty())).is_ok_and(|(n, _)| n == 1) {
        let (text, descriptors) = answer(&mount_point, request[0], &mut name);
        if send(socket, &text, &descriptors).is_err() {
            break;
        }
    }
    if mount_point.is_there() {
        // Nobody is there to be told.
        let _ = mount_point.act(Action::Detach);
    }
    Ok(())
}

fn answer(mount_point: &MountPoint, request: u8, name: &mut Option<SocketName>) -> Answer {
    let answered = match MOUNT.iter().position(|known| *known == request) {
        Some(read_only) => mount(mount_point, read_only == 1, name),
        None => match Action::ALL.iter().find(|(known, _)| *known == request) {
            Some((_, action)) => {
                mount_point.act(*action).map(|done| (vec![if done { DONE } else { NOT_DONE }], Vec::new()))
            }
            None => Ok((vec![NOT_DONE], Vec::new())),
        },
    };
    answered.unwrap_or_else(|error| {
        let mut text = format!("{}{error}", char::from(ERROR)).into_bytes();
        text.truncate(ANSWER_BYTES_MAX);
        (text, Vec::new())
    })
}

fn mount(mount_point: &MountPoint, read_only: bool, name: &mut Option<SocketName>) -> Result<Answer, MountError> {
    let (listener, listens_at) = control::listen()?;
    let fresh = mount_point.mount(read_only)?;
    *name = Some(listens_at);
    Ok((encode(&fresh.live), vec![fresh.device, listener.into()]))
}

fn send(socket: BorrowedFd<'_>, text: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// `1`, two numbers in four bytes each, and two paths with a zero between.
fn encode(live: &Live) -> Vec<u8> {
    let mut text = vec![DONE];
    text.extend(live.device.0.to_le_bytes());
    text.extend(live.device.1.to_le_bytes());
    text.extend(live.mountpoint.as_os_str().as_bytes());
    text.push(0);
    text.extend(live.path.as_os_str().as_bytes());
    text
}

fn decode(text: &[u8]) -> Option<Live> {
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
    use super::*;

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
    fn a_mounter_that_ends_at_once_is_an_error_and_not_a_wait() {
        let mounter = Mounter::start(Command::new("true")).expect("starts");
        let error = mounter.mount(true).err().expect("nobody mounts").to_string();
        assert!(error.contains("its mounter has ended"), "{error}");
        assert!(mounter.act(Action::Detach).is_err());
        mounter.end();
    }
}
