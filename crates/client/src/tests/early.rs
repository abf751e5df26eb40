//! Mounts that begin before the chunk hashes are here.

use std::sync::{Arc, Mutex};

use units::PageId;
use wire::format::FEATURES;
use wire::{PushEncoding, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, honest_reply, is_pull};
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{open, plain, read_page};
use crate::error::ReadError;
use crate::{Config, Granularity, Session};

/// Offset of the chunk hashes in the image file.
fn hashes_start(tree: &Tree) -> u64 {
    let kind = image::format::SECTION_CHUNK_HASHES;
    tree.metadata.section_report().iter().find(|section| section.kind == kind).unwrap().offset
}

/// Whether a request asks for chunk hashes alone.
fn asks_hashes(start: u64, ask: &Request) -> bool {
    matches!(ask, Request::MetaRead { offset, .. } if *offset >= start)
}

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    session: Arc<Session>,
    sink: Arc<FakeSink>,
    /// Requests for hashes that were not answered.
    held: Arc<Mutex<Vec<(units::RequestId, Request)>>>,
}

impl Rig {
    /// A session that has no hashes yet, because the server keeps them back.
    fn new() -> Rig {
        Rig::of(Tree::large())
    }

    fn of(tree: Tree) -> Rig {
        let tree = Arc::new(tree);
        let server = FakeServer::start(&tree);
        let (held, start) = (Arc::new(Mutex::new(Vec::new())), hashes_start(&tree));
        let keep = Arc::clone(&held);
        server.policy(move |_, _, event| match event {
            ServerEvent::Request { request, ask } if asks_hashes(start, ask) => {
                keep.lock().unwrap().push((*request, ask.clone()));
                true
            }
            _ => false,
        });
        let session = open(&server, plain());
        let sink = Arc::new(FakeSink::default());
        session.attach(sink.clone());
        assert!(!session.metadata().has_chunk_hashes());
        Rig { tree, server, session, sink, held }
    }

    fn pages(&self, range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|index| PageId::new(self.tree.big(), index)).collect()
    }

    fn read(&self, index: u32) {
        let bytes = read_page(&self.session, 1, self.tree.big(), index).wait().unwrap();
        assert_eq!(bytes, self.tree.page(PageId::new(self.tree.big(), index)));
    }

    fn push(&self, connection: usize, range: std::ops::Range<u32>) -> units::StreamId {
        let stream = self.server.push_start(connection, 1, PushEncoding::Stored, false);
        self.server.push(connection, stream, 0, &self.pages(range), |_| ());
        stream
    }

    /// Waits until the server was asked for hashes, then answers that, and everything from now on.
    fn release(&self) {
        let start = hashes_start(&self.tree);
        self.server.requests(1, |ask| asks_hashes(start, ask));
        self.server.be_honest();
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let tree = Arc::clone(&self.tree);
        self.server.ask(0, move |machine| {
            for (request, ask) in held {
                machine.reply(request, honest_reply(&tree, &ask).unwrap()).unwrap();
            }
        });
    }
}

#[test]
fn programs_run_before_the_hashes_come_and_pushes_are_kept_until_then() {
    let rig = Rig::new();
    rig.read(5);
    rig.push(0, 70..90);
    // Answered behind the push on the same connection. Nothing of the push can be believed yet, so
    // the page is asked for, and the server is told not to point at the push.
    rig.read(300);
    rig.read(75);
    let pulls = rig.server.pulls();
    assert!(matches!(pulls.last(), Some(Request::PullBlock { force: true, .. })), "{pulls:?}");
    assert!(rig.sink.pages().is_empty());
    assert_eq!(rig.session.counters().pushes.pages_pushed, 0);
    rig.release();
    rig.sink.wait_stored(rig.pages(89..90)[0]);
    for page in rig.sink.pages() {
        assert_eq!(rig.sink.page(page).unwrap(), rig.tree.page(page));
    }
    assert_eq!(rig.session.counters().pushes.pages_pushed, 20);
    while rig.server.ask(0, |machine| machine.in_flight_push_bytes() + machine.queued_push_bytes() as u64) > 0 {
        std::thread::yield_now();
    }
    let start = hashes_start(&rig.tree);
    let asked = rig.server.requests(1, |ask| asks_hashes(start, ask)).len();
    assert!(asked >= 2, "in pieces");
}

#[test]
fn a_wrong_page_that_came_before_the_hashes_is_found_out_by_them() {
    let rig = Rig::new();
    let stream = rig.server.push_start(0, 1, PushEncoding::Stored, false);
    rig.server.push(0, stream, 0, &rig.pages(70..90), |bytes| bytes[5 * 4096] ^= 1);
    rig.read(300);
    rig.release();
    rig.server.wait(|log| log.iter().any(|(_, event)| matches!(event, ServerEvent::PushStopped { .. })).then_some(()));
    assert!(rig.sink.pages().is_empty());
    assert_eq!(rig.session.counters().demand.verify_failures, 1);
}

/// Whatever came before or lies here already: no READ is answered any more.
fn assert_refused(session: &Session, tree: &Tree) {
    for index in [5, 20, 21, 40, 90] {
        assert_eq!(read_page(session, 1, tree.big(), index).wait(), Err(ReadError::Corrupt), "page {index}");
    }
}

#[test]
fn regress_a_block_that_the_hashes_contradict_when_they_come_ends_the_session() {
    let rig = Rig::of(Tree::two_faced(true, 5, b'?'));
    rig.read(5);
    rig.read(300);
    rig.release();
    while rig.session.metadata().contradiction().is_none() {
        std::thread::yield_now();
    }
    assert_refused(&rig.session, &rig.tree);
    assert!(rig.sink.pages().is_empty());
}

/// The server pushes what the hashes say, and then the block comes.
#[test]
fn regress_a_push_that_a_block_contradicts_ends_the_session() {
    let tree = Arc::new(Tree::two_faced(false, 20, b'?'));
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    assert!(session.metadata().has_chunk_hashes());
    let pages: Vec<PageId> = (20..24).map(|index| PageId::new(tree.big(), index)).collect();
    let stream = server.push_start(0, 1, PushEncoding::Stored, false);
    server.push(0, stream, 0, &pages, |bytes| bytes[..4096].fill(b'?'));
    sink.wait_stored(pages[3]);
    assert_eq!(read_page(&session, 1, tree.big(), 26).wait(), Err(ReadError::Corrupt));
    assert!(session.metadata().contradiction().is_some());
    assert_refused(&session, &tree);
}

#[test]
fn regress_a_local_file_with_two_contents_is_refused_when_they_meet() {
    let tree = Tree::two_faced(false, 20, b'?');
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let session = Session::open(&connection::Target::File(path), plain()).unwrap();
    assert_eq!(read_page(&session, 1, tree.big(), 5).wait().unwrap(), tree.page(PageId::new(tree.big(), 5)));
    assert_eq!(read_page(&session, 1, tree.big(), 20).wait(), Err(ReadError::Corrupt));
    assert_refused(&session, &tree);
}

/// A session that was pushed to after its server had sent damaged hashes.
fn refusing() -> Rig {
    let tree = Arc::new(Tree::large());
    let server = FakeServer::start(&tree);
    let (start, bytes) = (hashes_start(&tree), tree.bytes.clone());
    server.policy(move |_, machine, event| match event {
        ServerEvent::Request { request, ask: Request::MetaRead { offset, bytes: count, .. } } if *offset >= start => {
            let mut data = bytes[*offset as usize..][..*count as usize].to_vec();
            data[0] ^= 1;
            machine.reply(*request, Reply::MetaData { offset: *offset, bytes: data.into() }).unwrap();
            true
        }
        _ => false,
    });
    let session = open(&server, plain());
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    let rig = Rig { tree, server, session, sink, held: Arc::default() };
    rig.push(0, 70..90);
    rig.server.wait(|log| log.iter().any(|(_, event)| matches!(event, ServerEvent::PushStopped { .. })).then_some(()));
    rig
}

#[test]
fn damaged_hashes_mean_no_pushes_and_demands_as_ever() {
    let rig = refusing();
    rig.read(75);
    let counters = rig.session.counters();
    assert_eq!(
        (counters.demand.verify_failures, counters.pushes.pushes_refused, counters.pushes.pages_pushed),
        (3, 1, 0)
    );
    assert!(rig.sink.pages().is_empty() && !rig.session.metadata().has_chunk_hashes());
    assert_eq!(rig.server.requests(0, is_pull).len(), 1);
}

#[test]
fn regress_pushes_are_taken_from_the_next_server_that_has_hashes() {
    let rig = refusing();
    rig.server.be_honest();
    rig.server.cut();
    while !rig.session.metadata().has_chunk_hashes() {
        std::thread::yield_now();
    }
    rig.push(1, 70..90);
    rig.sink.wait_stored(rig.pages(89..90)[0]);
}

#[test]
fn regress_pushes_are_taken_from_the_next_server_that_sends_proofs() {
    let rig = refusing();
    rig.server.set_features(FEATURES);
    rig.server.cut();
    // A demand waits until the new connection is up.
    rig.read(5);
    rig.server.prove(1, &rig.pages(70..90), |_| ());
    rig.push(1, 70..90);
    rig.sink.wait_stored(rig.pages(89..90)[0]);
    assert!(!rig.session.metadata().has_chunk_hashes());
    assert_eq!(rig.session.counters().pushes.pushes_refused, 1);
}

#[test]
fn a_lost_connection_does_not_lose_the_hashes_that_came() {
    let rig = Rig::new();
    let start = hashes_start(&rig.tree);
    let first = rig.server.requests(1, |ask| asks_hashes(start, ask));
    rig.server.be_honest();
    rig.server.cut();
    let again = rig.server.requests(2, |ask| asks_hashes(start, ask));
    assert_eq!((again[1].0, &again[1].2), (1, &first[0].2), "asked again on the new connection");
    rig.read(5);
    rig.push(1, 70..90);
    rig.sink.wait_stored(rig.pages(89..90)[0]);
}

#[test]
fn a_session_that_asks_for_pages_waits_for_the_hashes() {
    let tree = Arc::new(Tree::large());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { granularity: Granularity::Page, ..plain() });
    assert!(session.metadata().has_chunk_hashes());
    assert_eq!(read_page(&session, 1, tree.big(), 500).wait().unwrap(), tree.page(PageId::new(tree.big(), 500)));
    assert!(matches!(server.pulls().as_slice(), [Request::PullPages { .. }]));
}
