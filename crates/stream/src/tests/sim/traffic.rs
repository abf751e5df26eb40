//! What goes over a connection of the world, and the server's answers.

use super::*;

pub(super) fn deliver_up(pipe: &mut Pipe, now: Moment, part: u64, random: u64) -> bool {
    let part = part.min(pipe.passes).min(pipe.up.len() as u64);
    pipe.passes -= if pipe.passes == u64::MAX { 0 } else { part };
    let mut bytes: Vec<u8> = pipe.up.drain(..part as usize).collect();
    let damaged = pipe.flip_in == u64::MAX || damage(&mut pipe.flip_in, &mut bytes, random);
    if !bytes.is_empty() && pipe.server.receive(now, &bytes).is_err() {
        assert!(damaged, "the client keeps the rules");
        pipe.passes = 0;
    }
    part > 0
}

pub(super) fn run_messages(pipe: &mut Pipe, time: Time) {
    while let Some(message) = pipe.messages.front().cloned() {
        let client = &mut pipe.client;
        let told = match message {
            VolumeMessage::Request { tag, ask, time: limit } => {
                match client.request_until(time.now, ask, time.now.after(limit)) {
                    Ok(request) => {
                        pipe.asked.insert(request, tag);
                        Ok(())
                    }
                    Err(refused @ (Refused::Full { .. } | Refused::NotReady)) => Err(refused),
                    Err(refused) => panic!("the engine keeps the limits: {refused}"),
                }
            }
            VolumeMessage::Notice(notice) => client.notify(notice),
        };
        match told {
            Err(Refused::Full { .. } | Refused::NotReady) => return,
            other => other.unwrap(),
        }
        pipe.messages.pop_front();
    }
}

pub(super) fn take_events(pipe: &mut Pipe, engine: &mut Engine, time: Time) {
    while let Some(event) = pipe.client.poll_event() {
        match event {
            ClientEvent::Reply { request, reply } => {
                if let Some(tag) = pipe.asked.remove(&request) {
                    engine.answered(time, tag, Ok(reply));
                }
            }
            ClientEvent::Expired { request } => {
                if let Some(tag) = pipe.asked.remove(&request) {
                    engine.answered(time, tag, Err(Unanswered::Expired));
                }
            }
            ClientEvent::PushStart { stream, push } => engine.push_started(time, stream, push),
            ClientEvent::Push { piece, credit } => engine.pushed(time, piece, credit),
            ClientEvent::PushEnd { stream, reason } => engine.push_ended(time, stream, reason),
            ClientEvent::Closed(_) => pipe.passes = 0,
            _ => {}
        }
    }
}

/// The server answers what arrived.
pub(super) fn serve(rng: &mut SplitMix64, volume: &Option<Volume>, faults: &Faults, pipe: &mut Pipe, now: u64) {
    let Some(volume) = volume else { return };
    while let Some(event) = pipe.server.poll_event() {
        let ServerEvent::Request { request, ask } = event else { continue };
        let reply = match ask {
            Request::VolumeOpen { .. } => Reply::VolumeOpened {
                volume: VOLUME,
                id: volume.id(),
                block_bytes: BLOCK,
                writable: true,
                nonce: pipe.nonce,
            },
            Request::Volume { ask, .. } => {
                let caller = Caller { nonce: pipe.nonce, ..Caller::new(pipe.proven, Moment(now)) };
                let proves = if let VolumeAsk::Prove { number, .. } = &ask { *number } else { 0 };
                if let VolumeAsk::PullBlocks { force: false, .. } = &ask
                    && faults.pushes
                    && rng.below(3) == 0
                {
                    match push(rng, volume, &caller, &ask, pipe) {
                        Some(reply) => reply,
                        None => continue,
                    }
                } else {
                    match answer(volume, &pipe.files, &caller, &ask) {
                        Ok(reply) => {
                            if reply == VolumeReply::Proven {
                                pipe.proven = proves;
                                volume.locks().returned(Holder(proves), Moment(now));
                            }
                            Reply::Volume(reply)
                        }
                        Err(failure) => Reply::error(failure.code, failure.text),
                    }
                }
            }
            _ => Reply::error(wire::ErrorCode::BadRequest, "not here"),
        };
        if faults.late > 0 && rng.below(faults.late) == 0 {
            pipe.late.push_back((request, reply));
            continue;
        }
        // A machine that stopped tells nothing.
        let _ = pipe.server.reply(request, reply);
    }
    if faults.late > 0 {
        if rng.below(4) == 0
            && let Some((request, reply)) = pipe.late.pop_front()
        {
            let _ = pipe.server.reply(request, reply);
        }
        // It waits for nothing but its turn, so it must not wait for time to pass.
        let mut out = Vec::new();
        pipe.server.transmit(Moment(now), &mut out, 4096);
        pipe.down.extend(&out);
    }
}

/// Pushes what was asked for, now or never.
fn push(rng: &mut SplitMix64, volume: &Volume, caller: &Caller, ask: &VolumeAsk, pipe: &mut Pipe) -> Option<Reply> {
    let VolumeAsk::PullBlocks { token, blocks, .. } = ask else { return None };
    let Ok(VolumeReply::Blocks { version, size, codec, bytes }) = answer(volume, &pipe.files, caller, ask) else {
        return Some(Reply::error(wire::ErrorCode::Busy, "again"));
    };
    let header = PushHeader {
        image: VOLUME,
        token: *token,
        action: ActionId(1),
        encoding: PushEncoding::Volume,
        window_log: 0,
        audit: false,
    };
    let stream = pipe.server.push_start(header).ok()?;
    let piece = VolumePiece { version, size, codec, bytes };
    let piece = PushPiece { stream, segment: SegmentIndex(0), pages: blocks.clone(), bytes: piece.to_bytes() };
    if rng.below(4) > 0 {
        pipe.pushing.push_back((stream, Some(piece)));
    }
    pipe.pushing.push_back((stream, None));
    Some(Reply::OnTheWay { stream })
}

pub(super) fn push_some(pipe: &mut Pipe) {
    if let Some((stream, piece)) = pipe.pushing.pop_front() {
        match piece {
            Some(piece) => drop(pipe.server.push(piece)),
            None => drop(pipe.server.push_end(stream, PushEndReason::Complete)),
        }
    }
}
