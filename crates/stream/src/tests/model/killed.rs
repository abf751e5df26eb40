//! Processes that are killed, and the next ones that go on from their records.

use super::{Model, seeds};
use crate::call::Call;
use crate::tests::sim::{Faults, Sim, options, with_outbox};
use crate::tests::writers::{WRITE, open, write};

/// The process of a device is killed again and again. Who uses the next one sees a pause, and
/// nothing else: what was written is there, also what no server has, and what was asked for is done
/// once.
#[test]
fn sim_a_killed_process_loses_nothing() {
    let killed = std::cell::Cell::new(0);
    seeds(60, |seed| {
        let mut model = Model::new(seed);
        model.sim.keep_records(model.at);
        model.sim.kills = 4;
        for _ in 0..120 {
            model.crash_sometimes();
            model.step();
        }
        model.sim.kills = 0;
        model.finish();
        killed.set(killed.get() + model.sim.killed);
    });
    if std::env::var_os("RUNNEL_STREAM_SEED").is_none() {
        assert!(killed.get() >= 1000, "{} processes were killed", killed.get());
    }
}

/// A process of another version may find the records. Who changes what stands in them changes their
/// version, too.
#[test]
fn records_are_of_this_version() {
    let mut sim = Sim::new(3, Faults::default());
    let at = sim.add_device(with_outbox(options()));
    sim.until(|sim| sim.devices[0].storage.who.identity.is_some());
    sim.keep_records(at);
    let handle = open(&mut sim, at, "f", WRITE).unwrap();
    write(&mut sim, at, handle, 7, b"some bytes".to_vec()).unwrap();
    let _ = sim.call(at, |done| Call::Sync { handle, done });
    let _ = sim.call(at, |done| Call::Remove { path: b"g".to_vec(), done });
    // What changed last, and all of it.
    let mut records = sim.devices[at].records.clone().expect("they are kept");
    records.extend(sim.devices[at].engine.take_records(true));
    // What is random goes.
    let identity = sim.devices[at].storage.who.identity.expect("the server gave it one");
    let volume = sim.volume.as_ref().expect("it is up").id();
    let random = [identity.number, volume].map(|number| postcard::to_stdvec(&number).expect("a number"));
    for random in random.iter().map(Vec::as_slice).chain([&identity.secret.0[..]]) {
        assert!(records.windows(random.len()).any(|part| part == random), "it is recorded");
        while let Some(found) = records.windows(random.len()).position(|part| part == random) {
            records.drain(found..found + random.len());
        }
    }
    let hash = blake3::hash(&records).to_hex();
    assert_eq!(&hash[..16], "41a5ca73e4029e22", "increase VERSION in engine/records.rs, and put this hash here");
}
