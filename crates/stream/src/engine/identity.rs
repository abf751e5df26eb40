//! Which device this is for the server: a number that the server gave out once, and a secret by
//! which it is shown on every connection before anything is written. With an outbox, both are on
//! stable storage before the first transaction has the number.

use connection::Unanswered;
use units::Moment;
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::{ANSWER_TIME, AskFor, Engine, OPEN_AGAIN};
use crate::job::Job;
use crate::outbox::{Identity, Who};

/// How far the device has got with showing who it is. It is proven only while the volume is open.
#[derive(Default)]
pub(super) struct Showing {
    who: Who,
    /// What a proof is made over, on the present connection.
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
    /// What an outbox held is on stable storage.
    pub fn new(who: Who) -> Showing {
        Showing { durable: who.identity.is_some(), who, ..Showing::default() }
    }

    /// The connection is gone. A job that is under way goes on.
    pub fn lost(&mut self) {
        self.busy = self.busy && self.who.identity.is_some() && !self.durable;
        (self.proven, self.again) = (false, None);
    }

    /// When to try again.
    pub fn due(&self) -> Option<Moment> {
        self.again
    }
}

impl Engine {
    /// Whether transactions and leases can be sent. A volume for reading refuses them without
    /// asking who it is.
    pub(super) fn is_proven(&self) -> bool {
        self.showing.proven || self.info.is_some_and(|info| !info.writable)
    }

    /// The volume is open on a new connection.
    pub(super) fn show_on(&mut self, nonce: u128) {
        self.showing.nonce = nonce;
        self.show();
    }

    /// Tries again if it is time.
    pub(super) fn show_again(&mut self) {
        if self.showing.again.is_some_and(|again| self.time.now >= again) {
            self.showing.again = None;
            self.show();
        }
    }

    /// Does what comes next until the device is proven.
    fn show(&mut self) {
        let Some(info) = self.info.filter(|info| info.writable && self.link.volume.is_some()) else { return };
        if self.showing.proven || self.showing.busy || self.showing.again.is_some() {
            return;
        }
        let ask = match self.showing.who {
            Who { identity: None, .. } => VolumeAsk::Enrol,
            Who { identity: Some(Identity { number, secret }), previous } => {
                VolumeAsk::Prove { number, proof: secret.proof(info.id, self.showing.nonce, number), previous }
            }
        };
        self.showing.busy = self.ask(AskFor::Device, ask, ANSWER_TIME);
    }

    /// What the server says to it.
    pub(super) fn device_answered(&mut self, answer: Result<Reply, Unanswered>) {
        self.showing.busy = false;
        match answer {
            Ok(Reply::Volume(VolumeReply::Enrolled { number, secret })) => {
                self.showing.who.identity = Some(Identity { number, secret });
                self.showing.durable = self.options.outbox.is_none();
                self.showing.busy = !self.showing.durable;
                self.keep_identity();
            }
            Ok(Reply::Volume(VolumeReply::Proven)) => {
                self.showing.proven = true;
                self.locks.claim(self.time.now);
                // The server has copied what the old number was answered.
                if std::mem::take(&mut self.showing.who.previous) != 0 {
                    self.keep_identity();
                }
            }
            Ok(Reply::Error { code, text }) => {
                // The volume has another key: its journal folder was removed, and with it all that
                // it knew of devices.
                if code == ErrorCode::Unproven {
                    self.showing.who.identity = None;
                }
                self.show_later(&format!("the server does not take this device's number: {text}"));
            }
            Ok(_) => self.show_later("the server's answer makes no sense (no number of a device)"),
            Err(_) => self.show_later("the server does not answer; it is tried again"),
        }
        self.show();
    }

    /// The identity is in the outbox, or cannot be.
    pub(super) fn identity_kept(&mut self, outcome: Result<(), String>) {
        // What is kept later may fail: the outbox has the same with more.
        if std::mem::replace(&mut self.showing.durable, true) {
            return;
        }
        self.showing.busy = false;
        if let Err(why) = outcome {
            (self.showing.who.identity, self.showing.durable) = (None, false);
            self.show_later(&format!("the outbox cannot be written: {why}"));
        }
        self.show();
    }

    fn keep_identity(&mut self) {
        if self.options.outbox.is_some() {
            self.effects.jobs.push(Job::Identify { who: self.showing.who });
        }
    }

    fn show_later(&mut self, reason: &str) {
        reason.clone_into(&mut self.link.reason);
        self.showing.again = Some(self.time.now.after(OPEN_AGAIN));
    }
}
