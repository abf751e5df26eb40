//! An image file on this machine: the same session, with a thread that reads blocks in place of
//! connections.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use connection::{Clock, spawn};
use image::{Metadata, ReadAt};
use units::BlockId;

use crate::command::{Command, Failure, RequestKey, Wanted};
use crate::config::Config;
use crate::error::ClientError;
use crate::session::Session;
use crate::shared::{ConnectionHandle, Shared};

/// A file that an image is read from.
pub struct ImageFile(pub File);

impl ReadAt for ImageFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Opens an image file and its metadata, chunk hashes included: every block that is read is held to
/// them.
///
/// # Errors
/// The file cannot be read, or is no good image.
pub fn open_file(path: &Path, limits: &image::Limits) -> Result<(ImageFile, Metadata), ClientError> {
    let named = |source| ClientError::File { path: path.into(), source };
    let file = host::file::open(path).map_err(named)?;
    let file = ImageFile(file);
    let metadata = Metadata::open(&file, limits)
        .map_err(|source| ClientError::Image { name: path.display().to_string(), source })?;
    Ok((file, metadata))
}

pub(crate) fn open(path: &Path, config: Config) -> Result<Arc<Session>, ClientError> {
    let (file, metadata) = open_file(path, &config.limits)?;
    let (commands, receiver) = channel();
    let handles = vec![ConnectionHandle { commands, waker: None }];
    let (session, shared) = Session::start(Arc::new(metadata), config, Clock::start(), 0, handles, false)?;
    let worker = Arc::clone(&shared);
    spawn("runnel-file", move || serve(&worker, &file, &receiver))?;
    shared.run(|schedule, now| schedule.connection_up(now, 0, false));
    Ok(session)
}

fn serve(shared: &Shared, file: &ImageFile, commands: &Receiver<Command>) {
    let mut stored = Vec::new();
    while let Ok(command) = commands.recv() {
        match command {
            Command::Request { key, wanted: Wanted::Block { block, .. }, .. } => {
                read_block(shared, file, key, block, &mut stored);
            }
            Command::Close => return,
            // There is no server that learns or pushes.
            _ => {}
        }
    }
}

fn read_block(shared: &Shared, file: &ImageFile, key: RequestKey, block: BlockId, stored: &mut Vec<u8>) {
    let mut raw = Vec::new();
    let outcome = match shared.metadata.block(block) {
        None => Err(Failure::Refused),
        Some(entry) => {
            stored.resize(entry.stored_bytes as usize, 0);
            match file.read_exact_at(entry.file_offset, stored) {
                Err(_) => Err(Failure::Refused),
                Ok(()) => shared.metadata.decode_block(block, stored, &mut raw).map_err(|_| Failure::Corrupt),
            }
        }
    };
    shared.run(|schedule, now| match outcome {
        Ok(()) => schedule.block_arrived(now, key, block, Arc::new(raw), None),
        Err(failure) => schedule.failed(now, key, failure),
    });
}
