//! Programs that begin alike: what one of them is pushed waits for touches that tell it from the
//! others. Counts, never times.

use image::{Limits, Superblock};
use profile::{ActionSet, MergeConfig};
use store::{Memory, Store};
use units::{PageId, Token};
use wire::{ClientConfig, ImageHandle, Reply};

use super::client::Client;
use super::learning::{set, without_bundles};
use super::rig::{Rig, config, image, noise, program};
use crate::StoreAt;

/// A server that has learned these programs, and pushes as far ahead as it may.
fn having_learned(bytes: &[u8], programs: &[&[PageId]]) -> Rig {
    let store = Memory::new();
    store.put_atomic("app.rnl", bytes).unwrap();
    let mut actions = ActionSet::new(Superblock::read(&bytes, &Limits::default()).unwrap().id);
    programs.iter().for_each(|program| drop(actions.learn(program, &MergeConfig::default())));
    assert_eq!(actions.len(), programs.len());
    store.put_atomic(&crate::learned::key(actions.image()), &actions.encode()).unwrap();
    let mut config = config(StoreAt::Open(std::sync::Arc::new(store)));
    without_bundles(&mut config);
    config.learning.predict.lookahead_first = 64;
    config.learning.predict.audits = predict::Audits::NONE;
    Rig::start(config)
}

/// A device that demands the first page of a program.
fn start(rig: &Rig, program: &[PageId]) -> (Client, ImageHandle) {
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    demand(&mut client, handle, program[0]);
    (client, handle)
}

fn demand(client: &mut Client, handle: ImageHandle, page: PageId) {
    assert!(matches!(client.pull(handle, Token(2), page), Reply::Block { .. }));
}

/// Answers after which a push that goes on would have brought more.
const ANSWERS: usize = 200;

/// Waits until nothing more comes while the server answers.
fn settle(client: &mut Client) {
    let mut before = usize::MAX;
    while client.have.len() != before {
        before = client.have.len();
        client.status();
        client.status();
    }
}

#[test]
fn a_push_waits_at_the_fork_for_touches_that_tell_two_programs_apart() {
    let bytes = image(16);
    let all = program(&bytes, 5, 500);
    let (alike, own, others) = (&all[..300], &all[300..400], &all[400..]);
    let (program, other) = ([alike, own].concat(), [alike, others].concat());
    let rig = having_learned(&bytes, &[&program, &other]);

    // Whole segments of what both have, though the order could be for all.
    let (mut client, handle) = start(&rig, &program);
    client.until(|client| client.have.len() >= 288);
    settle(&mut client);
    assert_eq!(client.have, set(&all[..288]));

    // It comes to the fork; one segment more is pushed, of the likelier one.
    for at in (32..288).step_by(32) {
        client.touch(handle, Token(2), &[all[at]]);
    }
    client.until(|client| client.have.len() >= 320);
    settle(&mut client);
    assert_eq!(client.have, set(&other[..320]));

    // Two touches that only one has: the push goes on there, and to its end with the next one.
    demand(&mut client, handle, own[0]);
    demand(&mut client, handle, own[1]);
    client.until(|client| client.have.is_superset(&set(&program[..352])));
    client.touch(handle, Token(2), &[program[320]]);
    client.until(|client| client.have.is_superset(&set(&program)));
    settle(&mut client);
    assert!(client.have.is_disjoint(&set(&other[320..])), "what only the other one has is not pushed");
    assert_eq!(rig.metrics.blocks_demanded.get(), 3);
}

#[test]
fn a_touch_far_ahead_holds_a_push_until_the_program_goes_on_where_it_was() {
    let bytes = noise(32);
    let program = program(&bytes, 5, 480);
    let rig = having_learned(&bytes, &[&program]);

    // All is ordered. Without credits the push stops at the window, far before the end: these pages
    // do not compress.
    let config = ClientConfig { device: 2, push_bytes_max: 256 << 10, ..ClientConfig::default() };
    let mut client = Client::with(rig.address, config);
    client.credits = false;
    let handle = client.open("app");
    demand(&mut client, handle, program[0]);
    client.until(|client| client.have.len() >= 32);
    demand(&mut client, handle, program[400]);
    let held = set(&[&program[..128], &program[400..401]].concat());
    client.credits = true;
    client.credit_all();
    (0..ANSWERS).for_each(|_| drop(client.status()));
    assert!(client.have.is_subset(&held), "{} pages came", client.have.len());
    assert!(client.streams.values().all(|stream| stream.end.is_none()), "it is held, not cancelled");

    // The program goes on where it was.
    for at in (32..480).step_by(32) {
        client.touch(handle, Token(2), &[program[at]]);
        client.until(|client| client.have.is_superset(&set(&program[1..480.min(at + 64)])));
    }
    assert_eq!((client.streams.len(), rig.metrics.blocks_demanded.get()), (1, 2));
}
