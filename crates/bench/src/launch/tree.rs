//! The disk's content: a Debian system with all programs, made once, and an ext4 image of it.
//!
//! The system is the lab's minimal one with packages installed, and a folder with what the programs
//! are given to do. The tree itself is removed once its image is made: both together would take
//! twice the room.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::fs::statvfs;

use super::program::Profile;
use crate::lab::world::debian::{self, RELEASE};
use crate::lab::world::disk::{disk_bytes, image_bytes};
use crate::stage::{Fingerprint, Stages, finish, remove, unfinished};

/// Changes when images are made in another way.
const VERSION: u32 = 1;

/// Room that is left on the disk.
const SPARE_BYTES: u64 = 64 << 20;

/// Where the programs' own files lie in the tree.
const FOLDER: &str = "opt/launch";

/// The programs' own files.
const FILES: [(&str, &str); 6] = [
    ("analysis.py", include_str!("content/analysis.py")),
    ("phases.py", include_str!("content/phases.py")),
    ("Http.java", include_str!("content/Http.java")),
    ("hello.cpp", include_str!("content/hello.cpp")),
    ("document.fodt", include_str!("content/document.fodt")),
    ("drawing.svg", include_str!("content/drawing.svg")),
];

/// What is done in the tree once all is there.
const PREPARE: &str = "mkdir -p /var/lib/runnel && cd /opt/launch && javac Http.java";

/// An image that is there.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its file.
    pub path: PathBuf,
    /// Tells its content from that of others.
    pub fingerprint: String,
}

/// Makes the image of `profile` in `cache` unless it is there.
///
/// # Errors
/// A tool is missing or fails, or the disk is full.
pub fn prepare(profile: Profile, cache: &Path, stages: &Stages) -> anyhow::Result<Image> {
    let path = cache.join(format!("{}.ext4", profile.name()));
    let mut inputs = format!("{VERSION} {RELEASE} {:?}\n", profile.packages());
    FILES.iter().for_each(|(_, text)| inputs.push_str(&format!("{}\n", Fingerprint::EMPTY.and(text.as_bytes()))));
    stages.run(&format!("image {}", profile.name()), &inputs, &path, || {
        room(cache, profile)?;
        let minimal = debian::minimal(cache, stages)?;
        let tree = cache.join("trees").join(profile.name());
        let packages = profile.packages().into_iter().map(str::to_string).collect();
        debian::root(profile.name(), &tree, &packages, &minimal, stages)?;
        let folder = tree.join(FOLDER);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (name, text) in FILES {
            fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        debian::run_inside(&tree, PREPARE, [])?;
        let new = unfinished(&path)?;
        disk::format(&tree, &new, image_bytes(disk_bytes(&tree)?, SPARE_BYTES))?;
        finish(&path)?;
        remove(&tree)
    })?;
    Ok(Image { path, fingerprint: Fingerprint::EMPTY.and(inputs.as_bytes()).to_string() })
}

/// Refuses to begin what the disk has no room for.
fn room(cache: &Path, profile: Profile) -> anyhow::Result<()> {
    let needed = match profile {
        Profile::Small => 4_000_000_000,
        Profile::Full => 7_000_000_000_u64,
    };
    let found = statvfs(cache).context("cannot ask for the room on the disk")?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    ensure!(
        free >= needed,
        "{} has room for {} MB, the tree and its image need up to {}; make room or give --work DIR",
        cache.display(),
        free / 1_000_000,
        needed / 1_000_000
    );
    Ok(())
}
