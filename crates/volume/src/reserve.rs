//! Room on the disk for transactions that were acknowledged. A file of our own takes the bytes that
//! the transactions of one group may need. If the disk turns out to be full while they are applied,
//! the file is emptied, and there is room. No new transaction that needs room is accepted until the
//! file is filled again.

use std::io;

use crate::VolumeError;
use crate::disk::{Disk, DiskFile, is_full};
use crate::path::{OWN_FOLDER, join};
use crate::recover::make_folder;

/// Room for what a file system needs besides what we count, bytes.
const SLACK_BYTES: u64 = 128 << 10;

/// What any transaction of a device needs; kept at hand, so that it costs no system call, and so
/// that what is written into room that a program reserved finds this much of a disk that is full
/// since.
const USUAL_BYTES: u64 = 2 << 20;

pub(crate) struct Reserve {
    file: Box<dyn DiskFile>,
    bytes: u64,
    /// What the file system can do with ranges of files.
    pub ranges: RangeSupport,
}

/// What a file system can do with ranges of files: found out before it is promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeSupport {
    /// Keeps room.
    pub room: bool,
    /// Gives room back.
    pub holes: bool,
    /// Makes zeros that keep their room.
    pub zeros: bool,
}

impl RangeSupport {
    /// Tries it on an empty file of ours. A full disk says nothing against it.
    fn of(file: &dyn DiskFile) -> RangeSupport {
        let supported = |outcome: io::Result<()>| outcome.is_ok() || outcome.is_err_and(|error| is_full(&error));
        RangeSupport {
            room: supported(file.allocate(0, 4096)),
            holes: supported(file.zero(0, 4096, false)),
            zeros: supported(file.zero(0, 4096, true)),
        }
    }
}

impl Reserve {
    /// Opens the reserve, empty: recovery comes first.
    pub fn open(disk: &dyn Disk) -> io::Result<Reserve> {
        // Not there yet if the journal lies elsewhere.
        make_folder(disk, OWN_FOLDER)?;
        let path = join(OWN_FOLDER, b"reserve");
        let file = match disk.open(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(&path, 0o600)?,
            other => other?,
        };
        file.set_size(0)?;
        let ranges = RangeSupport::of(file.as_ref());
        file.set_size(0)?;
        Ok(Reserve { file, bytes: 0, ranges })
    }

    /// Keeps room for `bytes`; nothing is needed for none.
    pub fn ensure(&mut self, bytes: u64) -> Result<(), VolumeError> {
        if bytes == 0 || bytes + SLACK_BYTES <= self.bytes {
            return Ok(());
        }
        let least = bytes + SLACK_BYTES;
        for wanted in [least.max(USUAL_BYTES), least] {
            match self.file.reserve(wanted) {
                Ok(()) => {
                    self.bytes = wanted;
                    return Ok(());
                }
                Err(error) if is_full(&error) => {
                    let _ = self.file.set_size(self.bytes);
                }
                Err(error) => return Err(VolumeError::io("reserving room in", b".runnel/reserve", error)),
            }
        }
        Err(VolumeError::NoSpace { what: "the disk is full" })
    }

    /// Gives the room back to the disk.
    pub fn release(&mut self) -> io::Result<()> {
        self.bytes = 0;
        self.file.set_size(0)
    }
}
