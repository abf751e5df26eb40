//! Builds the root tree of a workload: a folder that holds the files of some Debian packages of
//! this machine, what installing them generated, and the workload's own files.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::Context;

use crate::interrupt;
use crate::process::{find_program, try_tool};

/// Links that a Debian system with merged /usr has at its root.
const MERGED: [&str; 5] = ["bin", "sbin", "lib", "lib64", "lib32"];

/// Folders that the entry into the tree binds the caller's own over, or that programs expect.
const FOLDERS: [&str; 9] = ["dev", "proc", "sys", "tmp", "run", "root", "home", "etc", "bench"];

/// Times of folders: fixed, because the order of building must not reach the image.
const FOLDER_TIME: Duration = Duration::from_secs(1_600_000_000);

/// Size of a tree that was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Regular files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Where the files of a tree come from. Paths of files begin with a slash, whatever the root.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Folder of the Debian system that has them.
    pub root: &'a Path,
    /// Files become hard links, not copies: nobody may write to either.
    pub link: bool,
}

impl Source<'static> {
    /// This machine.
    pub fn machine() -> Source<'static> {
        Source { root: Path::new("/"), link: false }
    }
}

impl Source<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Makes an empty root with the links and folders every root has.
    pub fn create(&self, root: &Path) -> anyhow::Result<()> {
        let make = || -> io::Result<()> {
            fs::create_dir_all(root)?;
            for name in MERGED {
                if let Ok(target) = fs::read_link(self.root.join(name)) {
                    fs::create_dir_all(root.join(&target))?;
                    symlink(&target, root.join(name))?;
                }
            }
            FOLDERS.iter().try_for_each(|name| fs::create_dir_all(root.join(name)))?;
            fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))
        };
        make().with_context(|| format!("cannot make the tree {}", root.display()))
    }

    /// Copies `paths` to the same places under `root`, with the byte code that python keeps beside
    /// them.
    pub fn copy(&self, paths: &BTreeSet<PathBuf>, root: &Path) -> anyhow::Result<()> {
        for path in paths {
            interrupt::check()?;
            self.copy_one(path, root).with_context(|| format!("cannot copy {}", path.display()))?;
            if path.extension().is_some_and(|extension| extension == "py") {
                let copied = self.copy_byte_code(path, root);
                copied.with_context(|| format!("cannot copy the byte code of {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Copies the folder `path` with everything below it; nothing if it is not there.
    pub fn copy_folder(&self, path: &Path, root: &Path) -> anyhow::Result<()> {
        let mut paths = BTreeSet::new();
        let mut pending = vec![path.to_path_buf()];
        while let Some(folder) = pending.pop() {
            let Ok(entries) = fs::read_dir(self.at(&folder)) else { continue };
            for entry in entries.flatten() {
                let path = folder.join(entry.file_name());
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    pending.push(path.clone());
                }
                paths.insert(path);
            }
            paths.insert(folder);
        }
        self.copy(&paths, root)
    }

    fn copy_one(&self, path: &Path, root: &Path) -> io::Result<()> {
        let source = self.at(path);
        let target = root.join(path.strip_prefix("/").unwrap_or(path));
        let Ok(found) = fs::symlink_metadata(&source) else {
            // Listed by dpkg, but excluded or removed from the system.
            return Ok(());
        };
        if fs::symlink_metadata(&target).is_ok() {
            return Ok(());
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        if found.is_dir() {
            fs::create_dir(&target)?;
            fs::set_permissions(&target, found.permissions())
        } else if found.is_symlink() {
            symlink(fs::read_link(&source)?, &target)
        } else if found.is_file() && self.link {
            fs::hard_link(&source, &target)
        } else if found.is_file() {
            fs::copy(&source, &target)?;
            // Byte code is valid only for the source time it was made from.
            File::options().write(true).open(&target)?.set_modified(found.modified()?)
        } else {
            Ok(())
        }
    }

    fn copy_byte_code(&self, source: &Path, root: &Path) -> io::Result<()> {
        let (Some(folder), Some(stem)) = (source.parent(), source.file_stem().and_then(|stem| stem.to_str())) else {
            return Ok(());
        };
        let folder = folder.join("__pycache__");
        let Ok(entries) = fs::read_dir(self.at(&folder)) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(stem));
            if rest.is_some_and(|rest| rest.starts_with(".cpython-")) {
                self.copy_one(&folder.join(name), root)?;
            }
        }
        Ok(())
    }
}

/// Last steps: the library cache of the tree's own libraries, fixed folder times. Returns what the
/// tree holds.
pub fn finish(root: &Path) -> anyhow::Result<Size> {
    if let Some(ldconfig) = find_program("ldconfig") {
        // Without it the dynamic linker searches its standard folders: slower, still right.
        try_tool(Command::new(ldconfig).arg("-r").arg(root));
        let _ = fs::remove_dir_all(root.join("var/cache/ldconfig"));
    }
    let mut size = Size::default();
    settle(root, &mut size).with_context(|| format!("cannot finish the tree {}", root.display()))?;
    Ok(size)
}

fn settle(folder: &Path, size: &mut Size) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_dir() {
            settle(&entry.path(), size)?;
        } else if found.is_file() {
            size.files += 1;
            size.bytes += found.len();
        }
    }
    File::open(folder)?.set_modified(SystemTime::UNIX_EPOCH + FOLDER_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_keeps_modes_times_links_and_byte_code() -> anyhow::Result<()> {
        let source = tempfile::tempdir()?;
        let root = tempfile::tempdir()?;
        let module = source.path().join("m.py");
        fs::create_dir(source.path().join("__pycache__"))?;
        fs::write(&module, "x = 1\n")?;
        fs::write(source.path().join("__pycache__/m.cpython-311.pyc"), "code")?;
        fs::write(source.path().join("__pycache__/more.cpython-311.pyc"), "other")?;
        fs::set_permissions(&module, Permissions::from_mode(0o750))?;
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_234_567, 89);
        File::options().write(true).open(&module)?.set_modified(time)?;
        symlink("m.py", source.path().join("link"))?;

        let tree = root.path().join("tree");
        let machine = Source::machine();
        machine.create(&tree)?;
        let paths = BTreeSet::from([module.clone(), source.path().join("link"), PathBuf::from("/no/such/file")]);
        machine.copy(&paths, &tree)?;
        let size = finish(&tree)?;

        let at = |path: &Path| tree.join(path.strip_prefix("/").unwrap_or(path));
        let copied = fs::metadata(at(&module))?;
        assert_eq!((copied.permissions().mode() & 0o7777, copied.modified()?), (0o750, time));
        assert_eq!(fs::read_link(at(&source.path().join("link")))?, Path::new("m.py"));
        assert!(at(&source.path().join("__pycache__/m.cpython-311.pyc")).exists());
        assert!(!at(&source.path().join("__pycache__/more.cpython-311.pyc")).exists());
        assert!(size.files >= 2 && size.bytes >= 10, "{size:?}");
        assert!(tree.join("proc").is_dir());
        Ok(())
    }
}
