//! Connections that break, servers that die, sessions that end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use units::{ImageId, PageId};
use wire::{ErrorCode, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, is_pull};
use super::tree::Tree;
use super::{open, plain, read, read_page};
use crate::{Config, Granularity, ReadError};
use connection::Waiting;

/// Never answers pulls.
fn ignore_pulls(server: &FakeServer) {
    server.policy(|_, _, event| matches!(event, ServerEvent::Request { ask, .. } if is_pull(ask)));
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_read_is_replaced() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    ignore_pulls(&server);
    let session = open(&server, plain());
    let reads: Vec<_> = [0, 20, 100].map(|index| (index, read_page(&session, 1, tree.big(), index))).into();
    server.requests(3, is_pull);
    server.be_honest();
    server.cut();
    for (index, read) in reads {
        assert_eq!(read.wait().unwrap(), tree.page(PageId::new(tree.big(), index)));
    }
    let counters = session.counters();
    assert_eq!((counters.transfer.reconnects, counters.demand.replays, counters.reads.read_errors), (1, 3, 0));
}

#[test]
fn other_connections_take_over_while_one_is_down() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    // The first connection swallows pulls; new ones in its place are not let in.
    server.policy(|connection, machine, event| match event {
        ServerEvent::Request { ask, .. } if connection == 0 => is_pull(ask),
        ServerEvent::Request { request, ask: Request::Open { .. } } if connection >= 2 => {
            machine.reply(*request, Reply::error(ErrorCode::Busy, "later")).unwrap();
            true
        }
        _ => false,
    });
    let session = open(&server, Config { connections: 2, ..plain() });
    while session.shared.run(|schedule, _| schedule.connections_up()) < 2 {
        std::thread::yield_now();
    }
    // Token 2 belongs to the first connection.
    let read = read_page(&session, 2, tree.big(), 0);
    server.wait(|log| {
        log.iter()
            .any(|(at, event)| *at == 0 && matches!(event, ServerEvent::Request { ask, .. } if is_pull(ask)))
            .then_some(())
    });
    server.run(0, |machine| machine.shut_down(ErrorCode::Shutdown, "test"));
    assert_eq!(read.wait().unwrap(), tree.page(PageId::new(tree.big(), 0)));
    assert_eq!(session.counters().demand.replays, 1);
}

#[test]
fn hard_mode_waits_for_a_server_that_was_killed() {
    let tree = Arc::new(Tree::plain());
    let mut server = FakeServer::start(&tree);
    let session = open(&server, plain());
    read_page(&session, 1, tree.big(), 0).wait().unwrap();
    server.kill();
    let read = read_page(&session, 1, tree.big(), 50);
    assert!(read.is_pending());
    assert_eq!(read_page(&session, 1, tree.big(), 1).wait().unwrap(), tree.page(PageId::new(tree.big(), 1)), "cached");
    server.restart();
    assert_eq!(read.wait().unwrap(), tree.page(PageId::new(tree.big(), 50)));
    assert!(session.counters().transfer.reconnects >= 1);
}

#[test]
fn soft_mode_fails_and_recovers() {
    let tree = Arc::new(Tree::plain());
    let mut server = FakeServer::start(&tree);
    let waiting = Waiting::Soft(Duration::from_millis(50));
    let session = open(&server, Config { waiting, ..plain() });
    server.kill();
    // Also while nobody has noticed the loss yet.
    assert_eq!(read_page(&session, 1, tree.big(), 50).wait(), Err(ReadError::Timeout));
    assert_eq!(read(&session, 1, tree.big(), 0, 131_072).wait(), Err(ReadError::Timeout));
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
fn a_request_without_an_answer_goes_elsewhere() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    server.policy(|connection, _, event| {
        connection == 0 && matches!(event, ServerEvent::Request { ask, .. } if is_pull(ask))
    });
    let mut config = Config { granularity: Granularity::Page, ..plain() };
    config.connection.answer_deadline = Duration::from_millis(300);
    let session = open(&server, config);
    // The server answers pings but never this: only the deadline of the request helps.
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait().unwrap(), tree.page(PageId::new(tree.big(), 0)));
    assert!(session.counters().demand.replays >= 1);
}

#[test]
fn another_image_under_the_same_id_fails_reads_until_the_right_one_is_back() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let other = Reply::Opened {
        image: wire::ImageHandle(1),
        id: ImageId([9; 32]),
        file_bytes: 10_000,
        metadata_offset: 4096,
        metadata_bytes: 100,
    };
    server.policy(move |_, machine, event| {
        if let ServerEvent::Request { request, ask: Request::Open { .. } } = event {
            machine.reply(*request, other.clone()).unwrap();
            return true;
        }
        false
    });
    server.cut();
    // Waits while the connection is down, fails when the server shows what it has.
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait(), Err(ReadError::Protocol));
    server.be_honest();
    let bytes = loop {
        match read_page(&session, 1, tree.big(), 0).wait() {
            Ok(bytes) => break bytes,
            Err(error) => assert_eq!(error, ReadError::Protocol),
        }
    };
    assert_eq!(bytes, tree.page(PageId::new(tree.big(), 0)));
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let wrong = Arc::clone(&tree);
    server.policy(move |connection, machine, event| {
        let ServerEvent::Request { request, ask: Request::PullBlock { block, .. } } = event else { return false };
        if connection > 0 {
            return false;
        }
        // Another block than was asked for cannot even be sent with our own state machine; cut
        // short instead.
        let bytes = wrong.stored(*block);
        machine.reply(*request, Reply::Block { block: *block, bytes: Bytes::copy_from_slice(&bytes[1..]) }).unwrap();
        true
    });
    let session = open(&server, plain());
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait(), Err(ReadError::Corrupt));
    server.cut();
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait().unwrap(), tree.page(PageId::new(tree.big(), 0)));
}

#[test]
fn shutdown_releases_every_reader() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    ignore_pulls(&server);
    let session = open(&server, plain());
    let reads: Vec<_> = (0..50).map(|index| read(&session, 1, tree.big(), index * 8192, 8192)).collect();
    server.requests(7, is_pull);
    session.shutdown();
    for read in reads {
        assert_eq!(read.wait(), Err(ReadError::Shutdown));
    }
    assert_eq!(read_page(&session, 1, tree.big(), 0).wait(), Err(ReadError::Shutdown), "and every later one");
    session.shutdown();
}

#[test]
fn dropping_the_session_closes_its_connections() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { connections: 2, ..plain() });
    while session.shared.run(|schedule, _| schedule.connections_up()) < 2 {
        std::thread::yield_now();
    }
    drop(session);
    server.wait_ended(2);
}
