//! Uploads of this connection: commands to their workers, reports back to the client.

use units::RequestId;
use wire::{ErrorCode, Reply};

use super::{Session, Stalled};
use crate::error::Failure;
use crate::upload::{self, Announced, Command, Reports};

impl Session {
    pub(super) fn start_upload(&mut self, request: RequestId, announced: Announced) {
        let reports = Reports { request, events: self.reports.clone() };
        let upload = self.shared.uploads.begin(announced, self.owner, reports);
        self.uploads.insert(request, upload);
    }

    pub(super) fn command(&mut self, request: RequestId, command: Command) {
        use tokio::sync::mpsc::error::TrySendError;
        // Parts of an upload that has failed were on their way; its error says all there is to say.
        let Some(upload) = self.uploads.get(&request) else { return };
        if let Err(TrySendError::Full(command)) = upload.commands.try_send(command) {
            self.stalled = Some(Stalled { request, command });
        }
    }

    pub(super) fn resume_stalled(&mut self) {
        if let Some(Stalled { request, command }) = self.stalled.take() {
            self.command(request, command);
        }
    }

    pub(super) fn take_report(&mut self, request: RequestId, event: upload::Event) {
        if !self.uploads.contains_key(&request) {
            return;
        }
        match event {
            upload::Event::Need(ranges) => self.ask_for_blocks(request, ranges),
            // Refused only if the request was cancelled meanwhile.
            upload::Event::Progress(bytes) => drop(self.wire.put_progress(request, bytes)),
            upload::Event::Finished(result) => {
                self.uploads.remove(&request);
                if self.stalled.as_ref().is_some_and(|stalled| stalled.request == request) {
                    self.stalled = None;
                }
                match result {
                    Ok(id) => self.reply(request, Reply::PutDone { id }),
                    Err(failure) => self.fail(request, &failure),
                }
            }
        }
    }

    fn ask_for_blocks(&mut self, request: RequestId, ranges: Vec<wire::BlockRange>) {
        let parts: Vec<_> = ranges.chunks(wire::format::NEED_RANGES_MAX).map(<[_]>::to_vec).collect();
        let count = parts.len().max(1);
        let mut parts = parts.into_iter();
        for part in 1..=count {
            let asked = self.wire.put_need(request, parts.next().unwrap_or_default(), part == count);
            if let Err(refused) = asked {
                self.uploads.remove(&request);
                let failure = Failure::new(ErrorCode::TooLarge, format!("the upload needs too much: {refused}"));
                self.fail(request, &failure);
                return;
            }
        }
    }
}
