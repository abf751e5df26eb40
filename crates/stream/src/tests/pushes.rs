//! What the server is told and asked while it pushes, message by message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use connection::{Tag, VolumeMessage};
use units::{ActionId, BlockId, InodeId, Moment, PageId, SegmentIndex, StreamId, Token};
use wire::volume::{FileInfo, FileKind, Seen, VolumeAsk, VolumePiece, VolumeReply};
use wire::{BlockRange, ImageHandle, Notice, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply, Request};

use crate::call::Call;
use crate::engine::{Engine, Time};
use crate::outbox::Held;
use crate::{Handle, OpenHow, Options};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const FILE: InodeId = InodeId(2);
const TOKEN: Token = Token(7);
const STREAM: StreamId = StreamId(3);

/// Bytes of a piece as the link counts them.
const PIECE: u32 = 4200;

/// A device with one open file, and what it said that was not looked at yet.
struct Device {
    engine: Engine,
    now: Moment,
    handle: Handle,
    said: Vec<VolumeMessage>,
}

impl Device {
    fn new() -> Device {
        let mut engine = Engine::new("data", Options::default(), Held::default(), Box::new(|_| ()));
        let now = Moment(1_000_000_000);
        engine.connected(Time { now, wall_ns: 0 }, 1, super::HERE);
        let mut device = Device { engine, now, handle: Handle(0), said: Vec::new() };
        let opened =
            Reply::VolumeOpened { volume: ImageHandle(1), id: 1, block_bytes: BLOCK as u32, writable: false, nonce: 5 };
        device.answer(|ask| matches!(ask, Request::VolumeOpen { .. }), opened);
        let handle: Arc<Mutex<Option<Handle>>> = Arc::default();
        let theirs = handle.clone();
        let done =
            Box::new(move |opened: Result<crate::Opened, _>| *theirs.lock().unwrap() = Some(opened.unwrap().handle));
        let time = device.time();
        device.engine.call(time, 0, Call::Open { path: b"f".to_vec(), how: OpenHow::READ, token: TOKEN, done });
        let seen = Seen { file: 7, version: 1 };
        let info = FileInfo { seen, kind: FileKind::File, size: BLOCK * BLOCKS, mode: 0o644, ..FileInfo::default() };
        let present = vec![BlockRange { first: BlockId(0), count: BLOCKS as u32 }];
        let opened = VolumeReply::FileOpened { file: FILE, info, profiled: true, present, cut: false };
        device.answer(
            |ask| matches!(ask, Request::Volume { ask: VolumeAsk::FileOpen { .. }, .. }),
            Reply::Volume(opened),
        );
        device.listen();
        device.handle = handle.lock().unwrap().expect("the file is open");
        let push = PushHeader {
            image: ImageHandle(1),
            token: TOKEN,
            action: ActionId(0),
            encoding: PushEncoding::Volume,
            window_log: 0,
            audit: false,
        };
        let time = device.time();
        device.engine.push_started(time, STREAM, push);
        device
    }

    fn time(&self) -> Time {
        Time { now: self.now, wall_ns: 0 }
    }

    /// What it said since the last look; completed calls are told.
    fn listen(&mut self) -> Vec<VolumeMessage> {
        let effects = self.engine.take_effects();
        effects.finished.into_iter().for_each(|finish| finish());
        self.said.extend(effects.messages.into_iter().map(|(_, message)| message));
        std::mem::take(&mut self.said)
    }

    fn answer(&mut self, which: impl Fn(&Request) -> bool, reply: Reply) {
        let said = self.listen();
        let tag = said.iter().find_map(|message| match message {
            VolumeMessage::Request { tag, ask, .. } if which(ask) => Some(*tag),
            _ => None,
        });
        let tag: Tag = tag.expect("it is asked");
        let time = self.time();
        self.engine.answered(time, tag, Ok(reply));
    }

    /// Time goes on; the engine looks at it whenever it wants to.
    fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.engine.deadline().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            let time = self.time();
            self.engine.tick(time);
        }
        self.now = end;
    }

    fn piece(&mut self, index: u32) {
        let bytes = Bytes::from(vec![index as u8; BLOCK as usize]);
        let piece = VolumePiece { version: 1, size: BLOCK * BLOCKS, codec: 0, bytes };
        let pages = vec![PageId::new(FILE, index)];
        let piece = PushPiece { stream: STREAM, segment: SegmentIndex(0), pages, bytes: piece.to_bytes() };
        let time = self.time();
        self.engine.pushed(time, piece, PIECE);
    }

    /// Reads a block; the outcome appears when it is there.
    fn read(&mut self, index: u32) -> Arc<Mutex<Option<Bytes>>> {
        let found: Arc<Mutex<Option<Bytes>>> = Arc::default();
        let theirs = found.clone();
        let done = Box::new(move |bytes: Result<Bytes, _>| *theirs.lock().unwrap() = Some(bytes.unwrap()));
        let (handle, offset) = (self.handle, u64::from(index) * BLOCK);
        let time = self.time();
        self.engine.call(time, 0, Call::Read { handle, token: TOKEN, offset, bytes: BLOCK as u32, done });
        found
    }

    /// Blocks 0 to `last` come `gap` apart and are read as they come.
    fn row(&mut self, last: u32, gap: Duration) {
        for index in 0..=last {
            self.pass(gap);
            self.piece(index);
            let found = self.read(index);
            self.said = self.listen();
            assert_eq!(found.lock().unwrap().as_deref(), Some(&vec![index as u8; BLOCK as usize][..]));
        }
    }
}

/// Blocks asked for, with whether the server has to send them.
fn asked(said: &[VolumeMessage]) -> Vec<(u32, bool)> {
    let asks = said.iter().filter_map(|message| match message {
        VolumeMessage::Request {
            ask: Request::Volume { ask: VolumeAsk::PullBlocks { blocks, force, .. }, .. },
            ..
        } => Some(blocks.iter().map(|block| (block.index, *force))),
        _ => None,
    });
    asks.flatten().collect()
}

fn touched(said: &[VolumeMessage]) -> Vec<u32> {
    let touches = said.iter().filter_map(|message| match message {
        VolumeMessage::Notice(Notice::Touch { pages, .. }) => Some(pages.iter().map(|block| block.index)),
        _ => None,
    });
    touches.flatten().collect()
}

fn given(said: &[VolumeMessage]) -> u64 {
    let credits = said.iter().filter_map(|message| match message {
        VolumeMessage::Notice(Notice::Credit { stream, bytes }) if *stream == STREAM => Some(u64::from(*bytes)),
        _ => None,
    });
    credits.sum()
}

#[test]
fn credit_is_given_back_for_every_pushed_byte() {
    let mut device = Device::new();
    (0..20).for_each(|index| device.piece(index));
    device.pass(Duration::from_millis(50));
    assert_eq!(given(&device.listen()), 20 * u64::from(PIECE));
    // What cannot be used fills the window of the server all the same.
    device.piece(3);
    device.piece(BLOCKS as u32 + 9);
    device.pass(Duration::from_millis(50));
    assert_eq!(given(&device.listen()), 2 * u64::from(PIECE));
}

#[test]
fn the_next_block_of_a_row_is_not_asked_for() {
    let mut device = Device::new();
    device.row(3, Duration::from_millis(200));
    let said = device.listen();
    assert_eq!((asked(&said), touched(&said)), (vec![], vec![0, 1, 2]), "the last touch waits for the next");
    device.pass(Duration::from_millis(20));
    let said = device.listen();
    assert_eq!((touched(&said), given(&said)), (vec![3], u64::from(PIECE)));
    let found = device.read(4);
    device.pass(Duration::from_millis(280));
    assert!(device.listen().is_empty(), "nothing is said while it is on its way");
    device.piece(4);
    device.pass(Duration::from_millis(20));
    let said = device.listen();
    assert_eq!((asked(&said), touched(&said), given(&said)), (vec![], vec![4], u64::from(PIECE)), "in one packet");
    assert_eq!(found.lock().unwrap().as_deref(), Some(&[4; BLOCK as usize][..]));
    // Any other one is.
    device.read(9);
    assert_eq!(asked(&device.listen()), [(9, false)]);
}

#[test]
fn a_block_that_was_expected_and_does_not_come_is_asked_for() {
    let mut device = Device::new();
    device.row(3, Duration::from_millis(200));
    device.read(4);
    assert_eq!(asked(&device.listen()), []);
    device.pass(Duration::from_millis(399));
    assert_eq!(asked(&device.listen()), []);
    device.pass(Duration::from_millis(2));
    assert_eq!(asked(&device.listen()), [(4, false)], "it may be on its way");

    let mut device = Device::new();
    device.row(3, Duration::from_millis(200));
    device.read(4);
    let time = device.time();
    device.engine.push_ended(time, STREAM, PushEndReason::Complete);
    assert_eq!(asked(&device.listen()), [(4, false)], "the stream is over");
    device.read(5);
    assert_eq!(asked(&device.listen()), [(5, false)]);
}

#[test]
fn on_a_fast_link_nothing_is_expected() {
    let mut device = Device::new();
    device.row(9, Duration::from_millis(1));
    device.read(10);
    assert_eq!(asked(&device.listen()), [(10, false)]);
}
