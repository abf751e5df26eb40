//! The versions of trees that are compared.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use units::{Rng, SplitMix64};

use super::Case;
use crate::interrupt;
use crate::lab::world::debian::RELEASE;
use crate::pack::{measure, tree};
use crate::stage::{Stages, finish, unfinished};

/// Changes when trees are made in another way.
const VERSION: u32 = 1;

/// Where Debian's security updates come from.
const SECURITY_MIRROR: &str = "http://deb.debian.org/debian-security";

/// What runs inside a copy of the old tree. Its own list of sources is of the point release.
const UPGRADE: &str = r#"set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
printf 'deb %s %s-security main\n' "$1" "$2" > /etc/apt/sources.list.d/security.list
apt-get -qq update
apt-get -qq upgrade -y -o Dpkg::Use-Pty=0
rm /usr/sbin/policy-rc.d /etc/apt/sources.list.d/security.list
"#;

/// Bytes that are inserted into a file.
const INSERTED: &[u8; 15] = b"fifteen bytes!\n";
/// One of so many files is changed.
const FILES_PER_CHANGE: u64 = 100;

/// Debian before and after its security updates, and with bytes inserted into some files.
pub(super) fn cases(cache: &Path, stages: &Stages) -> anyhow::Result<Vec<Case>> {
    let recipe = tree::RECIPES.first().context("there is a tree")?;
    let old = tree::prepare(recipe, cache, stages)?;
    let made = |name: &str, change: &dyn Fn(&Path) -> anyhow::Result<()>| -> anyhow::Result<Case> {
        let folder = cache.join("trees").join(format!("{}-{name}", recipe.name));
        stages.run(&format!("tree {name}"), &format!("{VERSION} {}\n", old.fingerprint), &folder, || {
            let new = unfinished(&folder)?;
            measure::run(Command::new("cp").arg("-a").arg(&old.folder).arg(&new))?;
            change(&new)?;
            finish(&folder)
        })?;
        Ok(Case { name: name.into(), old: old.folder.clone(), new: folder })
    };
    Ok(vec![made("security", &upgrade)?, made("inserted", &insert)?])
}

fn upgrade(tree: &Path) -> anyhow::Result<()> {
    fs::copy("/etc/resolv.conf", tree.join("etc/resolv.conf")).context("no /etc/resolv.conf for the tree's apt")?;
    let mut command = Command::new("chroot");
    command.arg(tree).args(["/bin/sh", "-c", UPGRADE, "upgrade", SECURITY_MIRROR, RELEASE]);
    measure::run(&mut command)?;
    tree::empty_caches(tree)
}

/// Inserts bytes into one of a hundred files, the same ones each time.
fn insert(tree: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    list(tree, &mut files)?;
    files.sort();
    let mut random = SplitMix64(1);
    let mut changed = 0;
    for path in &files {
        if random.below(FILES_PER_CHANGE) > 0 {
            continue;
        }
        let mut bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let at = random.below(bytes.len() as u64 + 1) as usize;
        bytes.splice(at..at, INSERTED.iter().copied());
        // In place, so that owner, permissions and other names stay.
        let file = fs::File::options().write(true).open(path);
        let written = file.and_then(|file| file.write_all_at(&bytes, 0));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        changed += 1;
    }
    ensure!(changed > 0, "{} has no hundred files", tree.display());
    Ok(())
}

/// Regular files that hold something, each by one of its names.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    interrupt::check()?;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            list(&entry.path(), files)?;
        } else if about.is_file() && about.len() > 0 && about.nlink() == 1 {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_inserted_into_a_hundredth_of_the_files() -> anyhow::Result<()> {
        let trees = [tempfile::tempdir()?, tempfile::tempdir()?];
        let mut sums = Vec::new();
        for tree in &trees {
            for index in 0..2000 {
                fs::write(tree.path().join(format!("{index}")), format!("file {index}"))?;
            }
            insert(tree.path())?;
            let read = |index: u32| fs::read(tree.path().join(format!("{index}")));
            let files = (0..2000).map(read).collect::<Result<Vec<_>, _>>()?;
            let changed = (0..).zip(&files).filter(|(index, bytes)| **bytes != format!("file {index}").into_bytes());
            let lengths: Vec<usize> =
                changed.map(|(index, bytes)| bytes.len() - format!("file {index}").len()).collect();
            assert!((10..40).contains(&lengths.len()) && lengths.iter().all(|&more| more == INSERTED.len()));
            sums.push(files);
        }
        assert_eq!(sums[0], sums[1]);
        Ok(())
    }
}
