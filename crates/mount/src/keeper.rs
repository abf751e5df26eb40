//! A keeper: the process that mounts and unmounts for a daemon, and that starts the next one when
//! the daemon has died.
//!
//! It forks the daemon before it reads a foreign byte, and has one thread. It knows one mount
//! point; the daemon sends it single bytes and gets answers, and no request names a path. So a
//! daemon may enter a sandbox in which nobody can mount.
//!
//! The keeper holds the descriptors of the mount, and the memory in which the daemon keeps requests
//! that it has not answered ([`fuse::handover`]); of a volume also two journals. A daemon that is
//! killed, or that panics, is replaced: programs see a pause, and no error. A daemon that ends by
//! itself is not. Then, or if the mount is of a kind that does not survive its daemon, the keeper
//! takes away what is still mounted, so that no dead mount stays behind.
//!
//! If the file that the keeper was started from has been replaced, the next daemon is the new
//! program (`program`). [`Keeper::replace`] makes way for it.
//!
//! A keeper that is a service of systemd may be restarted as well: the descriptors are in the
//! manager's store meanwhile (`store`).
//!
//! Requests and answers are packets of a pair of Unix sockets. An answer is `1` (done), `0` (not
//! done) or `e` and the text of an error. The answer to a mount request holds the numbers of the
//! device and two paths instead, and comes with descriptors: the device, its clones, and the
//! control socket.

mod link;
mod program;
mod serve;
mod store;

pub use link::Keeper;
pub use program::Inherited;
pub use serve::{Keeping, OnReady, Started, keep};
pub use store::ServiceManager;

use crate::fuse_mount::Action;

/// Longest answer: two paths of 4 KiB each, or the text of an error; what is longer is cut off.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Descriptors in an answer: the device, its clones, and the control socket.
const DESCRIPTORS_MAX: usize = 2 + CLONES;

/// Clones of the device: with it, one for each serving thread.
const CLONES: usize = fuse::handover::THREADS_MAX - 1;

/// The first request of a program that is not the keeper's own: it understands the rest.
const ACCEPT: u8 = b'v';

/// Another daemon is to take the place of this one.
const REPLACE: u8 = b'n';

/// What outlives the daemon of a volume: the requests, and the journals of `stream` and of the
/// mount.
const MEMORIES_MAX: usize = 3;

/// Asks for the mount; the second for one that is read-only.
const MOUNT: [u8; 2] = [b'm', b'r'];

/// The mount is served.
const READY: u8 = b'y';

/// The daemon needs nothing any more.
const END: u8 = b'x';

const DONE: u8 = b'1';
const NOT_DONE: u8 = b'0';
const ERROR: u8 = b'e';

/// What became of the daemons before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Before {
    /// How many have died.
    deaths: u32,
    /// Whether one has served the mount: programs use it.
    was_served: bool,
    /// Several have died soon, so that what they left is to be given up.
    gives_up: bool,
}

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
