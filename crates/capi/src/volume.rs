//! Volumes: connecting, and calls that wait for a stated time.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use connection::Target;
use stream::{Answer, Done, ErrorKind, RemoteVolume, StreamError};
use units::Token;

use crate::error::{Failure, call};
use crate::handle::{Handles, same_process};
use crate::options::{self, runnel_options};
use crate::quiet::{self, SignalsHeld};
use crate::raw;

/// A volume on a server. Any number of threads may use it at the same time.
pub struct runnel_volume {
    _private: [u8; 0],
}

/// Every open volume.
pub(crate) static VOLUMES: Handles<Volume> = Handles::new(1, "runnel_volume");

/// What a volume's handle stands for.
pub(crate) struct Volume {
    pub remote: Arc<RemoteVolume>,
    /// This process, to what the server learns.
    pub token: Token,
    /// Where changes lie that were not sent.
    pub unsent: Option<PathBuf>,
    pub deadline_ms: AtomicU32,
}

/// When a call has to be back.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    time: Duration,
}

impl Deadline {
    /// So long from now on.
    pub fn after_ms(milliseconds: u32) -> Deadline {
        Deadline { start: Instant::now(), time: Duration::from_millis(milliseconds.into()) }
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.start.elapsed())
    }

    /// The same, but so much earlier.
    pub fn earlier(&self, time: Duration) -> Deadline {
        Deadline { start: self.start, time: self.time.saturating_sub(time) }
    }

    /// All of it, at the start.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// The failure of a call that did not make it. `rest` says what happens to what was asked.
    pub fn missed(&self, about: &str, rest: &str) -> Failure {
        let text = format!("{about}: no answer within {:.3} s; {rest}", self.time.as_secs_f64());
        Failure::new(libc::ETIMEDOUT, text)
    }
}

/// What becomes of a question that nobody waits for any more.
pub(crate) const DROPPED: &str = "try again, or with a later deadline";

/// What becomes of a change that nobody waits for any more.
pub(crate) const GOES_ON: &str = "it may be done yet: look before you repeat it";

impl Volume {
    /// Until when a call that starts now may take.
    pub fn deadline(&self) -> Deadline {
        Deadline::after_ms(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// Makes a call and waits for its outcome. `about` and `rest` are for the message if there is
    /// none in time.
    pub fn wait<T: Answer>(
        &self,
        deadline: Deadline,
        about: &str,
        rest: &str,
        call: impl FnOnce(&RemoteVolume, Done<T>),
    ) -> Result<T, Failure> {
        self.remote.wait(deadline.left(), call).map_err(|error| match error.kind() {
            ErrorKind::Timeout if deadline.left().is_zero() => deadline.missed(about, rest),
            _ => error.into(),
        })
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

/// The volume's path that a C string names: names joined by slashes, with or without one in front;
/// empty names and `.` are left out.
pub(crate) fn path_in_volume(text: *const c_char) -> Result<Vec<u8>, Failure> {
    let bytes = raw::bytes_of(text, "a path")?;
    let names: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').filter(|name| !matches!(name, [] | [b'.'])).collect();
    if names.contains(&&b".."[..]) {
        let shown = String::from_utf8_lossy(&bytes);
        return Err(Failure::new(
            libc::EINVAL,
            format!("{shown}: paths begin at the top of the volume and hold no `..`"),
        ));
    }
    Ok(names.join(&b'/'))
}

/// A path as people read it.
pub(crate) fn shown(path: &[u8]) -> String {
    if path.is_empty() { "the top folder".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}

/// Connects to a volume: runnel://host[:port]/volume/name, or runnels:// if the library was built
/// with TLS. Options may be NULL. Waits for the server until the deadline of the options.
///
/// The connection is kept alive from then on: if it is lost, the library tries to get it back, and
/// calls wait meanwhile, each until its deadline.
///
/// Returns NULL with errno set: EINVAL (URL, options), ENOENT (no such volume), ETIMEDOUT or EIO
/// (no server), EACCES (options.insecure), EOPNOTSUPP (it serves no volumes), EMFILE, EPERM (in a
/// forked child of a process that uses the library).
#[unsafe(no_mangle)]
pub extern "C" fn runnel_connect(url: *const c_char, options: *const runnel_options) -> *mut runnel_volume {
    call(std::ptr::null_mut(), || {
        let url = raw::text_of(url, "a URL")?;
        let wanted = options::wanted(options)?;
        let target = Target::parse(&url).map_err(|error| Failure::new(libc::EINVAL, error.to_string()))?;
        let Target::Volume(at) = target else {
            let text = format!("`{url}` is no volume; write runnel://host[:port]/volume/name");
            return Err(Failure::new(libc::EINVAL, text));
        };
        same_process()?;
        let token = random_token()?;
        quiet::no_words_on_panic();
        let unsent = wanted.options.outbox.as_ref().map(|room| room.folder.clone());
        let remote = {
            let _held = SignalsHeld::new();
            RemoteVolume::open(&at.server, wanted.config, &at.name, wanted.options)?
        };
        let volume = Volume { remote, token, unsent, deadline_ms: wanted.deadline_ms.into() };
        let volume = Arc::new(volume);
        let handle = VOLUMES.insert(Arc::clone(&volume));
        if handle.is_err() {
            let nothing_was_written = volume.remote.shutdown();
            debug_assert!(nothing_was_written.is_empty());
        }
        handle
    })
}

fn random_token() -> Result<Token, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::new(libc::EIO, format!("no random numbers: {error}")))?;
    Ok(Token(u128::from_le_bytes(bytes)))
}

/// Sets how long calls on a volume and on its files wait at most, milliseconds; files with a
/// deadline of their own keep it. 0: what would have to wait fails with ETIMEDOUT.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_set_deadline(volume: *mut runnel_volume, milliseconds: u32) -> c_int {
    call(-1, || {
        VOLUMES.get(volume)?.deadline_ms.store(milliseconds, Ordering::Relaxed);
        Ok(0)
    })
}

/// Caps what the server sends to this process for the volume, bytes per second; 0: no limit.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_limit(volume: *mut runnel_volume, bytes_per_second: u64) -> c_int {
    call(-1, || {
        VOLUMES.get(volume)?.remote.rate_limit(bytes_per_second);
        Ok(0)
    })
}
