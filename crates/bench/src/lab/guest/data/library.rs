//! Files of a volume without a mount: through [`stream::RemoteVolume`], as a program that is linked
//! with our library uses it.
//!
//! The volume is opened when its folder is made, before any clock starts, as other systems are
//! mounted before.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use connection::{Config, Target};
use stream::{Handle, OpenHow, Options, READ_BYTES_MAX, RemoteVolume, StreamError};
use units::Token;

use super::file::{DataFile, DataFolder};

/// Longest wait for a call: a file of 64 KB over the slowest link takes seconds.
const DEADLINE: Duration = Duration::from_secs(600);

/// Permissions of new files.
const MODE: u16 = 0o644;

/// A volume, and the number of this process as its action.
struct Volume {
    volume: Arc<RemoteVolume>,
    token: Token,
}

struct VolumeFile {
    volume: Arc<RemoteVolume>,
    token: Token,
    handle: Handle,
    size: u64,
}

/// The top folder of the volume at `target`, `runnel://host[:port]/volume/name`.
pub fn folder(target: &str) -> anyhow::Result<Box<dyn DataFolder>> {
    let Target::Volume(at) = Target::parse(target)? else { bail!("{target} is no volume") };
    let mut number = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut number)).context("no random numbers")?;
    let options = Options { open_deadline: DEADLINE, insecure: true, ..Options::default() };
    let volume = RemoteVolume::open(&at.server, Config::default(), &at.name, options)?;
    Ok(Box::new(Volume { volume, token: Token(u128::from_le_bytes(number)) }))
}

/// As the system would tell it.
fn io_error(error: StreamError) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.kind().errno()).kind();
    io::Error::new(kind, error)
}

impl Volume {
    fn open_file(&self, name: &str, how: OpenHow) -> io::Result<Box<dyn DataFile>> {
        let open = |volume: &RemoteVolume, done| volume.open_file(name.as_bytes(), how, self.token, done);
        let opened = self.volume.wait(DEADLINE, open).map_err(io_error)?;
        let volume = Arc::clone(&self.volume);
        Ok(Box::new(VolumeFile { volume, token: self.token, handle: opened.handle, size: opened.info.size }))
    }
}

impl DataFolder for Volume {
    fn open(&self, name: &str) -> io::Result<Box<dyn DataFile>> {
        self.open_file(name, OpenHow::READ)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DataFile>> {
        self.open_file(name, OpenHow { write: true, create: Some(MODE), truncate: true, ..OpenHow::default() })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Everything that was written was synced; what was not would be reported by the sync.
        let _ = self.volume.shutdown();
    }
}

impl DataFile for VolumeFile {
    fn size(&mut self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let count = u32::try_from(buffer.len()).unwrap_or(u32::MAX).min(READ_BYTES_MAX);
        let read = |volume: &RemoteVolume, done| volume.read(self.handle, self.token, at, count, done);
        let bytes: Bytes = self.volume.wait(DEADLINE, read).map_err(io_error)?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.volume.wait(DEADLINE, |volume, done| volume.write(self.handle, at, bytes, done)).map_err(io_error)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.volume.wait(DEADLINE, |volume, done| volume.sync(self.handle, done)).map_err(io_error)
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        // Nothing is left to be told: what was written was synced.
        self.volume.close(self.handle, Box::new(drop));
    }
}
