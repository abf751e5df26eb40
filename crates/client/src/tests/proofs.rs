//! Hashes that come with proofs, before the pages and blocks they are for.

use std::sync::Arc;

use units::{BlockId, PageId};
use wire::format::{FEATURE_PROOFS, FEATURES};
use wire::{PushEncoding, Request, ServerConnection, ServerEvent};

use super::fake_server::{FakeServer, HANDLE, honest_reply};
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{open, plain, read_page};
use crate::{Config, Granularity, Session};

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    session: Arc<Session>,
    sink: Arc<FakeSink>,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let tree = Arc::new(Tree::large());
        let server = FakeServer::start_with(&tree, FEATURES);
        let session = open(&server, config);
        let sink = Arc::new(FakeSink::default());
        session.attach(sink.clone());
        assert!(!session.metadata().has_chunk_hashes() && session.metadata().takes_pages());
        Rig { tree, server, session, sink }
    }

    fn pages(&self, range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|index| PageId::new(self.tree.big(), index)).collect()
    }

    fn read(&self, index: u32) {
        let bytes = read_page(&self.session, 1, self.tree.big(), index).wait().unwrap();
        assert_eq!(bytes, self.tree.page(PageId::new(self.tree.big(), index)));
    }

    fn push(&self, connection: usize, range: std::ops::Range<u32>) {
        let stream = self.server.push_start(connection, 1, PushEncoding::Stored, false);
        self.server.push(connection, stream, 0, &self.pages(range), |_| ());
    }

    fn wait_stopped(&self) {
        let stopped = |event: &ServerEvent| matches!(event, ServerEvent::PushStopped { .. });
        self.server.wait(|log| log.iter().any(|(_, event)| stopped(event)).then_some(()));
    }

    /// Requests for what stands where the hashes do.
    fn asked_hashes(&self) -> usize {
        let start = self.tree.metadata.superblock().hash_region().unwrap().start;
        let asks = |ask: &Request| matches!(ask, Request::MetaRead { offset, .. } if *offset >= start);
        self.server.requests(0, asks).len()
    }
}

#[test]
fn pushes_are_taken_with_the_hashes_of_their_pages_alone() {
    // Also with metadata so small that all of it would be fetched from another server.
    let rig = Rig::new(Config { whole_metadata_bytes: u64::MAX, ..plain() });
    rig.server.prove(0, &rig.pages(70..90), |_| ());
    rig.push(0, 70..90);
    rig.sink.wait_stored(rig.pages(89..90)[0]);
    for page in rig.sink.pages() {
        assert_eq!(rig.sink.page(page).unwrap(), rig.tree.page(page));
    }
    rig.read(5);
    assert_eq!(rig.session.counters().pushes.pages_pushed, 20);
    assert!(!rig.session.metadata().has_chunk_hashes());
    assert_eq!(rig.asked_hashes(), 0);
}

#[test]
fn pages_without_their_hashes_are_refused_and_demanded_instead() {
    let rig = Rig::new(plain());
    rig.server.prove(0, &rig.pages(0..1), |_| ());
    rig.push(0, 300..320);
    rig.wait_stopped();
    rig.read(305);
    assert!(rig.sink.pages().is_empty());
    assert_eq!(rig.session.counters().demand.verify_failures, 1);
}

#[test]
fn a_wrong_proof_and_wrong_pages_are_found() {
    let rig = Rig::new(plain());
    rig.server.prove(0, &rig.pages(70..90), |proof| proof[20] ^= 1);
    // The server would not send it again: the next connection brings the right one. Then the pages
    // are wrong.
    rig.read(5);
    rig.server.prove(1, &rig.pages(70..90), |_| ());
    let stream = rig.server.push_start(1, 2, PushEncoding::Stored, false);
    rig.server.push(1, stream, 0, &rig.pages(70..90), |bytes| bytes[5 * 4096] ^= 1);
    rig.read(75);
    assert!(rig.sink.pages().is_empty());
    rig.server.prove(1, &rig.pages(110..120), |_| ());
    rig.push(1, 110..120);
    rig.sink.wait_stored(rig.pages(119..120)[0]);
    assert_eq!(rig.session.counters().demand.verify_failures, 2);
}

/// A server whose proofs for pages that are asked for one by one are wrong on the first
/// connections.
fn wrong_at_first(connections: usize) -> Rig {
    let rig = Rig::new(Config { granularity: Granularity::Page, ..plain() });
    let tree = Arc::clone(&rig.tree);
    rig.server.policy(move |connection, machine: &mut ServerConnection, event| {
        if let ServerEvent::Request { ask: Request::PullPages { pages, .. }, .. } = event {
            let mut proof = tree.proof(pages);
            proof[20] ^= u8::from(connection < connections);
            machine.hashes(HANDLE, proof.into()).unwrap();
        }
        false
    });
    rig
}

#[test]
fn regress_a_page_whose_proof_was_damaged_comes_over_the_next_connection() {
    let rig = wrong_at_first(1);
    rig.read(500);
    assert_eq!((rig.asked_hashes(), rig.session.counters().demand.verify_failures), (0, 1));
}

#[test]
fn a_server_whose_proofs_are_always_wrong_is_asked_for_all_hashes() {
    let rig = wrong_at_first(usize::MAX);
    rig.read(500);
    assert!(rig.asked_hashes() > 0 && rig.session.metadata().has_chunk_hashes());
}

/// A server that sends `proof` before each block on the first connections.
fn before_blocks(connections: usize, proof: impl Fn(&Tree, BlockId) -> Vec<u8> + Send + 'static) -> Rig {
    let rig = Rig::new(plain());
    let tree = Arc::clone(&rig.tree);
    rig.server.policy(move |connection, machine: &mut ServerConnection, event| match event {
        ServerEvent::Request { request, ask: ask @ Request::PullBlock { block, .. } } if connection < connections => {
            machine.hashes(HANDLE, proof(&tree, *block).into()).unwrap();
            machine.reply(*request, honest_reply(&tree, ask).unwrap()).unwrap();
            true
        }
        _ => false,
    });
    rig
}

fn damaged(tree: &Tree, block: BlockId) -> Vec<u8> {
    let mut proof = tree.block_proof(block);
    proof[20] ^= 1;
    proof
}

#[test]
fn a_block_whose_proof_was_damaged_comes_over_the_next_connection() {
    let rig = before_blocks(1, damaged);
    rig.read(500);
    assert_eq!((rig.asked_hashes(), rig.session.counters().demand.verify_failures), (0, 1));
    assert!(!rig.session.metadata().has_block_hashes());
}

#[test]
fn a_server_whose_proofs_of_blocks_are_always_wrong_is_asked_for_all_hashes() {
    let rig = before_blocks(usize::MAX, damaged);
    rig.read(500);
    assert!(rig.asked_hashes() > 0 && rig.session.metadata().has_block_hashes());
}

#[test]
fn a_block_without_its_hash_is_refused() {
    // A good proof, of another block's hash.
    let rig = before_blocks(usize::MAX, |tree, _| tree.block_proof(BlockId(0)));
    let last = rig.tree.metadata.block_count() - 1;
    let metadata = &rig.tree.metadata;
    assert_ne!(metadata.leaf_of_block(BlockId(last)), 0, "the tree has two leaves");
    let chunk = metadata.block_chunks(BlockId(last)).next().unwrap();
    let page = metadata.chunk_owner(chunk).unwrap();
    read_page(&rig.session, 1, page.inode, page.index).wait().unwrap_err();
    assert!(rig.sink.pages().is_empty());
}

#[test]
fn pages_that_were_asked_for_come_with_their_hashes() {
    let rig = Rig::new(Config { granularity: Granularity::Page, ..plain() });
    let tree = Arc::clone(&rig.tree);
    rig.server.policy(move |_, machine: &mut ServerConnection, event| {
        if let ServerEvent::Request { ask: Request::PullPages { pages, .. }, .. } = event {
            machine.hashes(HANDLE, tree.proof(pages).into()).unwrap();
        }
        false
    });
    rig.read(500);
    assert!(matches!(rig.server.pulls().as_slice(), [Request::PullPages { .. }]));
    assert_eq!(rig.asked_hashes(), 0);
}

#[test]
fn another_server_that_sends_no_proofs_is_asked_for_all_hashes() {
    let rig = Rig::new(plain());
    rig.server.set_features(FEATURES & !FEATURE_PROOFS);
    rig.server.cut();
    rig.read(5);
    while !rig.session.metadata().has_chunk_hashes() {
        std::thread::yield_now();
    }
    assert!(rig.asked_hashes() > 0);
    rig.push(1, 70..90);
    rig.sink.wait_stored(rig.pages(89..90)[0]);
}
