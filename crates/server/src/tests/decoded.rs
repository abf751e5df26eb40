//! Devices near the server: blocks that are decoded in memory come decoded, pages uncompressed.

use std::time::Instant;

use units::{PageId, Token};
use wire::format::{FEATURE_DECODED, FEATURES};
use wire::{ClientConfig, ImageHandle, Notice, Reply, Request};

use super::client::{Client, PATIENCE};
use super::rig::{Rig, image, program};

/// A device that is near, as it says.
fn near(rig: &Rig, number: u128, features: u64) -> (Client, ImageHandle) {
    told(Client::with(rig.address, ClientConfig { device: number, features, ..ClientConfig::default() }), 300)
}

/// One that is not, at the same address.
fn far(rig: &Rig) -> (Client, ImageHandle) {
    told(Client::connect(rig.address, 9), 30_000)
}

fn told(mut client: Client, round_trip: u32) -> (Client, ImageHandle) {
    let handle = client.open("app");
    client.wire.notify(Notice::DeviceSpeed { round_trip, zstd: 0, lz4: 0 }).unwrap();
    (client, handle)
}

/// Demands the block of a page until it comes decoded.
fn pull_decoded(client: &mut Client, handle: ImageHandle, page: PageId) -> Vec<u8> {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "nothing decodes it");
        if let Reply::Decoded { bytes, .. } = client.pull(handle, Token(0), page) {
            return bytes.to_vec();
        }
    }
}

#[test]
fn a_near_device_gets_decoded_what_one_before_it_wanted() {
    let bytes = image(4);
    let page = program(&bytes, 1, 8)[0];
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let (mut first, handle) = near(&rig, 1, FEATURES);
    assert!(matches!(first.pull(handle, Token(0), page), Reply::Block { .. }), "nobody waits for a decoder");
    pull_decoded(&mut first, handle, page);
    assert_eq!(rig.metrics.blocks_decoded.get(), 1);
    let demanded = rig.metrics.blocks_demanded.get();
    let raw = pull_decoded(&mut first, handle, page);
    assert_eq!(rig.metrics.blocks_demanded.get(), demanded + 1, "it was sent");

    // Its hashes came before it.
    let metadata = first.metadata(handle);
    let place = metadata.chunk(metadata.page_chunks(page).unwrap().chunks().next().unwrap()).unwrap();
    let length = metadata.page_bytes(page).unwrap();
    metadata.verify_page(page, &raw[place.offset as usize..][..length]).unwrap();

    let ask = first.pull_request(handle, Token(0), page, true);
    assert!(matches!(first.ask(ask), Reply::Block { .. }), "it insists");
    let (mut far, handle) = far(&rig);
    assert!(matches!(far.pull(handle, Token(0), page), Reply::Block { .. }));
    let (mut old, handle) = near(&rig, 3, FEATURES & !FEATURE_DECODED);
    assert!(matches!(old.pull(handle, Token(0), page), Reply::Block { .. }));
}

#[test]
fn single_pages_for_a_near_device_are_not_compressed() {
    let bytes = image(4);
    let pages = program(&bytes, 1, 8);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    // The first one has the blocks decoded.
    let devices = [(near(&rig, 1, FEATURES), true), (near(&rig, 2, FEATURES), true), (far(&rig), false)];
    for ((mut client, handle), is_stored) in devices {
        let ask = Request::PullPages { image: handle, token: Token(1), pages: pages.clone(), force: false };
        let Reply::Pages { codec, bytes } = client.ask(ask) else { panic!("no pages") };
        let lengths: Vec<usize> = pages.iter().map(|page| client.metadata(handle).page_bytes(*page).unwrap()).collect();
        assert_eq!((codec == 0, bytes.len() == lengths.iter().sum::<usize>()), (is_stored, is_stored));
    }
}
