//! What is pushed on a connection.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use units::{PageId, RequestId, StreamId, Token};
use wire::{ImageHandle, ServerConnection};

use crate::advice::Advice;
use crate::device::Device;
use crate::done::DoneSender;
use crate::peer::Owner;
use crate::push::{BlockPusher, PagePusher};
use crate::shared::Shared;

/// Demands of a connection that wait for a piece; further ones are answered by themselves.
const POSTPONED_MAX: usize = 64;

/// The pushes of a connection whose device has said who it is.
///
/// Invariant: a demand is postponed only while a piece of data blocks is being built. When it is
/// built, all of them are taken.
pub(super) struct Pushes {
    device: Arc<Device>,
    pages: PagePusher,
    blocks: BlockPusher,
    postponed: Vec<Postponed>,
}

/// A demand whose block is being built into a piece.
pub(super) struct Postponed {
    pub request: RequestId,
    pub volume: ImageHandle,
    pub token: Token,
    pub blocks: Vec<PageId>,
}

impl Pushes {
    pub fn new(
        shared: &Arc<Shared>,
        device: Arc<Device>,
        owner: Owner,
        done: &DoneSender,
        advice: &UnboundedSender<Box<Advice>>,
    ) -> Pushes {
        Pushes {
            pages: PagePusher::new(shared.clone(), device.clone(), owner, done.clone(), advice.clone()),
            blocks: BlockPusher::new(shared.clone(), owner, done.clone()),
            device,
            postponed: Vec::new(),
        }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Pages of images.
    pub fn pages(&self) -> &PagePusher {
        &self.pages
    }

    pub fn pages_mut(&mut self) -> &mut PagePusher {
        &mut self.pages
    }

    /// Blocks of volumes.
    pub fn blocks(&self) -> &BlockPusher {
        &self.blocks
    }

    pub fn blocks_mut(&mut self) -> &mut BlockPusher {
        &mut self.blocks
    }

    /// Builds pieces while the wire has room and no more than `bytes_max` are queued.
    pub fn pump(&mut self, wire: &mut ServerConnection, bytes_max: usize) {
        let presses = self.blocks.presses(wire);
        self.pages.pump(wire, bytes_max, presses);
        self.blocks.pump(wire, bytes_max);
    }

    /// The client does not want a stream.
    pub fn stopped(&mut self, stream: StreamId) {
        self.pages.stopped(stream);
        self.blocks.stopped(stream);
    }

    /// Keeps a demand until the piece is built that brings its first block. False if there is no such piece.
    pub fn postpone(&mut self, request: RequestId, volume: ImageHandle, token: Token, blocks: &[PageId]) -> bool {
        let is_building = |block: &PageId| self.blocks.is_building(volume, *block);
        if self.postponed.len() >= POSTPONED_MAX || !blocks.first().is_some_and(is_building) {
            return false;
        }
        self.postponed.push(Postponed { request, volume, token, blocks: blocks.to_vec() });
        true
    }

    /// The demands that waited for a piece.
    pub fn take_postponed(&mut self) -> Vec<Postponed> {
        std::mem::take(&mut self.postponed)
    }
}
