//! Requests to volumes: whose answer comes from `volumes::answer`, and in which order things happen.
//!
//! Answers may overtake each other, but the transactions of a connection are committed in the order in which they came: they
//! wait in a queue of the volume, and a worker commits what waits there as one batch, so that it shares a sync.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use units::{InodeId, Moment, PageId, RequestId, Token};
use volume::FileId;
use wire::format::FRAME_BYTES_MAX_WRITTEN;
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{ErrorCode, ImageHandle, Reply};

use super::{REQUEST_BYTES, Session};
use crate::budget::Room;
use crate::done::{After, Cost, Done, DoneSender, VolumeDone};
use crate::error::Failure;
use crate::handles::HANDLES_MAX;
use crate::lock::locked;
use crate::peer::Owner;
use crate::shared::Shared;
use crate::volumes::{Caller, Foreseen, OpenVolume, Waiting, answer};

/// Demands of a connection that wait for a piece; further ones are answered by themselves.
const POSTPONED_MAX: usize = 64;

/// Touches given to the predictors in one turn of the connection and under one lock: where graphs
/// branch, one costs up to a tenth of a millisecond.
const TOUCHES_AT_ONCE: usize = 4;

/// Touches that a connection may make at once, and each second. Others are not told to the
/// predictors: they cost the server more than their bytes cost the device.
const TOUCHES_MAX: u64 = 4096;

/// Memory of an entry of a folder, most of it its name, and of the shortest listing.
const ENTRY_BYTES: usize = 330;
const LISTING_BYTES_LEAST: usize = 128 << 10;

/// The token of reads that belong to no program: nothing is predicted for them.
const ANONYMOUS: Token = Token(0);

/// Touches that arrived, and wait for their turn.
pub(super) struct BlockTouches {
    waiting: Option<Touched>,
    /// Touches that may be made, and since when that is so.
    credit: u64,
    at: Moment,
}

struct Touched {
    volume: ImageHandle,
    open: Arc<OpenVolume>,
    token: Token,
    blocks: VecDeque<PageId>,
}

impl Default for BlockTouches {
    fn default() -> BlockTouches {
        BlockTouches { waiting: None, credit: TOUCHES_MAX, at: Moment(0) }
    }
}

impl BlockTouches {
    /// Whether none waits. While some do, nothing that came behind them is taken up.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Adds the touches of one message, as many as the connection may make: the last ones, which
    /// tell where the program is.
    pub fn add(&mut self, volume: ImageHandle, open: Arc<OpenVolume>, token: Token, blocks: &[PageId], now: Moment) {
        let count = self.spend(blocks.len(), now);
        let blocks: VecDeque<_> = blocks[blocks.len() - count..].iter().copied().collect();
        self.waiting = (!blocks.is_empty()).then_some(Touched { volume, open, token, blocks });
    }

    /// How many of `wanted` touches may be made.
    fn spend(&mut self, wanted: usize, now: Moment) -> usize {
        let added = now.since(self.at).as_micros() * u128::from(TOUCHES_MAX) / 1_000_000;
        if added > 0 {
            // What is less than a touch counts the next time.
            let spent = Duration::from_micros((added * 1_000_000 / u128::from(TOUCHES_MAX)) as u64);
            self.at = self.at.after(spent);
            self.credit = (u128::from(self.credit) + added).min(TOUCHES_MAX.into()) as u64;
        }
        let count = (wanted as u64).min(self.credit);
        self.credit -= count;
        count as usize
    }
}

/// A demand whose block is being built into a piece.
pub(super) struct Postponed {
    request: RequestId,
    volume: ImageHandle,
    token: Token,
    blocks: Vec<PageId>,
}

impl Session {
    pub(super) fn open_volume(&mut self, request: RequestId, name: &str) -> Result<(), Failure> {
        let served = self.shared.volumes.get(name).cloned();
        let served = served.ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            Failure::new(ErrorCode::NotFound, format!("{shown:?} is not a volume of this server"))
        })?;
        let full =
            || Failure::new(ErrorCode::Busy, format!("a connection has at most {HANDLES_MAX} images and volumes"));
        let volume = match self.handles.volume_handle(&served) {
            Some(handle) => handle,
            None => self.handles.add_volume(Arc::new(OpenVolume::new(served.clone())?)).ok_or_else(full)?,
        };
        self.wire.share_pushes();
        let (id, block_bytes) = (served.id, served.options.block_bytes);
        let writable = served.options.mode == volume::Mode::ReadWrite;
        let nonce = self.handles.volume(volume).map_or(0, |open| open.nonce());
        self.reply(request, Reply::VolumeOpened { volume, id, block_bytes, writable, nonce });
        Ok(())
    }

    pub(super) fn ask_volume(
        &mut self,
        request: RequestId,
        handle: ImageHandle,
        ask: VolumeAsk,
    ) -> Result<(), Failure> {
        let open = self.handles.volume(handle).cloned().ok_or_else(|| {
            Failure::bad_request(format!("volume handle {} was not given on this connection", handle.0))
        })?;
        let block_bytes = open.served.options.block_bytes as usize;
        let mut slots = self.shared.readers.reads().clone();
        let (bytes, after) = match &ask {
            VolumeAsk::Commit { .. } => {
                self.commit(request, handle, &open, ask);
                return Ok(());
            }
            VolumeAsk::PullBlocks { token, blocks, force } => {
                let Some(id) = self.pull(request, handle, &open, *token, blocks, *force)? else { return Ok(()) };
                // Raw and compressed are in memory together for a moment.
                (2 * blocks.len() * block_bytes, After::Pulled { id })
            }
            VolumeAsk::FileOpen { token, .. } => (64 << 10, After::Opened { token: *token, id: FileId(0) }),
            VolumeAsk::FolderList { .. } => {
                // To look at thousands of files is work for the processor, which few do at once.
                // Who waits for that holds little memory.
                slots = self.shared.readers.listings().clone();
                (LISTING_BYTES_LEAST, After::Nothing)
            }
            // Names and values, each as the system tells them and as they are sent.
            VolumeAsk::XattrsRead { .. } => (256 << 10, After::Nothing),
            _ => (8 << 10, After::Nothing),
        };
        let caller = self.caller(&open);
        let reading = self.read_reply(bytes, slots);
        let (shared, owner, done) = (self.shared.clone(), self.owner, self.done.clone());
        tokio::spawn(async move {
            let (mut ask, cost) = (ask, Cost { bytes: reading.bytes, uncovered: 0 });
            let (mut room, slot) = tokio::select! {
                rooms = reading.begin(&shared, &done) => rooms,
                // The connection is gone: nobody waits for the answer. A lease or lock that is
                // given back counts all the same.
                () = done.closed(), if !matches!(ask, VolumeAsk::Lease { .. } | VolumeAsk::Lock(_)) => return,
            };
            if let VolumeAsk::FolderList { limit, .. } = &mut ask {
                fit_listing(limit, &mut room);
            }
            let work = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                let answered = answer_one(&shared, &open, &caller, &ask, after);
                if matches!(ask, VolumeAsk::FolderList { .. }) {
                    shared.readers.listed(owner.peer, begun.elapsed());
                }
                drop(slot);
                answered
            });
            let (reply, after) = work.await.unwrap_or_else(|_| (Err(failed()), After::Nothing));
            // The connection may be gone.
            let _ = done.send(Box::new(Done::Volume(VolumeDone { request, volume: handle, reply, room, cost, after })));
        });
        Ok(())
    }

    /// The id of the file, unless the demand is answered by a push or has to wait for one.
    fn pull(
        &mut self,
        request: RequestId,
        handle: ImageHandle,
        open: &Arc<OpenVolume>,
        token: Token,
        blocks: &[PageId],
        force: bool,
    ) -> Result<Option<FileId>, Failure> {
        let touched = *blocks.first().ok_or_else(|| Failure::bad_request("no blocks were asked for"))?;
        let file = locked(&open.files).get(touched.inode);
        let (_, id) = file.ok_or_else(|| answer::unknown_file(touched.inode))?;
        if let Some(pusher) = self.blocks.as_ref().filter(|_| !force) {
            if let Some(stream) = pusher.on_the_way(&self.wire, handle, blocks) {
                self.shared.metrics.demands_on_the_way.one();
                self.reply(request, Reply::OnTheWay { stream });
                self.touch_blocks(handle, open, token, &[touched]);
                return Ok(None);
            }
            if self.postponed.len() < POSTPONED_MAX && pusher.is_building(handle, touched) {
                let blocks = blocks.to_vec();
                self.postponed.push(Postponed { request, volume: handle, token, blocks });
                return Ok(None);
            }
        }
        if let Some(pusher) = &mut self.blocks {
            pusher.demanded(handle, id, blocks, force);
        }
        self.shared.metrics.volume_blocks_demanded.add(blocks.len() as u64);
        self.touch_blocks(handle, open, token, &[touched]);
        Ok(Some(id))
    }

    /// A piece was built: demands that waited for it find it on the way, or are answered.
    pub(super) fn resume_postponed(&mut self) {
        for Postponed { request, volume, token, blocks } in std::mem::take(&mut self.postponed) {
            let ask = VolumeAsk::PullBlocks { token, blocks, force: false };
            if let Err(failure) = self.ask_volume(request, volume, ask) {
                self.fail(request, &failure);
            }
        }
    }

    fn commit(&mut self, request: RequestId, handle: ImageHandle, open: &Arc<OpenVolume>, ask: VolumeAsk) {
        let bytes = ask.data_bytes();
        let room = self.received.room.split(bytes);
        let cost = Cost { bytes: bytes.max(REQUEST_BYTES), uncovered: bytes.saturating_sub(room.amount()) };
        self.reading_bytes += cost.bytes;
        self.received.uncovered += cost.uncovered;
        if open.commits.push(Waiting { request, ask, room, cost }) {
            let (shared, done, caller) = (self.shared.clone(), self.done.clone(), self.caller(open));
            tokio::spawn(commit_waiting(shared, self.owner, done, handle, open.clone(), caller));
        }
    }

    pub(super) fn take_volume_done(&mut self, done: VolumeDone) {
        let VolumeDone { request, volume, reply, room, cost, after } = done;
        self.reading_bytes -= cost.bytes;
        self.received.uncovered -= cost.uncovered;
        self.held.merge(room);
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                self.fail(request, &failure);
                return self.release();
            }
        };
        if let Some(pusher) = &mut self.blocks {
            match (&reply, &after) {
                (VolumeReply::Committed { versions }, _) => {
                    versions.iter().for_each(|seen| pusher.version(volume, FileId(seen.file), seen.version, true));
                }
                // A device drops its blocks of an older version then.
                (VolumeReply::FileOpened { info, .. }, _) => {
                    pusher.version(volume, FileId(info.seen.file), info.seen.version, false);
                }
                (VolumeReply::Blocks { version, bytes, .. }, After::Pulled { id }) => {
                    self.shared.metrics.volume_bytes_demanded.add(bytes.len() as u64);
                    pusher.version(volume, *id, *version, false);
                }
                _ => {}
            }
        }
        let opened = match (&reply, after) {
            (VolumeReply::FileOpened { file, profiled: true, .. }, After::Opened { token, id }) => {
                Some((token, *file, id))
            }
            _ => None,
        };
        self.reply(request, Reply::Volume(reply));
        // Behind the answer, so that the device knows the file when its blocks come.
        if let (Some((token, file, id)), Some(open)) = (opened, self.handles.volume(volume).cloned())
            && let Some(pusher) = self.blocks.as_mut().filter(|_| token != ANONYMOUS)
        {
            pusher.opened(volume, &open, token, file, id);
        }
        self.release();
    }

    /// Takes up some of the touches that wait.
    pub(super) fn touch_some_blocks(&mut self) {
        let Some(mut touched) = self.touches.waiting.take() else { return };
        let count = touched.blocks.len().min(TOUCHES_AT_ONCE);
        let some: Vec<_> = touched.blocks.drain(..count).collect();
        self.touch_blocks(touched.volume, &touched.open, touched.token, &some);
        self.touches.waiting = Some(touched).filter(|touched| !touched.blocks.is_empty());
    }

    /// Tells the predictors of a few touches, and acts on what follows.
    fn touch_blocks(&mut self, handle: ImageHandle, open: &Arc<OpenVolume>, token: Token, blocks: &[PageId]) {
        if !self.shared.config.learning.enabled || token == ANONYMOUS {
            return;
        }
        let (now, run) = (self.shared.now(), self.run_of(token));
        let owner = self.owner.peer.number().0;
        let ids: Vec<_> = {
            let files = locked(&open.files);
            blocks.iter().map(|block| files.get(block.inode).map(|(_, id)| id)).collect()
        };
        let foreseen: Vec<Foreseen> = {
            let mut profiles = locked(&open.served.profiles);
            let known = blocks.iter().zip(ids).filter_map(|(block, id)| Some((block, id?)));
            known.map(|(block, id)| profiles.touch(owner, run, id, block.index, now)).collect()
        };
        if let Some(pusher) = &mut self.blocks {
            pusher.touched();
            for foreseen in foreseen.into_iter().filter(|foreseen| *foreseen != Foreseen::default()) {
                pusher.foreseen(&mut self.wire, handle, open, token, foreseen);
            }
        }
    }

    pub(super) fn hint_blocks(&mut self, handle: ImageHandle, open: &Arc<OpenVolume>, token: Token, blocks: &[PageId]) {
        if let Some(pusher) = &mut self.blocks {
            let taken = pusher.hint(handle, open, token, blocks);
            self.shared.metrics.pages_hinted.add(taken as u64);
        }
    }

    pub(super) fn end_blocks(&mut self, handle: ImageHandle, open: &Arc<OpenVolume>, token: Token) {
        locked(&open.served.profiles).end(self.run_of(token), self.shared.now());
        if let Some(pusher) = &mut self.blocks {
            pusher.ended(&mut self.wire, handle, token);
        }
    }

    pub(super) fn close_file(&mut self, handle: ImageHandle, file: InodeId) {
        let Some(open) = self.handles.volume(handle) else { return };
        locked(&open.files).close(file);
        if let Some(pusher) = &mut self.blocks {
            pusher.closed(handle, file);
        }
    }

    pub(super) fn share_file(&mut self, handle: ImageHandle, file: InodeId, share: wire::volume::Share) {
        let Some(open) = self.handles.volume(handle) else { return };
        // Of open files only, so that there are not too many.
        let known = locked(&open.files).get(file).is_some();
        if let Some(pusher) = self.blocks.as_mut().filter(|_| known) {
            pusher.share(handle, file, share);
        }
    }

    fn caller(&self, open: &OpenVolume) -> Caller {
        let frame_bytes_max = self.wire.hello().map_or(0, |hello| hello.frame_bytes_max as usize);
        Caller {
            device: open.device(),
            peer: self.owner.peer.number(),
            nonce: open.nonce(),
            now: self.shared.now(),
            reply_bytes_max: frame_bytes_max.min(FRAME_BYTES_MAX_WRITTEN),
        }
    }
}

/// Takes memory for all entries of a listing, or makes it shorter.
fn fit_listing(limit: &mut u16, room: &mut Room) {
    let mut wanted = usize::from(*limit) * ENTRY_BYTES;
    while wanted > room.amount() {
        match room.try_more(wanted - room.amount()) {
            Some(more) => room.merge(more),
            None => wanted /= 2,
        }
    }
    *limit = u16::try_from(room.amount() / ENTRY_BYTES).unwrap_or(u16::MAX).min(*limit);
}

fn failed() -> Failure {
    Failure::new(ErrorCode::Internal, "the server failed while it worked on the request")
}

/// Answers anything but a transaction. Blocks.
fn answer_one(
    shared: &Arc<Shared>,
    open: &OpenVolume,
    caller: &Caller,
    ask: &VolumeAsk,
    mut after: After,
) -> (Result<VolumeReply, Failure>, After) {
    let volume = match open.served.volume() {
        Ok(volume) => volume,
        Err(failure) => return (Err(failure), After::Nothing),
    };
    let mut reply = answer::answer(&volume, &open.files, caller, ask);
    if let (Ok(VolumeReply::Proven), VolumeAsk::Prove { number, .. }) = (&reply, ask)
        && let Err(failure) = open.prove(shared.clock, *number)
    {
        reply = Err(failure);
    }
    if let (Ok(VolumeReply::FileOpened { file, info, profiled, .. }), After::Opened { id, .. }) =
        (&mut reply, &mut after)
        && let Some((path, _)) = locked(&open.files).get(*file)
    {
        *id = FileId(info.seen.file);
        *profiled = open.served.opened(&path, *id, info.size, &**shared.store(), &shared.log);
    }
    (reply, after)
}

/// Commits what waits, batch after batch, until nothing does.
async fn commit_waiting(
    shared: Arc<Shared>,
    owner: Owner,
    done: DoneSender,
    volume: ImageHandle,
    open: Arc<OpenVolume>,
    caller: Caller,
) {
    while let Some(batch) = open.commits.next_batch() {
        let caller = Caller { device: open.device(), now: shared.now(), ..caller };
        let changes = |ask: &VolumeAsk| if let VolumeAsk::Commit { changes, .. } = ask { changes.len() } else { 0 };
        let bytes = batch.iter().map(|waiting| 64 + 16 * changes(&waiting.ask)).sum();
        // At once: who waits for more while he holds some could wait for another who does the same.
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
            // The connection may be gone; what it asked for is done all the same.
            let _ = done.send(Box::new(Done::Volume(VolumeDone { request, volume, reply, room, cost, after })));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn a_listing_is_shorter_where_there_is_little_memory() {
        let owner = Owner { peer: crate::peer::Peer::at("192.0.2.1:1".parse().unwrap()), connection: 1 };
        for (memory, expected) in [(64 << 20, 4096), (1 << 20, LISTING_BYTES_LEAST / ENTRY_BYTES)] {
            let mut room = Budget::memory(memory).try_take(owner, LISTING_BYTES_LEAST).unwrap();
            let mut limit = 4096;
            fit_listing(&mut limit, &mut room);
            assert_eq!(usize::from(limit), expected);
            assert!(usize::from(limit) * ENTRY_BYTES <= room.amount());
        }
    }

    #[test]
    fn touches_beyond_what_a_connection_may_make_are_left_out() {
        let mut touches = BlockTouches::default();
        let second = |number: u64| Moment(1_000_000 * number);
        assert_eq!(touches.spend(1000, second(1)), 1000);
        assert_eq!(touches.spend(10_000, second(1)), TOUCHES_MAX as usize - 1000);
        assert_eq!(touches.spend(1, second(1)), 0);
        // A device that was silent for an hour has as much as one that was for a second.
        assert_eq!(touches.spend(10_000, second(2)), TOUCHES_MAX as usize);
        assert_eq!(touches.spend(10_000, second(3600)), TOUCHES_MAX as usize);
        // Many small steps of time add up as one large one does.
        let steps = (1..=10_000u64).map(|step| touches.spend(1, Moment(second(3600).0 + step * 100))).sum::<usize>();
        assert!(steps.abs_diff(TOUCHES_MAX as usize) < 10, "{steps}");
    }
}
