//! Uploads of this connection: commands to their workers, reports back to the client.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use units::RequestId;
use wire::format::NEED_RANGES_MAX;
use wire::{BlockRange, ErrorCode, Refused, Reply, ServerConnection};

use super::{Session, access};
use crate::error::Failure;
use crate::peer::Owner;
use crate::upload::{self, Announced, Command, Reports, UploadHandle, UploadService};
use crate::warm;

/// The uploads of a connection.
///
/// Invariant: at most one command is stalled, and its upload is under way.
pub(super) struct Uploads {
    reports: Sender<(RequestId, upload::Event)>,
    under_way: HashMap<RequestId, UploadHandle>,
    /// A command that found its worker's queue full. Nothing is taken up until it is sent.
    stalled: Option<(RequestId, Command)>,
}

impl Uploads {
    /// None. Workers send their reports to `reports`.
    pub fn new(reports: Sender<(RequestId, upload::Event)>) -> Uploads {
        Uploads { reports, under_way: HashMap::new(), stalled: None }
    }

    pub fn begin(&mut self, service: &Arc<UploadService>, announced: Announced, owner: Owner, request: RequestId) {
        let reports = Reports { request, events: self.reports.clone() };
        self.under_way.insert(request, service.begin(announced, owner, reports));
    }

    /// Hands a command to the worker of its upload. Parts of an upload that has failed were on
    /// their way: its error says all there is to say.
    pub fn command(&mut self, request: RequestId, command: Command) {
        let Some(upload) = self.under_way.get(&request) else { return };
        if let Err(TrySendError::Full(command)) = upload.commands.try_send(command) {
            self.stalled = Some((request, command));
        }
    }

    /// The queue that has no room for the stalled command.
    pub fn full_queue(&self) -> Option<Sender<Command>> {
        let (request, _) = self.stalled.as_ref()?;
        self.under_way.get(request).map(|upload| upload.commands.clone())
    }

    /// Tries the stalled command again.
    pub fn resume(&mut self) {
        if let Some((request, command)) = self.stalled.take() {
            self.command(request, command);
        }
    }

    /// The upload is over.
    pub fn remove(&mut self, request: RequestId) {
        self.stalled.take_if(|(stalled, _)| *stalled == request);
        self.under_way.remove(&request);
    }

    pub fn contains(&self, request: RequestId) -> bool {
        self.under_way.contains_key(&request)
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Whether the client is to send more for one of them.
    pub fn await_client(&self) -> bool {
        self.under_way.values().any(UploadHandle::awaits_client)
    }
}

impl Session {
    pub(super) fn take_report(&mut self, request: RequestId, event: upload::Event) {
        if !self.uploads.contains(request) {
            return;
        }
        match event {
            upload::Event::Need(ranges) => {
                if let Err(refused) = need(&mut self.wire, request, &ranges) {
                    let failure = Failure::new(ErrorCode::TooLarge, format!("the upload needs too much: {refused}"));
                    access::end_upload(self, request, &Err(failure.clone()));
                    self.fail(request, &failure);
                }
            }
            // Refused only if the request was cancelled meanwhile.
            upload::Event::Progress(bytes) => drop(self.wire.put_progress(request, bytes)),
            upload::Event::Finished(result) => {
                access::end_upload(self, request, &result);
                match result {
                    Ok(id) => {
                        self.reply(request, Reply::PutDone { id });
                        let shared = self.shared.clone();
                        tokio::task::spawn_blocking(move || warm::published(&shared, id));
                    }
                    Err(failure) => self.fail(request, &failure),
                }
            }
        }
    }
}

/// Asks the client for blocks, in as many messages as it takes.
fn need(wire: &mut ServerConnection, request: RequestId, ranges: &[BlockRange]) -> Result<(), Refused> {
    let mut parts = ranges.chunks(NEED_RANGES_MAX).peekable();
    if parts.peek().is_none() {
        return wire.put_need(request, Vec::new(), true);
    }
    while let Some(part) = parts.next() {
        wire.put_need(request, part.to_vec(), parts.peek().is_none())?;
    }
    Ok(())
}
