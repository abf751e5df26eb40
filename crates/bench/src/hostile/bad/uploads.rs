//! Peers that announce uploads and do not get on with them.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use units::{RequestId, Token};
use wire::format::{PUT_HEAD_BYTES, PUTS_MAX};
use wire::{ClientConfig, ClientEvent, ImageHandle, Reply, Request};

use super::{Attack, TURN};
use crate::hostile::connection::{Connection, Reading};
use crate::hostile::device::no_page;

/// Metadata that is announced: so much that memory is asked for.
const METADATA_BYTES: u64 = 1 << 20;

/// How often a connection says something.
const TALK_PERIOD: Duration = Duration::from_secs(1);

/// Time before an upload that was refused is announced again.
const AGAIN: Duration = Duration::from_millis(100);

/// Announces uploads, and sends nothing of them.
pub(super) fn announce_only(attack: &mut Attack) -> io::Result<()> {
    announce(attack, |_, _| Ok(()))
}

/// Announces uploads, and sends a byte of each once a second.
pub(super) fn send_slowly(attack: &mut Attack) -> io::Result<()> {
    announce(attack, |connection, puts| {
        for (put, sent) in puts {
            // More than the head would be refused.
            if *sent < PUT_HEAD_BYTES {
                connection.wire.put_meta(*put, *sent, Bytes::from_static(b"R")).map_err(io::Error::other)?;
                *sent += 1;
            }
        }
        Ok(())
    })
}

/// Keeps as many uploads announced as the protocol allows, and calls `go_on` now and then. Talks
/// meanwhile, so that the connection itself looks alive.
fn announce(
    attack: &mut Attack,
    mut go_on: impl FnMut(&mut Connection, &mut BTreeMap<RequestId, u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut connection = attack.connect(ClientConfig::default(), None)?;
    let mut puts: BTreeMap<RequestId, u64> = BTreeMap::new();
    let (mut announce_next, mut talk_next) = (Instant::now(), Instant::now());
    while !attack.is_over() {
        let now = Instant::now();
        if now >= announce_next {
            while puts.len() < PUTS_MAX {
                puts.insert(connection.request(announcement())?, 0);
                attack.acted(1);
            }
            announce_next = now + AGAIN;
        }
        if now >= talk_next && connection.wire.hello().is_some() {
            let page = no_page(&mut attack.rng);
            connection.wire.touch(ImageHandle(0), Token(1), vec![page]).map_err(io::Error::other)?;
            go_on(&mut connection, &mut puts)?;
            talk_next = now + TALK_PERIOD;
        }
        connection.turn(now + TURN, Reading::Events)?;
        while let Some(event) = connection.wire.poll_event() {
            match event {
                ClientEvent::Reply { request, reply } => {
                    puts.remove(&request);
                    if matches!(reply, Reply::Error { .. }) {
                        attack.refused();
                    }
                }
                ClientEvent::Expired { request } => drop(puts.remove(&request)),
                ClientEvent::Closed(error) => return Err(io::Error::other(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn announcement() -> Request {
    Request::PutOpen {
        name: "never".to_owned(),
        file_bytes: PUT_HEAD_BYTES + METADATA_BYTES,
        metadata_offset: PUT_HEAD_BYTES,
        metadata_bytes: METADATA_BYTES,
    }
}
