//! Hints: pages that a client asks to be pushed. Counts, never times.

use image::{Limits, Metadata};
use units::{InodeId, PageId, Token};
use wire::format::{HINT_ACTION, HINT_PAGES_MAX, HINT_PAGES_WAITING_MAX};
use wire::{ClientConfig, ImageHandle, PushEncoding, PushEndReason, Reply};

use super::bundles::wants_lz4;
use super::client::Client;
use super::learning::{actions, set, teach};
use super::rig::{Rig, image, noise, program};

/// The token of hints in these tests.
const HINTS: Token = Token(77);

/// Waits until every stream that was started has ended, and at least `count` were.
fn until_streams_end(client: &mut Client, count: usize) {
    client.until(|client| client.streams.len() >= count && client.streams.values().all(|stream| stream.end.is_some()));
}

fn pages(inode: InodeId, range: std::ops::Range<u32>) -> Vec<PageId> {
    range.map(|index| PageId::new(inode, index)).collect()
}

fn inode(image: &[u8], path: &[u8]) -> InodeId {
    Metadata::open(&image, &Limits::default()).unwrap().resolve(path).unwrap()
}

#[test]
fn exactly_the_hinted_pages_come_in_their_order_and_nothing_is_learned() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    wants_lz4(&mut client);
    let wanted = program(&bytes, 3, 100);
    let holed = inode(&bytes, b"/holed");
    // A hole, a page behind the end of a file, an inode that is none.
    let strangers = [PageId::new(holed, 3), PageId::new(holed, 900), PageId::new(InodeId(9999), 0)];
    client.hint(handle, HINTS, &[&strangers[..1], &wanted[..], &strangers[1..]].concat());
    until_streams_end(&mut client, 1);
    let stream = client.streams.values().next().unwrap();
    assert_eq!(stream.pages(), wanted);
    assert_eq!((stream.push.action, stream.push.token), (HINT_ACTION, HINTS));
    assert_eq!((stream.push.encoding, stream.push.audit), (PushEncoding::Pieces, false));
    assert_eq!(stream.end, Some(PushEndReason::Complete));
    assert_eq!(actions(&client.status()), 0);
    assert_eq!((rig.metrics.hints.get(), rig.metrics.pages_hinted.get()), (1, 100));
    assert_eq!((rig.metrics.blocks_demanded.get(), rig.metrics.pages_touched.get()), (0, 0));
}

#[test]
fn the_device_says_what_it_lacks_also_of_pages_that_were_sent() {
    let bytes = image(2);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let wanted = program(&bytes, 3, 40);
    for round in 1..=2 {
        client.hint(handle, HINTS, &wanted);
        until_streams_end(&mut client, round);
    }
    assert!(client.streams.values().all(|stream| stream.pages() == wanted));
    // Within one hint nothing comes twice.
    client.hint(handle, HINTS, &[&wanted[..], &wanted[..]].concat());
    until_streams_end(&mut client, 3);
    assert_eq!(client.streams.values().last().unwrap().pages(), wanted);
}

#[test]
fn a_program_of_which_all_was_hinted_is_pushed_nothing_twice() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |config| config.learning.provider = crate::Provider::NvAsync);
    let program = program(&bytes, 5, 100);
    let (mut first, _) = teach(&rig, 1, &program);
    first.status_until(|status| actions(status) == 1);
    let mut second = Client::connect(rig.address, 2);
    let handle = second.open("app");
    second.hint(handle, HINTS, &program[1..]);
    until_streams_end(&mut second, 1);
    assert_eq!(second.run(handle, Token(2), &program), 1);
    second.end(handle, Token(2));
    second.status();
    assert_eq!(rig.metrics.pages_pushed.get(), 99, "all by the hint");
    assert_eq!(second.have, set(&program));
}

/// A client that gives no credit, with an image that fills any window.
fn stuck(blocks: usize) -> (Rig, Client, ImageHandle, InodeId) {
    let bytes = noise(blocks);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::with(rig.address, ClientConfig { device: 1, ..ClientConfig::default() });
    client.credits = false;
    let handle = client.open("app");
    (rig, client, handle, inode(&bytes, b"/noise"))
}

#[test]
fn further_hints_extend_the_stream_and_demands_overtake_it() {
    let (rig, mut client, handle, noise) = stuck(40);
    for first in (0..600).step_by(100) {
        client.hint(handle, HINTS, &pages(noise, first..first + 100));
    }
    // Answered although the window is full and not a byte is credited.
    let reply = client.pull(handle, Token(5), PageId::new(noise, 599));
    assert!(matches!(reply, Reply::Block { .. }), "{reply:?}");
    assert!(rig.metrics.pages_pushed.get() < 200, "{} pages", rig.metrics.pages_pushed.get());
    client.credits = true;
    client.credit_all();
    until_streams_end(&mut client, 1);
    assert_eq!(client.streams.len(), 1);
    // The page that was demanded meanwhile is left out.
    assert_eq!(client.streams.values().next().unwrap().pages(), pages(noise, 0..599));
}

#[test]
fn one_token_at_a_time_is_hinted_for_until_it_ends() {
    let (rig, mut client, handle, noise) = stuck(20);
    client.hint(handle, HINTS, &pages(noise, 0..300));
    client.hint(handle, Token(78), &pages(noise, 300..310));
    client.until(|client| !client.streams.is_empty());
    client.end(handle, HINTS);
    until_streams_end(&mut client, 1);
    assert_eq!(client.streams.values().next().unwrap().end, Some(PushEndReason::TokenEnded));
    client.credits = true;
    client.credit_all();
    client.hint(handle, Token(78), &pages(noise, 310..312));
    until_streams_end(&mut client, 2);
    assert_eq!(client.streams.values().last().unwrap().pages(), pages(noise, 310..312));
    assert_eq!(rig.metrics.pages_hinted.get(), 302);
}

#[test]
fn a_client_that_hints_without_end_and_takes_nothing_is_bounded() {
    let (rig, mut client, handle, noise) = stuck(80);
    let some = pages(noise, 0..HINT_PAGES_MAX as u32);
    for _ in 0..70 {
        client.hint(handle, HINTS, &some);
    }
    client.status();
    assert_eq!(rig.metrics.hints.get(), 70);
    let (hinted, pushed) = (rig.metrics.pages_hinted.get(), rig.metrics.pages_pushed.get());
    assert!(hinted <= HINT_PAGES_WAITING_MAX as u64 + 256, "{hinted} pages taken");
    assert!(pushed < 256, "{pushed} pages built");
    client.until(|client| !client.streams.is_empty());
    let stream = *client.streams.keys().next().unwrap();
    client.stop_push(stream);
    until_streams_end(&mut client, 1);
}
