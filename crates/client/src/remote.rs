//! Opening an image on a server: connect, open, fetch the metadata, start the lanes.
//!
//! Hello and Open leave together, then the superblock and all pieces of the metadata are asked for at once: three round
//! trips from nothing to a mount. What the server announces is checked against our limits before a byte of it is
//! fetched, and nothing of it is believed before [`Metadata::open`] has checked it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;

use image::{Metadata, ReadAt};
use units::ImageId;
use wire::{ClientEvent, ImageHandle, Reply, Request};

use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::lane::{Lane, answer_time, wire_config};
use crate::session::{LaneHandle, Session, random_number, spawn};
use crate::target::{ImageName, Remote};
use crate::waker::Waker;

/// Bytes of metadata asked for at once. Several answers are under way together.
const PIECE_BYTES: u64 = 256 << 10;

/// Pieces under way together; the server bounds what it queues for one connection in the same way.
const PIECES_MAX: usize = 16;

/// The superblock is one page at the start of the file.
const SUPERBLOCK_BYTES: u64 = image::format::SUPERBLOCK_BYTES as u64;

/// What the server says of an image it opened.
struct Opened {
    image: ImageHandle,
    id: ImageId,
    file_bytes: u64,
    region: Range<u64>,
}

/// Superblock and metadata region of an image whose blocks are elsewhere.
struct Fetched {
    /// The superblock, then the region.
    bytes: Vec<u8>,
    region: Range<u64>,
    file_bytes: u64,
}

pub(crate) fn open(remote: &Remote, config: Config) -> Result<Arc<Session>, ClientError> {
    let clock = Clock::start();
    let device = random_number()?;
    let mut connection =
        Connection::connect(&remote.server, wire_config(&config, device), clock, config.open_deadline)?;
    let opened = open_image(&mut connection, remote, &config, clock)?;
    let metadata = Arc::new(fetch(&mut connection, &opened, remote, &config, clock)?);
    let mut handles = Vec::new();
    let mut threads = Vec::new();
    for _ in 0..config.lanes() {
        let (commands, receiver) = channel();
        let waker = Arc::new(Waker::new().map_err(ClientError::System)?);
        handles.push(LaneHandle { commands, waker: Some(Arc::clone(&waker)) });
        threads.push((receiver, waker));
    }
    let (session, shared) = Session::start(metadata, config, clock, device, handles, true)?;
    // Up before its thread runs: what is asked from now on waits in the channel.
    let traffic = connection.machine.traffic();
    shared.run(|schedule, now| {
        schedule.lane_traffic(0, traffic.bytes_received, traffic.bytes_sent);
        schedule.lane_up(now, 0, false);
    });
    let mut ready = Some((connection, opened.image));
    for (lane, (commands, waker)) in threads.into_iter().enumerate() {
        let lane = Lane { shared: Arc::clone(&shared), server: remote.server.clone(), lane, commands, waker };
        let ready = ready.take();
        spawn("runnel-lane", move || lane.work(ready))?;
    }
    Ok(session)
}

fn open_image(
    connection: &mut Connection,
    remote: &Remote,
    config: &Config,
    clock: Clock,
) -> Result<Opened, ClientError> {
    let server = || remote.server.clone();
    let until = clock.now().after(config.open_deadline);
    let ask = Request::Open { name: remote.image.to_string() };
    let request = connection.machine.request_until(clock.now(), ask, until).map_err(|why| connection.refused(why))?;
    let Reply::Opened { image, id, file_bytes, metadata_offset, metadata_bytes } = connection.answer(request, until)?
    else {
        // The state machine lets no other answer through.
        return Err(ClientError::NoAnswer { server: server(), waited: config.open_deadline });
    };
    if let ImageName::Id(expected) = remote.image
        && id != expected
    {
        return Err(ClientError::StaleImage { server: server(), expected, found: Some(id) });
    }
    let max = config.limits.metadata_bytes_max;
    if metadata_bytes > max {
        return Err(ClientError::MetadataTooLarge { server: server(), found: metadata_bytes, max });
    }
    let end = metadata_offset.checked_add(metadata_bytes).filter(|end| *end <= file_bytes);
    let Some(end) = end.filter(|_| metadata_offset >= SUPERBLOCK_BYTES) else {
        return Err(ClientError::Contradiction {
            server: server(),
            what: "place of the metadata",
            expected: format!("within {SUPERBLOCK_BYTES}..{file_bytes}"),
            found: format!("{metadata_bytes} bytes at {metadata_offset}"),
        });
    };
    Ok(Opened { image, id, file_bytes, region: metadata_offset..end })
}

fn fetch(
    connection: &mut Connection,
    opened: &Opened,
    remote: &Remote,
    config: &Config,
    clock: Clock,
) -> Result<Metadata, ClientError> {
    let wanted = SUPERBLOCK_BYTES + (opened.region.end - opened.region.start);
    let until = clock.now().after(answer_time(config.open_deadline, wanted));
    let mut fetched =
        Fetched { bytes: vec![0; wanted as usize], region: opened.region.clone(), file_bytes: opened.file_bytes };
    let mut asked = HashMap::new();
    let mut next = 0;
    let mut missing = wanted;
    while missing > 0 {
        while next < wanted && asked.len() < PIECES_MAX {
            let piece = next..Fetched::piece_end(next, wanted);
            let (image, bytes) = (opened.image, (piece.end - piece.start) as u32);
            let ask = Request::MetaRead { image, offset: fetched.file_offset(piece.start), bytes };
            let request = connection.machine.request_until(clock.now(), ask, until);
            next = piece.end;
            asked.insert(request.map_err(|why| connection.refused(why))?, piece);
        }
        match connection.event(until)? {
            ClientEvent::Reply { request, reply } => {
                let reply = connection.accept(reply)?;
                let (Some(piece), Reply::MetaData { bytes, .. }) = (asked.remove(&request), reply) else { continue };
                // The state machine lets only answers of the right length through.
                fetched.bytes[piece.start as usize..piece.end as usize].copy_from_slice(&bytes);
                missing -= piece.end - piece.start;
            }
            ClientEvent::Expired { .. } => {
                return Err(ClientError::NoAnswer { server: remote.server.clone(), waited: config.open_deadline });
            }
            _ => {}
        }
    }
    let metadata = Metadata::open(&fetched, &config.limits).map_err(|source| {
        let name = format!("{}/{}", remote.server, remote.image);
        ClientError::Image { name, source }
    })?;
    if metadata.id() != opened.id {
        return Err(ClientError::Contradiction {
            server: remote.server.clone(),
            what: "id of the image",
            expected: opened.id.to_string(),
            found: metadata.id().to_string(),
        });
    }
    Ok(metadata)
}

impl Fetched {
    /// Pieces end at the superblock's end and every [`PIECE_BYTES`] after it.
    fn piece_end(start: u64, end: u64) -> u64 {
        if start < SUPERBLOCK_BYTES { SUPERBLOCK_BYTES } else { end.min(start + PIECE_BYTES) }
    }

    /// Where a byte of `bytes` lies in the image file.
    fn file_offset(&self, at: u64) -> u64 {
        if at < SUPERBLOCK_BYTES { at } else { self.region.start + (at - SUPERBLOCK_BYTES) }
    }
}

impl ReadAt for Fetched {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = offset.checked_add(buf.len() as u64).ok_or_else(outside)?;
        let start = if end <= SUPERBLOCK_BYTES {
            offset
        } else if offset >= self.region.start && end <= self.region.end {
            SUPERBLOCK_BYTES + (offset - self.region.start)
        } else {
            return Err(outside());
        };
        let start = start as usize;
        buf.copy_from_slice(self.bytes.get(start..start + buf.len()).ok_or_else(outside)?);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file_bytes)
    }
}
