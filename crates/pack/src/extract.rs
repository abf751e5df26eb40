//! Writes the files of an image to a directory.
//!
//! The directory must be empty or missing. So nothing is overwritten, and the only symlinks in it
//! are those of the image, which are never followed: every directory is opened component by
//! component with O_NOFOLLOW, every file created with O_EXCL. While files are being written all
//! directories are closed to other users; attributes of directories come last, deepest first.
//! Attributes that an ordinary user may not restore (owners, devices, some others) are left out
//! with a note.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use image::{Inode, Kind, Metadata, ReadAt, device_parts};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fsetxattr, futimens, linkat, lsetxattr, makedev, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;
use serde::Serialize;
use units::InodeId;

use crate::error::printable;
use crate::notes::Notes;
use crate::reader::{BlockReader, Part};
use crate::{PackError, Phase, Progress};

/// Permissions while a file or directory is being written.
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_DIRECTORY: Mode = Mode::from_raw_mode(0o700);

/// Mode bits of a program that runs as its owner or its group.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// The user or group number that means "leave as it is" to the kernel, so it cannot be given to a
/// file.
const NO_OWNER: u32 = u32::MAX;

/// How to extract.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Restore owners, and with them the set-user-id and set-group-id bits.
    pub owners: bool,
}

impl Default for ExtractOptions {
    /// Owners are restored by root.
    fn default() -> ExtractOptions {
        ExtractOptions { owners: rustix::process::geteuid().is_root() }
    }
}

/// What was extracted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExtractReport {
    /// Entries made, the target itself not counted.
    pub entries: u64,
    /// Bytes of regular files, holes included.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// What could not be restored.
    pub notes: Vec<String>,
}

/// Extracts all files of an image into the directory `target`, which is made if it is not there.
///
/// # Errors
/// The target holds something, a file cannot be written, or the image is damaged
/// ([`PackError::Incomplete`]). What was written until then stays, but for the file that failed;
/// directories have not got their attributes.
pub fn extract(
    metadata: &Metadata,
    source: &dyn ReadAt,
    target: &Path,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractReport, PackError> {
    let start = Instant::now();
    let total = (1..=metadata.inode_count())
        .filter_map(|number| metadata.inode(InodeId(number)))
        .filter(|inode| inode.kind() == Kind::File)
        .map(|inode| inode.size());
    progress.phase(Phase::Extract, total.fold(0, u64::saturating_add));
    let root = open_target(target)?;
    let mut work = Extraction {
        metadata,
        reader: BlockReader::new(metadata, source),
        target,
        root,
        options,
        progress,
        links: HashMap::new(),
        report: ExtractReport::default(),
        notes: Notes::default(),
    };
    let done = work.all();
    if let Err(source) = done {
        let (entries, bytes) = (work.report.entries, work.report.bytes);
        return Err(PackError::Incomplete { target: target.into(), entries, bytes, source: Box::new(source) });
    }
    let mut report = work.report;
    report.seconds = start.elapsed().as_secs_f64();
    report.notes = work.notes.lines().collect();
    Ok(report)
}

/// Names from the target down to a directory.
type Names = Rc<Vec<Box<[u8]>>>;

struct Extraction<'a> {
    metadata: &'a Metadata,
    reader: BlockReader<'a>,
    target: &'a Path,
    root: OwnedFd,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
    /// Where the first name of an inode with several names was made.
    links: HashMap<InodeId, (Names, Box<[u8]>)>,
    report: ExtractReport,
    notes: Notes,
}

fn open_target(target: &Path) -> Result<OwnedFd, PackError> {
    match fs::create_dir(target) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mut entries = fs::read_dir(target).map_err(|source| PackError::write(target, source))?;
            if entries.next().is_some() {
                return Err(PackError::TargetNotEmpty { path: target.into() });
            }
        }
        made => made.map_err(|source| PackError::write(target, source))?,
    }
    let opened = rustix::fs::open(target, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = opened.map_err(|error| PackError::write(target, error.into()))?;
    fchmod(&root, PRIVATE_DIRECTORY).map_err(|error| PackError::write(target, error.into()))?;
    Ok(root)
}

impl Extraction<'_> {
    fn all(&mut self) -> Result<(), PackError> {
        let top = Names::default();
        // Directories in the order they were made: parents before children, so the reverse closes
        // them bottom-up.
        let mut made: Vec<(InodeId, Names)> = Vec::new();
        let mut pending = vec![(InodeId::ROOT, top)];
        while let Some((directory, names)) = pending.pop() {
            let opened = self.open_directory(&names)?;
            for entry in self.metadata.entries(directory) {
                let Some(inode) = self.metadata.inode(entry.inode) else { continue };
                let made = self.entry(&opened, &names, entry.name, &inode);
                made.map_err(|failure| failure.at(|| self.place(&names, Some(entry.name))))?;
                self.report.entries += 1;
                if entry.kind == Kind::Dir {
                    let mut inner = names.to_vec();
                    inner.push(entry.name.into());
                    pending.push((entry.inode, Rc::new(inner)));
                }
            }
            made.push((directory, names));
        }
        for (directory, names) in made.into_iter().rev() {
            let opened = self.open_directory(&names)?;
            let Some(inode) = self.metadata.inode(directory) else { continue };
            let set = self.attributes_of_open(&opened, &inode);
            set.map_err(|error| PackError::write(self.place(&names, None), error.into()))?;
        }
        Ok(())
    }

    /// The path of something in the target, for messages.
    fn place(&self, names: &[Box<[u8]>], last: Option<&[u8]>) -> PathBuf {
        let names = names.iter().map(|name| &**name).chain(last);
        names.fold(self.target.to_owned(), |path, name| path.join(std::ffi::OsStr::from_bytes(name)))
    }

    fn open_directory(&self, names: &[Box<[u8]>]) -> Result<OwnedFd, PackError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: Errno| PackError::write(self.place(names, None), error.into());
        let mut here = self.root.try_clone().map_err(|source| PackError::write(self.target, source))?;
        for name in names {
            here = openat(&here, &**name, flags, Mode::empty()).map_err(failed)?;
        }
        Ok(here)
    }

    fn entry(&mut self, directory: &OwnedFd, names: &Names, name: &[u8], inode: &Inode) -> Result<(), Failure> {
        if inode.nlink() > 1 && inode.kind() != Kind::Dir {
            if let Some((first_names, first_name)) = self.links.get(&inode.id()) {
                let first = self.open_directory(first_names).map_err(Failure::Other)?;
                return Ok(linkat(&first, &**first_name, directory, name, AtFlags::empty())?);
            }
            self.links.insert(inode.id(), (names.clone(), name.into()));
        }
        match inode.kind() {
            Kind::Dir => Ok(mkdirat(directory, name, PRIVATE_DIRECTORY)?),
            Kind::File => self.file(directory, name, inode),
            Kind::Symlink => {
                symlinkat(self.metadata.symlink(inode.id()).unwrap_or_default(), directory, name)?;
                self.attributes_of_name(directory, name, inode)
            }
            Kind::Char => self.special(directory, name, inode, FileType::CharacterDevice),
            Kind::Block => self.special(directory, name, inode, FileType::BlockDevice),
            Kind::Fifo => self.special(directory, name, inode, FileType::Fifo),
            Kind::Socket => self.special(directory, name, inode, FileType::Socket),
        }
    }

    fn file(&mut self, directory: &OwnedFd, name: &[u8], inode: &Inode) -> Result<(), Failure> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(directory, name, flags, PRIVATE_FILE)?);
        let written = self.contents(&file, inode);
        if written.is_err() {
            // What is there looks whole and is not.
            let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
        }
        written
    }

    fn contents(&mut self, file: &File, inode: &Inode) -> Result<(), Failure> {
        let mut position = 0;
        let progress = self.progress;
        self.reader.read(inode.id(), |part| {
            let bytes = match part {
                Part::Data(bytes) => {
                    file.write_all_at(bytes, position).map_err(Failure::Write)?;
                    bytes.len() as u64
                }
                Part::Hole(bytes) => bytes,
            };
            position += bytes;
            progress.advance(bytes);
            Ok::<(), Failure>(())
        })?;
        // Also makes a hole at the end.
        file.set_len(inode.size()).map_err(Failure::Write)?;
        self.report.bytes += inode.size();
        Ok(self.attributes_of_open(file, inode)?)
    }

    fn special(&mut self, directory: &OwnedFd, name: &[u8], inode: &Inode, kind: FileType) -> Result<(), Failure> {
        let (major, minor) = device_parts(inode.rdev());
        match mknodat(directory, name, kind, PRIVATE_FILE, makedev(major, minor)) {
            Err(Errno::PERM) => {
                let shown = printable(&self.metadata.path(inode.id()).unwrap_or_default());
                self.notes.add(format!("{shown}: making this device is not permitted; left out"));
                // Other names of it are then left out by their own attempts.
                self.links.remove(&inode.id());
                return Ok(());
            }
            made => made?,
        }
        self.attributes_of_name(directory, name, inode)
    }

    /// Attributes of an open file or directory. Owner first: changing it clears set-user-id bits
    /// and capabilities.
    fn attributes_of_open(&mut self, file: impl AsFd, inode: &Inode) -> Result<(), Errno> {
        if self.options.owners {
            fchown(&file, uid(inode), gid(inode))?;
        }
        for (name, value) in self.metadata.xattrs(inode.id()) {
            let set = fsetxattr(&file, name, value, XattrFlags::empty());
            self.note_xattr(inode, name, set)?;
        }
        fchmod(&file, self.mode(inode))?;
        futimens(&file, &times(inode))
    }

    /// Attributes of a symlink, device, fifo or socket, by its name in an open directory.
    fn attributes_of_name(&mut self, directory: &OwnedFd, name: &[u8], inode: &Inode) -> Result<(), Failure> {
        if self.options.owners {
            chownat(directory, name, uid(inode), gid(inode), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        for (key, value) in self.metadata.xattrs(inode.id()) {
            // There is no call for attributes by directory and name; the path leads through the
            // open directory.
            let path = [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name].concat();
            let set = lsetxattr(path.as_slice(), key, value, XattrFlags::empty());
            self.note_xattr(inode, key, set)?;
        }
        if inode.kind() != Kind::Symlink {
            // Not a symlink: it was made a moment ago in a directory that is closed to others.
            chmodat(directory, name, self.mode(inode), AtFlags::empty())?;
        }
        Ok(utimensat(directory, name, &times(inode), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Permissions to restore. A program that runs as its owner must not do so as another one.
    fn mode(&mut self, inode: &Inode) -> Mode {
        let mut bits = u32::from(inode.permissions());
        if !self.options.owners && inode.kind() != Kind::Dir {
            let user = (SET_USER_ID, rustix::process::geteuid().as_raw() == inode.uid());
            let group = (SET_GROUP_ID, rustix::process::getegid().as_raw() == inode.gid());
            for (bit, is_same) in [user, group] {
                if is_same || bits & bit == 0 {
                    continue;
                }
                let shown = printable(&self.metadata.path(inode.id()).unwrap_or_default());
                self.notes.add(format!("{shown}: owner not restored, so mode bit {bit:o} is left out"));
                bits &= !bit;
            }
        }
        Mode::from_raw_mode(bits)
    }

    fn note_xattr(&mut self, inode: &Inode, name: &[u8], set: Result<(), Errno>) -> Result<(), Errno> {
        match set {
            Err(error @ (Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP)) => {
                let shown = printable(&self.metadata.path(inode.id()).unwrap_or_default());
                self.notes.add(format!("{shown}: attribute {} left out: {error}", printable(name)));
                Ok(())
            }
            result => result,
        }
    }
}

fn uid(inode: &Inode) -> Option<Uid> {
    (inode.uid() != NO_OWNER).then(|| Uid::from_raw(inode.uid()))
}

fn gid(inode: &Inode) -> Option<Gid> {
    (inode.gid() != NO_OWNER).then(|| Gid::from_raw(inode.gid()))
}

fn times(inode: &Inode) -> Timestamps {
    let (seconds, nanoseconds) = inode.mtime();
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// What went wrong with an entry, before its path is spelled out.
enum Failure {
    System(Errno),
    Write(std::io::Error),
    Other(PackError),
}

impl Failure {
    fn at(self, path: impl Fn() -> PathBuf) -> PackError {
        match self {
            Failure::System(error) => PackError::write(path(), error.into()),
            Failure::Write(error) => PackError::write(path(), error),
            Failure::Other(error) => error,
        }
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure::System(error)
    }
}

impl From<image::ImageError> for Failure {
    fn from(error: image::ImageError) -> Failure {
        Failure::Other(error.into())
    }
}
