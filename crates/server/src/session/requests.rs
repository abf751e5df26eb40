//! Requests of a client: what it asks for, whether it may, and who answers.

use std::sync::Arc;

use bytes::Bytes;
use store::Object;
use units::{BlockId, ImageId, PageId, RequestId, StreamId, Token};
use wire::{ImageHandle, Reply, Request};

use super::far::{self, By};
use super::pushes::Pushes;
use super::workers::Reading;
use super::{Session, access, manage, metadata, near, signed};
use crate::access::Right;
use crate::admin;
use crate::budget::{Budget, Room};
use crate::done::Done;
use crate::error::Failure;
use crate::published::Published;
use crate::push::PAGE_BYTES_EXPECTED;
use crate::shared::Shared;

impl Session {
    pub(super) fn take_request(&mut self, request: RequestId, ask: Request) -> Result<(), Failure> {
        if let Some((id, file)) = image_of(&ask).and_then(|handle| self.handles.closed(handle)) {
            self.open_again(request, ask, id, file);
            return Ok(());
        }
        match ask {
            Request::Open { name } => access::open(self, request, &name),
            Request::MetaRead { image, offset, bytes } => metadata::read(self, request, image, offset, bytes),
            Request::PullBlock { image, token, page, block, force, speculative } => {
                let by = if speculative { By::Readahead(token) } else { By::Program(token) };
                self.pull_block(request, image, by, page, block, force)
            }
            Request::PullPages { image, token, pages, force } => self.pull_pages(request, image, token, pages, force),
            Request::List => {
                let to = self.client.check_list()?;
                let may = move |name: &str| to.as_ref().is_none_or(|to| to.lists(name));
                tell(self, request, |shared| Ok(Reply::Listing { json: admin::listing(shared, may)? }))
            }
            Request::Status => {
                self.client.check(Right::Stat, "")?;
                tell(self, request, |shared| Ok(Reply::Status { json: admin::status(shared)? }))
            }
            Request::TrustRead { name, known } => signed::read(self, request, name, known),
            Request::TrustWrite { name, files } => signed::write(self, request, name, files),
            Request::Manage { name, ask } => manage::ask(self, request, name, ask),
            Request::VolumeOpen { name } => self.open_volume(request, &name),
            Request::Volume { volume, ask } => self.ask_volume(request, volume, ask),
            Request::PutOpen { name, file_bytes, metadata_offset, metadata_bytes } => {
                access::begin_upload(self, request, name, (file_bytes, metadata_offset, metadata_bytes))
            }
        }
    }

    pub(super) fn answer(
        &mut self,
        request: RequestId,
        bytes: usize,
        work: impl FnOnce() -> Result<Reply, Failure> + Send + 'static,
    ) {
        self.answer_at(self.shared.readers.reads().clone(), request, bytes, work);
    }

    pub(super) fn answer_at(
        &mut self,
        slots: Budget,
        request: RequestId,
        bytes: usize,
        work: impl FnOnce() -> Result<Reply, Failure> + Send + 'static,
    ) {
        let reading = self.begin_reading(bytes, slots);
        self.workers.answer(request, reading, work);
    }

    /// Memory for a reply, which is given at once or later.
    pub(super) fn begin_reading(&mut self, bytes: usize, slots: Budget) -> Reading {
        self.replies.begin_reading(self.shared.buffers.replies(), bytes, slots)
    }

    /// Answers with bytes of the image file, at once if they are in memory.
    pub(super) fn answer_read(
        &mut self,
        request: RequestId,
        image: Arc<Published>,
        offset: u64,
        bytes: u32,
        reply: impl FnOnce(Bytes) -> Reply + Send + 'static,
    ) {
        let bytes = bytes as usize;
        let Some((room, read)) = self.workers.cached(&image, offset, bytes) else {
            return self.answer(request, bytes, move || Ok(reply(image.read(offset, bytes)?)));
        };
        self.reply_with(request, reply(read), room);
    }

    /// Answers with a reply that takes `room` until it has left.
    pub(super) fn reply_with(&mut self, request: RequestId, reply: Reply, room: Room) {
        self.replies.keep(room);
        self.reply(request, reply);
        self.replies.release(&self.wire);
    }

    /// Opens an image that the server closed, then goes on with the request.
    fn open_again(&mut self, request: RequestId, ask: Request, id: ImageId, file: Arc<dyn Object>) {
        let shared = self.shared.clone();
        let open = move || shared.catalog.open_again(id, file, shared.uploads.interrupted());
        self.open_image(open, move |opened| Done::OpenedAgain { request, ask, opened });
    }

    /// As long as the caller holds `image` it stays open.
    pub(super) fn opened_again(
        &mut self,
        request: RequestId,
        ask: Request,
        image: &Arc<Published>,
    ) -> Result<(), Failure> {
        self.handles.handle(image);
        self.take_request(request, ask)
    }

    pub(super) fn open_image(
        &mut self,
        open: impl FnOnce() -> Result<(Arc<Published>, bool), Failure> + Send + 'static,
        report: impl FnOnce(Result<Arc<Published>, Failure>) -> Done + Send + 'static,
    ) {
        self.replies.begin_opening();
        self.workers.open_image(self.wire.takes_proofs(), open, report);
    }

    pub(super) fn image(&self, handle: ImageHandle) -> Result<Arc<Published>, Failure> {
        let unknown = || Failure::bad_request(format!("image handle {} was not given on this connection", handle.0));
        self.handles.get(handle).ok_or_else(unknown)
    }

    fn pull_block(
        &mut self,
        request: RequestId,
        handle: ImageHandle,
        by: By,
        page: PageId,
        block: BlockId,
        force: bool,
    ) -> Result<(), Failure> {
        let image = self.image(handle)?;
        let entry = image.metadata.block(block).ok_or_else(|| image.no_block(block))?;
        check_page(&image, page)?;
        let touched = by.touched();
        if let Some(stream) = self.on_the_way(handle, page, entry.stored_bytes as usize).filter(|_| !force) {
            self.shared.metrics.demands_on_the_way.one();
            self.reply(request, Reply::OnTheWay { stream });
            if let Some((token, (pushes, mut link))) = touched.zip(self.pushes()) {
                pushes.touch(&mut link, &image, token, page, false);
            }
            return Ok(());
        }
        if !force && far::takes_lone_pages(self, &image) {
            // Whether a block is worth its bytes depends on what is predicted.
            let dropped = self.demanded(&image, touched, page, force);
            return far::answer(self, request, (handle, &image), (by, dropped), (page, block));
        }
        // The read is on its way before anything is predicted.
        if force || !near::answer_block(self, request, (handle, &image), block)? {
            far::answer_block(self, request, (handle, &image), (block, force))?;
        }
        self.demanded(&image, touched, page, force);
        Ok(())
    }

    /// A demand of one page was answered, or is about to be. Whether the device had dropped it.
    fn demanded(&mut self, image: &Arc<Published>, touched: Option<Token>, page: PageId, force: bool) -> bool {
        let Some((token, (pushes, mut link))) = touched.zip(self.pushes()) else { return false };
        pushes.demanded(&mut link, image, token, &[page], force)
    }

    /// A block is sent because the client misses a page.
    pub(super) fn count_block(&self, stored_bytes: u32) {
        self.shared.metrics.blocks_demanded.one();
        self.shared.metrics.block_bytes_demanded.add(stored_bytes.into());
    }

    fn pull_pages(
        &mut self,
        request: RequestId,
        handle: ImageHandle,
        token: Token,
        pages: Vec<PageId>,
        force: bool,
    ) -> Result<(), Failure> {
        let image = self.image(handle)?;
        pages.iter().try_for_each(|page| check_page(&image, *page))?;
        let Some(first) = pages.first().copied() else { return Err(Failure::bad_request("no pages were asked for")) };
        let answer_bytes = pages.len() * PAGE_BYTES_EXPECTED;
        let on_the_way = self.on_the_way(handle, first, answer_bytes).filter(|_| !force);
        // One stream must bring them all.
        let mut others = pages.iter().skip(1);
        let mut rest = |stream| others.all(|page| self.on_the_way(handle, *page, answer_bytes) == Some(stream));
        if let Some(stream) = on_the_way.filter(|stream| rest(*stream)) {
            self.shared.metrics.demands_on_the_way.one();
            self.reply(request, Reply::OnTheWay { stream });
            if let Some((pushes, mut link)) = self.pushes() {
                pushes.touch(&mut link, &image, token, first, false);
            }
            return Ok(());
        }
        if !metadata::prove(self, request, handle, &image, &pages)? {
            return Ok(());
        }
        near::answer_pages(self, request, &image, &pages);
        self.shared.metrics.pages_demanded.add(pages.len() as u64);
        if let Some((pushes, mut link)) = self.pushes() {
            pushes.demanded(&mut link, &image, token, &pages, force);
        }
        Ok(())
    }

    /// Whether the device is near.
    pub(super) fn is_near(&self) -> bool {
        self.pushes.as_ref().is_some_and(Pushes::is_near)
    }

    fn on_the_way(&self, handle: ImageHandle, page: PageId, answer_bytes: usize) -> Option<StreamId> {
        self.pushes.as_ref()?.page_on_the_way(&self.wire, handle, page, answer_bytes)
    }
}

/// Answers with a document about the whole server.
fn tell(
    session: &mut Session,
    request: RequestId,
    document: impl FnOnce(&Shared) -> Result<Reply, Failure> + Send + 'static,
) -> Result<(), Failure> {
    let shared = session.shared.clone();
    session.answer(request, wire::format::FRAME_BYTES_MAX_WRITTEN, move || document(&shared));
    Ok(())
}

/// The image that a request is about, if it is open.
fn image_of(ask: &Request) -> Option<ImageHandle> {
    match ask {
        Request::MetaRead { image, .. } | Request::PullBlock { image, .. } | Request::PullPages { image, .. } => {
            Some(*image)
        }
        _ => None,
    }
}

fn check_page(image: &Published, page: PageId) -> Result<(), Failure> {
    if image.has_page(page) {
        return Ok(());
    }
    Err(Failure::bad_request(format!("image {} has no page {page}", image.id)))
}
