//! The world of the lab: everything that a guest needs, made from Debian packages and kept in a
//! cache folder.
//!
//! ```text
//! CACHE/stamps/        what each stage was made from
//! CACHE/kernel/        vmlinuz, initramfs.gz, modules
//! CACHE/minbase/       a minimal Debian system; copies with packages: guest/, base/
//! CACHE/newest/        tools of other systems in their newest versions
//! CACHE/content/       trees/, images/, fresh/, learned/, pages/: what servers publish
//! CACHE/guest.img, content.img   the disks of the guest
//! ```
//!
//! [`prepare`] makes what [`needs::Needs`] says and no more. A cache that holds more, from other
//! plans, is used as it is.

pub mod binary;
pub mod data;
pub mod debian;
pub mod disk;
pub mod image;
pub mod kernel;
pub mod learn;
pub mod needs;
pub mod newest;
pub mod nydus;
pub mod rivals;
pub mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::data::VERSION as DATA_VERSION;
use super::program::{PROGRAMS, Program};
pub use crate::stage;
use crate::stream::say;
use binary::Binaries;
use kernel::Kernel;
use needs::{Form, Needs};
use newest::Newest;
use stage::{Fingerprint, Stages};
use tree::Tree;

/// Changes when results of the same binaries can no longer be compared with older ones.
const VERSION: u32 = 2;

/// Free space of the content's disk: the guest writes profiles, copies of stores and caches there,
/// and a server takes no upload that leaves it less than 256 MiB. The file has holes there.
const CONTENT_SPARE_BYTES: u64 = 640 << 20;

/// Free space of the guest's root, which is read-only.
const GUEST_SPARE_BYTES: u64 = 32 << 20;

/// What the lab's machines are made from.
#[derive(Clone, Debug)]
pub struct World {
    /// Kernel and initial file system.
    pub kernel: Kernel,
    /// Disk with the guest's root.
    pub guest: PathBuf,
    /// Disk with what servers publish.
    pub content: PathBuf,
    /// The programs under test, and those that measure them.
    pub binaries: Binaries,
    /// Names and versions of what is compared with.
    pub rivals: Vec<String>,
    /// Tells these binaries in this world from others: results with the same key can be compared.
    pub key: String,
}

/// How the set-up is told what it cannot find out.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cache folder.
    pub cache: PathBuf,
    /// A static binary to test instead of building one.
    pub binary: Option<PathBuf>,
    /// Nydus' programs, if they are there.
    pub nydus: Option<nydus::Nydus>,
}

/// Makes the world, or what of it is missing or out of date.
pub fn prepare(needs: &Needs, settings: &Settings) -> anyhow::Result<World> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the lab's guest runs x86-64 programs, some of them on the host: it needs such a host"
    );
    let stages = Stages::open(settings.cache.join("stamps"))?;
    let cache = settings.cache.as_path();
    // The kernel first: it needs apt's package list, which the build of the binary may update.
    let (minimal, kernel) = both(|| debian::minimal(cache, &stages), || kernel::prepare(cache, &stages))?;
    let build = || binary::prepare(settings.binary.as_deref(), &stages);
    let systems = || {
        let guest = || guest(needs, settings, &minimal, &kernel, &stages);
        both(guest, || trees(needs, cache, &minimal, &stages))
    };
    let (binaries, (guest, trees)) = both(build, systems)?;
    let makers = image::Makers {
        runnel_fingerprint: Fingerprint::EMPTY.and_file(&binaries.runnel)?,
        runnel: binaries.runnel.clone(),
        nydus_image: settings.nydus.as_ref().map(|nydus| nydus.converter.clone()),
        newest: if needs.newest_tools() { newest_tools(cache, &stages) } else { None },
    };
    let content = content(needs, &trees, &makers, cache, &stages)?;
    let key = Fingerprint::EMPTY
        .and(makers.runnel_fingerprint.to_string().as_bytes())
        .and_file(&binaries.bench)?
        .and(format!("{VERSION} {} {} {DATA_VERSION} {}", tree::VERSION, learn::VERSION, kernel.release).as_bytes());
    let rivals = rivals::versions(&cache.join("guest"), needs, &makers, &kernel.release)?;
    Ok(World { kernel, guest, content, binaries, rivals, key: key.to_string() })
}

/// The newest tools; where they cannot be had, the report says which ones were used.
fn newest_tools(cache: &Path, stages: &Stages) -> Option<Newest> {
    match Newest::prepare(cache, stages) {
        Ok(newest) => Some(newest),
        Err(error) => {
            say(&format!("lab: the machine's own tools make the images of squashfs and EROFS: {error:#}"));
            None
        }
    }
}

/// Does two things side by side: one waits for the network or one core while the other computes.
fn both<A: Send, B>(
    one: impl FnOnce() -> anyhow::Result<A> + Send,
    other: impl FnOnce() -> anyhow::Result<B>,
) -> anyhow::Result<(A, B)> {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().unwrap_or_else(|_| anyhow::bail!("a thread of the set-up panicked"));
        Ok((one?, other?))
    })
}

/// The disk with the guest's root.
fn guest(
    needs: &Needs,
    settings: &Settings,
    minimal: &Path,
    kernel: &Kernel,
    stages: &Stages,
) -> anyhow::Result<PathBuf> {
    let cache = settings.cache.as_path();
    let root = debian::root("guest", &cache.join("guest"), &needs.guest_packages, minimal, stages)?;
    let nydusd = settings.nydus.as_ref().map(|nydus| nydus.daemon.clone());
    let additions = disk::Additions { kernel, nydusd };
    let packages: Vec<&str> = root.packages.iter().map(String::as_str).collect();
    let inputs = format!("{}packages {}\n", additions.inputs()?, packages.join(" "));
    let disk = cache.join("guest.img");
    stages.run("guest.img", &inputs, &disk, || {
        additions.install(&root.folder)?;
        disk::make(&root.folder, &disk, GUEST_SPARE_BYTES)
    })?;
    Ok(disk)
}

fn trees(needs: &Needs, cache: &Path, minimal: &Path, stages: &Stages) -> anyhow::Result<Vec<Tree>> {
    let folder = cache.join("content/trees");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut trees = Vec::new();
    if !needs.trees.is_empty() {
        let base = debian::root("base", &cache.join("base"), &needs.tree_packages(), minimal, stages)?;
        trees = tree::prepare(&needs.trees, &base, &folder, stages)?;
    }
    if needs.data {
        trees.extend(data::prepare(minimal, &folder, stages)?);
    }
    Ok(trees)
}

/// The trees in other forms, what was learned, and the disk with all of it.
fn content(
    needs: &Needs,
    trees: &[Tree],
    makers: &image::Makers,
    cache: &Path,
    stages: &Stages,
) -> anyhow::Result<PathBuf> {
    let folder = cache.join("content");
    let images = folder.join("images");
    fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    image::remove_unfinished(&images)?;
    for (name, form) in &needs.images {
        if *form == Form::Nydus && makers.nydus_image.is_none() {
            continue;
        }
        let tree = trees.iter().find(|tree| tree.name == *name).context("every image has a tree")?;
        image::prepare(tree, *form, &images, makers, stages)?;
    }
    let mut inputs = learned(needs, trees, makers, &folder, stages)?;
    // Every part that is there, from whatever plan, goes to the disk.
    for name in parts(&folder)? {
        let stamp = stages.inputs(&name).unwrap_or_default();
        inputs.push_str(&format!("{name} {}\n", Fingerprint::EMPTY.and(stamp.as_bytes())));
    }
    let disk = cache.join("content.img");
    stages.run("content.img", &inputs, &disk, || disk::make(&folder, &disk, CONTENT_SPARE_BYTES))?;
    Ok(disk)
}

/// Names of the stages whose results lie in the content folder: trees and images.
fn parts(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (below, prefix) in [("trees", "tree-"), ("images", "")] {
        for entry in fs::read_dir(folder.join(below)).with_context(|| format!("cannot list {below}"))? {
            found.insert(format!("{prefix}{}", entry?.file_name().to_string_lossy()));
        }
    }
    Ok(found)
}

/// Page lists and the stores `fresh` and `learned`; returns what they were made from.
fn learned(
    needs: &Needs,
    trees: &[Tree],
    makers: &image::Makers,
    folder: &Path,
    stages: &Stages,
) -> anyhow::Result<String> {
    let images = folder.join("images");
    remove_outdated(&images, makers, stages)?;
    let names: Vec<String> = image::list(&images)?.iter().map(|path| file_name(path)).collect();
    let contents: String =
        names.iter().map(|name| format!("{name} {}", stages.inputs(name).unwrap_or_default())).collect();
    stages.run("fresh", &contents, &folder.join("fresh"), || image::fresh_store(&images, &folder.join("fresh")))?;

    // What earlier plans needed is learned again too, or they would undo each other's set-up.
    let is_packed = |program: &Program| names.contains(&format!("{}.rnl", program.tree));
    let had = stages.inputs("learned").unwrap_or_default();
    let wanted = |program: &&Program| {
        needs.learned.contains(program.name) || had.lines().any(|line| line == format!("program {}", program.name))
    };
    let programs: Vec<&Program> = PROGRAMS.iter().filter(wanted).filter(|program| is_packed(program)).collect();
    let learner = learn::Learner { runnel: makers.runnel.clone(), work: folder.with_extension("work") };
    for program in &programs {
        let Some(tree) = trees.iter().find(|tree| tree.name == program.tree) else { continue };
        let list = folder.join("pages").join(program.name);
        let inputs = format!("version {}\n{:?}\ntree {}\n", learn::VERSION, program.command, tree.fingerprint);
        let stage = format!("pages-{}", program.name);
        stages.run(&stage, &inputs, &list, || learner.page_list(program, &images, &list))?;
    }
    let lines: String = programs.iter().map(|program| format!("program {}\n", program.name)).collect();
    let inputs = format!("version {}\n{lines}{contents}", learn::VERSION);
    let store = folder.join("learned");
    stages.run("learned", &inputs, &store, || learner.learned_store(&programs, &images, &store))?;
    stage::remove(&learner.work)?;
    Ok(inputs)
}

/// Removes images that another binary packed: the plan does not need them, else they were packed
/// anew.
fn remove_outdated(images: &Path, makers: &image::Makers, stages: &Stages) -> anyhow::Result<()> {
    let current = format!("runnel {}", makers.runnel_fingerprint);
    for path in image::list(images)? {
        let inputs = stages.inputs(&file_name(&path)).unwrap_or_default();
        if !inputs.lines().any(|line| line == current) {
            stage::remove(&path)?;
        }
    }
    Ok(())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
