//! Transactions of a connection. They are committed in the order in which they came: they wait in a
//! queue of the volume, and a worker commits those that wait as one batch, which shares a sync.

use std::sync::Arc;

use units::RequestId;
use wire::ImageHandle;
use wire::volume::{VolumeAsk, VolumeReply};

use super::Session;
use super::replies::REQUEST_BYTES;
use super::volumes::failed;
use super::workers::Workers;
use crate::done::{After, Cost, Done, VolumeDone};
use crate::error::Failure;
use crate::volumes::{Caller, OpenVolume, Waiting, answer};

impl Session {
    pub(super) fn commit(&mut self, request: RequestId, handle: ImageHandle, open: &Arc<OpenVolume>, ask: VolumeAsk) {
        let bytes = ask.data_bytes();
        let (room, uncovered) = self.receiving.split_transaction(bytes);
        let cost = Cost { bytes: bytes.max(REQUEST_BYTES), uncovered };
        self.replies.begin(cost.bytes);
        if open.commits.push(Waiting { request, ask, room, cost }) {
            tokio::spawn(commit_waiting(self.workers.clone(), handle, open.clone(), self.caller(open)));
        }
    }
}

/// Commits what waits, batch after batch, until nothing does.
async fn commit_waiting(workers: Workers, volume: ImageHandle, open: Arc<OpenVolume>, caller: Caller) {
    let (shared, owner) = (workers.shared(), workers.owner());
    while let Some(batch) = open.commits.next_batch() {
        let caller = Caller { device: open.device(), now: shared.now(), ..caller };
        let changes = |ask: &VolumeAsk| if let VolumeAsk::Commit { changes, .. } = ask { changes.len() } else { 0 };
        let bytes = batch.iter().map(|waiting| 64 + 16 * changes(&waiting.ask)).sum();
        // All at once: two connections that hold some and wait for more could wait for each other.
        let mut room = Some(shared.buffers.replies().take(owner, bytes).await);
        let requests: Vec<_> = batch.iter().map(|waiting| (waiting.request, waiting.cost)).collect();
        let (worker, moment) = (open.clone(), caller.now);
        let work = tokio::task::spawn_blocking(move || {
            let asks = batch.into_iter().map(|waiting| (waiting.ask, waiting.room));
            let (asks, _rooms): (Vec<_>, Vec<_>) = asks.unzip();
            worker.served.committed(moment);
            commit_batch(&worker, &caller, &asks)
        });
        let results = work.await.unwrap_or_else(|_| requests.iter().map(|_| Err(failed())).collect());
        for ((request, cost), reply) in requests.into_iter().zip(results) {
            shared.metrics.transactions.add(u64::from(reply.is_ok()));
            let after = After::Nothing;
            let room = room.take().unwrap_or_else(|| shared.buffers.replies().nothing(owner));
            // What the connection asked for is done even if it is gone.
            workers.report(Done::Volume(VolumeDone { request, volume, reply, room, cost, after }));
        }
    }
}

/// Commits transactions in their order; one result for each. Blocks.
fn commit_batch(open: &OpenVolume, caller: &Caller, asks: &[VolumeAsk]) -> Vec<Result<VolumeReply, Failure>> {
    let volume = match open.served.volume() {
        Ok(volume) => volume,
        Err(failure) => return asks.iter().map(|_| Err(failure.clone())).collect(),
    };
    let mut results: Vec<Option<Result<VolumeReply, Failure>>> = Vec::with_capacity(asks.len());
    let mut transactions = Vec::with_capacity(asks.len());
    for ask in asks {
        match answer::transaction(&volume, caller, ask) {
            Ok(transaction) => {
                transactions.push(transaction);
                results.push(None);
            }
            Err(failure) => results.push(Some(Err(failure))),
        }
    }
    let mut committed = volume.commit_all(transactions).into_iter();
    let reply = |(result, ask): (Option<_>, &VolumeAsk)| {
        result.unwrap_or_else(|| match committed.next() {
            Some(committed) => answer::committed_reply(&open.files, ask, committed),
            None => Err(failed()),
        })
    };
    results.into_iter().zip(asks).map(reply).collect()
}
