//! READs that need the network: what is asked, how often, and what they get.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, InodeId, PageId, Token};
use wire::{ErrorCode, Notice, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, honest_reply, is_pull};
use super::tree::Tree;
use super::{open, plain, read, read_page};
use crate::{Config, Granularity, ReadError};

/// Holds every pull back; a test answers it later.
fn hold_pulls(server: &FakeServer) {
    server.policy(|_, _, event| matches!(event, ServerEvent::Request { ask, .. } if is_pull(ask)));
}

/// Answers pulls that were held back, honestly.
fn answer(server: &FakeServer, tree: &Arc<Tree>, held: &(usize, units::RequestId, Request)) {
    let (connection, request, ask) = held.clone();
    let tree = Arc::clone(tree);
    server.run(connection, move |machine| machine.reply(request, honest_reply(&tree, &ask).unwrap()).unwrap());
}

#[test]
fn every_byte_of_every_file_is_right_whatever_the_layout() {
    for tree in [Arc::new(Tree::plain()), Arc::new(Tree::scattered())] {
        let server = FakeServer::start(&tree);
        for granularity in [Granularity::Auto, Granularity::Block, Granularity::Page] {
            let config = Config { granularity, connections: 3, ..Config::default() };
            let session = open(&server, config);
            for (token, (inode, contents)) in tree.files.iter().enumerate() {
                for (offset, bytes) in
                    [(0, 1 << 20), (1, 5000), (4095, 2), (8192, 131_072), (409_600, 4096), (1 << 40, 9)]
                {
                    let got = read(&session, token as u128, *inode, offset, bytes).wait().unwrap();
                    assert!(got == tree.range(*inode, offset, bytes), "{offset} {bytes} of {}", contents.len());
                }
            }
            assert_eq!(session.counters().reads.read_errors, 0);
        }
    }
}

#[test]
fn readers_of_one_page_and_of_one_block_share_a_request() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    hold_pulls(&server);
    let session = open(&server, plain());
    let big = tree.big();
    let reads: Vec<_> = [0, 0, 3, 15].iter().map(|index| read_page(&session, 1, big, *index)).collect();
    let other_token = read_page(&session, 2, big, 3);
    let held = server.requests(1, is_pull);
    assert!(reads.iter().all(|read| read.is_pending()));
    answer(&server, &tree, &held[0]);
    for (read, index) in reads.into_iter().zip([0, 0, 3, 15]) {
        assert_eq!(read.wait().unwrap(), tree.page(PageId::new(big, index)));
    }
    other_token.wait().unwrap();
    assert_eq!(server.pulls().len(), 1);
    // What needed no request of its own is reported, once per page and token, in order.
    server.wait_touched(1, &[PageId::new(big, 3), PageId::new(big, 15)]);
    server.wait_touched(2, &[PageId::new(big, 3)]);
    let counters = session.counters();
    assert_eq!((counters.demand.requests, counters.demand.round_trips, counters.reads.stalls), (1, 1, 5));
    // Again, from the cache: nothing is asked, nothing is reported twice.
    read_page(&session, 1, big, 15).wait().unwrap();
    read_page(&session, 1, big, 5).wait().unwrap();
    session.end(units::Token(1));
    server.wait(|log| {
        log.iter().any(|(_, event)| matches!(event, ServerEvent::Notice(Notice::TokenEnd { .. }))).then_some(())
    });
    assert_eq!(server.touched(1), [3, 15, 5].map(|index| PageId::new(big, index)));
    assert_eq!(server.pulls().len(), 1);
}

#[test]
fn touches_go_before_the_next_demand() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let big = tree.big();
    for index in [0, 1, 2, 40, 41, 60] {
        read_page(&session, 9, big, index).wait().unwrap();
    }
    server.requests(3, is_pull);
    let order = server.wait(|log| {
        let pages = log.iter().flat_map(|(_, event)| match event {
            ServerEvent::Notice(Notice::Touch { pages, .. }) => pages.iter().map(|page| page.index).collect(),
            ServerEvent::Request { ask: Request::PullBlock { page, .. }, .. } => vec![page.index],
            _ => Vec::new(),
        });
        Some(pages.collect::<Vec<u32>>())
    });
    assert_eq!(order, [0, 1, 2, 40, 41, 60]);
}

#[test]
fn paper_mode_asks_for_the_pages_of_the_read_alone() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { granularity: Granularity::Page, ..plain() });
    read(&session, 1, tree.big(), 5 * 4096, 3 * 4096).wait().unwrap();
    let pulls = server.pulls();
    let expected: Vec<PageId> = (5..8).map(|index| PageId::new(tree.big(), index)).collect();
    assert!(matches!(pulls.as_slice(), [Request::PullPages { pages, .. }] if *pages == expected), "{pulls:?}");
}

#[test]
fn a_block_with_wrong_bytes_is_asked_for_again_and_then_fails() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let (bad, spoil) = (Arc::new(std::sync::atomic::AtomicU32::new(1)), Arc::clone(&tree));
    let left = Arc::clone(&bad);
    server.policy(move |_, machine, event| {
        let ServerEvent::Request { request, ask: Request::PullBlock { block, .. } } = event else { return false };
        let Ok(_) =
            left.fetch_update(std::sync::atomic::Ordering::SeqCst, std::sync::atomic::Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
        else {
            return false;
        };
        let mut bytes = spoil.stored(*block).to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        machine.reply(*request, Reply::Block { block: *block, bytes: Bytes::from(bytes) }).unwrap();
        true
    });
    let page = PageId::new(tree.big(), 2);
    assert_eq!(read_page(&session, 1, page.inode, 2).wait().unwrap(), tree.page(page), "the second answer is good");
    assert_eq!(session.counters().demand.verify_failures, 1);
    bad.store(u32::MAX, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(read_page(&session, 1, page.inode, 50).wait(), Err(ReadError::Corrupt));
    bad.store(0, std::sync::atomic::Ordering::SeqCst);
    let again = PageId::new(tree.big(), 50);
    assert_eq!(read_page(&session, 1, page.inode, 50).wait().unwrap(), tree.page(again), "a later READ may succeed");
}

#[test]
fn wrong_pages_and_wrong_lengths_are_noticed_in_paper_mode() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { granularity: Granularity::Page, ..plain() });
    let spoil = Arc::clone(&tree);
    server.policy(move |_, machine, event| {
        let ServerEvent::Request { request, ask: Request::PullPages { pages, .. } } = event else { return false };
        let mut bytes: Vec<u8> = pages.iter().flat_map(|page| spoil.page(*page).to_vec()).collect();
        match pages[0].index {
            10 => bytes[0] ^= 1,
            11 => bytes.truncate(100),
            12 => bytes.push(0),
            _ => return false,
        }
        machine.reply(*request, Reply::Pages { codec: 0, bytes: bytes.into() }).unwrap();
        true
    });
    for index in [10, 11, 12] {
        assert_eq!(read_page(&session, 1, tree.big(), index).wait(), Err(ReadError::Corrupt), "{index}");
    }
    assert_eq!(read_page(&session, 1, tree.big(), 13).wait().unwrap(), tree.page(PageId::new(tree.big(), 13)));
}

#[test]
fn a_busy_server_is_asked_again_and_a_refusing_one_is_believed() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    let mut busy = 4;
    server.policy(move |_, machine, event| {
        let ServerEvent::Request { request, ask: Request::PullBlock { page, .. } } = event else { return false };
        if page.index < 16 && busy > 0 {
            busy -= 1;
            machine.reply(*request, Reply::error(ErrorCode::Busy, "later")).unwrap();
            return true;
        }
        if page.index >= 80 {
            machine.reply(*request, Reply::error(ErrorCode::Storage, "disk on fire")).unwrap();
            return true;
        }
        false
    });
    read_page(&session, 1, tree.big(), 0).wait().unwrap();
    assert_eq!(read_page(&session, 1, tree.big(), 80).wait(), Err(ReadError::Io));
}

#[test]
fn reads_that_make_no_sense_fail_at_once() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, plain());
    assert_eq!(read(&session, 1, InodeId::ROOT, 0, 10).wait(), Err(ReadError::Io));
    assert_eq!(read(&session, 1, InodeId(999_999), 0, 10).wait(), Err(ReadError::Io));
    assert_eq!(read(&session, 1, tree.big(), 0, u32::MAX).wait(), Err(ReadError::Io));
    assert_eq!(read(&session, 1, tree.big(), u64::MAX, 10).wait(), Ok(Vec::new()));
    assert!(server.pulls().is_empty());
}

#[test]
fn sequential_misses_read_ahead_within_their_window() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { readahead_blocks: 2, ..plain() });
    let pages: Vec<PageId> = (0..101).map(|index| PageId::new(tree.big(), index)).collect();
    for page in &pages {
        read_page(&session, 1, tree.big(), page.index).wait().unwrap();
    }
    session.end(Token(1));
    let pulls = server.pulls();
    let mut blocks: Vec<_> = pulls.iter().map(|ask| block_and_flag(ask).0).collect();
    blocks.sort();
    blocks.dedup();
    assert_eq!(blocks.len(), pulls.len(), "no block twice: {pulls:?}");
    let speculative = pulls.iter().filter(|ask| block_and_flag(ask).1).count();
    let counters = session.counters();
    assert_eq!(counters.readahead.blocks_speculated as usize, speculative);
    assert!(speculative >= 5 && counters.readahead.blocks_speculated_used >= 5, "{counters:?}");
    // Whatever was read ahead, the server learns of every page, in order.
    let demanded: Vec<PageId> = pulls.iter().filter(|ask| !block_and_flag(ask).1).map(page_of).collect();
    let reported: Vec<PageId> = pages.iter().copied().filter(|page| !demanded.contains(page)).collect();
    server.wait_touched(1, &reported);
    assert!(demanded.contains(&pages[0]));
}

fn block_and_flag(ask: &Request) -> (BlockId, bool) {
    let Request::PullBlock { block, speculative, .. } = ask else { panic!("{ask:?} is no pull of a block") };
    (*block, *speculative)
}

fn page_of(ask: &Request) -> PageId {
    let Request::PullBlock { page, .. } = ask else { panic!("{ask:?} is no pull of a block") };
    *page
}

#[test]
fn a_read_that_meets_a_speculative_request_hurries_it() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    hold_pulls(&server);
    let session = open(&server, Config { readahead_blocks: 2, ..plain() });
    let first = read_page(&session, 1, tree.big(), 0);
    let held = server.requests(2, is_pull);
    let ahead = held.iter().find(|(_, _, ask)| block_and_flag(ask).1).expect("a block read ahead");
    let second = read_page(&session, 1, tree.big(), page_of(&ahead.2).index);
    // The touch says that a program waits now; no second request is made for the block.
    server.wait_touched(1, &[page_of(&ahead.2)]);
    let again = server.pulls();
    assert_eq!(again.iter().filter(|ask| block_and_flag(ask).0 == block_and_flag(&ahead.2).0).count(), 1, "{again:?}");
    held.iter().for_each(|pull| answer(&server, &tree, pull));
    assert_eq!(first.wait().unwrap(), tree.page(PageId::new(tree.big(), 0)));
    assert_eq!(second.wait().unwrap(), tree.page(page_of(&ahead.2)));
    assert_eq!(session.counters().demand.pages_demanded, 2);
}

#[test]
fn a_thin_link_asks_for_pages() {
    let tree = Arc::new(Tree::plain());
    let server = FakeServer::start(&tree);
    let session = open(&server, Config { granularity: Granularity::Auto, ..plain() });
    let link = Duration::from_secs(1);
    // What the estimate would be after replies of 8 KiB that took five seconds each.
    session.shared.run(|schedule, _| {
        schedule.link_sample(link, 100);
        (0..40).for_each(|_| schedule.link_sample(5 * link, 8192));
    });
    read_page(&session, 1, tree.big(), 0).wait().unwrap();
    assert!(matches!(server.pulls().as_slice(), [Request::PullPages { .. }]));
}
