//! Reads and commits of a good device, each over a connection that is made again when it is lost.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use units::{PageId, Rng, SplitMix64, Token};
use wire::volume::{Change, Secret, VolumeAsk, VolumeReply};
use wire::{ClientConfig, ImageHandle, Reply, Request};

use super::connection::Connection;
use super::content::{Content, IMAGE, VOLUME};
use super::good::{Perform, address};

/// Pause before another connection is made.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a transaction: what a program appends to a log or a database.
const COMMIT_BYTES: usize = 512;

/// Bytes of the file that a device writes to.
pub(super) const FILE_BYTES: u64 = 64 << 10;

/// The file that a device writes to.
pub(super) fn file_of(device: u8) -> String {
    format!("device-{device}")
}

/// A connection of a device that wants no pushes: what it reads is asked for.
fn connect(server: SocketAddr, device: u8, deadline: Instant) -> io::Result<Connection> {
    let config = ClientConfig { device: 1 + u128::from(device), push_bytes_max: 0, ..ClientConfig::default() };
    Connection::open(address(device), server, config, None, deadline)
}

/// An answer of another kind than was asked for.
fn unexpected(reply: &Reply) -> io::Error {
    match reply {
        Reply::Error { code, text } => io::Error::other(format!("{code:?}: {text}")),
        other => io::Error::other(format!("the server answered {}", other.name())),
    }
}

/// Tries until the deadline, over a new connection if the old one was lost.
fn persist<T>(
    kept: &mut Option<T>,
    deadline: Instant,
    mut open: impl FnMut() -> io::Result<T>,
    mut attempt: impl FnMut(&mut T) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let opened = match kept.take() {
            Some(opened) => Ok(opened),
            None => open(),
        };
        let outcome = opened.and_then(|mut opened| {
            attempt(&mut opened)?;
            *kept = Some(opened);
            Ok(())
        });
        match outcome {
            Err(_) if Instant::now() + RETRY_PAUSE < deadline => std::thread::sleep(RETRY_PAUSE),
            other => return other,
        }
    }
}

/// Demands for random pages.
pub(super) struct Reads<'a> {
    server: SocketAddr,
    device: u8,
    content: &'a Content,
    rng: SplitMix64,
    reads: u64,
    open: Option<(Connection, ImageHandle)>,
}

impl Reads<'_> {
    pub fn new(server: SocketAddr, device: u8, content: &Content) -> Reads<'_> {
        Reads { server, device, content, rng: SplitMix64(u64::from(device)), reads: 0, open: None }
    }
}

impl Perform for Reads<'_> {
    fn perform(&mut self, deadline: Instant) -> io::Result<()> {
        let (server, device) = (self.server, self.device);
        let (page, block) = self.content.random(&mut self.rng);
        let token = Token(1 + u128::from(device));
        self.reads += 1;
        // Whole blocks, and single pages as a thin link has them.
        let ask = |image: ImageHandle| match self.reads % 2 {
            0 => Request::PullBlock { image, token, page, block, force: true, speculative: false },
            _ => Request::PullPages { image, token, pages: vec![page], force: true },
        };
        let open = || {
            let mut connection = connect(server, device, deadline)?;
            match connection.ask(Request::Open { name: IMAGE.to_owned() }, deadline)? {
                Reply::Opened { image, .. } => Ok((connection, image)),
                other => Err(unexpected(&other)),
            }
        };
        persist(&mut self.open, deadline, open, |(connection, image)| match connection.ask(ask(*image), deadline)? {
            Reply::Block { block, bytes } => {
                self.content.metadata.verify_block(block, &bytes).map(drop).map_err(io::Error::other)
            }
            Reply::Pages { .. } => Ok(()),
            other => Err(unexpected(&other)),
        })
    }
}

/// A connection that has shown which device it is.
struct Writer {
    connection: Connection,
    volume: ImageHandle,
}

/// Small transactions on a volume.
pub(super) struct Commits {
    server: SocketAddr,
    device: u8,
    rng: SplitMix64,
    /// The device, once the server gave it a number.
    identity: Option<(u128, Secret)>,
    number: u64,
    open: Option<Writer>,
}

impl Commits {
    pub fn new(server: SocketAddr, device: u8) -> Commits {
        let rng = SplitMix64(u64::from(device));
        Commits { server, device, rng, identity: None, number: 0, open: None }
    }
}

/// Asks something of a volume.
pub(super) fn ask_volume(
    connection: &mut Connection,
    volume: ImageHandle,
    ask: VolumeAsk,
    deadline: Instant,
) -> io::Result<VolumeReply> {
    match connection.ask(Request::Volume { volume, ask }, deadline)? {
        Reply::Volume(reply) => Ok(reply),
        other => Err(unexpected(&other)),
    }
}

/// Opens the volume and proves an identity, which is asked for first if there is none.
pub(super) fn open_volume(
    connection: &mut Connection,
    identity: &mut Option<(u128, Secret)>,
    deadline: Instant,
) -> io::Result<ImageHandle> {
    let reply = connection.ask(Request::VolumeOpen { name: VOLUME.to_owned() }, deadline)?;
    let Reply::VolumeOpened { volume, id, nonce, .. } = reply else { return Err(unexpected(&reply)) };
    let (number, secret) = match identity {
        Some(known) => *known,
        None => match ask_volume(connection, volume, VolumeAsk::Enrol, deadline)? {
            VolumeReply::Enrolled { number, secret } => *identity.insert((number, secret)),
            other => return Err(io::Error::other(format!("{other:?}"))),
        },
    };
    let ask = VolumeAsk::Prove { number, proof: secret.proof(id, nonce, number), previous: 0 };
    ask_volume(connection, volume, ask, deadline)?;
    Ok(volume)
}

impl Perform for Commits {
    fn perform(&mut self, deadline: Instant) -> io::Result<()> {
        let (server, device, identity) = (self.server, self.device, &mut self.identity);
        self.number += 1;
        let path = file_of(device).into_bytes();
        let offset = self.rng.below(FILE_BYTES - COMMIT_BYTES as u64);
        let bytes = Bytes::from(vec![self.number as u8; COMMIT_BYTES]);
        let changes = vec![Change::Write { path, base: None, offset, bytes }];
        // The same number again is the same transaction, so that one whose answer was lost is not
        // done twice.
        let ask = VolumeAsk::Commit { number: self.number, mtime_ns: 0, changes };
        let open = || {
            let mut connection = connect(server, device, deadline)?;
            let volume = open_volume(&mut connection, identity, deadline)?;
            Ok(Writer { connection, volume })
        };
        persist(&mut self.open, deadline, open, |Writer { connection, volume }| {
            ask_volume(connection, *volume, ask.clone(), deadline).map(drop)
        })
    }
}

/// A page that no image has.
pub(super) fn no_page(rng: &mut SplitMix64) -> PageId {
    PageId::new(units::InodeId(1 << 30 | rng.below(1 << 20) as u32), rng.below(1 << 20) as u32)
}
