//! Asking a server for an image by its name: what comes before its answer, the answer, and the
//! signatures of the name if it must have some.

use std::ops::Range;

use bytes::Bytes;
use connection::{Clock, Connection, ConnectionError, ImageName, Remote, Server};
use units::{ImageId, Moment};
use wire::format::FEATURE_SIGNED_NAMES;
use wire::{ClientEvent, ImageHandle, Reply, Request};

use crate::config::Config;
use crate::error::ClientError;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};
use crate::signed::{Opening, Verdict};

/// The server's answer to Open.
pub(crate) struct Opened {
    pub image: ImageHandle,
    pub id: ImageId,
    pub file_bytes: u64,
    pub region: Range<u64>,
}

/// What came before the answer to Open, and when.
#[derive(Default)]
pub(crate) struct Begun {
    /// When the server said hello.
    pub(crate) ready: Option<Moment>,
    /// When the first part came, and how much had been received by then.
    pub(crate) first: Option<(Moment, u64)>,
    /// The image of the first part.
    image: Option<ImageHandle>,
    /// The superblock, and the metadata as far as it came in order.
    bytes: Vec<u8>,
    /// Where the metadata lies in the file, as its first part says.
    metadata_offset: u64,
}

pub(crate) fn open_image(
    connection: &mut Connection,
    remote: &Remote,
    config: &Config,
    clock: Clock,
    begun: &mut Begun,
) -> Result<Opened, ClientError> {
    let waited = config.connection.open_deadline;
    let silent = || ConnectionError::NoAnswer { server: remote.server.clone(), waited };
    let until = clock.now().after(waited);
    let ask = |connection: &mut Connection, request: Request| {
        connection.machine.request_until(clock.now(), request, until).map_err(|why| connection.refused(why))
    };
    let mut opening = Opening::begin(&config.signed, remote)?;
    // What was signed comes together with the answer to Open.
    let mut asked = opening.as_ref().map(|opening| ask(connection, opening.request())).transpose()?;
    let request = ask(connection, Request::Open { name: remote.image.to_string() })?;
    let max = SUPERBLOCK_BYTES.saturating_add(config.limits.metadata_bytes_max);
    let (mut opened, mut signed) = (None, None);
    let reply = loop {
        if asked.is_none()
            && let Some(reply) = opened.take()
        {
            break reply?;
        }
        match connection.event(until)? {
            ClientEvent::Ready(hello) => {
                begun.ready = Some(clock.now());
                if opening.is_some() && hello.features & FEATURE_SIGNED_NAMES == 0 {
                    return Err(ClientError::Unsigned { server: remote.server.to_string() });
                }
            }
            ClientEvent::Reply { request: found, reply } if Some(found) == asked => {
                let Some(opening) = &mut opening else { continue };
                // The state machine lets no other answer through.
                let Reply::TrustFiles { codec, raw_bytes, bytes } = connection.accept(reply)? else { continue };
                asked = match opening.verify_packed(codec, raw_bytes, &bytes)? {
                    Verdict::AskAgain => Some(ask(connection, opening.request())?),
                    Verdict::Signed(found) => {
                        signed = Some(found.image);
                        None
                    }
                };
            }
            ClientEvent::Start { image, offset, bytes } => {
                let received = connection.machine.traffic().bytes_received;
                begun.take((image, offset, bytes), max, (clock.now(), received));
            }
            ClientEvent::Reply { request: found, reply } if found == request => {
                // The server answers in any order. What the signatures say is told first, so that
                // one state of the server gives one error.
                opened = Some(connection.accept(reply));
            }
            ClientEvent::Expired { request: found } if found == request || Some(found) == asked => {
                return Err(silent().into());
            }
            _ => {}
        }
    };
    let Reply::Opened { image, id, file_bytes, metadata_offset, metadata_bytes } = reply else {
        // The state machine lets no other answer through.
        return Err(silent().into());
    };
    if let Some(signed) = signed.filter(|signed| *signed != id) {
        // The server's word is another one, as while somebody publishes.
        let by_id = Remote { image: ImageName::Id(signed), ..remote.clone() };
        return open_image(connection, &by_id, config, clock, begun);
    }
    if let ImageName::Id(expected) = remote.image
        && id != expected
    {
        return Err(ClientError::StaleImage { server: remote.server.clone(), expected, found: Some(id) });
    }
    let region = metadata_region(&remote.server, config, metadata_offset, metadata_bytes, file_bytes)?;
    Ok(Opened { image, id, file_bytes, region })
}

/// Where the metadata lies, as the server says it.
fn metadata_region(
    server: &Server,
    config: &Config,
    offset: u64,
    bytes: u64,
    file_bytes: u64,
) -> Result<Range<u64>, ClientError> {
    let max = config.limits.metadata_bytes_max;
    if bytes > max {
        return Err(ClientError::MetadataTooLarge { server: server.clone(), found: bytes, max });
    }
    let end = offset.checked_add(bytes).filter(|end| *end <= file_bytes);
    let end = end.filter(|_| offset >= SUPERBLOCK_BYTES).ok_or_else(|| ClientError::Contradiction {
        server: server.clone(),
        what: "place of the metadata",
        expected: format!("within {SUPERBLOCK_BYTES}..{file_bytes}"),
        found: format!("{bytes} bytes at {offset}"),
    })?;
    Ok(offset..end)
}

impl Begun {
    /// Takes a part if it follows those before it and they make no more than `max` together. What
    /// is not taken is asked for later, so nothing is kept that may not be needed.
    fn take(&mut self, (image, offset, bytes): (ImageHandle, u64, Bytes), max: u64, now: (Moment, u64)) {
        self.first.get_or_insert(now);
        let is_same = *self.image.get_or_insert(image) == image;
        let (have, more) = (self.bytes.len() as u64, bytes.len() as u64);
        if have == SUPERBLOCK_BYTES {
            self.metadata_offset = offset;
        }
        let follows = match have {
            0 => offset == 0 && more <= SUPERBLOCK_BYTES,
            _ => offset.checked_sub(self.metadata_offset) == Some(have - SUPERBLOCK_BYTES),
        };
        if is_same && follows && have + more <= max {
            self.bytes.extend_from_slice(&bytes);
            // Zeros that end the superblock are left out.
            self.bytes.resize(self.bytes.len().max(SUPERBLOCK_BYTES as usize), 0);
        }
    }

    /// What came of the image that was opened.
    pub(crate) fn assemble(self, opened: &Opened) -> Fetched {
        let (region, mut bytes) = (opened.region.clone(), self.bytes);
        let most = match (self.image == Some(opened.image), self.metadata_offset == region.start) {
            (false, _) => 0,
            (true, false) => SUPERBLOCK_BYTES,
            (true, true) => SUPERBLOCK_BYTES + (region.end - region.start),
        };
        bytes.truncate(most as usize);
        Fetched { bytes, region, file_bytes: opened.file_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageHandle = ImageHandle(5);

    fn take(begun: &mut Begun, offset: u64, bytes: u64) {
        begun.take((IMAGE, offset, vec![offset as u8; bytes as usize].into()), 10_000, (Moment(0), 0));
    }

    #[test]
    fn regress_many_small_parts_take_no_more_memory_than_their_bytes() {
        let mut begun = Begun::default();
        take(&mut begun, 0, SUPERBLOCK_BYTES + 1);
        take(&mut begun, 8000, 1);
        assert!(begun.bytes.is_empty(), "no superblock");
        take(&mut begun, 0, SUPERBLOCK_BYTES - 1);
        assert_eq!(begun.bytes.len() as u64, SUPERBLOCK_BYTES, "without the zero that ends it");
        (0..1000).for_each(|_| take(&mut begun, 8000, 1));
        assert_eq!(begun.bytes.len() as u64, SUPERBLOCK_BYTES + 1, "the same part again");
        (8001..30_000).for_each(|offset| take(&mut begun, offset, 1));
        assert_eq!(begun.bytes.len(), 10_000);
        take(&mut begun, u64::MAX, 1);
        let opened = Opened { image: IMAGE, id: ImageId([1; 32]), file_bytes: 50_000, region: 8000..9000 };
        let fetched = begun.assemble(&opened);
        assert_eq!(fetched.bytes.len() as u64, SUPERBLOCK_BYTES + 1000);
        assert_eq!(fetched.bytes[4096..4099], [8000u64 as u8, 8001u64 as u8, 8002u64 as u8]);
    }
}
