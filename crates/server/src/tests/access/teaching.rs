//! What one principal teaches does not change what another one is pushed, and who may not teach
//! changes nothing.

use std::collections::BTreeSet;

use store::{Listed, Store};
use units::{PageId, Token};

use super::Guarded;
use crate::tests::client::Client;
use crate::tests::rig::{image, program};

const RULES: &str = "[principal.ci]\npull = [\"*\"]\nstat = true\n[principal.vandal]\npull = [\"*\"]\nstat = true\n\
                     [principal.pupil]\npull = [\"*\"]\nteach = false\nstat = true\n";

/// A run of a program, whose end the server has seen.
fn run(client: &mut Client, token: u128, program: &[PageId]) {
    let handle = client.open("app");
    client.run(handle, Token(token), program);
    client.end(handle, Token(token));
    client.status();
}

fn pages_of(client: &mut Client) -> (u64, u64) {
    let status = client.status();
    let of = |name: &str| status["images"][0][name].as_u64().unwrap();
    (of("actions"), of("action_pages"))
}

/// The pages that a start of a device with nothing gets for its first one.
fn pushed(client: &mut Client, program: &[PageId]) -> BTreeSet<PageId> {
    let handle = client.open("app");
    client.pull(handle, Token(1), program[0]);
    client.until(|client| program.iter().all(|page| client.have.contains(page)));
    client.have.clone()
}

#[test]
fn one_who_teaches_garbage_does_not_change_what_another_one_is_pushed() {
    let server = Guarded::with_learning(RULES, true);
    let bytes = image(8);
    server.store.put_atomic("app.rnl", &bytes).unwrap();
    let (ci, vandal) = (server.token("ci"), server.token("vandal"));
    let program_pages = program(&bytes, 5, 120);
    run(&mut server.device_with(&ci, 1), 1, &program_pages);
    let all: BTreeSet<PageId> = program_pages.iter().copied().collect();
    assert_eq!(pushed(&mut server.device_with(&ci, 2), &program_pages), all);
    // As the program begins, and then anything: as often as it can.
    for device in 0..30 {
        let mut garbage = program(&bytes, 100 + device, 60);
        garbage.retain(|page| *page != program_pages[0]);
        garbage.insert(0, program_pages[0]);
        run(&mut server.device_with(&vandal, 100 + u128::from(device)), 7, &garbage);
    }
    for device in 200..203 {
        assert_eq!(pushed(&mut server.device_with(&ci, device), &program_pages), all);
    }
    // Whose the actions are is known after a restart, too.
    server.rig.stop();
    let saved = server.store.list("learned").unwrap();
    let Listed::Object(key) = &saved[0] else { panic!("{saved:?}") };
    let saved = profile::decode(&server.store.get(key, 1 << 20).unwrap(), &profile::Limits::default()).unwrap();
    let teachers: BTreeSet<profile::Teacher> = saved.iter().map(|action| action.teacher).collect();
    assert!(teachers.len() >= 2 && !teachers.contains(&profile::Teacher::ANYBODY), "{teachers:?}");
}

#[test]
fn who_may_not_teach_is_pushed_to_and_teaches_nothing() {
    let server = Guarded::with_learning(RULES, true);
    let bytes = image(8);
    server.store.put_atomic("app.rnl", &bytes).unwrap();
    let (ci, pupil) = (server.token("ci"), server.token("pupil"));
    let known = program(&bytes, 5, 120);
    run(&mut server.device_with(&pupil, 1), 1, &known);
    let mut reader = server.device_with(&ci, 2);
    run(&mut reader, 1, &known);
    let before = pages_of(&mut reader);
    assert_eq!(before.0, 1, "one has taught");
    for device in 10..15 {
        run(&mut server.device_with(&pupil, device), 1, &program(&bytes, device as u64, 60));
    }
    let all: BTreeSet<PageId> = known.iter().copied().collect();
    assert_eq!(pushed(&mut server.device_with(&pupil, 20), &known), all);
    assert_eq!(pages_of(&mut reader), before);
}
