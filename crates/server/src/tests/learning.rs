//! Learning and pushing: what one run teaches, the next one is sent. Counts, never times.

use std::collections::BTreeSet;

use predict::Mode;
use serde_json::Value;
use store::Store;
use units::{PageId, Token};
use wire::{ClientConfig, ImageHandle, PushEncoding, PushEndReason, Reply, Request};

use super::bundles::wants_lz4;
use super::client::Client;
use super::rig::{Rig, image, program};
use crate::{Config, Provider};

/// Runs `program` to its end on a device of its own, so that the server learns it. Returns the
/// client.
pub(super) fn teach(rig: &Rig, device: u128, program: &[PageId]) -> (Client, ImageHandle) {
    let mut client = Client::connect(rig.address, device);
    let handle = client.open("app");
    let token = Token(device << 64);
    let demanded = client.run(handle, token, program);
    assert_eq!(demanded, program.len(), "nothing was known yet");
    client.end(handle, token);
    // Answered behind the end: what was learned is there for other connections.
    client.status();
    (client, handle)
}

pub(super) fn actions(status: &Value) -> u64 {
    status["images"][0]["actions"].as_u64().unwrap_or(0)
}

pub(super) fn bundles(status: &Value) -> u64 {
    status["images"][0]["bundles"].as_u64().unwrap_or(0)
}

pub(super) fn without_bundles(config: &mut Config) {
    config.learning.provider = Provider::NvAsync;
}

pub(super) fn set(pages: &[PageId]) -> BTreeSet<PageId> {
    pages.iter().copied().collect()
}

#[test]
fn the_second_start_demands_one_page_and_is_pushed_the_others_in_order() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 100);
    let (mut first, _) = teach(&rig, 1, &program);
    first.status_until(|status| actions(status) == 1);
    assert_eq!(rig.metrics.pages_pushed.get(), 0);

    let mut second = Client::connect(rig.address, 2);
    let handle = second.open("app");
    assert!(matches!(second.pull(handle, Token(2), program[0]), Reply::Block { .. }));
    second.until(|client| client.have == set(&program));
    second.until(|client| client.streams.values().all(|stream| stream.end.is_some()));
    let stream = second.streams.values().next().unwrap();
    assert_eq!(stream.pages(), program[1..], "all but the page that was demanded, in order");
    assert_eq!((stream.end, stream.push.token), (Some(PushEndReason::Complete), Token(2)));
    assert_eq!(stream.pieces.iter().map(|piece| piece.segment.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(rig.metrics.blocks_demanded.get(), 101);
    assert_eq!(rig.metrics.pages_pushed.get(), 99);
    assert_eq!(rig.metrics.pushes_from_bundle.get(), 0);
}

#[test]
fn a_bundle_is_made_in_the_background_and_pushed_as_one_stream() {
    let bytes = image(4);
    let (rig, store) = Rig::with_image(&bytes, |_| {});
    let program = program(&bytes, 5, 100);
    let (mut first, handle) = teach(&rig, 1, &program);
    first.status_until(|status| bundles(status) == 1 && status["bundles_waiting"] == 0);
    let folder = format!("bundles/{}", first.metadata(handle).id());
    assert_eq!(store.list(&folder).unwrap().len(), 1);

    let mut second = Client::connect(rig.address, 2);
    let handle = second.open("app");
    second.pull(handle, Token(2), program[0]);
    second.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    let stream = second.streams.values().next().unwrap();
    assert_eq!(stream.pages(), program, "a bundle has all pages of the action");
    assert_eq!(stream.push.encoding, PushEncoding::Pieces);
    assert!(stream.push.window_log <= ClientConfig::default().window_log_max, "the clients' own limit");
    assert_eq!(rig.metrics.pushes_from_bundle.get(), 1);
    assert_eq!(rig.metrics.blocks_demanded.get(), 101);
}

#[test]
fn of_a_piece_of_which_the_device_has_most_it_is_pushed_the_rest() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 101);
    let (program, stranger) = (&all[..100], all[100]);
    let (mut first, _) = teach(&rig, 1, program);
    first.status_until(|status| bundles(status) == 1);

    let mut second = Client::connect(rig.address, 2);
    let handle = second.open("app");
    wants_lz4(&mut second);
    // 31 pages of the program come as company of another page; only that one is touched.
    let company = [&[stranger], &program[33..64]].concat();
    let reply = second.ask(Request::PullPages { image: handle, token: Token(9), pages: company, force: false });
    assert!(matches!(reply, Reply::Pages { .. }), "{reply:?}");
    second.pull(handle, Token(2), program[0]);
    second.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    let stream = second.streams.values().next().unwrap();
    assert_eq!(stream.pages(), [&program[..33], &program[64..]].concat());
    assert_eq!((rig.metrics.pushes_from_bundle.get(), rig.metrics.pages_from_bundle.get()), (1, 68));
    assert_eq!(rig.metrics.pages_push_skipped.get(), 31);
}

#[test]
fn a_device_that_lost_its_pages_is_pushed_all_of_them_again() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 100);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    for (start, token) in [Token(20), Token(21)].into_iter().enumerate() {
        // The page cache was dropped: the first page is demanded again.
        client.have.clear();
        client.pull(handle, token, program[0]);
        client.until(|client| client.have == set(&program));
        client.until(|client| client.streams.values().filter(|stream| stream.end.is_some()).count() == start + 1);
        client.end(handle, token);
    }
    assert_eq!(rig.metrics.pages_pushed.get(), 2 * 99);
}

#[test]
fn the_end_of_a_program_ends_its_push_and_the_next_one_gets_the_rest() {
    let bytes = image(12);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 400);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    client.credits = false;
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    client.until(|client| client.have.len() > 30);
    client.end(handle, Token(2));
    client.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    let stream = client.streams.values().next().unwrap();
    assert_eq!(stream.end, Some(PushEndReason::TokenEnded));
    let got = client.have.len();
    assert!(got < 300, "the window without credits holds much less than the program: {got}");

    client.credits = true;
    client.credit_all();
    // The next instance touches its first page, which is in the page cache by now, and every
    // segment as it comes.
    for page in program.iter().step_by(32) {
        client.until(|client| client.have.contains(page));
        client.touch(handle, Token(3), &[*page]);
    }
    client.until(|client| client.have == set(&program));
    let again: usize = client.streams.values().map(|stream| stream.pages().len()).sum();
    assert_eq!(again, 399, "no page was pushed twice");
}

#[test]
fn a_stream_that_the_client_stops_stays_stopped() {
    let bytes = image(12);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 400);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    client.credits = false;
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    client.until(|client| !client.have.is_empty() && !client.streams.is_empty());
    let stream = *client.streams.keys().next().unwrap();
    client.stop_push(stream);
    client.until(|client| client.streams[&stream].end.is_some());
    assert_eq!(client.streams[&stream].end, Some(PushEndReason::Stopped));
    client.credits = true;
    client.credit_all();
    for page in program.iter().step_by(32) {
        client.touch(handle, Token(2), &[*page]);
    }
    // Two answers later everything that those touches could cause has come.
    client.status();
    client.status();
    assert_eq!(client.streams.len(), 1);
    assert_eq!(rig.metrics.pushes_cancelled.get(), 1);
}

#[test]
fn a_page_that_is_on_its_way_is_not_sent_twice_unless_forced() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 100);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    client.credits = false;
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    client.until(|client| client.have.contains(&program[1]));
    let stream = *client.streams.keys().next().unwrap();
    let ask = client.pull_request(handle, Token(2), program[1], false);
    assert_eq!(client.ask(ask), Reply::OnTheWay { stream });
    let forced = client.pull_request(handle, Token(2), program[1], true);
    assert!(matches!(client.ask(forced), Reply::Block { .. }));
    assert_eq!(rig.metrics.demands_on_the_way.get(), 1);
    // Once it is credited it is no longer on its way: the client asks because it lost it.
    client.credits = true;
    client.credit_all();
    client.until(|client| client.have == set(&program));
    client.until(|client| client.streams.values().all(|stream| stream.end.is_some()));
    client.credit_all();
    assert!(matches!(client.pull(handle, Token(2), program[50]), Reply::Block { .. }));
}

#[test]
fn a_page_a_little_further_ahead_comes_with_the_push_and_a_far_one_is_answered() {
    let bytes = image(12);
    // The first order is for the whole program.
    let (rig, _) = Rig::with_image(&bytes, |config| {
        config.learning.provider = Provider::NvAsync;
        config.learning.predict.lookahead_first = 64;
    });
    let program = program(&bytes, 5, 480);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    client.credits = false;
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    // Without credits the push stops at the window. One page further, and the last page:
    let stuck = |client: &mut Client| {
        let mut before = usize::MAX;
        while client.have.len() != before {
            before = client.have.len();
            client.status();
            client.status();
        }
    };
    client.until(|client| client.have.len() > 32);
    stuck(&mut client);
    let next = program.iter().position(|page| !client.have.contains(page)).unwrap();
    let stream = *client.streams.keys().next().unwrap();
    assert!(next + 33 < program.len(), "the window holds less than the program: {next}");
    let near = client.pull_request(handle, Token(2), program[next + 32], false);
    assert_eq!(client.ask(near), Reply::OnTheWay { stream });
    assert!(matches!(client.pull(handle, Token(2), program[479]), Reply::Block { .. }));
    client.credits = true;
    client.credit_all();
    // The far touch holds the push until the program goes on where it was.
    let demanded = client.run(handle, Token(2), &program[1..479]);
    assert!(demanded < 100, "the push does not go on: {demanded} of {} pages were demanded", 479 - next);
    assert_eq!(client.have, set(&program));
}

#[test]
fn reads_that_belong_to_no_program_teach_nothing_and_are_pushed_nothing() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 100);
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    assert_eq!(client.run(handle, Token(0), &program), 100);
    client.touch(handle, Token(0), &program);
    client.end(handle, Token(0));
    // A program that is told apart from it is the first to teach.
    let (mut first, _) = teach(&rig, 2, &program);
    let status = first.status_until(|status| actions(status) > 0);
    assert_eq!((actions(&status), &status["images"][0]["predictor"]["constructs"]), (1, &Value::from(1)));
    let mut second = Client::connect(rig.address, 3);
    let handle = second.open("app");
    for page in &program[..2] {
        assert!(matches!(second.pull(handle, Token(0), *page), Reply::Block { .. }));
    }
    second.pull(handle, Token(5), program[0]);
    second.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    assert!(second.streams.values().all(|stream| stream.push.token == Token(5)));
    assert_eq!(rig.metrics.pushes_started.get(), 1);
}

#[test]
fn stray_demands_of_a_warm_device_bring_little() {
    let bytes = image(12);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 480);
    teach(&rig, 1, &program);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    for page in program.iter().step_by(32) {
        client.until(|client| client.have.contains(page));
        client.touch(handle, Token(2), &[*page]);
    }
    client.until(|client| client.have == set(&program));
    client.end(handle, Token(2));
    let pushed = rig.metrics.pages_pushed.get();
    // The next start finds all but four pages in the page cache.
    for page in [70, 200, 330, 470] {
        client.pull(handle, Token(3), program[page]);
    }
    client.end(handle, Token(3));
    client.status();
    client.status();
    assert!(rig.metrics.pages_pushed.get() - pushed <= 4, "{} of 480 again", rig.metrics.pages_pushed.get() - pushed);
}

#[test]
fn two_devices_with_two_programs_each_do_not_disturb_each_other() {
    let bytes = image(8);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let all = program(&bytes, 5, 270);
    let programs = [all[..120].to_vec(), all[120..].to_vec()];
    for (device, program) in programs.iter().enumerate() {
        let mut client = Client::connect(rig.address, 100 + device as u128);
        let handle = client.open("app");
        let token = Token(1000 + device as u128);
        client.run(handle, token, program);
        client.end(handle, token);
        client.status_until(|status| actions(status) == device as u64 + 1);
    }
    let address = rig.address;
    let demanded_before = rig.metrics.blocks_demanded.get();
    let runs: Vec<_> = (0..4u128)
        .map(|run| {
            let program = programs[run as usize % 2].clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(address, 200 + run / 2);
                let handle = client.open("app");
                client.pull(handle, Token(run + 1), program[0]);
                client.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
                let tokens: BTreeSet<Token> = client.streams.values().map(|stream| stream.push.token).collect();
                (tokens, client.have)
            })
        })
        .collect();
    let mut have = [BTreeSet::new(), BTreeSet::new()];
    for (run, thread) in runs.into_iter().enumerate() {
        let (tokens, pages) = thread.join().unwrap();
        assert_eq!(tokens, BTreeSet::from([Token(run as u128 + 1)]), "only its own pages");
        have[run / 2].extend(pages);
    }
    assert_eq!(have, [set(&all), set(&all)]);
    assert_eq!(rig.metrics.blocks_demanded.get() - demanded_before, 4);
}

#[test]
fn the_connection_that_pushes_acts_on_touches_from_another() {
    let bytes = image(12);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let program = program(&bytes, 5, 400);
    teach(&rig, 1, &program);
    let mut pushed = Client::connect(rig.address, 2);
    pushed.credits = false;
    let handle = pushed.open("app");
    pushed.pull(handle, Token(2), program[0]);
    pushed.until(|client| client.have.len() > 10);
    let mut other = Client::connect(rig.address, 2);
    let handle = other.open("app");
    other.end(handle, Token(2));
    pushed.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    assert_eq!(pushed.streams.values().next().unwrap().end, Some(PushEndReason::TokenEnded));
}

#[test]
fn a_run_that_leaves_its_action_is_no_longer_pushed() {
    let bytes = image(12);
    let (rig, _) = Rig::with_image(&bytes, without_bundles);
    let all = program(&bytes, 5, 460);
    let (program, others) = all.split_at(400);
    teach(&rig, 1, program);
    let mut client = Client::connect(rig.address, 2);
    client.credits = false;
    let handle = client.open("app");
    client.pull(handle, Token(2), program[0]);
    client.until(|client| !client.streams.is_empty());
    for page in others {
        client.pull(handle, Token(2), *page);
    }
    client.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    assert_eq!(client.streams.values().next().unwrap().end, Some(PushEndReason::Mismatch));
    assert_eq!(rig.metrics.pushes_cancelled.get(), 1);
}

#[test]
fn a_device_that_wants_no_push_gets_none_and_one_without_memory_gets_plain_bytes() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let program = program(&bytes, 5, 100);
    teach(&rig, 1, &program);
    let mut none = Client::with(rig.address, ClientConfig { device: 2, push_bytes_max: 0, ..ClientConfig::default() });
    let handle = none.open("app");
    assert_eq!(none.run(handle, Token(2), &program), 100);
    assert_eq!(none.streams.len(), 0);

    let mut small = Client::with(rig.address, ClientConfig { device: 3, window_log_max: 0, ..ClientConfig::default() });
    let handle = small.open("app");
    small.pull(handle, Token(3), program[0]);
    small.until(|client| client.have == set(&program));
    let push = small.streams.values().next().unwrap().push;
    assert_eq!((push.encoding, push.window_log), (PushEncoding::Pieces, 0));
}

#[test]
fn without_learning_nothing_is_learned_or_pushed() {
    let bytes = image(4);
    let (rig, store) = Rig::with_image(&bytes, |config| config.learning.enabled = false);
    let program = program(&bytes, 5, 100);
    for device in [1, 2] {
        let (mut client, _) = teach(&rig, device, &program);
        assert_eq!(actions(&client.status()), 0);
    }
    assert_eq!(rig.metrics.pushes_started.get(), 0);
    rig.stop();
    assert_eq!(store.list("learned").unwrap(), []);
}

#[test]
fn the_papers_mode_pushes_one_segment_for_each_match() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |config| {
        config.learning.predict.mode = Mode::Paper;
        config.learning.provider = Provider::NvAsync;
    });
    let program = program(&bytes, 5, 128);
    let pull = |device: u128| {
        let mut client = Client::connect(rig.address, device);
        let handle = client.open("app");
        let mut demanded = 0;
        for (index, page) in program.iter().enumerate() {
            // The second page is the match. A program that runs away from the first piece is served
            // page by page.
            if device == 2 && index == 2 {
                client.until(|client| client.have.contains(page));
            }
            if client.have.contains(page) {
                client.touch(handle, Token(device), &[*page]);
                continue;
            }
            let ask = Request::PullPages { image: handle, token: Token(device), pages: vec![*page], force: false };
            match client.ask(ask) {
                Reply::Pages { .. } => {
                    client.have.insert(*page);
                    demanded += 1;
                }
                Reply::OnTheWay { .. } => client.until(|client| client.have.contains(page)),
                other => panic!("{other:?}"),
            }
        }
        client.end(handle, Token(device));
        client.status_until(|status| actions(status) == 1);
        (demanded, client)
    };
    let (first, _) = pull(1);
    assert_eq!(first, 128, "constructing: one page for each request");
    let (second, client) = pull(2);
    assert!(second < 64, "{second} of 128 pages were demanded one by one");
    let pushed: usize = client.streams.values().map(|stream| stream.pages().len()).sum();
    assert!(pushed >= 64, "{pushed}");
    // The page that is demanded between two segments does not end the stream.
    let ends: Vec<_> = client.streams.values().map(|stream| stream.end).collect();
    assert!(ends == [None] || ends == [Some(PushEndReason::Complete)], "{ends:?}");
    assert!(client.streams.values().all(|stream| stream.pieces.iter().all(|piece| piece.pages.len() <= 32)));
}
