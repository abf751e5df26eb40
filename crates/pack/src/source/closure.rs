//! A program with everything it needs to start, out of a root directory, as a source.
//!
//! The crate `elf` finds the files from the ELF files themselves. This module gives it the root
//! directory, and puts the found files at the same paths, with symlinks and attributes of the
//! directories on the way. Extra paths are packed whole; ELF files among them bring their
//! libraries, and symlinks that lead out of them bring their targets.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use elf::{ClosureError, Finder, Node as ElfNode, Root};

use super::dir::Lister;
use crate::notes::Notes;
use crate::tree::{Body, Tree, components};
use crate::{PackError, Phase, Progress};

/// Missing libraries named in one error.
const MISSING_SHOWN: usize = 20;

/// A directory on disk as the root of a system.
pub struct LocalRoot {
    base: PathBuf,
}

impl LocalRoot {
    /// The directory `base` as `/`.
    pub fn new(base: impl Into<PathBuf>) -> LocalRoot {
        LocalRoot { base: base.into() }
    }

    /// Where a path of the root lies. The finder resolves symlinks, so every parent here is a true
    /// directory.
    fn place(&self, path: &[u8]) -> PathBuf {
        self.base.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)))
    }
}

impl Root for LocalRoot {
    fn node(&self, path: &[u8]) -> io::Result<Option<ElfNode>> {
        let place = self.place(path);
        let about = match fs::symlink_metadata(&place) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            about => about?,
        };
        Ok(Some(if about.is_symlink() {
            ElfNode::Symlink(fs::read_link(&place)?.into_os_string().into_vec())
        } else if about.is_dir() {
            ElfNode::Directory
        } else if about.is_file() {
            ElfNode::File
        } else {
            ElfNode::Other
        }))
    }

    fn read_at(&self, path: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        File::open(self.place(path))?.read_at(buffer, offset)
    }

    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(self.place(path))?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }
}

/// Fills `tree` with `programs` and `includes` from the root directory `base`, and all they need.
pub(crate) fn read(
    base: &Path,
    programs: &[PathBuf],
    includes: &[PathBuf],
    tree: &mut Tree,
    skipped: &[(u64, u64)],
    notes: &mut Notes,
    progress: &dyn Progress,
) -> Result<(), PackError> {
    progress.phase(Phase::Scan, 0);
    let base = fs::canonicalize(base).map_err(|source| PackError::read(base, source))?;
    let root = LocalRoot { base };
    let mut finder = Finder::new(&root);
    for program in programs {
        finder.program(program.as_os_str().as_bytes())?;
    }
    if !finder.missing().is_empty() {
        let mut list: Vec<String> = finder.missing().iter().map(shown).collect();
        list.dedup();
        list.truncate(MISSING_SHOWN);
        return Err(PackError::MissingLibraries { list });
    }
    let mut lister = Lister::new(tree, skipped, progress);
    lister.root(&root.base)?;
    include(&root, includes, &mut finder, &mut lister)?;
    let closure = finder.finish();
    // A plugin that cannot load does not keep the program from starting.
    for missing in &closure.missing {
        notes.add(format!("missing library: {}", shown(missing)));
    }
    // Byte order: a directory comes before what lies in it.
    for path in closure.paths.iter().filter(|path| **path != b"/") {
        place(&mut lister, &root, path)?;
    }
    Ok(())
}

fn shown(missing: &elf::Missing) -> String {
    let (name, needed_by) = (String::from_utf8_lossy(&missing.name), String::from_utf8_lossy(&missing.needed_by));
    format!("{name} (needed by {needed_by})")
}

/// Places one path of the closure under the directories placed before it.
fn place(lister: &mut Lister<'_>, root: &LocalRoot, path: &[u8]) -> Result<(), PackError> {
    let mut directory = Tree::ROOT;
    let mut here = Vec::new();
    let parts: Vec<&[u8]> = components(path).collect();
    for (index, name) in parts.iter().enumerate() {
        here.push(b'/');
        here.extend_from_slice(name);
        let known = lister.tree().child(directory, name);
        let is_last = index + 1 == parts.len();
        directory = match known {
            Some(node) => node,
            None => match lister.entry(directory, name, &root.place(&here))? {
                Some(node) => node,
                None => return Ok(()),
            },
        };
        if !is_last && !matches!(lister.tree().node(directory).body, Body::Directory(_)) {
            return Err(PackError::Changed { path: root.place(&here) });
        }
    }
    Ok(())
}

/// Places the extra paths whole and adds what their files need.
fn include(
    root: &LocalRoot,
    includes: &[PathBuf],
    finder: &mut Finder<'_>,
    lister: &mut Lister<'_>,
) -> Result<(), PackError> {
    let mut found = Vec::new();
    for path in includes {
        let resolved = finder.path(path.as_os_str().as_bytes())?;
        for step in resolved.steps.iter().filter(|step| **step != b"/") {
            place(lister, root, step)?;
        }
        if resolved.node == ElfNode::File {
            found.push(resolved.path);
        } else if resolved.node == ElfNode::Directory {
            let base = root.place(&resolved.path);
            let directory = lister.tree().find(&resolved.path);
            let directory = directory.ok_or_else(|| PackError::Changed { path: base.clone() })?;
            lister.below(directory, &base, false, |tree, node, path| {
                // Only what may be ELF is looked at; a header takes at least 52 bytes.
                let worth_it = match &tree.node(node).body {
                    Body::File { size, .. } => *size >= 52,
                    Body::Symlink(_) => true,
                    _ => false,
                };
                if worth_it && let Ok(inside) = path.strip_prefix(&root.base) {
                    found.push([b"/", inside.as_os_str().as_bytes()].concat());
                }
            })?;
        }
    }
    for path in found {
        match finder.object(&path) {
            // A dangling symlink, or a data file that only looks like ELF.
            Err(ClosureError::NotFound { .. } | ClosureError::SymlinkLoop { .. } | ClosureError::Elf { .. }) => {}
            result => result?,
        }
    }
    Ok(())
}
