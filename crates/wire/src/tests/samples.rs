//! Random messages, all of them valid, for properties and fuzzing.

mod volume;

use bytes::Bytes;
use units::{ActionId, BlockId, ImageId, InodeId, PageId, RequestId, Rng, SegmentIndex, SplitMix64, StreamId, Token};

use crate::coding::Frame;
use crate::format::{
    FRAME_BYTES_MAX_LEAST, HINT_PAGES_MAX, TOUCH_PAGES_MAX, TRUST_FILES_BYTES_MAX, TRUST_KNOWN_BYTES_MAX,
};
use crate::message::{ClientMessage, ManageAsk, Notice, ServerMessage};
use crate::{
    Bearer, BlockRange, ErrorCode, Hello, HelloReply, ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece,
    Reply, Request,
};

pub struct Samples(pub SplitMix64);

impl Samples {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Small, large and extreme numbers alike.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(3),
            1 => u64::MAX - self.below(3),
            _ => self.0.next_u64() >> self.below(64),
        }
    }

    fn u32(&mut self) -> u32 {
        self.number() as u32
    }

    fn u128(&mut self) -> u128 {
        u128::from(self.number()) << 64 | u128::from(self.number())
    }

    fn secret(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.number() as u8)
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn image(&mut self) -> ImageHandle {
        ImageHandle(self.u32())
    }

    fn token(&mut self) -> Token {
        Token(self.u128())
    }

    fn request_id(&mut self) -> RequestId {
        RequestId(self.u32().max(1))
    }

    fn stream_id(&mut self) -> StreamId {
        StreamId(self.u32().max(1))
    }

    fn image_id(&mut self) -> ImageId {
        ImageId(std::array::from_fn(|_| self.number() as u8))
    }

    pub fn bytes(&mut self, min: u64, max: u64) -> Bytes {
        let bytes = min + self.below(max - min + 1);
        (0..bytes).map(|_| self.0.next_u64() as u8).collect()
    }

    pub fn text(&mut self, min: u64, max: u64) -> String {
        let mut text = "n".repeat(min as usize);
        let wanted = min + self.below(max - min + 1);
        while (text.len() as u64) < wanted.saturating_sub(3) {
            let c = char::from_u32(self.below(0x11_0000) as u32).unwrap_or('x');
            // The others arrive as escapes.
            text.push(if units::printable_line(c.to_string().as_bytes()).len() == c.len_utf8() { c } else { 'x' });
        }
        text
    }

    pub fn pages(&mut self, max: usize) -> Vec<PageId> {
        let mut page = PageId::new(InodeId(self.u32()), self.u32());
        let count = 1 + self.below(max as u64);
        let mut pages = Vec::new();
        for _ in 0..count {
            pages.push(page);
            page = match self.below(8) {
                0 => PageId::new(InodeId(self.u32()), self.u32()),
                1 => PageId::new(page.inode, self.u32()),
                _ => PageId::new(page.inode, page.index.wrapping_add(1)),
            };
        }
        pages
    }

    pub fn ranges(&mut self) -> Vec<BlockRange> {
        let mut next = 0u32;
        let count = self.below(40);
        let mut ranges = Vec::new();
        for _ in 0..count {
            let (gap, count) = (self.below(1 << 20) as u32, 1 + self.below(1 << 20) as u32);
            ranges.push(BlockRange { first: BlockId(next + gap), count });
            next += gap + count;
        }
        ranges
    }

    pub fn request(&mut self) -> Request {
        match self.below(13) {
            10.. => self.volume_request(),
            9 => Request::Manage { name: self.text(0, 255), ask: self.manage_ask() },
            8 => Request::TrustRead { name: self.text(0, 255), known: self.bytes(1, TRUST_KNOWN_BYTES_MAX as u64) },
            7 => Request::TrustWrite { name: self.text(0, 255), files: self.bytes(1, 300) },
            0 => Request::Open { name: self.text(1, 255) },
            1 => Request::MetaRead {
                image: self.image(),
                offset: self.number() >> 1,
                bytes: 1 + self.below(1 << 20) as u32,
            },
            2 => Request::PullBlock {
                image: self.image(),
                token: self.token(),
                page: PageId::from_u64(self.number()),
                block: BlockId(self.u32()),
                force: self.flag(),
                speculative: self.flag(),
            },
            3 => Request::PullPages {
                image: self.image(),
                token: self.token(),
                pages: self.pages(32),
                force: self.flag(),
            },
            4 => Request::List,
            5 => Request::Status,
            _ => {
                let (metadata_offset, metadata_bytes) = (self.number() >> 2, self.number() >> 2);
                let file_bytes = metadata_offset + metadata_bytes + self.below(100);
                Request::PutOpen { name: self.text(1, 255), file_bytes, metadata_offset, metadata_bytes }
            }
        }
    }

    fn manage_ask(&mut self) -> ManageAsk {
        match self.below(5) {
            0 => ManageAsk::Remove,
            1 => ManageAsk::Tag { of: self.text(1, 255) },
            2 => ManageAsk::Rules,
            3 => ManageAsk::Retain { keep: self.u32(), seconds: self.number() },
            _ => ManageAsk::Collect { grace: self.number(), dry_run: self.flag() },
        }
    }

    pub fn reply(&mut self) -> Reply {
        match self.below(17) {
            13.. => self.volume_reply(),
            12 => Reply::Managed { json: self.bytes(0, 300) },
            11 => Reply::TrustWritten,
            10 => {
                let (codec, raw_bytes) = (self.number() as u8, self.below(TRUST_FILES_BYTES_MAX as u64) as u32);
                Reply::TrustFiles { codec, raw_bytes, bytes: self.bytes(1, 300) }
            }
            9 => Reply::Decoded { block: BlockId(self.u32()), bytes: self.bytes(1, 300) },
            0 => Reply::Opened {
                image: self.image(),
                id: self.image_id(),
                file_bytes: self.number(),
                metadata_offset: self.number(),
                metadata_bytes: self.number(),
            },
            1 => Reply::MetaData { offset: self.number(), bytes: self.bytes(1, 300) },
            2 => Reply::Block { block: BlockId(self.u32()), bytes: self.bytes(1, 300) },
            3 => Reply::Pages { codec: self.number() as u8, bytes: self.bytes(1, 300) },
            4 => Reply::OnTheWay { stream: self.stream_id() },
            5 => Reply::Listing { json: self.bytes(0, 300) },
            6 => Reply::Status { json: self.bytes(0, 300) },
            7 => Reply::PutDone { id: self.image_id() },
            _ => Reply::Error { code: ErrorCode::from_u16(self.below(30) as u16), text: self.text(0, 256) },
        }
    }

    pub fn client(&mut self) -> ClientMessage {
        match self.below(16) {
            14.. => self.volume_message(),
            13 => ClientMessage::Notice(Notice::Hint {
                image: self.image(),
                token: self.token(),
                pages: self.pages(HINT_PAGES_MAX),
            }),
            11 if self.flag() => ClientMessage::Notice(Notice::Bearer(Bearer::received(self.text(1, 255)))),
            12 if self.flag() => {
                let (round_trip, zstd, lz4) = (self.u32(), self.u32(), self.u32());
                ClientMessage::Notice(Notice::DeviceSpeed { round_trip, zstd, lz4 })
            }
            12 => ClientMessage::Hurry { request: self.request_id() },
            0 => ClientMessage::Hello(Hello {
                version: self.number() as u16,
                device: self.u128(),
                features: self.number(),
                frame_bytes_max: FRAME_BYTES_MAX_LEAST as u32 + self.below(1 << 24) as u32,
                window_log_max: self.below(28) as u8,
                push_bytes_max: self.u32(),
            }),
            1 => ClientMessage::Cancel { request: self.request_id() },
            2 => ClientMessage::Ping { nonce: self.number() },
            3 => ClientMessage::Notice(Notice::Touch {
                image: self.image(),
                token: self.token(),
                pages: self.pages(TOUCH_PAGES_MAX),
            }),
            4 => ClientMessage::Notice(Notice::TokenEnd { image: self.image(), token: self.token() }),
            5 => ClientMessage::Notice(Notice::Credit { stream: self.stream_id(), bytes: self.u32().max(1) }),
            6 => ClientMessage::Notice(Notice::StopPush { stream: self.stream_id() }),
            7 => {
                ClientMessage::PutMeta { request: self.request_id(), offset: self.number(), bytes: self.bytes(1, 300) }
            }
            8 => {
                let (request, block) = (self.request_id(), BlockId(self.u32()));
                ClientMessage::PutBlock { request, block, bytes: self.bytes(1, 300) }
            }
            9 => ClientMessage::PutCommit { request: self.request_id() },
            _ => ClientMessage::Request { request: self.request_id(), ask: self.request() },
        }
    }

    pub fn push_header(&mut self) -> PushHeader {
        let (encoding, window_log) = match self.below(4) {
            0 => (PushEncoding::Stored, 0),
            1 => (PushEncoding::Volume, 0),
            2 => (PushEncoding::Pieces, self.below(22) as u8),
            _ => (PushEncoding::ZstdStream, 1 + self.below(21) as u8),
        };
        PushHeader {
            image: self.image(),
            token: self.token(),
            action: ActionId(self.number()),
            encoding,
            window_log,
            audit: self.flag(),
        }
    }

    pub fn server(&mut self) -> ServerMessage {
        match self.below(12) {
            11 => ServerMessage::Start { image: self.image(), offset: self.number(), bytes: self.bytes(1, 300) },
            10 => ServerMessage::Hashes { image: self.image(), proof: self.bytes(1, 300) },
            0 => ServerMessage::Hello(HelloReply {
                version: self.number() as u16,
                features: self.number(),
                frame_bytes_max: FRAME_BYTES_MAX_LEAST as u32 + self.below(1 << 24) as u32,
            }),
            1 => ServerMessage::Pong { nonce: self.number() },
            2 => ServerMessage::PushStart { stream: self.stream_id(), push: self.push_header() },
            3 => {
                let (stream, segment) = (self.stream_id(), SegmentIndex(self.u32()));
                let (pages, bytes) = (self.pages(32), self.bytes(1, 300));
                let piece = PushPiece { stream, segment, pages, bytes };
                if self.flag() { ServerMessage::VolumePush(piece) } else { ServerMessage::Push(piece) }
            }
            4 => {
                let reason = PushEndReason::ALL[self.below(6) as usize];
                ServerMessage::PushEnd { stream: self.stream_id(), reason }
            }
            5 => ServerMessage::PutNeed { request: self.request_id(), ranges: self.ranges(), last: self.flag() },
            6 => ServerMessage::PutProgress { request: self.request_id(), bytes: self.number() },
            7 => {
                let text = self.text(0, 256);
                ServerMessage::VolumeError { request: self.request_id(), code: ErrorCode::Conflict, text }
            }
            _ => ServerMessage::Reply { request: self.request_id(), reply: self.reply() },
        }
    }
}

/// The bytes of a frame.
pub fn flat(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.write_from(0, usize::MAX, &mut out);
    out
}

/// A header that announces `length` bytes of `kind`.
pub fn header(kind: u8, length: u32) -> Vec<u8> {
    let mut out = length.to_le_bytes().to_vec();
    out.push(kind);
    out
}
