//! The state machine of a volume.

use std::path::Path;
use std::sync::Arc;

use client::{Config, Server, Session};

use crate::call::Call;
use crate::{ErrorKind, Lost, Options, RemoteVolume, Status, StreamError};

/// The state machine of a volume.
pub(crate) struct Engine {
    finished: Vec<Box<dyn FnOnce() + Send>>,
}

fn no_server(name: &str) -> StreamError {
    StreamError::volume(ErrorKind::Failed, name, "no connection can be made by this build")
}

pub(crate) fn device(_: &Path) -> Result<u128, StreamError> {
    Err(no_server(""))
}

pub(crate) fn open(_: &Server, _: Config, name: &str, _: Options) -> Result<Arc<RemoteVolume>, StreamError> {
    Err(no_server(name))
}

pub(crate) fn carried(_: &Session, name: &str, _: Options) -> Result<Arc<RemoteVolume>, StreamError> {
    Err(no_server(name))
}

pub(crate) fn shutdown(_: &RemoteVolume) -> Vec<Lost> {
    Vec::new()
}

impl Engine {
    pub fn call(&mut self, call: Call) {
        let error = no_server("");
        let finish: Box<dyn FnOnce() + Send> = match call {
            Call::Stat { done, .. } => Box::new(move || done(Err(error))),
            Call::List { done, .. } => Box::new(move || done(Err(error))),
            Call::ReadLink { done, .. } => Box::new(move || done(Err(error))),
            Call::Open { done, .. } => Box::new(move || done(Err(error))),
            Call::Read { done, .. } => Box::new(move || done(Err(error))),
            Call::Lease { done, .. } => Box::new(move || done(Err(error))),
            Call::Write { done, .. }
            | Call::SetSize { done, .. }
            | Call::SetMode { done, .. }
            | Call::SetTime { done, .. }
            | Call::Sync { done, .. }
            | Call::Close { done, .. }
            | Call::MakeFolder { done, .. }
            | Call::Remove { done, .. }
            | Call::RemoveFolder { done, .. }
            | Call::Rename { done, .. }
            | Call::SyncAll { done } => Box::new(move || done(Err(error))),
            Call::Hint { .. } | Call::Share { .. } | Call::RateLimit { .. } => return,
        };
        self.finished.push(finish);
    }

    pub fn take_finished(&mut self) -> Vec<Box<dyn FnOnce() + Send>> {
        std::mem::take(&mut self.finished)
    }

    pub fn status(&self) -> Status {
        Status::default()
    }
}
