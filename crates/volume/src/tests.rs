//! What a volume promises, on the simulated disk and on the real one.

mod crash;
mod extremes;
mod format;
mod full;
mod kill;
mod links;
mod locks;
mod model;
mod names;
mod owners;
mod permissions;
mod ranges;
mod real;
mod refused;
mod repeats;
mod rules;
mod xattrs;

use std::sync::Arc;

use crate::*;

/// Small, so that checkpoints are frequent.
pub(crate) const SMALL: Options =
    Options { mode: Mode::ReadWrite, block_bytes: 512, journal_bytes: 64 << 10, quota_bytes: None, files_max: 1 << 20 };

pub(crate) fn path(text: &str) -> VolumePath {
    VolumePath::new(text.as_bytes()).unwrap()
}

/// Opens a volume on a simulated disk, with its journal in the usual folder.
pub(crate) fn open(disk: &SimulatedDisk, options: Options) -> Result<Volume, VolumeError> {
    if options.mode == Mode::ReadWrite {
        match disk.make_folder(OWN_FOLDER, 0o700) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.map_err(|error| VolumeError::io("making", OWN_FOLDER, error))?,
        }
        disk.sync_folder(b"").map_err(|error| VolumeError::io("syncing", b"", error))?;
    }
    Volume::on(Arc::new(disk.clone()), Some(Arc::new(disk.folder(OWN_FOLDER))), options)
}

pub(crate) fn transaction(operations: Vec<Operation>) -> Transaction {
    Transaction { mtime_ns: 1_700_000_000_000_000_007, operations, ..Transaction::default() }
}

pub(crate) fn create(at: &str) -> Operation {
    Operation::Create { path: path(at), mode: 0o644, exclusive: true, owner: None }
}

pub(crate) fn write(at: &str, base: Option<Seen>, offset: u64, bytes: &[u8]) -> Operation {
    Operation::Write { path: path(at), base, offset, bytes: bytes.to_vec() }
}

pub(crate) fn rename(from: &str, to: &str) -> Operation {
    Operation::Rename { from: path(from), base: None, to: path(to), replace: true }
}

pub(crate) fn unlink(at: &str) -> Operation {
    Operation::Unlink { path: path(at), base: None }
}

/// The whole content of a file.
pub(crate) fn content(volume: &Volume, path: &VolumePath) -> Result<(Seen, Vec<u8>), VolumeError> {
    let info = volume.stat(path)?;
    let blocks = info.size.div_ceil(u64::from(info.block_bytes));
    let read = volume.read(path, None, 0, blocks as u32)?;
    assert_eq!((read.seen, read.size), (info.seen, info.size));
    assert_eq!(read.bytes.len() as u64, info.size, "{path}");
    Ok((read.seen, read.bytes))
}
