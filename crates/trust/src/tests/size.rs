//! What a signed name costs on the wire.

use super::publisher::{Publisher, START, stapled};
use crate::{Cache, Known, Stapled, UnixTime, Verifier};

/// A publisher of eight names, delegated by the owner of the server.
fn publisher() -> Publisher {
    let mut publisher = Publisher::new();
    publisher.names.clear();
    let names: Vec<String> = (0..4).map(|number| format!("camera.app:{number}")).collect();
    let names: Vec<(&str, u64)> = names.iter().map(|name| (&name[..], 7)).collect();
    publisher.delegate("targets", "camera", &["camera.*"], &names);
    publisher
}

/// Opens a name as a device and a server do; returns the bytes of the request and of the answer.
fn exchange(device: &mut Verifier, cache: &mut Cache, publisher: &Publisher) -> (usize, usize) {
    let known = cache.known(device.root_version()).encode();
    let mut answer = stapled(&publisher.files());
    answer.omit(&Known::decode(&known).expect("known"));
    let bytes = answer.encode().expect("fits");
    let answer = cache.complete(Stapled::decode(&bytes).expect("an answer"));
    device.verify(&answer, "camera.app:3", Some(UnixTime(START))).expect("accepted");
    cache.keep(&answer);
    *cache = Cache::decode(&cache.encode());
    (known.len(), bytes.len())
}

#[test]
fn only_new_files_travel() {
    let mut publisher = publisher();
    let mut device = Verifier::new(&publisher.files()["root"]).expect("a root");
    let mut cache = Cache::default();
    let first = exchange(&mut device, &mut cache, &publisher);
    let same = exchange(&mut device, &mut cache, &publisher);
    publisher.timestamp.version += 1;
    let refreshed = exchange(&mut device, &mut cache, &publisher);
    publisher.timestamp.version += 1;
    publisher.snapshot.version += 1;
    publisher.delegated[0].role.version += 1;
    let pushed = exchange(&mut device, &mut cache, &publisher);
    println!("bytes of request and answer: first {first:?}, same {same:?}, refreshed {refreshed:?}, pushed {pushed:?}");
    assert_eq!(same, (33, 4));
    assert!(first.1 < 3400 && refreshed.1 < 600 && pushed.1 < 2500);
    // A device without a connection.
    let offline = cache.complete(Stapled::default());
    assert!(device.verify(&offline, "camera.app:1", None).is_ok());
    assert!(device.verify(&offline, "camera.app:9", None).is_err());
}

#[test]
fn a_cache_is_bounded() {
    let mut cache = Cache::default();
    for number in 0..100 {
        let mut answer = Stapled::default();
        answer.push(&format!("r{number}"), vec![0; 1 << (number % 18)]);
        cache.keep(&answer);
        let bytes = cache.encode();
        assert!(!bytes.is_empty() && bytes.len() <= 64 << 10);
        assert_eq!(Cache::decode(&bytes), cache);
        assert!(cache.known(1).encode().len() <= 129);
    }
    assert_eq!(Cache::decode(b"damaged"), Cache::default());
}
