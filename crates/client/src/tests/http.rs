//! Images on a web server: honest ones, careless ones, and files that change.

use std::ops::Range;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cache::Cache;
use image::fixture::Fixture;
use units::PageId;

use super::cached::end;
use super::tree::Tree;
use super::web_server::{Act, WebServer};
use super::{HANG, plain, read, read_page, with_open_deadline};
use crate::{ClientError, Config, ReadError, Session};
use connection::{Target, Waiting};

fn open(server: &WebServer, config: Config) -> Result<Arc<Session>, ClientError> {
    Session::open(&Target::parse(&server.url()).unwrap(), config)
}

fn refusal(server: &WebServer) -> String {
    open(server, plain()).err().expect("it must be refused").to_string()
}

fn read_all(session: &Session, tree: &Tree) {
    for (inode, contents) in &tree.files {
        assert!(read(session, 5, *inode, 0, contents.len() as u32).wait().as_ref() == Ok(contents), "inode {inode:?}");
    }
}

/// Whether a request is for a block, and not for the superblock or metadata.
fn is_block(tree: &Tree) -> impl Fn(&Range<usize>) -> bool + Send + use<> {
    let blocks = 4096..tree.metadata.metadata_region().start as usize;
    move |range| blocks.contains(&range.start)
}

/// The server answers requests for blocks in this way, `times` times, and is honest before and
/// after.
fn misbehave(server: &WebServer, tree: &Tree, act: Act, times: usize) {
    let is_block = is_block(tree);
    let mut left = times;
    server.policy(move |range| {
        if left == 0 || !is_block(range) {
            return Act::Honest;
        }
        left -= 1;
        act
    });
}

#[test]
fn every_file_is_read_whole() {
    for tree in [Tree::plain(), Tree::scattered()] {
        for config in [plain(), Config { connections: 3, ..Config::default() }] {
            let server = WebServer::start(&tree.bytes);
            let session = open(&server, config).unwrap();
            read_all(&session, &tree);
            let counters = session.counters();
            assert_eq!(
                (counters.reads.read_errors, counters.demand.verify_failures, counters.transfer.reconnects),
                (0, 0, 0)
            );
            assert!(
                counters.transfer.bytes_received > tree.files[0].1.len() as u64 / 4 && counters.transfer.bytes_sent > 0
            );
        }
    }
}

#[test]
fn blocks_side_by_side_are_one_request() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    let session = open(&server, plain()).unwrap();
    let opening = server.requests().len();
    // One READ wants seven blocks; the first may be asked for alone while the others come in.
    assert!(read(&session, 1, tree.big(), 0, 100 * 4096).wait().unwrap() == tree.range(tree.big(), 0, 100 * 4096));
    let asked = server.requests().split_off(opening);
    let bytes: usize = asked.iter().map(Range::len).sum();
    let blocks = asked.len();
    assert!((1..=7).contains(&blocks), "{asked:?}");
    assert!(bytes < tree.bytes.len(), "no byte twice: {asked:?}");
}

#[test]
fn servers_that_cannot_serve_ranges_are_refused_when_opening() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    for (act, what) in [
        (Act::Whole, "ignores Range"),
        (Act::Shifted, "Content-Range"),
        (Act::Shorter, "Content-Range"),
        (Act::Garbage, "not a"),
        (Act::Status(301), "use https://elsewhere.example/app.rnl"),
        (Act::Status(403), "403"),
        (Act::Status(500), "500"),
        (Act::Status(404), "no such file"),
        (Act::Cut(100), "lost"),
    ] {
        server.policy(move |_| act);
        let text = refusal(&server);
        assert!(text.contains(what) && text.contains(&server.address.to_string()), "{act:?}: {text}");
    }
    server.policy(|_| Act::Honest);
    read_all(&open(&server, plain()).unwrap(), &tree);
    let half = WebServer::start(&tree.bytes[..tree.bytes.len() / 2]);
    let error = open(&half, plain()).err().unwrap();
    assert!(matches!(error, ClientError::Image { .. }), "{error}");
}

#[test]
fn a_server_that_never_answers_is_given_up_when_opening() {
    let server = WebServer::start(&Tree::plain().bytes);
    server.policy(|_| Act::Silence);
    let config = with_open_deadline(20);
    let text = open(&server, config).err().unwrap().to_string();
    assert!(text.contains("no answer"), "{text}");
}

#[test]
fn wrong_answers_while_mounted_fail_the_read_and_nothing_else() {
    let tree = Tree::plain();
    for (act, error) in [
        (Act::Whole, ReadError::Io),
        (Act::Shifted, ReadError::Io),
        (Act::Shorter, ReadError::Io),
        (Act::Status(403), ReadError::Io),
        (Act::Garbage, ReadError::Corrupt),
    ] {
        let server = WebServer::start(&tree.bytes);
        let session = open(&server, plain()).unwrap();
        misbehave(&server, &tree, act, usize::MAX);
        assert_eq!(read_page(&session, 1, tree.big(), 0).wait(), Err(error), "{act:?}");
        server.policy(|_| Act::Honest);
        read_all(&session, &tree);
        // Once is forgiven.
        misbehave(&server, &tree, act, 1);
        let again = open(&server, plain()).unwrap();
        read_all(&again, &tree);
    }
}

#[test]
fn connections_that_end_are_made_anew() {
    let tree = Tree::plain();
    for act in [Act::Cut(0), Act::Cut(1), Act::Cut(5000), Act::Status(503)] {
        let server = WebServer::start(&tree.bytes);
        let session = open(&server, plain()).unwrap();
        misbehave(&server, &tree, act, 3);
        read_all(&session, &tree);
        let counters = session.counters();
        assert!(counters.transfer.reconnects >= 1 && counters.reads.read_errors == 0, "{act:?}: {counters:?}");
    }
}

#[test]
fn a_connection_closed_while_idle_is_no_event() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    let session = open(&server, plain()).unwrap();
    server.policy(|_| Act::ThenClose);
    for index in [0, 20, 40, 60, 80] {
        assert!(read_page(&session, 1, tree.big(), index).wait().unwrap() == tree.page(PageId::new(tree.big(), index)));
    }
    let counters = session.counters();
    assert_eq!((counters.transfer.reconnects, counters.demand.replays), (0, 0));
}

#[test]
fn a_file_that_changes_fails_reads_until_it_is_back() {
    let tree = Tree::plain();
    let other = Tree::of(Fixture::default(), 9);
    assert_ne!(tree.metadata.id(), other.metadata.id());
    for connections in [1, 3] {
        let server = WebServer::start(&tree.bytes);
        let session = open(&server, Config { connections, ..plain() }).unwrap();
        assert!(read_page(&session, 1, tree.big(), 0).wait().is_ok());
        // The same bytes under another tag are the same image.
        server.replace(&tree.bytes, "\"two\"");
        assert!(read_page(&session, 1, tree.big(), 20).wait().is_ok());
        server.replace(&other.bytes, "\"three\"");
        assert_eq!(read_page(&session, 1, tree.big(), 40).wait(), Err(ReadError::Protocol));
        server.replace(&tree.bytes, "\"four\"");
        let began = Instant::now();
        while read_page(&session, 1, tree.big(), 60).wait().is_err() {
            assert!(began.elapsed() < HANG, "the file is back and nobody saw it");
            std::thread::yield_now();
        }
        read_all(&session, &tree);
    }
}

#[test]
fn a_file_that_is_gone_fails_reads() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    let session = open(&server, plain()).unwrap();
    server.policy(|_| Act::Status(404));
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait(), Err(ReadError::Protocol));
}

#[test]
fn without_a_server_soft_reads_fail_and_hard_ones_wait() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    let soft = open(&server, Config { waiting: Waiting::Soft(Duration::from_millis(20)), ..plain() }).unwrap();
    let hard = open(&server, plain()).unwrap();
    let before = server.requests().len();
    server.policy(|_| Act::Status(503));
    assert_eq!(read_page(&soft, 1, tree.big(), 0).wait(), Err(ReadError::Timeout));
    let waits = read_page(&hard, 1, tree.big(), 0);
    server.wait_for(before + 4);
    assert!(waits.is_pending());
    server.policy(|_| Act::Honest);
    assert!(waits.wait().unwrap() == tree.page(PageId::new(tree.big(), 0)));
    server.policy(|_| Act::Silence);
    let waits = read_page(&hard, 1, tree.big(), 50);
    hard.shutdown();
    assert_eq!(waits.wait(), Err(ReadError::Shutdown));
}

/// Reads all, with a device cache; the cache is closed when this returns.
fn read_all_cached(server: &WebServer, folder: &Path, tree: &Tree) {
    let cache = Arc::new(Cache::open(folder, Some(8 << 20)).unwrap());
    let config = Config { waiting: Waiting::Soft(Duration::from_secs(20)), ..with_open_deadline(1000) };
    let session = Session::open_cached(&Target::parse(&server.url()).unwrap(), config, Some(&cache)).unwrap();
    read_all(&session, tree);
    end(session, cache);
}

#[test]
fn what_a_web_server_sent_is_not_fetched_again() {
    // The hashes of one come with the metadata, those of the other not.
    for tree in [Tree::plain(), Tree::large()] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let server = WebServer::start(&tree.bytes);
        read_all_cached(&server, &cache, &tree);
        let before = server.requests().len();
        read_all_cached(&server, &cache, &tree);
        assert_eq!(&server.requests()[before..], slice::from_ref(&(0..4096)), "whether it is the same image");
        // Without the server, or with one behind its gateway.
        for away in [Act::Status(503), Act::Silence] {
            server.policy(move |_| away);
            read_all_cached(&server, &cache, &tree);
        }
        // One that is there and says no is believed.
        server.policy(|_| Act::Status(404));
        let cache = Arc::new(Cache::open(&cache, Some(8 << 20)).unwrap());
        let opened = Session::open_cached(&Target::parse(&server.url()).unwrap(), plain(), Some(&cache));
        assert!(matches!(opened, Err(ClientError::NoSuchFile { .. })));
    }
}

#[test]
fn a_web_server_with_another_image_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let (old, new) = (Tree::plain(), Tree::scattered());
    let server = WebServer::start(&old.bytes);
    read_all_cached(&server, &cache, &old);
    server.replace(&new.bytes, "\"two\"");
    read_all_cached(&server, &cache, &new);
    let before = server.requests().len();
    read_all_cached(&server, &cache, &new);
    assert_eq!(&server.requests()[before..], slice::from_ref(&(0..4096)));
}
