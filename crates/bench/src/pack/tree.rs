//! The trees that are packed, made from Debian's packages once and kept in the cache.
//!
//! The first is what `debootstrap` makes, configured, so it needs an amd64 machine; the others are
//! unpacked packages, which works for any architecture. Downloads are kept, so a set-up that was
//! interrupted goes on where it was. Making a tree needs root, as files keep their owners; packing
//! one of the user's own needs nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::measure;
use crate::interrupt;
use crate::lab::world::debian::{RELEASE, mirror};
use crate::process::find_program;
use crate::stage::{Fingerprint, Stages, finish, remove, unfinished};

/// Changes when trees are made in another way.
const VERSION: u32 = 1;

/// The tree of the tables in the issue and in the study: Debian with python3 for amd64.
pub const FIRST: &str = "debian-amd64";

/// How a tree is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Installed by debootstrap.
    Installed,
    /// Packages unpacked over one another, nothing configured.
    Unpacked,
    /// The same without those of the minimal system.
    Added,
}

/// What a tree is made of.
#[derive(Debug)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// What people read.
    pub title: &'static str,
    architecture: &'static str,
    packages: &'static str,
    method: Method,
}

/// How many trees, from the first on, the bars over all trees ask for; the others are there for
/// more.
pub const REQUIRED: usize = 4;

/// The trees, the most important first.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: FIRST,
        title: "Debian 12 minbase + python3, amd64",
        architecture: "amd64",
        packages: "python3",
        method: Method::Installed,
    },
    Recipe {
        name: "debian-arm64",
        title: "Debian 12 minbase + python3, arm64 (unpacked)",
        architecture: "arm64",
        packages: "python3",
        method: Method::Unpacked,
    },
    Recipe {
        name: "jdk",
        title: "OpenJDK 17 JDK, headless, with its libraries, amd64",
        architecture: "amd64",
        packages: "openjdk-17-jdk-headless",
        method: Method::Added,
    },
    Recipe {
        name: "node",
        title: "Node.js and npm with their libraries, amd64",
        architecture: "amd64",
        packages: "nodejs,npm",
        method: Method::Added,
    },
    Recipe {
        name: "gimp",
        title: "GIMP with GTK and its libraries, amd64",
        architecture: "amd64",
        packages: "gimp",
        method: Method::Added,
    },
];

/// A tree that is there.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Its name: of the recipe, or the folder's.
    pub name: String,
    /// What people read.
    pub title: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The same as a tar archive, sorted by name.
    pub tar: PathBuf,
    /// Bytes of the archive: what ratios refer to.
    pub tar_bytes: u64,
    /// Bytes of the regular files, each once.
    pub data_bytes: u64,
    /// Regular files, each once.
    pub files: u64,
    /// Tells its content from that of other trees.
    pub fingerprint: String,
    /// Whether its code is that of x86, for the filters of other tools.
    pub x86: bool,
}

/// Makes the tree of `recipe` in `cache` unless it is there.
///
/// # Errors
/// A tool is missing or fails, or the disk is full; the message says which package to install.
pub fn prepare(recipe: &Recipe, cache: &Path, stages: &Stages) -> anyhow::Result<Tree> {
    let folder = cache.join("trees").join(recipe.name);
    let inputs = format!("{VERSION} {RELEASE} {recipe:?}\n");
    stages.run(&format!("tree {}", recipe.name), &inputs, &folder, || {
        ensure!(rustix::process::geteuid().is_root(), "making trees needs root; pack one of your own with --tree DIR");
        let new = unfinished(&folder)?;
        match recipe.method {
            Method::Installed => install(recipe, &new, cache)?,
            Method::Unpacked | Method::Added => unpack(recipe, &new, cache)?,
        }
        empty_caches(&new)?;
        finish(&folder)
    })?;
    described(recipe.name, recipe.title, folder, recipe.architecture == "amd64", &inputs, cache, stages)
}

/// A tree of the user.
///
/// # Errors
/// It cannot be read, or the disk is full.
pub fn of_user(folder: &Path, cache: &Path, stages: &Stages) -> anyhow::Result<Tree> {
    let folder = fs::canonicalize(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    let base = folder.file_name().map_or("root".into(), |name| name.to_string_lossy());
    // Two folders of one name are two trees.
    let name = format!("{base}-{}", &Fingerprint::EMPTY.and(folder.as_os_str().as_encoded_bytes()).to_string()[..6]);
    // The user may change it at any time: what was archived earlier is not trusted.
    remove(&cache.join("tar").join(format!("{name}.tar")))?;
    described(&name, &folder.display().to_string(), folder.clone(), cfg!(target_arch = "x86_64"), "", cache, stages)
}

fn described(
    name: &str,
    title: &str,
    folder: PathBuf,
    x86: bool,
    inputs: &str,
    cache: &Path,
    stages: &Stages,
) -> anyhow::Result<Tree> {
    let tar = cache.join("tar").join(format!("{name}.tar"));
    stages.run(&format!("tar {name}"), inputs, &tar, || {
        let new = unfinished(&tar)?;
        let mut command = Command::new("tar");
        command.args(["--sort=name", "--numeric-owner", "--one-file-system", "-cf"]).arg(&new).arg("-C").arg(&folder);
        measure::run(command.arg("."))?;
        finish(&tar)
    })?;
    let mut counted = Counted::default();
    count(&folder, &mut counted)?;
    Ok(Tree {
        name: name.to_string(),
        title: title.to_string(),
        tar_bytes: fs::metadata(&tar)?.len(),
        fingerprint: fingerprint_of(&tar)?,
        tar,
        folder,
        data_bytes: counted.bytes,
        files: counted.seen.len() as u64,
        x86,
    })
}

/// Of the content of a large file, read piece by piece.
fn fingerprint_of(path: &Path) -> anyhow::Result<String> {
    use std::io::Read;
    let mut file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut print, mut buffer) = (Fingerprint::EMPTY, vec![0; 1 << 20]);
    loop {
        interrupt::check()?;
        match file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))? {
            0 => return Ok(print.to_string()),
            length => print = print.and(&buffer[..length]),
        }
    }
}

#[derive(Default)]
struct Counted {
    seen: BTreeSet<(u64, u64)>,
    bytes: u64,
}

fn count(folder: &Path, counted: &mut Counted) -> anyhow::Result<()> {
    interrupt::check()?;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let found = entry.metadata().with_context(|| format!("cannot read {}", entry.path().display()))?;
        if found.is_dir() {
            count(&entry.path(), counted)?;
        } else if found.is_file() && counted.seen.insert((found.dev(), found.ino())) {
            counted.bytes += found.len();
        }
    }
    Ok(())
}

/// Removes what a package manager leaves in a tree and no program needs.
pub(crate) fn empty_caches(tree: &Path) -> anyhow::Result<()> {
    ["var/cache/apt", "var/lib/apt/lists", "var/log"].iter().try_for_each(|left| empty(&tree.join(left)))
}

/// Removes what a folder holds, folders below it excepted, as packages own those.
fn empty(folder: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() { empty(&entry.path())? } else { remove(&entry.path())? }
    }
    Ok(())
}

fn debootstrap(recipe: &Recipe, cache: &Path) -> anyhow::Result<Command> {
    let program = find_program("debootstrap").context("debootstrap is missing; apt-get install debootstrap")?;
    let downloads = cache.join("packages");
    fs::create_dir_all(&downloads).with_context(|| format!("cannot make {}", downloads.display()))?;
    let mut command = Command::new(program);
    command.args(["--variant=minbase", "--arch", recipe.architecture]);
    command.arg(format!("--cache-dir={}", fs::canonicalize(&downloads)?.display()));
    Ok(command)
}

fn install(recipe: &Recipe, folder: &Path, cache: &Path) -> anyhow::Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the tree {} is installed, which only an amd64 machine can do", recipe.name);
    let mut command = debootstrap(recipe, cache)?;
    command.arg(format!("--include={}", recipe.packages)).arg(RELEASE).arg(folder).arg(mirror()?);
    measure::run(&mut command).with_context(|| format!("debootstrap says more in {}/debootstrap", folder.display()))?;
    remove(&folder.join("debootstrap"))
}

/// Lets debootstrap choose and download the packages, then unpacks them.
fn unpack(recipe: &Recipe, folder: &Path, cache: &Path) -> anyhow::Result<()> {
    let dpkg = find_program("dpkg-deb").context("dpkg-deb is missing; apt-get install dpkg")?;
    let chosen = cache.join("trees").join(format!("{}.chosen", recipe.name));
    remove(&chosen)?;
    let left_out = if recipe.method == Method::Added { minimal(recipe, cache)? } else { BTreeSet::new() };
    let mut command = debootstrap(recipe, cache)?;
    command.arg("--download-only").arg(format!("--include={}", recipe.packages));
    measure::run(command.arg(RELEASE).arg(&chosen).arg(mirror()?))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let archives = chosen.join("var/cache/apt/archives");
    let mut packages: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&archives).with_context(|| format!("cannot read {}", archives.display()))? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_package = path.extension().is_some_and(|extension| extension == "deb");
        if is_package && !left_out.contains(file.split('_').next().unwrap_or_default()) {
            packages.push(path);
        }
    }
    ensure!(!packages.is_empty(), "debootstrap downloaded no packages for {}", recipe.packages);
    packages.sort();
    for package in &packages {
        measure::run(Command::new(&dpkg).arg("-x").arg(package).arg(folder))?;
    }
    remove(&chosen)
}

/// Names of the packages of the minimal system.
fn minimal(recipe: &Recipe, cache: &Path) -> anyhow::Result<BTreeSet<String>> {
    let folder = cache.join("trees").join("minimal.chosen");
    remove(&folder)?;
    let mut command = debootstrap(recipe, cache)?;
    let done = measure::run(command.arg("--print-debs").arg(RELEASE).arg(&folder).arg(mirror()?))?;
    let names = String::from_utf8_lossy(&done.output).split_whitespace().map(str::to_string).collect();
    remove(&folder)?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_the_user_is_counted_by_inode_and_told_apart_by_content() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (tree, cache) = (folder.path().join("tree"), folder.path().join("cache"));
        fs::create_dir_all(tree.join("a"))?;
        fs::write(tree.join("a/one"), vec![7; 5000])?;
        fs::hard_link(tree.join("a/one"), tree.join("two"))?;
        let stages = Stages::titled("pack", cache.join("stamps"))?;
        let first = of_user(&tree, &cache, &stages)?;
        assert_eq!((first.files, first.data_bytes), (1, 5000));
        assert!(first.tar_bytes > 5000 && first.name.starts_with("tree-"));
        assert_eq!(of_user(&tree, &cache, &stages)?.fingerprint, first.fingerprint);
        fs::write(tree.join("a/three"), "x")?;
        assert_ne!(of_user(&tree, &cache, &stages)?.fingerprint, first.fingerprint, "the archive is made anew");
        Ok(())
    }

    #[test]
    fn emptying_keeps_folders() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::create_dir_all(folder.path().join("log/apt"))?;
        fs::write(folder.path().join("log/apt/term.log"), "text")?;
        empty(folder.path())?;
        assert!(folder.path().join("log/apt").is_dir() && !folder.path().join("log/apt/term.log").exists());
        empty(&folder.path().join("missing"))
    }
}
