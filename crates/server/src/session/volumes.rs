//! Requests to volumes: `volumes::answer` answers them on blocking threads, so answers may overtake
//! each other. Transactions are committed in their order ([`commits`](super::commits)).

use std::sync::Arc;
use std::time::Instant;

use units::{InodeId, PageId, RequestId, Token};
use volume::FileId;
use wire::format::FRAME_BYTES_MAX_WRITTEN;
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{ErrorCode, ImageHandle, Reply};

use super::Session;
use super::pushes::{ANONYMOUS, Postponed, Pushes};
use super::workers::{Reading, Workers};
use crate::access::Right;
use crate::budget::Room;
use crate::done::{After, Cost, Done, VolumeDone};
use crate::error::Failure;
use crate::handles::HANDLES_MAX;
use crate::lock::locked;
use crate::push::BlockPusher;
use crate::shared::Shared;
use crate::volumes::{Caller, OpenVolume, answer};

/// Memory of an entry of a folder, most of it its name, and of the shortest listing.
const ENTRY_BYTES: usize = 330;
const LISTING_BYTES_LEAST: usize = 128 << 10;

impl Session {
    pub(super) fn open_volume(&mut self, request: RequestId, name: &str) -> Result<(), Failure> {
        self.client.check(Right::VolumeRead, name)?;
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
        let writable = self.client.opened_volume(volume, name, served.options.mode == volume::Mode::ReadWrite);
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
        if is_for_writers(&ask) {
            self.client.check_writes(handle)?;
        }
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
                // A request that waits for its turn holds little memory.
                slots = self.shared.readers.listings().clone();
                (LISTING_BYTES_LEAST, After::Nothing)
            }
            // Names and values, each as the system tells them and as they are sent.
            VolumeAsk::XattrsRead { .. } => (256 << 10, After::Nothing),
            _ => (8 << 10, After::Nothing),
        };
        let (caller, reading) = (self.caller(&open), self.begin_reading(bytes, slots));
        let work = VolumeWork { request, volume: handle, open, caller, ask, after };
        tokio::spawn(work.run(self.workers.clone(), reading));
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
        if let Some(pushes) = self.pushes.as_mut().filter(|_| !force) {
            if let Some(stream) = pushes.blocks().on_the_way(&self.wire, handle, blocks) {
                self.shared.metrics.demands_on_the_way.one();
                self.reply(request, Reply::OnTheWay { stream });
                self.touch_blocks(handle, open.clone(), token, &[touched]);
                return Ok(None);
            }
            if pushes.postpone(request, handle, token, blocks) {
                return Ok(None);
            }
        }
        if let Some(pusher) = self.block_pusher() {
            pusher.demanded(handle, id, blocks, force);
        }
        self.shared.metrics.volume_blocks_demanded.add(blocks.len() as u64);
        self.touch_blocks(handle, open.clone(), token, &[touched]);
        Ok(Some(id))
    }

    /// A piece was built: demands that waited for it find it on the way, or are answered.
    pub(super) fn resume_postponed(&mut self) {
        let postponed = self.pushes.as_mut().map_or_else(Vec::new, Pushes::take_postponed);
        for Postponed { request, volume, token, blocks } in postponed {
            let ask = VolumeAsk::PullBlocks { token, blocks, force: false };
            if let Err(failure) = self.ask_volume(request, volume, ask) {
                self.fail(request, &failure);
            }
        }
    }

    pub(super) fn take_volume_done(&mut self, done: VolumeDone) {
        let VolumeDone { request, volume, reply, room, cost, after } = done;
        self.receiving.forget_uncovered(cost.uncovered);
        self.replies.end(cost.bytes, room);
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                self.fail(request, &failure);
                return self.replies.release(&self.wire);
            }
        };
        if let Some(pusher) = self.block_pusher() {
            match (&reply, &after) {
                (VolumeReply::Committed { versions }, _) => {
                    versions.iter().for_each(|seen| pusher.version(volume, FileId(seen.file), seen.version, true));
                }
                // A device drops its blocks of an older version then.
                (VolumeReply::FileOpened { info, .. }, _) => {
                    pusher.version(volume, FileId(info.seen.file), info.seen.version, false);
                }
                (VolumeReply::Blocks { version, bytes, .. }, After::Pulled { id }) => {
                    pusher.version(volume, *id, *version, false);
                    self.shared.metrics.volume_bytes_demanded.add(bytes.len() as u64);
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
            && let Some(pusher) = self.block_pusher().filter(|_| token != ANONYMOUS)
        {
            pusher.opened(volume, &open, token, file, id);
        }
        self.replies.release(&self.wire);
    }

    pub(super) fn close_file(&mut self, handle: ImageHandle, file: InodeId) {
        let Some(open) = self.handles.volume(handle) else { return };
        locked(&open.files).close(file);
        if let Some(pusher) = self.block_pusher() {
            pusher.closed(handle, file);
        }
    }

    pub(super) fn share_file(&mut self, handle: ImageHandle, file: InodeId, share: wire::volume::Share) {
        let Some(open) = self.handles.volume(handle) else { return };
        // Of open files only, so that there are not too many.
        let known = locked(&open.files).get(file).is_some();
        if let Some(pusher) = self.block_pusher().filter(|_| known) {
            pusher.share(handle, file, share);
        }
    }

    pub(super) fn block_pusher(&mut self) -> Option<&mut BlockPusher> {
        self.pushes.as_mut().map(Pushes::blocks)
    }

    pub(super) fn caller(&self, open: &OpenVolume) -> Caller {
        let frame_bytes_max = self.wire.hello().map_or(0, |hello| hello.frame_bytes_max as usize);
        Caller {
            device: open.device(),
            peer: self.client.owner().peer.number(),
            nonce: open.nonce(),
            now: self.shared.now(),
            reply_bytes_max: frame_bytes_max.min(FRAME_BYTES_MAX_WRITTEN),
        }
    }
}

/// Whether it is what devices ask that change files. On a volume that is served for reading, nobody
/// does.
fn is_for_writers(ask: &VolumeAsk) -> bool {
    match ask {
        VolumeAsk::Commit { .. } | VolumeAsk::Lock(_) | VolumeAsk::Enrol | VolumeAsk::Prove { .. } => true,
        VolumeAsk::Lease { kind, .. } => kind.is_some(),
        VolumeAsk::FileOpen { .. }
        | VolumeAsk::FileStat { .. }
        | VolumeAsk::FolderList { .. }
        | VolumeAsk::LinkRead { .. }
        | VolumeAsk::PullBlocks { .. }
        | VolumeAsk::XattrsRead { .. }
        | VolumeAsk::SpaceStat => false,
    }
}

/// A request to a volume that is answered on a blocking thread.
struct VolumeWork {
    request: RequestId,
    volume: ImageHandle,
    open: Arc<OpenVolume>,
    caller: Caller,
    ask: VolumeAsk,
    after: After,
}

impl VolumeWork {
    async fn run(self, workers: Workers, reading: Reading) {
        let VolumeWork { request, volume, open, caller, mut ask, after } = self;
        let cost = Cost { bytes: reading.bytes, uncovered: 0 };
        let (mut room, slot) = tokio::select! {
            rooms = reading.begin(&workers) => rooms,
            // The connection is gone: nobody waits for the answer. A lease or lock that is
            // given back counts all the same.
            () = workers.done().closed(), if !matches!(ask, VolumeAsk::Lease { .. } | VolumeAsk::Lock(_)) => return,
        };
        if let VolumeAsk::FolderList { limit, .. } = &mut ask {
            fit_listing(limit, &mut room);
        }
        let (shared, peer) = (workers.shared().clone(), workers.owner().peer);
        let work = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let answered = answer_one(&shared, &open, &caller, &ask, after);
            if matches!(ask, VolumeAsk::FolderList { .. }) {
                shared.readers.listed(peer, begun.elapsed());
            }
            drop(slot);
            answered
        });
        let (reply, after) = work.await.unwrap_or_else(|_| (Err(failed()), After::Nothing));
        workers.report(Done::Volume(VolumeDone { request, volume, reply, room, cost, after }));
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

pub(super) fn failed() -> Failure {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::peer::Owner;

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
}
