//! A volume for writing is not used where others could read and change what is sent.

use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use connection::{Connected, Tag, VolumeMessage};
use units::Moment;
use wire::volume::{Secret, VolumeAsk, VolumeReply};
use wire::{ImageHandle, Reply, Request};

use super::HERE;
use crate::engine::{Engine, Time};
use crate::outbox::{Held, Stored, StoredBase};
use crate::{ErrorKind, Options, StreamError, VolumeInfo};

/// An engine whose volume is the server's number 1, and what is told of its opening.
struct Device {
    engine: Engine,
    opened: Receiver<Result<VolumeInfo, StreamError>>,
    generation: u64,
}

/// A connection to another machine.
fn elsewhere() -> Connected {
    Connected { address: "203.0.113.5:7327".parse().unwrap(), ..HERE }
}

/// Time of everything here.
fn now() -> Time {
    Time { now: Moment(1_000_000_000), wall_ns: 0 }
}

impl Device {
    fn new(insecure: bool, unsent: Vec<Stored>) -> Device {
        let (tell, opened) = channel();
        let options = Options { insecure, ..Options::default() };
        let opening = Box::new(move |outcome| tell.send(outcome).unwrap());
        Device {
            engine: Engine::new("data", options, Held { next_number: 9, stored: unsent, ..Held::default() }, opening),
            opened,
            generation: 0,
        }
    }

    /// Connects anew, and the server opens the volume. Returns the requests that follow.
    fn connect(&mut self, connected: Connected, writable: bool) -> Vec<(Tag, Request)> {
        if self.generation > 0 {
            self.engine.lost(now(), "gone");
        }
        self.generation += 1;
        self.engine.connected(now(), self.generation, connected);
        let [(tag, Request::VolumeOpen { .. })] = &self.asked()[..] else { panic!("the volume is asked for first") };
        let opened = Reply::VolumeOpened { volume: ImageHandle(1), id: 1, block_bytes: 4096, writable, nonce: 5 };
        self.engine.answered(now(), *tag, Ok(opened));
        self.asked()
    }

    fn answer(&mut self, tag: Tag, reply: VolumeReply) {
        self.engine.answered(now(), tag, Ok(Reply::Volume(reply)));
    }

    fn asked(&mut self) -> Vec<(Tag, Request)> {
        let effects = self.engine.take_effects();
        effects.finished.into_iter().for_each(|finish| finish());
        let messages = effects.messages.into_iter();
        messages
            .filter_map(|(_, message)| match message {
                VolumeMessage::Request { tag, ask, .. } => Some((tag, ask)),
                _ => None,
            })
            .collect()
    }
}

/// How opening ends: whether the volume can be written, or the error.
fn opening(connected: Connected, writable: bool, insecure: bool) -> Result<bool, ErrorKind> {
    let mut device = Device::new(insecure, Vec::new());
    device.connect(connected, writable);
    let outcome = device.opened.try_recv().expect("it ended");
    outcome.map(|info| info.writable).map_err(|error| error.kind())
}

#[test]
fn a_volume_for_writing_needs_a_connection_that_others_cannot_change() {
    assert_eq!(opening(elsewhere(), true, false), Err(ErrorKind::Exposed));
    assert_eq!(opening(elsewhere(), true, true), Ok(true));
    assert_eq!(opening(elsewhere(), false, false), Ok(false));
    assert_eq!(opening(Connected { encrypted: true, ..elsewhere() }, true, false), Ok(true));
    assert_eq!(opening(HERE, true, false), Ok(true));
}

#[test]
fn unsent_changes_wait_for_such_a_connection() {
    let bytes = Bytes::from_static(b"new");
    let change = wire::volume::Change::Write { path: "f".into(), base: None, offset: 0, bytes };
    let stored =
        Stored { number: 3, known_as: 3, volume: 1, mtime_ns: 0, base: StoredBase::Free, changes: vec![change] };
    let mut device = Device::new(false, vec![stored]);
    // The name leads to another address today.
    assert!(device.connect(elsewhere(), true).is_empty());
    assert!(device.connect(elsewhere(), true).is_empty());
    let asked = device.connect(HERE, true);
    let [(enrol, Request::Volume { ask: VolumeAsk::Enrol, .. })] = asked[..] else { panic!("{asked:?}") };
    let secret = Secret([1; 32]);
    device.answer(enrol, VolumeReply::Enrolled { number: 7, secret });
    let asked = device.asked();
    let [(prove, Request::Volume { ask: VolumeAsk::Prove { number: 7, .. }, .. })] = asked[..] else {
        panic!("{asked:?}")
    };
    device.answer(prove, VolumeReply::Proven);
    let asked = device.asked();
    assert!(matches!(&asked[..], [(_, Request::Volume { ask: VolumeAsk::Commit { .. }, .. })]), "{asked:?}");
}

#[test]
fn what_was_opened_for_reading_is_read_when_the_server_lets_others_write() {
    let mut device = Device::new(false, Vec::new());
    device.connect(elsewhere(), false);
    assert!(!device.opened.try_recv().unwrap().unwrap().writable);
    device.connect(elsewhere(), true);
    assert!(device.engine.status().connected);
    device.connect(HERE, true);
    assert!(device.engine.status().connected);
}
