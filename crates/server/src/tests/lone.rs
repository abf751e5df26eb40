//! Devices that are far: a program that is pushed to gets no more of a block than its page.

use units::{PageId, Token};
use wire::format::{FEATURE_LONE_PAGES, FEATURES_USUAL};
use wire::{ClientConfig, ErrorCode, ImageHandle, Notice, Reply, Request};

use super::client::Client;
use super::learning::{actions, teach};
use super::rig::{Rig, image, large_blocks, program};

/// A device that takes lone pages, so far away as it says.
fn device(rig: &Rig, number: u128, round_trip: u32) -> (Client, ImageHandle) {
    let features = FEATURES_USUAL | FEATURE_LONE_PAGES;
    let config = ClientConfig { device: number, features, ..ClientConfig::default() };
    let mut client = Client::with(rig.address, config);
    let handle = client.open("app");
    client.wire.notify(Notice::DeviceSpeed { round_trip, zstd: 0, lz4: 0 }).unwrap();
    // Pushes stand still: what was sent is not credited.
    client.credits = false;
    (client, handle)
}

fn guess(ask: Request) -> Request {
    let Request::PullBlock { image, token, page, block, force, .. } = ask else { panic!("{ask:?}") };
    Request::PullBlock { image, token, page, block, force, speculative: true }
}

#[test]
fn a_learned_program_on_a_far_device_gets_its_first_page_alone_and_no_guesses() {
    let bytes = image(30);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 1001);
    // It is longer than what a push sends without credit.
    let (program, stranger, another) = (&all[..999], all[999], all[1000]);
    let (mut first, _) = teach(&rig, 1, program);
    first.status_until(|status| actions(status) == 1);
    let blocks = rig.metrics.blocks_demanded.get();

    let (mut far, handle) = device(&rig, 2, 30_000);
    let Reply::Pages { codec, bytes } = far.pull(handle, Token(2), program[0]) else { panic!("no lone page") };
    let (mut raw, length) = (Vec::new(), far.metadata(handle).page_bytes(program[0]).unwrap());
    codec::decode(codec::Codec::from_u8(codec).unwrap(), &bytes, length, &mut raw).unwrap();
    far.metadata(handle).verify_page(program[0], &raw).unwrap();
    let ask = guess(far.pull_request(handle, Token(2), stranger, false));
    far.refused(ask, ErrorCode::Busy);
    // What is at its end does not come soon.
    assert!(matches!(far.pull(handle, Token(2), program[900]), Reply::Pages { .. }));
    assert_eq!((rig.metrics.blocks_demanded.get(), rig.metrics.pages_demanded.get()), (blocks, 2));

    let ask = far.pull_request(handle, Token(2), program[901], true);
    assert!(matches!(far.ask(ask), Reply::Block { .. }), "it insists");
    assert!(matches!(far.pull(handle, Token(3), stranger), Reply::Block { .. }), "of another program");
    // A page of the program could be on the way by now: it is after one that was touched.
    let ask = guess(far.pull_request(handle, Token(3), another, false));
    let reply = far.ask(ask);
    assert!(matches!(reply, Reply::Block { .. }), "nothing is pushed to that one: {reply:?}");
    let (mut near, handle) = device(&rig, 3, 300);
    assert!(matches!(near.pull(handle, Token(4), program[0]), Reply::Block { .. } | Reply::Decoded { .. }));
    let mut old = Client::connect(rig.address, 5);
    let handle = old.open("app");
    assert!(matches!(old.pull(handle, Token(6), program[0]), Reply::Block { .. }));
}

#[test]
fn a_page_that_a_learned_program_has_not_comes_with_its_block() {
    let bytes = image(30);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 1000);
    let (mut first, _) = teach(&rig, 1, &all[..999]);
    first.status_until(|status| actions(status) == 1);
    let (mut far, handle) = device(&rig, 2, 30_000);
    assert!(matches!(far.pull(handle, Token(2), all[0]), Reply::Pages { .. }));
    assert!(matches!(far.pull(handle, Token(2), all[999]), Reply::Block { .. }));
}

/// A program of an image is learned and started again. Its page 40 was pushed, and is to be asked
/// for as if it had not come.
fn asks_for_what_was_pushed(bytes: &[u8]) -> (Rig, Client, ImageHandle, PageId) {
    let (rig, _) = Rig::with_image(bytes, |_| {});
    let all = program(bytes, 5, 1000);
    let (mut first, _) = teach(&rig, 1, &all);
    first.status_until(|status| actions(status) == 1);
    let (mut far, handle) = device(&rig, 2, 30_000);
    far.credits = true;
    assert!(matches!(far.pull(handle, Token(2), all[0]), Reply::Pages { .. }));
    far.until(|far| far.have.contains(&all[40]));
    (rig, far, handle, all[40])
}

#[test]
fn regress_a_page_that_the_device_dropped_comes_with_its_block() {
    let (_rig, mut far, handle, page) = asks_for_what_was_pushed(&image(30));
    assert!(matches!(far.pull(handle, Token(2), page), Reply::Block { .. }), "no push brings its neighbours");
}

#[test]
fn regress_a_large_block_is_not_sent_for_a_page_that_was_pushed_just_now() {
    let (_rig, mut far, handle, page) = asks_for_what_was_pushed(&large_blocks(30));
    assert!(matches!(far.pull(handle, Token(2), page), Reply::Pages { .. }));
    let ask = far.pull_request(handle, Token(2), page, true);
    assert!(matches!(far.ask(ask), Reply::Block { .. }), "it insists");
}
