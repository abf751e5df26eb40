//! Calls that are made again, since the process that had them died.

use std::sync::Arc;

use units::Rng;

use super::{Outcome, Sim, taken};
use crate::StreamError;
use crate::call::{Call, Done};

impl Sim {
    /// From now on another process goes on from what the one before has recorded.
    pub fn keep_records(&mut self, at: usize) {
        let device = &mut self.devices[at];
        device.engine.keep_records();
        device.records = Some(device.engine.take_records(true));
    }

    /// Waits for a call; meanwhile the process of the device is killed once or twice, before it
    /// could answer whoever made the call.
    pub(super) fn wait_killed<T: Send + 'static>(
        &mut self,
        at: usize,
        call: impl FnOnce(Done<T>) -> Call,
    ) -> Result<T, StreamError> {
        self.request += 2;
        let (request, outcome): (u64, Outcome<T>) = (self.request, Arc::default());
        let theirs = outcome.clone();
        let call = call(Box::new(move |result| *theirs.lock().unwrap() = Some(result)));
        for _ in 0..1 + self.rng.below(2) {
            self.make(at, request, again(&call));
            for _ in 0..self.rng.below(300) {
                self.step();
            }
            self.restart_device(at);
            self.killed += 1;
        }
        self.make(at, request, call);
        self.until(|_| outcome.lock().unwrap().is_some());
        taken(&outcome).unwrap()
    }
}

/// The same call; nobody hears what comes of it.
fn again(call: &Call) -> Call {
    match call {
        Call::Stat { of, .. } => Call::Stat { of: of.clone(), done: Box::new(|_| ()) },
        Call::List { path, .. } => Call::List { path: path.clone(), done: Box::new(|_| ()) },
        Call::ReadLink { path, .. } => Call::ReadLink { path: path.clone(), done: Box::new(|_| ()) },
        Call::Lock { handle, wish, .. } => Call::Lock { handle: *handle, wish: *wish, done: Box::new(|_| ()) },
        Call::Look { handle, .. } => Call::Look { handle: *handle, done: Box::new(|_| ()) },
        Call::Space { .. } => Call::Space { done: Box::new(|_| ()) },
        Call::Open { path, how, token, .. } => {
            Call::Open { path: path.clone(), how: *how, token: *token, done: Box::new(|_| ()) }
        }
        Call::Read { handle, token, offset, bytes, .. } => {
            Call::Read { handle: *handle, token: *token, offset: *offset, bytes: *bytes, done: Box::new(|_| ()) }
        }
        Call::Write { handle, offset, bytes, .. } => {
            Call::Write { handle: *handle, offset: *offset, bytes: bytes.clone(), done: Box::new(|_| ()) }
        }
        Call::WritePage { handle, offset, bytes, .. } => {
            Call::WritePage { handle: *handle, offset: *offset, bytes: bytes.clone(), done: Box::new(|_| ()) }
        }
        Call::Allocate { handle, range, allocation, .. } => {
            Call::Allocate { handle: *handle, range: *range, allocation: *allocation, done: Box::new(|_| ()) }
        }
        Call::Copy { from, to, length, .. } => {
            Call::Copy { from: *from, to: *to, length: *length, done: Box::new(|_| ()) }
        }
        Call::Seek { handle, offset, hole, .. } => {
            Call::Seek { handle: *handle, offset: *offset, hole: *hole, done: Box::new(|_| ()) }
        }
        Call::SetSize { of, size, .. } => Call::SetSize { of: of.clone(), size: *size, done: Box::new(|_| ()) },
        Call::SetAttributes { of, wanted, .. } => {
            Call::SetAttributes { of: of.clone(), wanted: *wanted, done: Box::new(|_| ()) }
        }
        Call::Xattrs { of, .. } => Call::Xattrs { of: of.clone(), done: Box::new(|_| ()) },
        Call::ChangeXattr { of, name, change, .. } => {
            Call::ChangeXattr { of: of.clone(), name: name.clone(), change: change.clone(), done: Box::new(|_| ()) }
        }
        Call::Sync { handle, .. } => Call::Sync { handle: *handle, done: Box::new(|_| ()) },
        Call::Close { handle, .. } => Call::Close { handle: *handle, done: Box::new(|_| ()) },
        Call::FolderXattrs { path, .. } => Call::FolderXattrs { path: path.clone(), done: Box::new(|_| ()) },
        Call::MakeWith { path, changes, .. } => {
            Call::MakeWith { path: path.clone(), changes: changes.clone(), done: Box::new(|_| ()) }
        }
        Call::Make { path, change, .. } => {
            Call::Make { path: path.clone(), change: change.clone(), done: Box::new(|_| ()) }
        }
        Call::Remove { path, .. } => Call::Remove { path: path.clone(), done: Box::new(|_| ()) },
        Call::RemoveFolder { path, .. } => Call::RemoveFolder { path: path.clone(), done: Box::new(|_| ()) },
        Call::Link { from, to, .. } => Call::Link { from: from.clone(), to: to.clone(), done: Box::new(|_| ()) },
        Call::Rename { from, to, replace, .. } => {
            Call::Rename { from: from.clone(), to: to.clone(), replace: *replace, done: Box::new(|_| ()) }
        }
        Call::Lease { of, kind, duration, .. } => {
            Call::Lease { of: of.clone(), kind: *kind, duration: *duration, done: Box::new(|_| ()) }
        }
        Call::SyncAll { .. } => Call::SyncAll { done: Box::new(|_| ()) },
        Call::Hint { handle, ranges } => Call::Hint { handle: *handle, ranges: ranges.clone() },
        Call::Share { handle, share } => Call::Share { handle: *handle, share: *share },
        Call::RateLimit { bytes_per_second } => Call::RateLimit { bytes_per_second: *bytes_per_second },
    }
}
