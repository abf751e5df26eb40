//! What programs expect of files, tried on mounted volumes: real servers, real mounts, and tools of
//! others.
//!
//! The short form takes about a minute. The full form runs all parts at length, some beside the
//! same on a folder of this machine; what misses its bar is an error at the end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

mod compare;
mod crash;
mod fsx;
mod link;
mod mounted;
mod pjdfstest;
mod rsync;
mod stress;
mod tools;
mod turns;
mod work;

pub use crash::write as crash_writer;

/// What runs one part.
type Part = fn(&Setting) -> anyhow::Result<()>;

/// The parts, by the names under which they can be asked for.
const PARTS: [(&str, Part); 7] = [
    ("pjdfstest", pjdfstest::run),
    ("fsx", fsx::run),
    ("turns", turns::run),
    ("crash", crash::run),
    ("stress", stress::run),
    ("rsync", rsync::run),
    ("work", work::run),
];

/// What all parts need to know.
pub struct Setting {
    /// The workspace.
    pub root: PathBuf,
    /// The program.
    pub runnel: PathBuf,
    /// Where tools and sources are kept.
    pub cache: PathBuf,
    /// A new folder, which goes at the end.
    pub folder: PathBuf,
    /// At length, with everything.
    pub full: bool,
}

impl Setting {
    /// A new folder of this machine's own file system, to compare with.
    fn local(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(format!("local-{name}"));
        fs::create_dir(&path)?;
        Ok(path)
    }
}

/// Runs the parts that are named, or all.
pub fn run(root: &Path, runnel: &Path, cache: &Path, full: bool, named: &[&str]) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("== posix: skipped: pjdfstest changes owners and users, which takes root");
        return Ok(());
    }
    let unknown = named.iter().find(|name| !PARTS.iter().any(|(part, _)| part == *name));
    ensure!(unknown.is_none(), "{unknown:?} is none of {:?}", PARTS.map(|(part, _)| part));
    let folder = Folder::new()?;
    let path = |path: &Path| path.to_owned();
    let setting = Setting { root: path(root), runnel: path(runnel), cache: path(cache), folder: path(&folder.0), full };
    let mut failed = Vec::new();
    for (name, part) in PARTS {
        if !named.is_empty() && !named.contains(&name) {
            continue;
        }
        if let Err(error) = part(&setting) {
            eprintln!("error: {name}: {error:#}");
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("runnel-posix-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Fails while a mount is left below it, which is better than to remove what is mounted.
        let _ = fs::remove_dir_all(&self.0);
    }
}
