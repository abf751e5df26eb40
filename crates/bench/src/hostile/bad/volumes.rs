//! Peers that take leases on files that are not there, and say that they are devices that nobody
//! knows.

use std::io;
use std::time::Instant;

use units::Rng;
use wire::volume::{LeaseKind, Secret, VolumeAsk};
use wire::{ClientConfig, ClientEvent, ImageHandle, Reply, Request};

use super::{Attack, CONNECT_TIME, TURN};
use crate::hostile::connection::Reading;
use crate::hostile::content::VOLUME;
use crate::hostile::device::open_volume;

/// Requests that have no answer yet.
const IN_FLIGHT: usize = 16;

/// Requests over one connection.
const REQUESTS: u64 = 2000;

/// Takes leases on invented files; in between tries to be an invented device, or to go on as one.
pub(super) fn take_leases(attack: &mut Attack) -> io::Result<()> {
    let deadline = Instant::now() + CONNECT_TIME;
    let mut connection = attack.connect(ClientConfig::default(), None)?;
    let mut identity = None;
    let volume = open_volume(&mut connection, &mut identity, deadline)?;
    let reply = connection.ask(Request::VolumeOpen { name: VOLUME.to_owned() }, deadline)?;
    let Reply::VolumeOpened { id, nonce, .. } = reply else { return Err(io::Error::other("no volume")) };
    let (number, secret) = identity.ok_or_else(|| io::Error::other("no identity"))?;
    let known = Known { volume, id, nonce, number, secret };
    let mut asked = 0;
    while !attack.is_over() && asked < REQUESTS {
        while connection.wire.requests_in_flight() < IN_FLIGHT {
            let ask = known.next(attack);
            connection.request(ask)?;
            asked += 1;
            attack.acted(1);
        }
        connection.turn(Instant::now() + TURN, Reading::Events)?;
        while let Some(event) = connection.wire.poll_event() {
            match event {
                ClientEvent::Reply { reply: Reply::Error { .. }, .. } => attack.refused(),
                ClientEvent::Closed(error) => return Err(io::Error::other(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// What the server told: an identity that is in order, and what proofs are made over.
struct Known {
    volume: ImageHandle,
    id: u128,
    nonce: u128,
    number: u128,
    secret: Secret,
}

impl Known {
    fn next(&self, attack: &mut Attack) -> Request {
        let invented = u128::from(attack.rng.next_u64()) << 64 | u128::from(attack.rng.next_u64()) | 1;
        let ask = match attack.rng.below(8) {
            0 => VolumeAsk::Prove { number: invented, proof: [7; 32], previous: 0 },
            // One that is in order, and goes on with a number that nobody had.
            1 => {
                let proof = self.secret.proof(self.id, self.nonce, self.number);
                VolumeAsk::Prove { number: self.number, proof, previous: invented }
            }
            _ => VolumeAsk::Lease {
                file: attack.rng.next_u64(),
                kind: Some(LeaseKind::Exclusive),
                duration_ms: 3_600_000,
            },
        };
        Request::Volume { volume: self.volume, ask }
    }
}
