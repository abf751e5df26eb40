//! Frames of volumes over a session's connection and over a connection of their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use units::{ActionId, InodeId, PageId, SegmentIndex, StreamId, Token};
use wire::volume::{VolumeAsk, VolumePiece, VolumeReply};
use wire::{ErrorCode, Notice, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, VOLUME, is_pull};
use super::tree::Tree;
use super::{HANG, open, plain, read_page};
use connection::Server;
use connection::{
    Attach, Connected, DedicatedConnection, Tag, Unanswered, VolumeConnection, VolumeHandler, VolumeMessage,
};

/// What a handler was told.
#[derive(Debug, PartialEq)]
enum Told {
    Connected(u64, Connected),
    Lost,
    Answered(Tag, Result<Reply, Unanswered>),
    Started(StreamId, PushHeader),
    Pushed(PushPiece, u32),
    Ended(StreamId, PushEndReason),
    Closed,
}

/// Writes down what it is told.
struct Diary(Sender<Told>);

impl Diary {
    fn new() -> (Arc<Diary>, Receiver<Told>) {
        let (sender, receiver) = channel();
        (Arc::new(Diary(sender)), receiver)
    }

    fn note(&self, told: Told) {
        // Nobody reads any more at the end of a test.
        let _ = self.0.send(told);
    }
}

impl VolumeHandler for Diary {
    fn connected(&self, generation: u64, connected: Connected) {
        self.note(Told::Connected(generation, connected));
    }

    fn lost(&self, _reason: &str) {
        self.note(Told::Lost);
    }

    fn answered(&self, tag: Tag, answer: Result<Reply, Unanswered>) {
        self.note(Told::Answered(tag, answer));
    }

    fn push_started(&self, stream: StreamId, push: PushHeader) {
        self.note(Told::Started(stream, push));
    }

    fn pushed(&self, piece: PushPiece, credit: u32) {
        self.note(Told::Pushed(piece, credit));
    }

    fn push_ended(&self, stream: StreamId, reason: PushEndReason) {
        self.note(Told::Ended(stream, reason));
    }

    fn closed(&self) {
        self.note(Told::Closed);
    }
}

fn next(told: &Receiver<Told>) -> Told {
    told.recv_timeout(HANG).expect("the handler is told nothing")
}

fn generation(told: &Receiver<Told>) -> u64 {
    loop {
        if let Told::Connected(generation, connected) = next(told) {
            assert_ne!(connected.features & wire::format::FEATURE_VOLUMES, 0);
            assert!(connected.address.ip().is_loopback() && !connected.encrypted, "{connected:?}");
            return generation;
        }
    }
}

fn ask(tag: u64, ask: Request) -> VolumeMessage {
    VolumeMessage::Request { tag: Tag(tag), ask, time: Duration::from_secs(30) }
}

fn link(tag: u64, path: &str) -> VolumeMessage {
    ask(tag, Request::Volume { volume: VOLUME, ask: VolumeAsk::LinkRead { path: path.into() } })
}

fn target(tag: u64, path: &'static str) -> Told {
    let target = VolumeReply::LinkTarget(path.as_bytes().into());
    Told::Answered(Tag(tag), Ok(Reply::Volume(target)))
}

fn dedicated(server: &FakeServer, told: Arc<Diary>) -> Arc<DedicatedConnection> {
    let url = server.url("");
    DedicatedConnection::start(&Server::parse(&url).unwrap(), connection::Config::default(), told).unwrap()
}

#[test]
fn a_connection_of_its_own_is_made_again_when_it_breaks() {
    let mut server = FakeServer::start(&Arc::new(Tree::plain()));
    let (diary, told) = Diary::new();
    let connection = dedicated(&server, diary);
    let first = generation(&told);
    connection.send(first, ask(1, Request::VolumeOpen { name: "data".into() }));
    assert!(matches!(next(&told), Told::Answered(Tag(1), Ok(Reply::VolumeOpened { volume: VOLUME, .. }))));
    connection.send(first, link(2, "a"));
    assert_eq!(next(&told), target(2, "a"));
    server.kill();
    assert_eq!(next(&told), Told::Lost);
    connection.send(first, link(3, "for nobody"));
    server.restart();
    let second = generation(&told);
    assert!(second > first);
    connection.send(first, link(4, "of the connection before"));
    connection.send(second, link(5, "b"));
    assert_eq!(next(&told), target(5, "b"), "what was meant for a connection goes with it");
    connection.close();
    while next(&told) != Told::Closed {}
}

#[test]
fn requests_that_break_limits_are_refused_and_those_without_answer_expire() {
    let server = FakeServer::start(&Arc::new(Tree::plain()));
    server.policy(|_, _, event| matches!(event, ServerEvent::Request { .. }));
    let (diary, told) = Diary::new();
    let connection = dedicated(&server, diary);
    let generation = generation(&told);
    connection.send(generation, link(1, &"x".repeat(5000)));
    assert_eq!(next(&told), Told::Answered(Tag(1), Err(Unanswered::Refused)));
    let ask = Request::Volume { volume: VOLUME, ask: VolumeAsk::FileStat { path: Vec::new() } };
    connection.send(generation, VolumeMessage::Request { tag: Tag(2), ask, time: Duration::from_millis(1) });
    assert_eq!(next(&told), Told::Answered(Tag(2), Err(Unanswered::Expired)));
}

#[test]
fn a_session_has_a_volume_beside_its_image() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let (diary, told) = Diary::new();
    let connection = session.attach_volumes(diary.clone()).expect("it is remote");
    assert!(session.attach_volumes(diary).is_none(), "one handler");
    let first = generation(&told);
    connection.send(first, link(1, "a"));
    assert_eq!(next(&told), target(1, "a"));
    let page = PageId::new(tree.big(), 3);
    assert_eq!(read_page(&session, 1, tree.big(), 3).wait().unwrap(), tree.page(page));
    assert_eq!(server.connections(), 1, "both go over one");
    server.requests(1, is_pull);

    let push = PushHeader {
        image: VOLUME,
        token: Token(9),
        action: ActionId(0),
        encoding: PushEncoding::Volume,
        window_log: 0,
        audit: false,
    };
    let stream = server.ask(0, move |machine| machine.push_start(push).unwrap());
    let bytes = VolumePiece { version: 4, size: 5, codec: 0, bytes: "block".into() }.to_bytes();
    let (segment, pages) = (SegmentIndex(0), vec![PageId::new(InodeId(2), 0)]);
    let piece = PushPiece { stream, segment, pages, bytes };
    let sent = piece.clone();
    server.ask(0, move |machine| machine.push(sent).unwrap());
    server.push_end(0, stream);
    assert_eq!(next(&told), Told::Started(stream, push));
    let Told::Pushed(found, credit) = next(&told) else { panic!("a piece") };
    assert_eq!(found, piece);
    assert_eq!(next(&told), Told::Ended(stream, PushEndReason::Complete));
    connection.send(first, VolumeMessage::Notice(Notice::Credit { stream, bytes: credit }));
    while server.ask(0, |machine| machine.in_flight_push_bytes()) > 0 {
        std::thread::yield_now();
    }

    server.cut();
    assert_eq!(next(&told), Told::Lost);
    let second = generation(&told);
    connection.send(second, link(2, "b"));
    assert_eq!(next(&told), target(2, "b"));
    session.shutdown();
    while next(&told) != Told::Closed {}
}

#[test]
fn a_server_that_cannot_be_had_is_told_and_tried_again() {
    let mut server = FakeServer::start(&Arc::new(Tree::plain()));
    server.kill();
    let (diary, told) = Diary::new();
    let connection = dedicated(&server, diary);
    assert_eq!(next(&told), Told::Lost);
    server.restart();
    let generation = generation(&told);
    connection.send(generation, link(1, "a"));
    assert_eq!(next(&told), target(1, "a"));
    let busy = || Reply::error(ErrorCode::Busy, "later");
    server.policy(move |_, machine, event| match event {
        ServerEvent::Request { request, .. } => machine.reply(*request, busy()).is_ok(),
        _ => false,
    });
    connection.send(generation, link(2, "a"));
    assert_eq!(next(&told), Told::Answered(Tag(2), Ok(busy())));
}
