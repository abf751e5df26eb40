//! What the files of this machine are, for plans: identities, single bytes, names of functions. Paths are from the root, without
//! a leading slash, as traces have them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use elf::Bytes;
use profile::plan::{Files, Identity, PlanFile};

/// The files under a folder; `/` for those of the machine.
pub struct LocalFiles {
    root: PathBuf,
    /// What was found, so that a file is looked at once.
    known: RefCell<HashMap<Vec<u8>, Option<Identity>>>,
}

impl LocalFiles {
    /// The files of this machine.
    pub fn new() -> LocalFiles {
        LocalFiles { root: PathBuf::from("/"), known: RefCell::default() }
    }

    /// The function at `offset` of a file of a plan, as `name+0x10`; `None` if the file is not the one the plan means, or
    /// has no such symbol.
    pub fn symbol(&self, file: &PlanFile, offset: u64) -> Option<String> {
        if self.identity(&file.path) != file.identity {
            return None;
        }
        let symbol = elf::symbol_at(&self.open(&file.path)?, offset).ok()??;
        let name = symbol.name.escape_ascii();
        Some(if symbol.offset == 0 { name.to_string() } else { format!("{name}+{:#x}", symbol.offset) })
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        self.root.join(Path::new(OsStr::from_bytes(path)))
    }

    /// Opens regular files only: opening another thing may wait for ever, or do something.
    fn open(&self, path: &[u8]) -> Option<OnDisk> {
        let path = self.path(path);
        let is_file = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
        is_file.then(|| File::open(path).ok()).flatten().map(OnDisk)
    }
}

impl Files for LocalFiles {
    fn identity(&self, path: &[u8]) -> Option<Identity> {
        if let Some(known) = self.known.borrow().get(path) {
            return known.clone();
        }
        let metadata = std::fs::metadata(self.path(path)).ok().filter(|metadata| metadata.is_file());
        let identity = metadata.map(|metadata| Identity {
            inode: metadata.ino(),
            size: metadata.size(),
            mtime_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
            build_id: self.open(path).and_then(|file| elf::build_id(&file).ok()?).unwrap_or_default(),
        });
        self.known.borrow_mut().insert(path.to_vec(), identity.clone());
        identity
    }

    fn byte(&self, path: &[u8], offset: u64) -> Option<u8> {
        let mut byte = [0];
        self.open(path)?.0.read_exact_at(&mut byte, offset).ok()?;
        Some(byte[0])
    }
}

/// A file, read in pieces.
struct OnDisk(File);

impl Bytes for OnDisk {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_what_they_are_and_directories_are_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), b"xyz").unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let files = LocalFiles { root: folder.path().to_path_buf(), known: RefCell::default() };
        let identity = files.identity(b"a").unwrap();
        assert_eq!((identity.size, identity.build_id.len()), (3, 0));
        assert_eq!((files.identity(b"sub"), files.identity(b"none")), (None, None));
        assert_eq!((files.byte(b"a", 2), files.byte(b"a", 3), files.byte(b"sub", 0)), (Some(b'z'), None, None));
        let own = std::env::current_exe().unwrap();
        let own = own.as_os_str().as_bytes().strip_prefix(b"/").unwrap().to_vec();
        let machine = LocalFiles::new();
        let file = PlanFile { identity: machine.identity(&own), path: own };
        assert_eq!(machine.symbol(&file, 0), None, "the header is no function");
        let other = Identity { mtime_ns: 1, ..file.identity.clone().unwrap() };
        assert_eq!(machine.symbol(&PlanFile { identity: Some(other), ..file }, 0x10000), None);
    }
}
