//! Pushes of a good device: uploads of new images, as `runnel push` does them, one connection for
//! each.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use image::{Limits, Metadata};
use units::{BlockId, RequestId};
use wire::{BlockRange, ClientConfig, ClientEvent, ErrorCode, Reply, Request};

use super::connection::Connection;
use super::good::{DEVICES, Perform, address};

/// Attempts and pauses of `runnel push`.
const ATTEMPTS_MAX: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Metadata bytes of one frame.
const META_BYTES: usize = 256 << 10;

/// An image to push.
pub(super) struct Pushed {
    bytes: Bytes,
    metadata: Metadata,
}

/// Reads all images of a folder, in the order of their names.
pub(super) fn pushed_images(folder: &Path) -> anyhow::Result<Vec<Pushed>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rnl"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = Bytes::from(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?);
        let metadata = Metadata::open(&bytes.to_vec(), &Limits::default())?;
        Ok(Pushed { bytes, metadata })
    };
    let images: Vec<Pushed> = paths.iter().map(read).collect::<anyhow::Result<_>>()?;
    ensure!(images.len() >= usize::from(DEVICES), "{} has too few images to push", folder.display());
    Ok(images)
}

/// Uploads of one device: another image each time.
pub(super) struct Pushes<'a> {
    server: SocketAddr,
    device: u8,
    images: &'a [Pushed],
    count: usize,
}

/// Why an attempt ended.
enum Ended {
    /// Another one may succeed.
    Retry(io::Error),
    /// It is of no use to try again.
    Failed(io::Error),
}

impl Pushes<'_> {
    pub fn new(server: SocketAddr, device: u8, images: &[Pushed]) -> Pushes<'_> {
        Pushes { server, device, images, count: 0 }
    }
}

impl Perform for Pushes<'_> {
    fn perform(&mut self, deadline: Instant) -> io::Result<()> {
        let at = usize::from(self.device) + self.count * usize::from(DEVICES);
        self.count += 1;
        let image = &self.images[at % self.images.len()];
        let mut attempt = 1;
        loop {
            match upload(self.server, self.device, image, deadline) {
                Ok(()) => return Ok(()),
                Err(Ended::Retry(_)) if attempt < ATTEMPTS_MAX && Instant::now() < deadline => {
                    attempt += 1;
                    let left = deadline.saturating_duration_since(Instant::now());
                    std::thread::sleep(left.min(RETRY_PAUSE * (1 << attempt)));
                }
                Err(Ended::Retry(error) | Ended::Failed(error)) => return Err(error),
            }
        }
    }
}

fn upload(server: SocketAddr, device: u8, image: &Pushed, deadline: Instant) -> Result<(), Ended> {
    let config = ClientConfig { push_bytes_max: 0, ..ClientConfig::default() };
    let mut connection = Connection::open(address(device), server, config, None, deadline).map_err(Ended::Retry)?;
    let region = image.metadata.metadata_region();
    let ask = Request::PutOpen {
        name: format!("pushed-{device}"),
        file_bytes: image.metadata.file_bytes(),
        metadata_offset: region.start,
        metadata_bytes: region.end - region.start,
    };
    let wanted = connection.request(ask).map_err(Ended::Failed)?;
    loop {
        match connection.event(deadline).map_err(Ended::Retry)? {
            ClientEvent::Ready(_) => send_metadata(&mut connection, wanted, image).map_err(Ended::Failed)?,
            ClientEvent::PutNeed { ranges, last, .. } => {
                send_blocks(&mut connection, wanted, image, &ranges).map_err(Ended::Failed)?;
                if last {
                    connection.wire.put_commit(wanted).map_err(|error| Ended::Failed(io::Error::other(error)))?;
                }
            }
            ClientEvent::Reply { reply: Reply::PutDone { id }, .. } if id == image.metadata.id() => return Ok(()),
            ClientEvent::Reply { reply: Reply::Error { code, text }, .. } => {
                let error = io::Error::other(format!("{code:?}: {text}"));
                let again = matches!(code, ErrorCode::Busy | ErrorCode::Shutdown);
                return Err(if again { Ended::Retry(error) } else { Ended::Failed(error) });
            }
            ClientEvent::Reply { .. } => return Err(Ended::Failed(io::Error::other("the answer to another request"))),
            ClientEvent::Expired { .. } => return Err(Ended::Retry(io::ErrorKind::TimedOut.into())),
            _ => {}
        }
    }
}

/// The images are so small that all of one fits the connection's queue.
fn send_metadata(connection: &mut Connection, put: RequestId, image: &Pushed) -> io::Result<()> {
    let region = image.metadata.metadata_region();
    let (start, end) = (region.start as usize, region.end as usize);
    let head = 0..image::format::SUPERBLOCK_BYTES;
    let parts = (start..end).step_by(META_BYTES).map(|from| from..end.min(from + META_BYTES));
    for part in std::iter::once(head).chain(parts) {
        let bytes = image.bytes.slice(part.clone());
        connection.wire.put_meta(put, part.start as u64, bytes).map_err(io::Error::other)?;
    }
    Ok(())
}

fn send_blocks(connection: &mut Connection, put: RequestId, image: &Pushed, ranges: &[BlockRange]) -> io::Result<()> {
    let blocks = ranges.iter().flat_map(|range| (range.first.0..).take(range.count as usize)).map(BlockId);
    for block in blocks {
        let entry = image.metadata.block(block).ok_or_else(|| io::Error::other("the server wants no block of ours"))?;
        let from = entry.file_offset as usize;
        let bytes = image.bytes.slice(from..from + entry.stored_bytes as usize);
        connection.wire.put_block(put, block, bytes).map_err(io::Error::other)?;
    }
    Ok(())
}
