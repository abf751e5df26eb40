//! The position of an open file. One call at a time moves it; the others wait for it until their
//! own deadlines.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Failure;
use crate::volume::{DROPPED, Deadline};

/// Where the next read or write of a file goes.
#[derive(Default)]
pub(crate) struct Position {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    at: u64,
    claimed: bool,
}

/// The right to move a position, until dropped.
pub(crate) struct Claim<'a> {
    position: &'a Position,
    at: u64,
}

impl Position {
    /// Waits until no other call moves the position.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn claim(&self, deadline: Deadline, about: &str) -> Result<Claim<'_>, Failure> {
        let mut state = self.lock();
        while state.claimed {
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.missed(about, DROPPED));
            }
            state = self.free.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.claimed = true;
        Ok(Claim { position: self, at: state.at })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim<'_> {
    /// Where it is.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Where it will be.
    pub fn move_to(&mut self, at: u64) {
        self.at = at;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        *self.position.lock() = State { at: self.at, claimed: false };
        self.position.free.notify_one();
    }
}
