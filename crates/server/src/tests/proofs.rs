//! Chunk hashes that come with proofs, before the pages they are for. In all other tests the client
//! takes them too, and verifies what it is sent with nothing else.

use std::sync::Arc;

use image::fixture::Fixture;
use image::{Limits, Metadata};
use store::{Memory, Store};
use units::{BlockId, PageId, Token};
use wire::format::{FEATURE_PROOFS, FEATURES};
use wire::{ClientConfig, ErrorCode, ImageHandle, Notice, Reply, Request};

use super::client::Client;
use super::hooked::{Gate, Hooked, Operation};
use super::rig::{Rig, config, image, nodes, noise, program};
use crate::StoreAt;

/// Asks for pages, which must come, and checks them.
fn pull_pages(client: &mut Client, handle: ImageHandle, pages: &[PageId]) {
    let reply = client.ask(Request::PullPages { image: handle, token: Token(1), pages: pages.to_vec(), force: false });
    let Reply::Pages { codec, bytes } = reply else { panic!("{reply:?}") };
    let lengths: Vec<usize> = pages.iter().map(|page| client.metadata(handle).page_bytes(*page).unwrap()).collect();
    let mut raw = Vec::new();
    codec::decode(codec::Codec::from_u8(codec).unwrap(), &bytes, lengths.iter().sum(), &mut raw).unwrap();
    let mut rest = raw.as_slice();
    for (page, length) in pages.iter().zip(lengths) {
        let (bytes, after) = rest.split_at(length);
        client.metadata(handle).verify_page(*page, bytes).unwrap();
        rest = after;
    }
}

/// Leaves in each proof that came.
fn leaves(client: &Client) -> Vec<u32> {
    client.proofs.iter().map(|proof| u32::from_le_bytes(*proof.first_chunk().unwrap())).collect()
}

#[test]
fn only_the_hashes_of_what_is_sent_come_and_once() {
    // 16 leaves.
    let bytes = noise(64);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    assert!(!client.metadata(handle).has_chunk_hashes());
    let inode = client.metadata(handle).resolve(b"noise").unwrap();
    let page = |index| PageId::new(inode, index);
    pull_pages(&mut client, handle, &[page(3), page(5)]);
    pull_pages(&mut client, handle, &[page(63), page(3)]);
    assert_eq!(leaves(&client), [1]);
    pull_pages(&mut client, handle, &[page(62), page(64), page(1000)]);
    assert_eq!(leaves(&client), [1, 2]);
    let proven: usize = client.proofs.iter().map(|proof| proof.len()).sum();
    assert!(proven < 4 << 10, "{proven} bytes for three leaves");
    // A block has a hash of its own, which comes before it, once.
    let of_blocks = 1 | 1 << 31;
    for _ in 0..2 {
        let Reply::Block { block, bytes } = client.pull(handle, Token(1), page(500)) else { panic!("no block") };
        client.metadata(handle).verify_block(block, &bytes).unwrap();
        assert_eq!(leaves(&client), [1, 2, of_blocks]);
    }
    // Another connection was sent nothing yet.
    let mut other = Client::connect(rig.address, 1);
    let handle = other.open("app");
    pull_pages(&mut other, handle, &[page(3)]);
    assert_eq!(leaves(&other), [1]);
}

#[test]
fn a_client_that_does_not_take_proofs_gets_none() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let config = ClientConfig { device: 1, features: FEATURES & !FEATURE_PROOFS, ..ClientConfig::default() };
    let mut client = Client::with(rig.address, config);
    let handle = client.open("app");
    assert!(client.metadata(handle).has_chunk_hashes());
    pull_pages(&mut client, handle, &program(&bytes, 1, 8));
    assert!(client.proofs.is_empty());
}

#[test]
fn hashes_that_are_not_stored_are_derived_for_proofs() {
    let mut fixture = Fixture::default();
    fixture.params.derive_hashes = true;
    let bytes = fixture.pack(&nodes(4)).unwrap();
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let pages = program(&bytes, 1, 8);
    let ask = Request::PullPages { image: handle, token: Token(1), pages: pages.clone(), force: false };
    // They are derived in the background since the image was opened, or now.
    while let Reply::Error { code, text } = client.ask(ask.clone()) {
        assert_eq!(code, ErrorCode::Busy, "{text}");
    }
    pull_pages(&mut client, handle, &pages);
    assert_eq!(leaves(&client).len(), 1);
}

#[test]
fn regress_nobody_waits_while_hashes_are_derived() {
    let mut fixture = Fixture::default();
    fixture.params.derive_hashes = true;
    let bytes = fixture.pack(&nodes(4)).unwrap();
    let first = Metadata::open_early(&bytes.as_slice(), &Limits::default()).unwrap().block(BlockId(0)).unwrap();
    let gate = Arc::new(Gate::default());
    let (waits, first) = (gate.clone(), Operation::Read { offset: first.file_offset });
    let hook = move |key: &str, operation| {
        if key == "app.rnl" && operation == first {
            waits.pass();
        }
    };
    let memory = Memory::new();
    memory.put_atomic("app.rnl", &bytes).unwrap();
    let mut config = config(StoreAt::Open(Arc::new(Hooked::new(memory, hook))));
    config.work.reads_max = 1;
    let rig = Rig::start(config);
    let pages = program(&bytes, 1, 8);
    let mut clients: Vec<(Client, ImageHandle)> = (1..8)
        .map(|device| {
            let mut client = Client::connect(rig.address, device);
            let handle = client.open("app");
            (client, handle)
        })
        .collect();
    gate.wait_arrived(1);
    for (client, handle) in &mut clients {
        let ask = Request::PullPages { image: *handle, token: Token(1), pages: pages.clone(), force: false };
        client.refused(ask, ErrorCode::Busy);
    }
    gate.open();
    let (client, handle) = &mut clients[0];
    let ask = Request::PullPages { image: *handle, token: Token(1), pages: pages.clone(), force: false };
    while matches!(client.ask(ask.clone()), Reply::Error { .. }) {}
    pull_pages(client, *handle, &pages);
}

#[test]
fn a_device_that_exaggerates_and_asks_without_end_gets_each_hash_once() {
    let bytes = noise(64);
    let (rig, _) = Rig::with_image(&bytes, |config| config.memory_bytes_max = 32 << 20);
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let inode = client.metadata(handle).resolve(b"noise").unwrap();
    let absurd = [0, 1, u32::MAX];
    for round_trip in absurd {
        for (zstd, lz4) in absurd.iter().flat_map(|zstd| absurd.map(|lz4| (*zstd, lz4))) {
            client.wire.notify(Notice::DeviceSpeed { round_trip, zstd, lz4 }).unwrap();
            // Scattered over all leaves, and followed as a program is.
            let pages: Vec<PageId> = (0..32).map(|at| PageId::new(inode, (at * 32 + zstd % 32) % 1024)).collect();
            let reply =
                client.ask(Request::PullPages { image: handle, token: Token(1), pages: pages.clone(), force: false });
            assert!(!matches!(reply, Reply::Error { .. }), "{reply:?}");
            client.touch(handle, Token(1), &pages);
        }
    }
    let mut leaves = 0;
    for proof in &client.proofs {
        leaves += u32::from_le_bytes(*proof.first_chunk().unwrap());
    }
    assert_eq!(leaves, client.metadata(handle).hash_leaf_count());
    assert_eq!(rig.metrics.requests_failed.get(), 0);
}
