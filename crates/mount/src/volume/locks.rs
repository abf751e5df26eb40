//! The locks of a mount as it knows them.
//!
//! `held` records the owner of each lock, since closing a descriptor releases the locks of its
//! process; it is part of what the next daemon needs (`kept`). `pages` drops pages, `waits` retries
//! for waiting programs.

mod held;
mod pages;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use fuse::INodeNo;

pub(super) use self::held::Held;
use self::pages::{Job, Pages};
pub(super) use self::waits::Attempt;
use self::waits::Waits;

/// The locks that are waited for.
#[derive(Default)]
pub(super) struct Locks {
    pages: Arc<Pages>,
    waits: Arc<Waits>,
}

impl Locks {
    /// Whether pages of a file are about to be dropped: until then the kernel must not be told that
    /// they are right.
    pub fn drops_pages(&self, number: INodeNo) -> bool {
        self.pages.is_busy(number)
    }

    /// Runs `job`, which drops the pages of a file, on a thread that may wait for the kernel.
    pub fn drop_pages(&self, number: INodeNo, job: Job) {
        self.pages.add(number, job);
    }

    /// Sends a request again that was refused after it had paused for `pause`.
    pub fn retry(&self, attempt: Box<dyn Attempt>, pause: Duration) {
        self.waits.clone().add(attempt, pause);
    }

    /// Something of a file was unlocked here.
    pub fn wake(&self, number: INodeNo) {
        self.waits.wake(number);
    }
}
