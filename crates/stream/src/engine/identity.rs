//! The identity of this device: a number that the server gave out once, and a secret. The device
//! proves it on every connection before anything is written. With an outbox, both are on stable
//! storage before the first transaction has the number.

use connection::Unanswered;
use units::Moment;
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use crate::outbox::{Identity, Who};

/// The next step of the proof.
pub(super) enum Step {
    /// The identity goes to the outbox.
    Keep(Who),
    /// It is tried again later, for this reason.
    Later(String),
    /// The server knows now who this device is.
    Proven,
}

/// How far the device has got with showing who it is.
///
/// Invariant: it is proven only while the volume is open, and at most one request or job for it is
/// under way. A number is shown only after it is on stable storage, or need not be.
#[derive(Default)]
pub(super) struct Showing {
    who: Who,
    /// The nonce of the present connection, over which the proof is made.
    nonce: u128,
    /// The identity is on stable storage, or need not be.
    durable: bool,
    /// A request or a job is under way.
    busy: bool,
    proven: bool,
    /// When to try again.
    again: Option<Moment>,
}

impl Showing {
    /// An identity from an outbox is on stable storage.
    pub fn new(who: Who) -> Showing {
        Showing { durable: who.identity.is_some(), who, ..Showing::default() }
    }

    /// Who this device is.
    pub fn who(&self) -> Who {
        self.who
    }

    /// The volume is open on a new connection.
    pub fn connected(&mut self, nonce: u128) {
        self.nonce = nonce;
    }

    /// The connection is gone. A job that is under way goes on.
    pub fn lost(&mut self) {
        self.busy = self.busy && self.who.identity.is_some() && !self.durable;
        (self.proven, self.again) = (false, None);
    }

    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// When to try again.
    pub fn due(&self) -> Option<Moment> {
        self.again
    }

    /// Whether it is to be tried again by now; true once.
    pub fn take_again(&mut self, now: Moment) -> bool {
        let is_due = self.again.is_some_and(|again| now >= again);
        self.again = self.again.filter(|_| !is_due);
        is_due
    }

    pub fn try_again_at(&mut self, again: Moment) {
        self.again = Some(again);
    }

    /// The next request for the proof, to the volume with this identity.
    pub fn next_ask(&self, volume: u128) -> Option<VolumeAsk> {
        if self.proven || self.busy || self.again.is_some() {
            return None;
        }
        Some(match self.who {
            Who { identity: None, .. } => VolumeAsk::Enrol,
            Who { identity: Some(Identity { number, secret }), previous } => {
                VolumeAsk::Prove { number, proof: secret.proof(volume, self.nonce, number), previous }
            }
        })
    }

    /// It was asked, if the connection took it.
    pub fn asked(&mut self, is_under_way: bool) {
        self.busy = is_under_way;
    }

    /// The server has answered; returns what follows. `has_outbox`: the identity is kept.
    pub fn answered(&mut self, answer: Result<Reply, Unanswered>, has_outbox: bool) -> Vec<Step> {
        self.busy = false;
        match answer {
            Ok(Reply::Volume(VolumeReply::Enrolled { number, secret })) => {
                self.who.identity = Some(Identity { number, secret });
                self.durable = !has_outbox;
                self.busy = !self.durable;
                vec![Step::Keep(self.who)]
            }
            Ok(Reply::Volume(VolumeReply::Proven)) => {
                self.proven = true;
                // The server has copied what the old number was answered.
                let keep = std::mem::take(&mut self.who.previous) != 0;
                std::iter::once(Step::Proven).chain(keep.then_some(Step::Keep(self.who))).collect()
            }
            Ok(Reply::Error { code, text }) => {
                // The volume has another key: its journal folder was removed, and with it all that
                // it knew of devices.
                if code == ErrorCode::Unproven {
                    self.who.identity = None;
                }
                vec![Step::Later(format!("the server does not take this device's number: {text}"))]
            }
            Ok(_) => vec![Step::Later("the server's answer makes no sense (no number of a device)".to_owned())],
            Err(_) => vec![Step::Later("the server does not answer; it is tried again".to_owned())],
        }
    }

    /// The identity is in the outbox, or cannot be; `None`: that was known already.
    pub fn kept(&mut self, outcome: Result<(), String>) -> Option<Result<(), String>> {
        // A later job may fail: the outbox has this identity already.
        if std::mem::replace(&mut self.durable, true) {
            return None;
        }
        self.busy = false;
        if outcome.is_err() {
            (self.who.identity, self.durable) = (None, false);
        }
        Some(outcome.map_err(|why| format!("the outbox cannot be written: {why}")))
    }
}
