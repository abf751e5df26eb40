//! The push streams of a connection for volumes.

use units::{ActionId, PageId, StreamId, Token};
use wire::{ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPosition, ServerConnection};

use super::file_push::PIECE_BYTES_MANY;

/// Streams of one connection for volumes, beside those of images.
const STREAMS_MAX: usize = 24;

/// The streams.
///
/// Invariant: a program has one stream in each volume, and there are at most [`STREAMS_MAX`].
#[derive(Default)]
pub(super) struct Streams {
    open: Vec<Stream>,
    uses: u64,
}

struct Stream {
    volume: ImageHandle,
    token: Token,
    stream: StreamId,
    /// Number of its last use.
    used: u64,
}

impl Streams {
    /// The stream of a program, if it has one.
    pub fn get(&self, volume: ImageHandle, token: Token) -> Option<StreamId> {
        self.open.iter().find(|known| known.is_for(volume, token)).map(|known| known.stream)
    }

    /// The stream of a program, and whether it was begun just now. If there are too many, the one
    /// used longest ago ends.
    pub fn open(&mut self, wire: &mut ServerConnection, volume: ImageHandle, token: Token) -> Option<(StreamId, bool)> {
        self.uses += 1;
        if let Some(known) = self.open.iter_mut().find(|known| known.is_for(volume, token)) {
            known.used = self.uses;
            return Some((known.stream, false));
        }
        if self.open.len() >= STREAMS_MAX
            && let Some(at) = (0..self.open.len()).min_by_key(|at| self.open[*at].used)
        {
            // Refused only if it has ended.
            let _ = wire.push_end(self.open.remove(at).stream, PushEndReason::Complete);
        }
        let header = PushHeader {
            image: volume,
            token,
            action: ActionId(0),
            encoding: PushEncoding::Volume,
            window_log: 0,
            audit: false,
        };
        let stream = wire.push_start(header).ok()?;
        self.open.push(Stream { volume, token, stream, used: self.uses });
        Some((stream, true))
    }

    /// Forgets the stream of a program.
    pub fn remove(&mut self, volume: ImageHandle, token: Token) -> Option<StreamId> {
        let at = self.open.iter().position(|known| known.is_for(volume, token))?;
        Some(self.open.remove(at).stream)
    }

    /// Forgets a stream; whose it was.
    pub fn remove_stream(&mut self, stream: StreamId) -> Option<(ImageHandle, Token)> {
        let at = self.open.iter().position(|known| known.stream == stream)?;
        let Stream { volume, token, .. } = self.open.remove(at);
        Some((volume, token))
    }

    /// The stream that brings all of `blocks` soon: they were sent and are not credited, or leave
    /// within the window.
    pub fn bringing(&self, wire: &ServerConnection, volume: ImageHandle, blocks: &[PageId]) -> Option<StreamId> {
        let room = (wire.push_window_bytes() as usize).max(2 * PIECE_BYTES_MANY);
        let soon = |stream: StreamId, block: &PageId| match wire.push_position(stream, *block) {
            PushPosition::Sent => true,
            PushPosition::Queued { bytes_ahead } => bytes_ahead <= room,
            PushPosition::Absent => false,
        };
        let mine = self.open.iter().filter(|stream| stream.volume == volume).map(|stream| stream.stream);
        mine.into_iter().find(|stream| blocks.iter().all(|block| soon(*stream, block)))
    }
}

impl Stream {
    fn is_for(&self, volume: ImageHandle, token: Token) -> bool {
        self.volume == volume && self.token == token
    }
}
