//! Bundles of actions that change: which pushes they serve, and that the device gets every page,
//! once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use image::fixture::{Fixture, Node};
use image::{Limits, Metadata};
use profile::{ActionSet, MergeConfig};
use store::{Listed, Memory, Store};
use units::{ActionId, ImageId, PageId, Rng, SplitMix64, Token};
use wire::format::{FEATURE_DECODED, FEATURE_PIECES, FEATURES, FEATURES_USUAL};
use wire::{ClientConfig, ImageHandle, Notice, PieceForm, PushEncoding, Reply, Request};

use super::client::Client;
use super::hooked::{Gate, Hooked, Operation};
use super::learning::{bundles, set, teach};
use super::rig::{Rig, config, image, noise, program};
use crate::bundle::Bundle;
use crate::{Logger, StoreAt};

/// Starts `program` on a new device: a demand for each page that does not come by itself. Returns
/// the client after the end.
fn start(rig: &Rig, device: u128, program: &[PageId]) -> (Client, ImageHandle) {
    let mut client = Client::connect(rig.address, device);
    let handle = client.open("app");
    client.run(handle, Token(device << 64), program);
    client.end(handle, Token(device << 64));
    client.status();
    (client, handle)
}

#[test]
fn regress_starts_that_vary_are_pushed_from_the_bundle_that_was_made_first() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 700);
    let mut rng = SplitMix64(9);
    // Each start leaves out another tenth of the pages behind the first ones, which an interpreter
    // would have.
    let mut vary = || -> Vec<PageId> {
        let kept = all.iter().enumerate().filter(|(at, _)| *at < 100 || rng.below(10) > 0);
        kept.map(|(_, page)| *page).collect()
    };
    let (mut first, _) = teach(&rig, 1, &vary());
    first.status_until(|status| bundles(status) == 1);
    for device in 2..=5 {
        let built = rig.metrics.pushes_from_bundle.get();
        let run = vary();
        let (client, _) = start(&rig, device, &run);
        assert!(client.have.is_superset(&set(&run)), "start {device}");
        assert_eq!(rig.metrics.pushes_from_bundle.get(), built + 1, "start {device} came from the bundle");
        let pushed: Vec<PageId> = client.streams.values().flat_map(|stream| stream.pages()).collect();
        let distinct: BTreeSet<PageId> = pushed.iter().copied().collect();
        assert_eq!(distinct.len(), pushed.len(), "no page came on two streams");
    }
    let (held, pushed) = (rig.metrics.pages_from_bundle.get(), rig.metrics.pages_pushed.get());
    assert!(held * 5 > pushed * 4, "{held} of {pushed} pushed pages were out of bundles");
}

#[test]
fn regress_what_strangers_touch_does_not_fill_the_store_with_bundles() {
    let bytes = noise(64);
    let (rig, store) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 600);
    let mut stranger = Client::connect(rig.address, 1);
    let image = stranger.open("app");
    // A hundred programs that nobody starts again, of 501 pages each: first a few, whose bundles
    // are worth their room.
    let touch = |stranger: &mut Client, programs: std::ops::Range<usize>| {
        for number in programs {
            let token = Token(number as u128 + 1);
            let pages = [&all[number..=number], &all[100..]].concat();
            pages.chunks(100).for_each(|pages| stranger.touch(image, token, pages));
            stranger.end(image, token);
        }
    };
    touch(&mut stranger, 0..20);
    stranger.status_until(|status| status["bundles_waiting"] == 0 && rig.metrics.bundle_pages_built.get() == 20 * 501);
    let listed = store.list(&format!("bundles/{}", stranger.metadata(image).id())).unwrap();
    let stored = |entry: &Listed| match entry {
        Listed::Object(key) => store.len(key).unwrap(),
        Listed::Folder(_) => 0,
    };
    let stored: u64 = listed.iter().map(stored).sum();
    assert!((12 << 20..=16 << 20).contains(&stored), "{stored} bytes are bundles of an image of {}", bytes.len());

    touch(&mut stranger, 20..100);
    let status =
        stranger.status_until(|status| status["images"][0]["actions"] == 100 && status["bundles_waiting"] == 0);
    let built = rig.metrics.bundle_pages_built.get();
    assert!(built <= (32 << 10) + 501, "{built} of {} pages were bundled: {status}", 100 * 501);
}

#[test]
fn what_an_old_bundle_lacks_comes_compressed_live_beside_it() {
    let bytes = image(24);
    // The first order is for the whole program.
    let (rig, _) = Rig::with_image(&bytes, |config| config.learning.predict.lookahead_first = 64);
    let all = program(&bytes, 5, 400);
    // The second run needs thirty pages more than the first one, here and there.
    let (new, old): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(at, _)| *at >= 100 && at % 10 == 0);
    let pages = |some: Vec<(usize, &PageId)>| some.into_iter().map(|(_, page)| *page).collect::<Vec<_>>();
    let (new, old) = (pages(new), pages(old));
    let (mut first, _) = teach(&rig, 1, &old);
    first.status_until(|status| bundles(status) == 1);
    start(&rig, 2, &all);

    let mut third = Client::connect(rig.address, 3);
    let handle = third.open("app");
    third.pull(handle, Token(3), all[0]);
    third.until(|client| client.have == set(&all));
    let mut streams: Vec<Vec<PageId>> = third.streams.values().map(|stream| stream.pages()).collect();
    streams.sort_by_key(Vec::len);
    assert_eq!(streams, [new, old], "the bundle as it was made, and beside it what it lacks");
}

#[test]
fn what_a_near_device_taught_is_bundled_uncompressed_too() {
    let bytes = image(24);
    let pages = program(&bytes, 5, 400);
    for (round_trip, is_stored) in [(300, true), (30_000, false)] {
        let (rig, store) = Rig::with_image(&bytes, |_| {});
        let features = FEATURES & !FEATURE_DECODED;
        let mut client = Client::with(rig.address, ClientConfig { device: 1, features, ..ClientConfig::default() });
        let handle = client.open("app");
        client.wire.notify(Notice::DeviceSpeed { round_trip, zstd: 0, lz4: 0 }).unwrap();
        client.run(handle, Token(1), &pages);
        client.end(handle, Token(1));
        client.status_until(|status| bundles(status) == 1 && status["bundles_waiting"] == 0);
        let id = client.metadata(handle).id();
        let bundle = Bundle::open(&store, id, ActionId(1)).unwrap().unwrap();
        assert_eq!(bundle.forms.stored, is_stored);
    }
}

/// Learns `program`, and waits for its bundle.
fn learn(rig: &Rig, program: &[PageId]) {
    let (mut first, _) = teach(rig, 1, program);
    first.status_until(|status| bundles(status) == 1 && status["bundles_waiting"] == 0);
}

/// Says that the device decodes LZ4 at once and zstd for ever.
pub(super) fn wants_lz4(client: &mut Client) {
    client.wire.notify(Notice::DeviceSpeed { round_trip: 0, zstd: 1, lz4: u32::MAX }).unwrap();
}

/// Pages of all streams of a client.
fn pushed(client: &Client) -> Vec<PageId> {
    client.streams.values().flat_map(|stream| stream.pages()).collect()
}

#[test]
fn a_push_that_begins_in_the_middle_of_an_action_comes_from_the_bundle() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |config| config.learning.predict.lookahead_found = 64);
    let all = program(&bytes, 5, 700);
    learn(&rig, &all);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    // The run is found by a page between two borders of pieces.
    wants_lz4(&mut client);
    client.pull(handle, Token(2), all[300]);
    // Of the piece in which it begins 19 pages are needed, most of it.
    client.until(|client| client.have == set(&all[288..]));
    client.status();
    assert_eq!(rig.metrics.pushes_from_bundle.get(), 1);
    assert!(client.streams.values().all(|stream| stream.push.encoding == PushEncoding::Pieces));
    assert_eq!(pushed(&client), all[288..]);
    assert_eq!(rig.metrics.pages_from_bundle.get(), 700 - 288);
}

#[test]
fn a_program_that_skips_much_of_its_action_is_pushed_the_rest_from_the_bundle() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |config| config.learning.predict.lookahead_first = 1);
    let all = program(&bytes, 5, 700);
    learn(&rig, &all);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    wants_lz4(&mut client);
    client.pull(handle, Token(2), all[0]);
    client.until(|client| client.have == set(&all[..64]));
    for page in [200, 450, 580] {
        client.pull(handle, Token(2), all[page]);
    }
    for page in all.iter().step_by(32) {
        client.until(|client| client.have.contains(page));
        client.touch(handle, Token(2), &[*page]);
    }
    client.until(|client| client.have == set(&all));
    assert_eq!(rig.metrics.pushes_from_bundle.get(), rig.metrics.pushes_started.get());
    let (from_bundle, pushed) = (rig.metrics.pages_from_bundle.get(), rig.metrics.pages_pushed.get());
    assert_eq!(from_bundle, pushed, "nothing was compressed live");
}

#[test]
fn whole_pieces_that_the_device_has_are_left_out() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |config| {
        (config.learning.predict.lookahead_first, config.learning.predict.lookahead_audit) = (64, 64);
    });
    let all = program(&bytes, 5, 640);
    learn(&rig, &all);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    wants_lz4(&mut client);
    let has = [&all[64..256], &all[320..330]].concat();
    for pages in has.chunks(32) {
        let pages = pages.to_vec();
        let reply = client.ask(Request::PullPages { image: handle, token: Token(0), pages, force: false });
        assert!(matches!(reply, Reply::Pages { .. }), "{reply:?}");
    }
    client.pull(handle, Token(2), all[0]);
    client.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    assert_eq!(pushed(&client), [&all[..64], &all[256..]].concat());
    assert_eq!(rig.metrics.pages_push_skipped.get(), 192);
}

#[test]
fn an_old_device_is_pushed_what_it_knows() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 300);
    learn(&rig, &all);
    let old = ClientConfig { device: 2, features: FEATURES_USUAL & !FEATURE_PIECES, ..ClientConfig::default() };
    let mut client = Client::with(rig.address, old);
    let handle = client.open("app");
    client.run(handle, Token(2), &all);
    assert_eq!(client.have, set(&all));
    assert!(client.streams.values().all(|stream| stream.push.encoding == PushEncoding::ZstdStream));
    assert_eq!((rig.metrics.pushes_from_bundle.get(), client.streams.is_empty()), (0, false));
}

/// How the first piece is encoded that a device is pushed which says this of itself. Each comes
/// from an address of its own, since what is known of one is taken for true of the next one there.
fn first_form(rig: &Rig, program: &[PageId], device: u8, (round_trip, zstd, lz4): (u32, u32, u32)) -> PieceForm {
    let mut client = Client::connect_from([127, 0, 0, device], rig.address, device.into());
    let device = u128::from(device);
    let handle = client.open("app");
    client.wire.notify(Notice::DeviceSpeed { round_trip, zstd, lz4 }).unwrap();
    client.pull(handle, Token(device), program[0]);
    client.until(|client| client.streams.values().any(|stream| !stream.forms.is_empty()));
    let forms = |stream: &super::client::Stream| stream.forms.first().copied();
    client.streams.values().find_map(forms).unwrap_or_else(|| panic!("{:?}", client.closed))
}

#[test]
fn a_device_says_what_it_decodes_and_is_pushed_in_the_codec_that_suits_it() {
    let bytes = image(24);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 300);
    learn(&rig, &all);
    assert_eq!(first_form(&rig, &all, 2, (100, u32::MAX, 1)), PieceForm::ZstdBegins);
    assert_eq!(first_form(&rig, &all, 3, (40_000, 1, u32::MAX)), PieceForm::Lz4);
}

#[test]
fn before_anything_was_measured_a_near_device_is_pushed_in_the_codec_of_a_lan() {
    // zstd needs two bits for each of these, LZ4 more than twice as many: over 25 Mbit/s they are
    // worth decoding zstd, over 500 Mbit/s they are not.
    let mut rng = SplitMix64(7);
    let content: Vec<u8> = (0..24 * (64 << 10)).map(|_| b"push"[rng.below(4) as usize]).collect();
    let bytes = Fixture::default().pack(&[Node::file(b"noise", &content)]).unwrap();
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 300);
    learn(&rig, &all);
    assert_eq!(first_form(&rig, &all, 2, (500, 0, 0)), PieceForm::Lz4);
    assert_eq!(first_form(&rig, &all, 3, (40_000, 0, 0)), PieceForm::ZstdBegins);
    assert_eq!(first_form(&rig, &all, 4, (0, 0, 0)), PieceForm::ZstdBegins, "it does not say");
}

#[test]
fn a_server_that_starts_again_has_opened_what_is_used() {
    let bytes = image(24);
    let (rig, store) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 300);
    learn(&rig, &all);
    rig.stop();
    let rig = Rig::start(config(StoreAt::Open(Arc::new(store))));
    let mut client = Client::connect(rig.address, 2);
    let status = client.status();
    assert_eq!((bundles(&status), &status["bundles_waiting"]), (1, &0.into()), "before anybody opened it");
    let (mut second, _) = start(&rig, 3, &all);
    second.status_until(|_| rig.metrics.pushes_from_bundle.get() == 1);
}

#[test]
fn regress_bundles_that_are_there_are_opened_before_others_are_made() {
    let bytes = image(24);
    let (rig, store) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 300);
    learn(&rig, &all);
    rig.stop();
    // Another image is used more and has no bundle yet.
    let other = noise(64);
    store.put_atomic("other.rnl", &other).unwrap();
    let mut actions = ActionSet::new(Metadata::open(&other, &Limits::default()).unwrap().id());
    let id = actions.learn(&program(&other, 5, 300), &MergeConfig::default()).action.unwrap();
    (0..9).for_each(|_| actions.credit(id));
    store.put_atomic(&crate::learned::key(actions.image()), &actions.encode()).unwrap();
    // Making it takes until the end of the test.
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let store = Hooked::new(store, move |_, operation| {
        if operation == Operation::Create {
            held.pass();
        }
    });
    let rig = Rig::start(config(StoreAt::Open(Arc::new(store))));
    let status = Client::connect(rig.address, 2).status();
    gate.open();
    let images = status["images"].as_array().unwrap();
    let bundles = |id: ImageId| images.iter().find(|image| image["id"] == id.to_string()).unwrap()["bundles"].clone();
    let app = Metadata::open(&bytes, &Limits::default()).unwrap().id();
    assert_eq!((bundles(app), bundles(actions.image())), (1.into(), 0.into()));
}

#[test]
fn a_full_disk_is_told_once_and_not_at_each_start() {
    let bytes = image(24);
    let memory = Memory::new();
    memory.put_atomic("app.rnl", &bytes).unwrap();
    let mut store = Hooked::new(memory, |_, _| {});
    store.free = Some(1 << 20);
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut config = config(StoreAt::Open(Arc::new(store)));
    config.log = Logger::new({
        let lines = lines.clone();
        move |_, line| lines.lock().unwrap().push(line.to_owned())
    });
    let rig = Rig::start(config);
    let all = program(&bytes, 5, 600);
    for (program, device) in all.chunks(150).zip(1..) {
        let (mut client, _) = teach(&rig, device.into(), program);
        client.status_until(|_| rig.metrics.bundles_failed.get() >= device);
    }
    let said = lines.lock().unwrap().iter().filter(|line| line.contains("undle")).cloned().collect::<Vec<_>>();
    assert!(said.len() == 1 && said[0].contains("free some space"), "{said:?}");
}
