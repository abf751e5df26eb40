//! What a device has seen of the signed names of a server, in files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use connection::Server;
use rustix::fs::{FlockOperation, flock};
use trust::{Cache, Refusal, Stapled, State, Verifier};
use units::ImageId;

/// Images that are remembered as accepted: 8 KiB.
const ACCEPTED_MAX: usize = 256;

/// Largest of the files.
const FILE_BYTES_MAX: u64 = 128 << 10;

/// Where it is kept.
pub(super) struct Memory {
    folder: PathBuf,
    /// What the files of the server begin with.
    stem: String,
}

/// What was read, under a lock that is held until this is dropped.
pub(super) struct Held {
    pub verifier: Verifier,
    pub cache: Cache,
    pub accepted: Vec<ImageId>,
    /// As they are in the files.
    before: (Option<State>, Vec<u8>),
    path: PathBuf,
    _lock: File,
}

/// Why nothing can be read.
pub(super) enum Failed {
    Disk(PathBuf, io::Error),
    /// The root file of the device is none.
    Anchor(Refusal),
}

impl Memory {
    /// Of the names of a server, or of a folder of a web server, which has names of its own.
    pub fn of(folder: &Path, server: &Server, folder_there: &str) -> Memory {
        let text = format!("{}:{}{folder_there}", server.host.to_ascii_lowercase(), server.port);
        // A name that people know, and that no other server has.
        let shown: String = text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let mut hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        hash.truncate(8);
        Memory { folder: folder.into(), stem: format!("{:.64}-{hash}", shown) }
    }

    /// Waits for the lock, and reads.
    pub fn hold(&self, anchor: &[u8]) -> Result<Held, Failed> {
        let path = |kind: &str| self.folder.join(format!("{}.{kind}", self.stem));
        let lock = path("lock");
        let locked = || -> io::Result<File> {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            let mut options = OpenOptions::new();
            // A pipe in its place must keep nobody waiting.
            options.create(true).truncate(false).write(true).mode(0o600).custom_flags(nonblock());
            let file = options.open(&lock)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        let file = locked().map_err(|error| Failed::Disk(lock.clone(), error))?;
        let read = |kind: &str| read(&path(kind)).map_err(|error| Failed::Disk(path(kind), error));
        // Without the files more travels, and that is all.
        let (state, cache, accepted) = (read("state")?, read("files").unwrap_or_default(), read("images")?);
        let damaged = |error: trust::StateError| {
            let text =
                format!("{error}; remove it if you know why: the device then trusts whatever is signed, old or new");
            Failed::Disk(path("state"), io::Error::new(io::ErrorKind::InvalidData, text))
        };
        let state = state.map(|bytes| State::decode(&bytes)).transpose().map_err(damaged)?;
        let verifier = match &state {
            Some(state) => Verifier::resume(anchor, state.clone()),
            None => Verifier::new(anchor),
        };
        let cache_bytes = cache.unwrap_or_default();
        let accepted = accepted.unwrap_or_default();
        Ok(Held {
            verifier: verifier.map_err(Failed::Anchor)?,
            cache: Cache::decode(&cache_bytes),
            accepted: accepted.chunks_exact(32).filter_map(|id| Some(ImageId(id.try_into().ok()?))).collect(),
            before: (state, cache_bytes),
            path: path("state"),
            _lock: file,
        })
    }
}

impl Held {
    /// Keeps what an accepted answer says.
    pub fn accept(&mut self, answer: &Stapled, image: ImageId) -> Result<(), (PathBuf, io::Error)> {
        self.keep_state()?;
        if self.accepted.last() != Some(&image) {
            self.accepted.retain(|other| *other != image);
            self.accepted.push(image);
            self.accepted.drain(..self.accepted.len().saturating_sub(ACCEPTED_MAX));
            let bytes: Vec<u8> = self.accepted.iter().flat_map(|id| id.0).collect();
            self.write("images", &bytes)?;
        }
        self.cache.keep(answer);
        let bytes = self.cache.encode();
        if bytes != self.before.1 {
            self.write("files", &bytes)?;
        }
        Ok(())
    }

    /// Keeps the state, if it says more than before.
    pub fn keep_state(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let state = self.verifier.state();
        if self.before.0.as_ref().is_some_and(|before| !state.is_news_to(before)) {
            return Ok(());
        }
        self.write("state", &state.encode())
    }

    /// Replaces a file; whoever loses power has the old one or the new one.
    fn write(&self, kind: &str, bytes: &[u8]) -> Result<(), (PathBuf, io::Error)> {
        let (path, new) = (self.path.with_extension(kind), self.path.with_extension(format!("{kind}.new")));
        let replace = || -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&new, &path)?;
            File::open(path.parent().unwrap_or(&path))?.sync_all()
        };
        replace().map_err(|error| (path.clone(), error))
    }
}

/// As `custom_flags` wants it.
fn nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits().cast_signed()
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match host::file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(bytes))
}
