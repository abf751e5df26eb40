//! The state: what it keeps, and that damage is found.

use super::publisher::{Publisher, START, stapled};
use crate::digest::short;
use crate::memory::{Visited, remember, role_id};
use crate::{Kind, State, StateError, UnixTime, Verifier};

const NOW: Option<UnixTime> = Some(UnixTime(START));

/// A repository with the most keys, and `roles` delegated roles `r0`, `r1`, and so on.
fn large(roles: usize) -> Publisher {
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    for (role, label) in [
        (&mut publisher.root, "r"),
        (&mut publisher.timestamp, "ti"),
        (&mut publisher.snapshot, "s"),
        (&mut publisher.targets, "ta"),
    ] {
        role.keys = (0..8).map(|number| format!("{label}{number}")).collect();
        role.threshold = 8;
    }
    for number in 0..roles {
        let name = format!("lib{number}:1");
        publisher.delegate("targets", &format!("r{number}"), &[&name], &[(&name, number as u64)]);
    }
    publisher
}

fn open(device: &mut Verifier, publisher: &Publisher, name: &str) -> Result<(), Kind> {
    device.verify(&stapled(&publisher.files()), name, NOW).map(drop).map_err(|refusal| refusal.kind())
}

#[test]
fn the_largest_state_fits() {
    let mut publisher = large(100);
    let mut device = Verifier::new(&publisher.files()["root"]).expect("a root");
    assert_eq!(open(&mut device, &publisher, "lib99:1"), Ok(()));
    let bytes = device.state().encode();
    assert_eq!(bytes.len(), 4073);
    assert_eq!(State::decode(&bytes).as_ref(), Ok(device.state()));
    // One key more is refused, not forgotten.
    publisher.targets.keys.push("one more".to_owned());
    assert_eq!(
        Verifier::new(&publisher.files()["root"]).map(drop).map_err(|refusal| refusal.kind()),
        Err(Kind::Oversized)
    );
}

#[test]
fn roles_that_were_read_are_remembered_before_others() {
    let mut publisher = large(100);
    let mut device = Verifier::new(&publisher.files()["root"]).expect("a root");
    for number in [90, 80, 90] {
        assert_eq!(open(&mut device, &publisher, &format!("lib{number}:1")), Ok(()));
    }
    (publisher.timestamp.version, publisher.snapshot.version) = (2, 2);
    for number in 0..100 {
        publisher.delegated[number].role.version = 7;
    }
    assert_eq!(open(&mut device, &publisher, "lib5:1"), Ok(()));
    (publisher.timestamp.version, publisher.snapshot.version) = (3, 3);
    for (number, expected) in
        [(80, Err(Kind::Rollback)), (90, Err(Kind::Rollback)), (5, Err(Kind::Rollback)), (99, Ok(()))]
    {
        let mut attack = publisher.clone();
        attack.delegated[number].role.version = 6;
        assert_eq!(open(&mut device.clone(), &attack, "app:1"), expected, "{number}");
    }
}

#[test]
fn memory_is_bounded_and_keeps_its_order() {
    let listing: Vec<_> = (0..200).map(|number| (role_id(&format!("r{number}")), 1 + number)).collect();
    let visited = [Visited { name: "r150", version: 151, content: [1; 16] }];
    let first = remember(&listing, &visited, &[]);
    assert_eq!((first.len(), first[0].role), (56, role_id("r150")));
    let visited = [Visited { name: "r160", version: 161, content: [2; 16] }];
    let second = remember(&listing, &visited, &first);
    assert_eq!((second[0].role, second[1].role, second.len()), (role_id("r160"), role_id("r150"), 56));
    assert_eq!(second[1].content, Some([1; 16]));
    // With a new version, the content is no longer known; a role that is gone is forgotten.
    let newer: Vec<_> = listing.iter().map(|(role, version)| (*role, version + 1)).collect();
    assert_eq!(remember(&newer, &[], &second)[1].content, None);
    assert_eq!(remember(&newer[..10], &[], &second).len(), 10);
}

#[test]
fn damage_is_found() {
    let publisher = Publisher::new();
    let mut device = Verifier::new(&publisher.files()["root"]).expect("a root");
    let fresh = device.state().encode();
    assert_eq!(State::decode(&fresh).as_ref(), Ok(device.state()));
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(()));
    let good = device.state().encode();
    assert!(good.len() < 600, "{}", good.len());
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        assert!(State::decode(&flipped).is_err(), "{at}");
        assert!(State::decode(&good[..at]).is_err(), "{at}");
        // A torn write: the beginning of one and the end of another.
        let torn = [&fresh[..at.min(fresh.len())], &good[at.min(fresh.len())..]].concat();
        assert!(torn == good || torn == fresh || State::decode(&torn).is_err(), "{at}");
    }
    assert_eq!(State::decode(&[0; 5000]), Err(StateError::NotState { found: 5000 }));
    let mut newer = good.clone();
    newer[4] = 2;
    assert_eq!(State::decode(&newer), Err(StateError::Version { found: 2, expected: 1 }));
}

/// A state whose bytes are pinned: this layout must open for ever.
#[test]
fn the_layout_is_pinned() {
    let publisher = Publisher::new();
    let mut device = Verifier::new(&publisher.files()["root"]).expect("a root");
    assert_eq!(open(&mut device, &publisher, "app:1"), Ok(()));
    let bytes = device.state().encode();
    assert_eq!(super::publisher::hex(&short::<8>(&bytes)), "f774f61d0eace735");
}
