//! A Debian system with programs to start: Python, Perl, git, a compiler, an editor.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::boot::{self, SUITE};
use super::measure::Bench;
use super::meter::Task;
use super::rivals::{Image, Tree};
use super::sets::{self, Set};
use crate::watch;

/// What the system has beside a minimal one.
const PACKAGES: &str = "python3,perl,git,cpp-12,vim-tiny";

/// What no device has: documents, translations, and what apt makes itself.
const LEFT_OUT: [&str; 6] =
    ["usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists"];

/// Changes when the tree is made in another way.
const VERSION: &str = "1";

/// Room on the disk on which it is recorded what programs touch.
const DISK: &str = "512M";

/// Makes the tree, once.
pub(super) fn make(folder: &Path) -> anyhow::Result<()> {
    let (stamp, wanted) = (folder.with_extension("stamp"), format!("{SUITE} {PACKAGES} {VERSION}"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    boot::remove(folder)?;
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include", PACKAGES, SUITE]).arg(folder).arg(boot::mirror());
    let output = make.output().context("debootstrap is missing; apt-get install debootstrap")?;
    ensure!(output.status.success(), "debootstrap: {}", String::from_utf8_lossy(&output.stdout));
    for path in LEFT_OUT {
        boot::remove(&folder.join(path))?;
    }
    fs::write(stamp, wanted)?;
    Ok(())
}

/// What each program touches when it starts. Once for a tree: which pages these are is not quite
/// the same each time, and images are made of them.
pub(super) fn touched(bench: &Bench<'_>, made: &Tree, tree: &Path) -> anyhow::Result<Vec<Set>> {
    let kept = bench.kernel.join("touched");
    let how = format!("{:?}", super::probe::PROGRAMS);
    if !made.made(&kept, &how) {
        let disk = bench.kernel.join("applications.ext4");
        ext4(tree, &disk, DISK)?;
        let image = Image { name: "ext4".to_string(), kind: "ext4", path: disk.clone() };
        let mut lines = String::new();
        bench.guest(&[image], &Task::Touched, &[], 1, |line| lines.extend([line, "\n"]))?;
        fs::remove_file(disk)?;
        fs::write(&kept, lines)?;
        made.keep(&kept, &how)?;
    }
    sets::touched(fs::read_to_string(&kept)?.lines())
}

/// A disk of ext4 with a tree.
pub(super) fn ext4(tree: &Path, disk: &Path, size: &str) -> anyhow::Result<()> {
    let _ = fs::remove_file(disk);
    let mut make = Command::new("mke2fs");
    watch::run(make.args(["-q", "-F", "-t", "ext4", "-m", "0", "-d"]).arg(tree).arg(disk).arg(size))
}
