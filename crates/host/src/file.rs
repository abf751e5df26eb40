//! Opening files that a user named.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file, or a block device, for reading. Never waits: opening a FIFO plainly waits
/// for a writer, perhaps for ever.
///
/// # Errors
/// It cannot be opened, or it is a directory (`IsADirectory`) or something else (`InvalidInput`).
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    }
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// All bytes of a regular file.
///
/// # Errors
/// Those of [`open`], and of reading.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open(path)?, &mut bytes)?;
    Ok(bytes)
}

/// Which file lies at a path, and when it was changed last. As long as two stamps are equal, nobody
/// wrote to the file, gave it other rights or put another one in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Not the time of the content, which programs that copy files set back.
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the file at `path`; `None` if there is none that can be seen.
    pub fn of(path: &Path) -> Option<Stamp> {
        let found = path.metadata().ok()?;
        Some(Stamp {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert_eq!(open(folder.path()).expect_err("no file").kind(), io::ErrorKind::IsADirectory);
        for path in [&*fifo, Path::new("/dev/null")] {
            assert_eq!(open(path).expect_err("no file").kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(read(&file).expect("read"), b"text");
        assert_eq!(open(&folder.path().join("absent")).expect_err("absent").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_that_is_written_or_replaced_has_another_stamp() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, other) = (folder.path().join("file"), folder.path().join("other"));
        assert_eq!(Stamp::of(&file), None);
        std::fs::write(&file, "text").expect("written");
        let first = Stamp::of(&file);
        assert!(first.is_some() && first == Stamp::of(&file));
        std::fs::write(&file, "a longer text").expect("written");
        let second = Stamp::of(&file);
        assert_ne!(first, second);
        std::fs::write(&other, "a longer text").expect("written");
        std::fs::rename(&other, &file).expect("renamed");
        assert_ne!(Stamp::of(&file), second);
    }
}
