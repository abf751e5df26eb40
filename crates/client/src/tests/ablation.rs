//! The I/O path without one of its parts gives the same bytes, in the way it says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use units::PageId;
use wire::{ErrorCode, Notice, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, is_pull};
use super::tree::Tree;
use super::{HANG, open, plain, read, read_page};
use crate::{Ablation, Config, Granularity, ReadError};
use connection::Waiting;

const SHORT: Ablation = Ablation { short_connections: true, allocated_pages: false };

/// As in the figure: one page a request, nothing read ahead, nothing pushed.
fn demand_only(ablation: Ablation) -> Config {
    let connection = connection::Config { push: false, ..connection::Config::default() };
    Config { granularity: Granularity::Page, connection, ablation, ..plain() }
}

#[test]
fn all_four_paths_give_the_same_bytes_and_count_what_they_do() {
    for tree in [Arc::new(Tree::plain()), Arc::new(Tree::scattered())] {
        for (short_connections, allocated_pages) in [(false, false), (false, true), (true, false), (true, true)] {
            let server = FakeServer::start(&tree);
            let session = open(&server, demand_only(Ablation { short_connections, allocated_pages }));
            for (inode, contents) in &tree.files {
                for (offset, bytes) in [(0, 4096), (4095, 2), (8192, 131_072), (0, 1 << 20)] {
                    let got = read(&session, 1, *inode, offset, bytes).wait().unwrap();
                    assert!(got == tree.range(*inode, offset, bytes), "{offset} {bytes} of {}", contents.len());
                }
            }
            let counters = session.counters();
            assert_eq!(counters.demand.requests, server.pulls().len() as u64);
            assert_eq!((counters.reads.read_errors, counters.demand.replays, counters.transfer.reconnects), (0, 0, 0));
            // The session's, one for each request, and one for the next, which is being made.
            let wanted = 1 + if short_connections { server.pulls().len() + 1 } else { 0 };
            assert_eq!(server.wait_connections(wanted), wanted);
            assert!(counters.demand.pages_demanded > 100);
            assert!(counters.memory.pool_hits + counters.memory.pool_misses >= counters.demand.pages_demanded);
            assert_eq!(counters.memory.pool_hits == 0, allocated_pages);
        }
    }
}

#[test]
fn a_short_connection_asks_once_and_is_closed() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, demand_only(SHORT));
    for index in 0..5 {
        read_page(&session, 1, tree.big(), index).wait().unwrap();
    }
    server.wait_ended(5);
    let asked: Vec<(usize, u32)> = server
        .requests(5, is_pull)
        .into_iter()
        .map(|(connection, _, ask)| match ask {
            Request::PullPages { pages, .. } => (connection, pages[0].index),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]);
    let bytes = session.counters().transfer.bytes_received;
    read_page(&session, 1, tree.big(), 50).wait().unwrap();
    assert!(session.counters().transfer.bytes_received > bytes + 4096, "hello and open come on top of the page");
}

#[test]
fn what_is_not_demanded_stays_on_the_connection_of_the_lane() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let config = Config { granularity: Granularity::Block, readahead_blocks: 2, ..demand_only(SHORT) };
    let session = open(&server, config);
    for index in 0..100 {
        assert_eq!(
            read_page(&session, 1, tree.big(), index).wait().unwrap(),
            tree.page(PageId::new(tree.big(), index))
        );
    }
    session.end(units::Token(1));
    server.wait(|log| {
        log.iter().any(|(_, event)| matches!(event, ServerEvent::Notice(Notice::TokenEnd { .. }))).then_some(())
    });
    server.wait(|log| {
        for (connection, event) in log {
            match event {
                ServerEvent::Request { ask: Request::PullBlock { speculative, .. }, .. } => {
                    assert_eq!(*connection == 0, *speculative, "{event:?}");
                }
                ServerEvent::Notice(_) => assert_eq!(*connection, 0),
                _ => {}
            }
        }
        Some(())
    });
}

#[test]
fn hard_mode_waits_for_the_server() {
    let tree = Arc::new(Tree::plain());
    let mut server = FakeServer::start(&tree);
    let session = open(&server, demand_only(SHORT));
    read_page(&session, 1, tree.big(), 0).wait().unwrap();
    server.kill();
    let reads: Vec<_> = (50..53).map(|index| (index, read_page(&session, 1, tree.big(), index))).collect();
    assert!(reads.iter().all(|(_, read)| read.is_pending()));
    server.restart();
    for (index, read) in reads {
        assert_eq!(read.wait().unwrap(), tree.page(PageId::new(tree.big(), index)));
    }
    // The connection may have served them before it saw that its own connection is gone.
    let began = Instant::now();
    while session.counters().transfer.reconnects == 0 {
        assert!(began.elapsed() < HANG, "{:?}", session.counters());
        std::thread::yield_now();
    }
    assert_eq!(session.counters().reads.read_errors, 0);
}

#[test]
fn soft_mode_fails_and_recovers() {
    let tree = Arc::new(Tree::plain());
    let mut server = FakeServer::start(&tree);
    let waiting = Waiting::Soft(Duration::from_millis(50));
    let session = open(&server, Config { waiting, ..demand_only(SHORT) });
    server.kill();
    assert_eq!(read_page(&session, 1, tree.big(), 50).wait(), Err(ReadError::Timeout));
    server.restart();
    let again = loop {
        match read_page(&session, 1, tree.big(), 50).wait() {
            Ok(bytes) => break bytes,
            Err(error) => assert_eq!(error, ReadError::Timeout),
        }
    };
    assert_eq!(again, tree.page(PageId::new(tree.big(), 50)));
}

#[test]
fn a_short_connection_that_breaks_is_replaced_and_one_that_is_refused_is_believed() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let mut breaks = 2;
    server.policy(move |connection, machine, event| {
        let ServerEvent::Request { request, ask } = event else { return false };
        match ask {
            Request::PullPages { pages, .. } if pages[0].index >= 90 => {
                machine.reply(*request, Reply::error(ErrorCode::Storage, "disk on fire")).unwrap();
                true
            }
            Request::PullPages { .. } if breaks > 0 && connection > 0 => {
                breaks -= 1;
                machine.shut_down(ErrorCode::Shutdown, "test");
                true
            }
            _ => false,
        }
    });
    let session = open(&server, demand_only(SHORT));
    assert_eq!(read_page(&session, 1, tree.big(), 7).wait().unwrap(), tree.page(PageId::new(tree.big(), 7)));
    let counters = session.counters();
    assert_eq!((counters.demand.requests, counters.demand.replays, counters.transfer.reconnects), (1, 2, 2));
    assert_eq!(read_page(&session, 1, tree.big(), 95).wait(), Err(ReadError::Io));
}
