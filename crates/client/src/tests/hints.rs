//! Hints: pages come into the page cache because somebody said so, from servers of every kind and
//! from local files.

use std::sync::Arc;

use store::{Memory, Store};
use units::{PageId, Token};
use wire::format::HINT_ACTION;
use wire::{Notice, PushEncoding, ServerEvent};

use super::fake_server::FakeServer;
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::web_server::WebServer;
use super::{open, plain, read_page, real_server};
use crate::{Config, Session};
use connection::Target;

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    session: Arc<Session>,
    sink: Arc<FakeSink>,
}

impl Rig {
    fn with(config: Config) -> Rig {
        let tree = Arc::new(Tree::plain());
        let server = FakeServer::start(&tree);
        let session = open(&server, config);
        let sink = sink_of(&session);
        Rig { tree, server, session, sink }
    }

    fn pages(&self, range: std::ops::Range<u32>) -> Vec<PageId> {
        pages(&self.tree, range)
    }

    /// What the server was told: the token and all pages, once there are `count`.
    fn hinted(&self, count: usize) -> (Token, Vec<PageId>) {
        self.server.wait(|log| {
            let hints = log.iter().filter_map(|(_, event)| match event {
                ServerEvent::Notice(Notice::Hint { token, pages, .. }) => Some((*token, pages.clone())),
                _ => None,
            });
            let (tokens, pages): (Vec<_>, Vec<_>) = hints.unzip();
            let pages = pages.concat();
            (pages.len() >= count).then(|| (tokens[0], pages))
        })
    }

    fn read(&self, index: u32) {
        let page = PageId::new(self.tree.big(), index);
        assert_eq!(read_page(&self.session, 1, page.inode, index).wait().unwrap(), self.tree.page(page));
    }
}

fn sink_of(session: &Session) -> Arc<FakeSink> {
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    sink
}

fn pages(tree: &Tree, range: std::ops::Range<u32>) -> Vec<PageId> {
    range.map(|index| PageId::new(tree.big(), index)).collect()
}

/// Waits until so many pages lie in the page cache; they must be these, and right.
fn wait_stored(session: &Session, sink: &FakeSink, tree: &Tree, expected: &[PageId]) {
    // The count follows the call.
    while session.counters().stores.pages_stored < expected.len() as u64 {
        std::thread::yield_now();
    }
    assert_eq!(sink.pages(), expected);
    for page in expected {
        assert_eq!(sink.page(*page).unwrap(), tree.page(*page));
    }
}

#[test]
fn hinted_pages_are_pushed_and_stored_all_of_them() {
    let rig = Rig::with(plain());
    rig.sink.forget(rig.tree.big(), false);
    let wanted = rig.pages(70..101);
    assert_eq!(rig.session.hint(&wanted), 31);
    let (token, told) = rig.hinted(31);
    assert_eq!(told, wanted);
    assert_ne!(token, Token(0));
    let stream = rig.server.push_start_of(0, token.0, HINT_ACTION, PushEncoding::Stored, false);
    rig.server.push(0, stream, 0, &wanted, |_| ());
    wait_stored(&rig.session, &rig.sink, &rig.tree, &wanted);
    let counters = rig.session.counters();
    assert_eq!((counters.hints.pages_hinted, counters.hints.pages_hint_pushed, counters.stores.looked_up), (31, 31, 1));
    assert_eq!((counters.pushes.pages_pushed, counters.pushes.pages_held, counters.pushes.pages_push_hit), (0, 0, 0));
    assert!(rig.server.pulls().is_empty());
}

#[test]
fn what_is_here_or_on_its_way_is_not_hinted_again() {
    let rig = Rig::with(plain());
    rig.read(5);
    // A sentinel that is held.
    let stream = rig.server.push_start(0, 1, PushEncoding::Stored, false);
    rig.server.push(0, stream, 0, &rig.pages(40..42), |_| ());
    rig.sink.wait_stored(PageId::new(rig.tree.big(), 41));
    // A READ that the server does not answer.
    rig.server.policy(|_, _, event| matches!(event, ServerEvent::Request { .. }));
    let waiting = read_page(&rig.session, 1, rig.tree.big(), 60);
    let holey = rig.tree.files[1].0;
    let strangers = [PageId::new(holey, 4), PageId::new(rig.tree.big(), 101), PageId::new(units::InodeId(99), 0)];
    // Of the block that is here nothing, nor the held page, nor the one that is waited for.
    let asked =
        [rig.pages(0..16), rig.pages(40..41), rig.pages(60..62), strangers.to_vec(), rig.pages(61..62)].concat();
    assert_eq!(rig.session.hint(&asked), 1);
    assert_eq!(rig.session.hint(&asked), 0, "it is expected");
    assert_eq!(rig.hinted(1).1, rig.pages(61..62));
    assert!(waiting.is_pending());
}

#[test]
fn hints_that_nobody_heeds_change_nothing() {
    let rig = Rig::with(plain());
    assert_eq!(rig.session.hint(&rig.pages(0..101)), 101);
    rig.hinted(101);
    for index in [0, 50, 100] {
        rig.read(index);
    }
    assert_eq!(rig.server.pulls().len(), 3);
}

#[test]
fn a_lost_connection_takes_its_hints_with_it() {
    let rig = Rig::with(plain());
    assert_eq!(rig.session.hint(&rig.pages(0..10)), 10);
    rig.hinted(10);
    rig.server.cut();
    while rig.session.counters().transfer.reconnects == 0 {
        std::thread::yield_now();
    }
    assert_eq!(rig.session.hint(&rig.pages(0..10)), 10);
    assert_eq!(rig.hinted(20).1[10..], rig.pages(0..10));
}

#[test]
fn in_an_audit_hinted_pages_stay_in_the_daemon_and_their_touches_are_seen() {
    let rig = Rig::with(plain());
    let audit = rig.server.push_start(0, 1, PushEncoding::Stored, true);
    rig.server.push(0, audit, 0, &rig.pages(90..91), |_| ());
    let stream = rig.server.push_start_of(0, 7, HINT_ACTION, PushEncoding::Stored, false);
    rig.server.push(0, stream, 0, &rig.pages(10..20), |_| ());
    while rig.session.counters().pushes.pages_held < 11 {
        std::thread::yield_now();
    }
    for index in [12, 10] {
        rig.read(index);
    }
    rig.session.end(Token(1));
    rig.server.wait_touched(1, &[12, 10].map(|index| PageId::new(rig.tree.big(), index)));
    assert!(rig.sink.pages().is_empty() && rig.server.pulls().is_empty());
}

#[test]
fn without_pushes_the_blocks_of_hinted_pages_are_pulled() {
    let rig = Rig::with(Config {
        connection: connection::Config { push: false, ..connection::Config::default() },
        ..plain()
    });
    let wanted = [rig.pages(3..5), rig.pages(40..43), rig.pages(100..101)].concat();
    assert_eq!(rig.session.hint(&wanted), 6);
    wait_stored(&rig.session, &rig.sink, &rig.tree, &wanted);
    let speculative = |ask: &wire::Request| matches!(ask, wire::Request::PullBlock { speculative: true, .. });
    let pulls = rig.server.pulls();
    assert!(pulls.len() == 3 && pulls.iter().all(speculative), "{pulls:?}");
    let counters = rig.session.counters();
    assert_eq!((counters.hints.pages_hint_pushed, counters.demand.pages_demanded, counters.demand.requests), (6, 0, 0));
}

#[test]
fn a_pull_for_a_hint_that_fails_is_given_up_and_the_others_go_on() {
    let rig = Rig::with(Config {
        connection: connection::Config { push: false, ..connection::Config::default() },
        ..plain()
    });
    let mut refused = 0;
    rig.server.policy(move |_, machine, event| match event {
        ServerEvent::Request { request, ask } if super::fake_server::is_pull(ask) && refused == 0 => {
            refused += 1;
            machine.reply_error(*request, wire::ErrorCode::Busy, "later").unwrap();
            true
        }
        _ => false,
    });
    assert_eq!(rig.session.hint(&[rig.pages(3..5), rig.pages(40..43)].concat()), 5);
    wait_stored(&rig.session, &rig.sink, &rig.tree, &rig.pages(40..43));
    rig.read(3);
}

#[test]
fn a_web_server_is_read_ahead_of_need() {
    let tree = Tree::plain();
    let server = WebServer::start(&tree.bytes);
    let session = Session::open(&Target::parse(&server.url()).unwrap(), plain()).unwrap();
    let sink = sink_of(&session);
    let wanted = [pages(&tree, 0..20), pages(&tree, 99..101)].concat();
    assert_eq!(session.hint(&wanted), 22);
    wait_stored(&session, &sink, &tree, &wanted);
    assert_eq!(session.counters().demand.pages_demanded, 0);
}

#[test]
fn pages_of_a_local_image_are_decoded_and_stored() {
    // Chunks of a quarter of a page: those whose page lies in one block are stored.
    for tree in [Tree::plain(), Tree::scattered()] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.rnl");
        std::fs::write(&path, &tree.bytes).unwrap();
        // Blocks that leave the cache would bring their other pages along.
        let config = Config { store_evicted: false, ..Config::default() };
        let session = Session::open(&Target::File(path), config).unwrap();
        let sink = sink_of(&session);
        let wanted = [pages(&tree, 5..70), pages(&tree, 100..101)].concat();
        assert_eq!(session.hint(&wanted), 66);
        let one_block = |page: &PageId| {
            crate::page_parts::PageParts::of(&tree.metadata, *page).unwrap().blocks(&tree.metadata).len() == 1
        };
        let expected: Vec<PageId> = wanted.iter().copied().filter(one_block).collect();
        wait_stored(&session, &sink, &tree, &expected);
        assert_eq!(session.counters().hints.pages_hint_pushed, expected.len() as u64);
    }
}

#[test]
fn the_real_server_pushes_what_is_hinted() {
    let tree = Arc::new(Tree::plain());
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let rig = real_server::Rig::start(&store);
    let (session, sink) = rig.open(Config::default());
    let wanted = pages(&tree, 0..101);
    assert_eq!(session.hint(&wanted), 101);
    wait_stored(&session, &sink, &tree, &wanted);
    let counters = session.counters();
    assert_eq!(
        (counters.demand.requests, counters.hints.pages_hint_pushed, counters.demand.verify_failures),
        (0, 101, 0)
    );
}
