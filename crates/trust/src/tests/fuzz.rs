//! Fuzzers: random and mutated bytes against every reader of foreign bytes.
//!
//! What must hold: no panic; what a decoder accepts is exactly what the encoder writes; a file that
//! was changed is never accepted. `RUNNEL_FUZZ_ROUNDS` makes a run longer.

use serde_json::{Value, json};
use units::{Rng, SplitMix64};

use super::publisher::{Files, Publisher, START, sign, stapled};
use crate::json::Json;
use crate::{Cache, Known, Stapled, State, UnixTime, Verifier};

const NOW: Option<UnixTime> = Some(UnixTime(START));

fn rounds(usual: u64) -> u64 {
    std::env::var("RUNNEL_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

/// Changes a few bytes: flips, overwrites with telling values, cuts, repeats.
fn mutate(rng: &mut SplitMix64, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'[', b'\\', b'9'][rng.below(10) as usize],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.next_u64() as u8),
            4 => drop(bytes.drain(at..(at + rng.below(9) as usize).min(bytes.len()))),
            _ if bytes.len() < 20_000 => bytes.extend_from_within(at..),
            _ => {}
        }
    }
}

fn repository() -> Publisher {
    let mut publisher = Publisher { has_hashes: false, ..Publisher::new() };
    publisher.delegate("targets", "lib", &["lib:*"], &[("lib:1", 7)]);
    publisher
}

#[test]
fn fuzz_frames() {
    let mut rng = SplitMix64(1);
    let files = repository().files();
    let mut answer = stapled(&files);
    answer.push_root(files["root"].clone());
    let mut cache = Cache::default();
    cache.keep(&answer);
    let mut device = Verifier::new(&files["root"]).expect("a root");
    device.verify(&stapled(&files), "lib:1", NOW).expect("accepted");
    let samples = [
        answer.encode().expect("fits"),
        cache.known(70_000).encode(),
        device.state().encode(),
        Stapled::default().encode().expect("fits"),
    ];
    let mut accepted = 0;
    for round in 0..rounds(20_000) {
        let mut bytes = samples[round as usize % samples.len()].clone();
        mutate(&mut rng, &mut bytes);
        if let Ok(stapled) = Stapled::decode(&bytes) {
            assert_eq!(stapled.encode().as_ref(), Ok(&bytes));
            accepted += 1;
        }
        if let Ok(known) = Known::decode(&bytes) {
            assert_eq!(known.encode(), bytes);
        }
        if let Ok(state) = State::decode(&bytes) {
            assert_eq!(state.encode(), bytes);
        }
        let cache = Cache::decode(&bytes);
        assert!(cache.encode().len() <= 64 << 10);
    }
    assert!(accepted > 100, "{accepted}");
}

/// States whose checksum is right and whose fields are not: a program of another version, or a
/// thief with the device's flash. No panic, and what is read is written again in the same way.
#[test]
fn fuzz_states_with_good_checksums() {
    let mut rng = SplitMix64(2);
    let files = repository().files();
    let mut device = Verifier::new(&files["root"]).expect("a root");
    device.verify(&stapled(&files), "lib:1", NOW).expect("accepted");
    let good = device.state().encode();
    let mut accepted = 0;
    for _ in 0..rounds(20_000) {
        let mut bytes = good[..good.len() - 8].to_vec();
        mutate(&mut rng, &mut bytes);
        bytes.truncate(4088);
        let checksum = crate::digest::short::<8>(&bytes);
        bytes.extend_from_slice(&checksum);
        if let Ok(state) = State::decode(&bytes) {
            assert_eq!(state.encode(), bytes);
            let mut device = Verifier::resume(&files["root"], state).expect("a root");
            let _ = device.verify(&stapled(&files), "lib:1", NOW);
            accepted += 1;
        }
    }
    assert!(accepted > 100, "{accepted}");
}

/// Signed bodies with wrong fields: what whoever has a role's key can make a device read.
#[test]
fn fuzz_signed_bodies() {
    let mut rng = SplitMix64(3);
    let good = repository().files();
    let mut accepted = 0;
    for _ in 0..rounds(4_000) {
        let mut files: Files = good.clone();
        let names: Vec<String> = files.keys().cloned().collect();
        let role = &names[rng.below(names.len() as u64) as usize];
        let mut file: Value = serde_json::from_slice(&files[role]).expect("JSON");
        let mut body = file["signed"].take();
        for _ in 0..1 + rng.below(2) {
            change(&mut rng, &mut body);
        }
        files.insert(role.clone(), sign(&body, std::slice::from_ref(role)));
        if let Ok(mut device) = Verifier::new(&files["root"]) {
            accepted += u64::from(device.verify(&stapled(&files), "lib:1", NOW).is_ok());
            assert!(device.state().encode().len() <= 4096);
            let mut answer = stapled(&good);
            answer.push_root(files["root"].clone());
            let _ = device.verify(&answer, "lib:1", None);
        }
    }
    assert!(accepted > 100, "{accepted}");
}

/// Changes one value somewhere below.
fn change(rng: &mut SplitMix64, value: &mut Value) {
    let children = match value {
        Value::Object(map) => map.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if children > 0 && rng.below(6) > 0 {
        let at = rng.below(children as u64) as usize;
        let child = match value {
            Value::Object(map) => map.values_mut().nth(at),
            Value::Array(items) => items.get_mut(at),
            _ => None,
        };
        return change(rng, child.expect("counted"));
    }
    let strange = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(""),
        json!("x".repeat(300)),
        json!([]),
        json!({}),
        json!([[[]]]),
        json!("9999-12-31T23:59:59Z"),
        json!({"a.json": {"version": 1}}),
    ];
    *value = strange[rng.below(strange.len() as u64) as usize].clone();
}

/// Files that were changed after they were signed: none with another meaning is accepted.
#[test]
fn fuzz_changed_files() {
    let mut rng = SplitMix64(4);
    let good = repository().files();
    let roles: Vec<&String> = good.keys().filter(|role| *role != "root").collect();
    let meaning = |bytes: &[u8]| -> Option<Value> {
        Some(serde_json::from_slice::<Value>(bytes).ok()?.get_mut("signed")?.take())
    };
    for _ in 0..rounds(4_000) {
        let mut files = good.clone();
        let role = roles[rng.below(roles.len() as u64) as usize];
        let bytes = files.get_mut(role).expect("a file");
        mutate(&mut rng, bytes);
        let _ = Json::parse(bytes);
        let is_same = meaning(bytes) == meaning(&good[role]);
        let mut device = Verifier::new(&good["root"]).expect("a root");
        let found = device.verify(&stapled(&files), "lib:1", NOW);
        assert!(found.is_err() || is_same, "{role}");
        let mut root = good["root"].clone();
        mutate(&mut rng, &mut root);
        let _ = Verifier::new(&root);
    }
}
