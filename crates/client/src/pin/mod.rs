//! `runnel pin`: all of an image in the device cache, so that it runs without its server.
//!
//! The metadata comes first, as far as a mount needs it and with the hashes of all blocks. It tells
//! what is missing: blocks that a file refers to and that are not pinned yet. Those that the cache
//! keeps of an earlier run are copied, and the rest is requested. Nobody waits for it, so the
//! server is told that these requests may wait, and no program is taken to have touched anything.
//! If all of it does not fit into the cache, nothing is requested.
//!
//! Every block is verified and written before the next one is requested, but for those under way
//! together. A lost connection is made anew; a later `pin` goes on where this one ended.
//!
//! A new version of a name is fetched beside the one that programs start from, and takes its place
//! when all of it is on stable storage ([`Claim`]). The one before stays until the next change, and
//! as long as a program runs from it.

mod allowance;
mod attempt;
mod error;
mod pinned;
mod versions;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cache::Cache;
use connection::{BackOff, Clock, Dialer, Remote, Waker, random_number};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use units::{ImageId, Moment};

use self::allowance::Allowance;
use self::attempt::Attempt;
use crate::config::Config;
use crate::error::ClientError;
use crate::upload::is_worth_another_try;

pub use self::error::PinError;
pub use self::versions::{
    Change, Claim, Pinned, PinnedVersion, RollbackError, RolledBack, Verdict, pinned, rollback, unpin,
};
pub(crate) use self::versions::{InForce, in_force};

/// What is to be pinned, and how.
#[derive(Debug)]
pub struct Pin<'a> {
    /// The image.
    pub remote: &'a Remote,
    /// How to talk to its server.
    pub config: &'a Config,
    /// Bytes a second from the server at most, on average.
    pub rate: Option<u64>,
    /// Bytes to and from servers in a month (UTC) at most, of all pins in this cache.
    pub budget: Option<u64>,
    /// Switch to a version that was rolled back from, too.
    pub is_forced: bool,
    /// A new version is to be checked once it is in force ([`Claim::checked`]).
    pub is_checked: bool,
    /// Whether somebody wants it to end.
    pub stop: &'a PinStop,
}

/// How far a pin is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks that are needed, and bytes of these.
    pub blocks: u32,
    /// See above.
    pub bytes: u64,
    /// Those that were in the cache when this began, also of other versions.
    pub blocks_present: u32,
    /// Bytes that are pinned.
    pub pinned_bytes: u64,
    /// Bytes that came from the server and went to it, over all attempts.
    pub transferred_bytes: u64,
}

/// A pin that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The version that the server has.
    pub id: ImageId,
    /// What became of the name.
    pub change: Change,
    /// How much there was to do.
    pub progress: Progress,
}

/// What a pin tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// It is so far.
    Progress(Progress),
    /// An attempt failed, and another one follows.
    Interrupted(&'a ClientError),
    /// This version goes, since the new one needs its room.
    GivenUp(ImageId),
}

/// Ends a pin from another thread.
#[derive(Debug)]
pub struct PinStop {
    wanted: AtomicBool,
    waker: Waker,
}

/// What is known beyond one connection.
struct Overall<'a> {
    pin: &'a Pin<'a>,
    cache: &'a Cache,
    claim: &'a Claim<'a>,
    clock: Clock,
    allowance: Allowance<'a>,
    progress: Progress,
    tell: &'a mut dyn FnMut(News<'_>),
    /// When a block came last, or metadata.
    moved: Moment,
    greeted: bool,
}

/// Pins all of an image, in the cache of the claim of its name.
///
/// # Errors
/// [`PinError`].
pub fn pin(pin: &Pin<'_>, claim: &Claim<'_>, tell: &mut dyn FnMut(News<'_>)) -> Result<Done, PinError> {
    let cache = claim.cache;
    let dialer = Dialer::new(&pin.remote.server, &pin.config.connection.trust).map_err(ClientError::from)?;
    let clock = Clock::start();
    let mut back_off = BackOff::new(random_number().map_err(ClientError::from)? as u64);
    let allowance = Allowance::new(cache, pin.rate, pin.budget);
    let progress = Progress::default();
    let moved = clock.now();
    let mut overall = Overall { pin, cache, claim, clock, allowance, progress, tell, moved, greeted: false };
    let outcome = loop {
        let began = overall.moved;
        let error = match Attempt::run(&mut overall, &dialer) {
            Err(PinError::Client(error)) if is_worth_another_try(&error, overall.greeted) => error,
            other => break other,
        };
        let end = overall.moved.after(pin.config.upload_deadline);
        if clock.now() >= end {
            break Err(error.into());
        }
        if overall.moved != began {
            back_off.reset();
        }
        (overall.tell)(News::Interrupted(&error));
        if pin.stop.comes_within(back_off.wait().min(end.since(clock.now()))) {
            break Err(PinError::Stopped);
        }
    };
    overall.allowance.give_back();
    // What others can read at once.
    cache.close();
    let (id, change) = outcome?;
    Ok(Done { id, change, progress: overall.progress })
}

impl PinStop {
    /// Not wanted yet.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn new() -> io::Result<PinStop> {
        Ok(PinStop { wanted: AtomicBool::new(false), waker: Waker::new()? })
    }

    /// The pin ends as soon as it can, and keeps what came.
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Waits for it so long.
    fn comes_within(&self, time: Duration) -> bool {
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // A signal ends the wait early, which does no harm.
        let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&timeout));
        self.is_wanted()
    }
}

impl Overall<'_> {
    fn missing(&self) -> u64 {
        self.progress.bytes.saturating_sub(self.progress.pinned_bytes)
    }
}
