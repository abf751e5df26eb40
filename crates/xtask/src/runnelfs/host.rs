//! The host's half: builds the module and the images, starts the guest, and judges what it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kernel::{Initramfs, Machine};

use super::guest::{MANIFEST, MARK, Plan};
use super::manifest::{self, Order};
use super::measure::Bench;
use super::rivals::Tools;
use super::{boot, cross, measure, trees, variants};
use crate::{cargo_command, root, step, watch};

/// Where the headers of kernels lie that modules are built against.
const HEADERS: &str = "/usr/src";

/// What the guest needs to see its disk, with what these depend on.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// For which processor the guest's half is built: as a static program, whatever the host has.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Any report of the kernel about itself ends the guest, which the host notices.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 mitigations=off audit=0 apparmor=0 selinux=0 panic=-1 oops=panic \
    panic_on_warn=1 softlockup_panic=1 hung_task_panic=1";

/// All features that an image can have, by bits.
const FEATURES: u32 = 63;

/// Memory of the guest: all images, twice, and the page cache.
const MEMORY_MIB: u32 = 768;

/// When a guest counts as hung: ten times what it takes on one slow core, and more for mutants.
const DEADLINE: Duration = Duration::from_secs(1200);

/// The image that is on the disk, and a copy with hot blocks.
const DISK: &str = "sorted.rnl";
const HOT: &str = "hot.rnl";

/// An image of the base tree, and a copy whose block table is as it was before.
const ONE: &str = "one-zstd.rnl";
const OLDER: &str = "one-older.rnl";

/// The image of the base tree of which those are made that must be refused, and their folder.
const RIGHT: &str = "stored.rnl";
const REFUSED: &str = "refused";

/// Mutants unless the user says how many.
const MUTANTS: u64 = 500;

/// Lines of a console that tell why a guest died.
pub(super) const TAIL_LINES: usize = 60;

/// A tree: its name, what makes it, and ways to pack it, by name and options of `runnel pack`.
type Tree = (&'static str, fn(&Path) -> anyhow::Result<()>, &'static [(&'static str, &'static str)]);

/// Images that must be refused, each with the error of a mount.
type Refused = Vec<(String, i32)>;

/// The trees. Mutants are made of the images of the last one.
const TREES: [Tree; 3] = [("large", trees::large, IMAGES), ("alike", trees::alike, ALIKE), (BASE, trees::small, BASES)];

/// Images of a tree that the packer did not write.
fn variants_of(tree: &str) -> &'static [&'static str] {
    match tree {
        "large" => &[HOT],
        BASE => &[OLDER],
        _ => &[],
    }
}

/// The tree of the images that mutants are made of.
const BASE: &str = "small";

/// Ways to pack the large tree.
const IMAGES: &[(&str, &str)] = &[
    ("stored", "--codec stored"),
    ("zstd", ""),
    ("zstd-4k", "--block-size 4k"),
    ("zstd-1m", "--block-size 1m --level 19"),
    ("chunks-1k", "--block-size 16k --chunk-size 1k --sort greedy"),
    ("lz4", "--codec lz4 --block-size 16k"),
    ("lz4-1m", "--codec lz4 --block-size 1m --sort files"),
    ("xz", "--codec xz"),
    ("xz-1m", "--codec xz --block-size 1m --small"),
    ("small", "--small"),
    ("small-1m", "--small --block-size 1m"),
    ("small-lz4", "--small --codec lz4"),
    ("sorted", "--small --no-dictionary"),
    ("small-4k", "--small --no-dictionary --block-size 4k --page-hashes"),
    ("recompressed", "--small --recompress"),
];

/// Ways to pack files that are alike, with dictionaries.
const ALIKE: &[(&str, &str)] = &[("small", "--small"), ("small-16k", "--small --block-size 16k --page-hashes")];

/// Ways to pack the small tree, of which mutants are made.
const BASES: &[(&str, &str)] = &[
    ("stored", "--codec stored --block-size 4k"),
    ("zstd", "--small --no-dictionary --block-size 16k"),
    ("lz4", "--codec lz4 --block-size 16k --sort greedy"),
    ("xz", "--codec xz --block-size 16k"),
    ("one-zstd", "--block-size 1m"),
    ("one-lz4", "--codec lz4 --block-size 1m"),
    ("one-xz", "--codec xz --block-size 1m"),
    ("one-derived", "--derive-hashes --block-size 1m"),
];

/// What can be tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Images are mounted and compared with their sources.
    Mounts,
    /// A system starts from an image.
    Boot,
    /// Reads and starts are measured beside SquashFS and EROFS; only if asked for.
    Measure,
}

/// `[--headers=FOLDER] [--mutants=N] [--seed=N] [--binary=FILE] [--part=mounts|boot|measure]`, and
/// for measurements `[--only=reading,hot,starts,memory,boot] [--blocks=SIZE,…] [--codecs=zstd,lz4]
/// [--runs=N]`.
struct Options {
    parts: Vec<Part>,
    headers: PathBuf,
    mutants: u64,
    seed: u64,
    runnel: Option<PathBuf>,
    choice: measure::Choice,
}

impl Options {
    fn parse(arguments: &[String]) -> anyhow::Result<Options> {
        let mut parts = vec![Part::Mounts, Part::Boot];
        let (mut headers, mut mutants, mut seed, mut runnel) = (None, MUTANTS, 0, None);
        let mut choice = measure::Choice::default();
        for argument in arguments {
            match argument.split_once('=') {
                Some(("--headers", folder)) => headers = Some(PathBuf::from(folder)),
                Some(("--mutants", count)) => mutants = count.parse()?,
                Some(("--seed", number)) => seed = number.parse()?,
                Some(("--binary", file)) => runnel = Some(fs::canonicalize(file)?),
                Some(("--part", "mounts")) => parts = vec![Part::Mounts],
                Some(("--part", "boot")) => parts = vec![Part::Boot],
                Some(("--part", "measure")) => parts = vec![Part::Measure],
                Some((option, value)) if choice.take(option, value)? => {}
                _ => bail!(
                    "usage: ./x test --runnelfs [--headers=FOLDER] [--mutants=N] [--seed=N] [--binary=FILE] \
                     [--part=mounts|boot|measure] [--only=reading,hot,starts,memory,boot] [--blocks=SIZE,…] \
                     [--codecs=zstd,lz4] [--runs=N]"
                ),
            }
        }
        let headers = headers.map_or_else(newest_headers, Ok)?;
        Ok(Options { parts, headers, mutants, seed, runnel, choice })
    }

    /// What `uname -r` says in the guest.
    fn release(&self) -> anyhow::Result<String> {
        let name = self.headers.file_name().unwrap_or_default().to_string_lossy();
        Ok(name.strip_prefix("linux-headers-").context("a folder linux-headers-RELEASE is needed")?.to_string())
    }
}

/// The newest headers for modules that are installed.
fn newest_headers() -> anyhow::Result<PathBuf> {
    let found = fs::read_dir(HEADERS)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = found.filter(|path| path.join("Module.symvers").is_file());
    found
        .max_by_key(|path| release_order(path))
        .with_context(|| format!("{HEADERS} has no headers of a kernel; apt-get install linux-headers-amd64"))
}

/// Releases are ordered by their numbers: 6.12 is newer than 6.9.
fn release_order(path: &Path) -> Vec<u64> {
    let name = path.to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Runs everything.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let options = Options::parse(arguments)?;
    ensure!(rustix::process::geteuid().is_root(), "run this as root: the trees have devices and owners");
    let release = options.release()?;
    let work = root().join("target/runnelfs");
    let kernel = work.join(&release);
    fs::create_dir_all(&kernel)?;
    step(&format!("runnelfs: module for {release}"), || build_module(&options.headers, &kernel.join("module")))?;
    if options.parts.contains(&Part::Mounts) {
        step("runnelfs: module for other processors", || cross::run(&work))?;
    }
    step("runnelfs: kernel of the guest", || fetch_kernel(&kernel, &release))?;
    step("runnelfs: programs", || build_programs(options.runnel.is_none()))?;
    let runnel = options.runnel.clone().unwrap_or_else(|| root().join("target/debug/runnel"));
    if options.parts.contains(&Part::Mounts) {
        step("runnelfs: images", || pack_all(&runnel, &work))?;
        let refused = refused(&runnel, &work)?;
        step("runnelfs: guest", || start(&options, refused, &work, &kernel, &release))?;
    }
    if options.parts.contains(&Part::Boot) {
        step("runnelfs: boot", || boot::run(&runnel, &work, &kernel, &release))?;
    }
    if options.parts.contains(&Part::Measure) {
        let tools = Tools::find(&runnel)?;
        let bench = Bench { tools, choice: options.choice.clone(), work: &work, kernel: &kernel, release: &release };
        step("runnelfs: measure", || measure::run(&bench))?;
    }
    Ok(())
}

/// Copies the module's source to where it is built.
pub(super) fn copy_module(to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(root().join("kernel/runnelfs"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn build_module(headers: &Path, to: &Path) -> anyhow::Result<()> {
    copy_module(to)?;
    let module = format!("M={}", to.display());
    watch::run(Command::new("make").arg("-s").arg("-C").arg(headers).arg(module).args(["W=1", "modules"]))
}

/// Unpacks Debian's kernel of this release.
fn fetch_kernel(to: &Path, release: &str) -> anyhow::Result<()> {
    let tree = to.join("kernel");
    if tree.join("boot").join(format!("vmlinuz-{release}")).is_file() {
        return Ok(());
    }
    watch::run(Command::new("apt-get").args(["download", "-q"]).arg(format!("linux-image-{release}")).current_dir(to))?;
    let packages = fs::read_dir(to)?.filter_map(|entry| Some(entry.ok()?.path()));
    for package in packages.filter(|path| path.extension().is_some_and(|extension| extension == "deb")) {
        watch::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
        fs::remove_file(package)?;
    }
    watch::run(Command::new("depmod").arg("-b").arg(&tree).arg(release))
}

pub(super) fn guest_program() -> PathBuf {
    root().join("target").join(GUEST_TARGET).join("quick/xtask")
}

fn build_programs(with_runnel: bool) -> anyhow::Result<()> {
    if with_runnel {
        watch::run(&mut cargo_command(&["build", "--package", "runnel", "--quiet"]))?;
    }
    let mut build = cargo_command(&["build", "--package", "xtask", "--quiet", "--profile", "quick"]);
    build.args(["--target", GUEST_TARGET]).env("RUSTFLAGS", "-C target-feature=+crt-static");
    watch::run(&mut build)
}

/// Makes the trees, their manifests and the images; those are in `TREE.d`.
fn pack_all(runnel: &Path, work: &Path) -> anyhow::Result<()> {
    let mut features = 0;
    for (tree, make, ways) in TREES {
        let (source, folder) = (work.join(tree), work.join(format!("{tree}.d")));
        make(&source)?;
        let entries = manifest::read(&source, Order::Forward)?;
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(MANIFEST), serde_json::to_vec(&entries)?)?;
        for (name, options) in ways {
            let image = folder.join(format!("{name}.rnl"));
            let mut pack = Command::new(runnel);
            pack.arg("pack").arg(&source).args(options.split_whitespace());
            let output = pack.args(["--force", "--no-sandbox", "-o"]).arg(&image).output()?;
            ensure!(output.status.success(), "{pack:?}: {}", String::from_utf8_lossy(&output.stderr));
            if tree == BASE && options.contains("1m") {
                fs::write(&image, variants::with_plain_table(&fs::read(&image)?))?;
            }
            features |= variants::features(&fs::read(&image)?);
        }
    }
    // Which blocks are hot is learned from runs; here all of them.
    let large = work.join("large.d");
    let hot = variants::hot(&fs::read(large.join(DISK))?);
    features |= variants::features(&hot);
    fs::write(large.join(HOT), hot)?;
    let base = work.join(format!("{BASE}.d"));
    fs::write(base.join(OLDER), variants::older(&fs::read(base.join(ONE))?))?;
    ensure!(check(runnel, &base.join(OLDER))?, "the image of the older layout is not one");
    ensure!(features == FEATURES, "the images have features {features}, and {FEATURES} are to be tried");
    Ok(())
}

/// Whether `runnel check` accepts an image.
fn check(runnel: &Path, image: &Path) -> anyhow::Result<bool> {
    Ok(Command::new(runnel).arg("check").arg(image).output()?.status.success())
}

/// Makes the images that must be refused, which our other reader refuses, too. Returns their names
/// with the error that a mount gives.
fn refused(runnel: &Path, work: &Path) -> anyhow::Result<Refused> {
    let folder = work.join(REFUSED);
    fs::create_dir_all(&folder)?;
    let right = fs::read(work.join(format!("{BASE}.d")).join(RIGHT))?;
    let mut names = Vec::new();
    for (name, error, bytes) in variants::refused(&right) {
        let name = format!("{name}.rnl");
        let image = folder.join(&name);
        fs::write(&image, bytes)?;
        ensure!(!check(runnel, &image)?, "{} is accepted by {}", image.display(), runnel.display());
        names.push((format!("{REFUSED}/{name}"), error as i32));
    }
    Ok(names)
}

/// The files of the modules that the guest needs, in the order of loading; none of what is built
/// in.
pub(super) fn module_files(tree: &Path, release: &str, modules: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for module in modules {
        let mut ask = Command::new("modprobe");
        ask.arg("-d").arg(tree).args(["-S", release, "--show-depends", module]);
        let output = ask.output().context("modprobe is missing; apt-get install kmod")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.lines().filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
        files.extend(found.map(PathBuf::from));
    }
    Ok(files)
}

/// Adds modules, and ours at their end; returns their names in the order of loading.
pub(super) fn add_modules(archive: &mut Initramfs, files: &[PathBuf], ours: &Path) -> anyhow::Result<Vec<String>> {
    let mut modules = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let plain = name.trim_end_matches(".xz").to_string();
        if modules.contains(&plain) {
            continue;
        }
        let bytes =
            if plain == name { fs::read(file)? } else { Command::new("xz").arg("-dc").arg(file).output()?.stdout };
        archive.file(&format!("modules/{plain}"), &bytes);
        modules.push(plain);
    }
    archive.file("modules/runnelfs.ko", &fs::read(ours)?);
    modules.push("runnelfs.ko".to_string());
    Ok(modules)
}

fn initramfs(options: &Options, refused: Refused, places: [&Path; 2], release: &str) -> anyhow::Result<Vec<u8>> {
    let [work, kernel] = places;
    let mut archive = Initramfs::new();
    for folder in ["dev", "proc", "sys", "tmp", "mnt", "modules"] {
        archive.folder(folder);
    }
    archive.file("init", &fs::read(guest_program())?);
    let mut images = Vec::new();
    for (tree, _, ways) in TREES {
        archive.folder(tree);
        let mut names: Vec<String> = ways.iter().map(|(name, _)| format!("{name}.rnl")).collect();
        names.extend(variants_of(tree).iter().map(|name| name.to_string()));
        for name in names.iter().map(String::as_str).chain([MANIFEST]) {
            let file = work.join(format!("{tree}.d")).join(name);
            let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
            archive.file(&format!("{tree}/{name}"), &bytes);
        }
        images.extend(names.iter().map(|name| format!("{tree}/{name}")));
    }
    archive.folder(REFUSED);
    for (name, _) in &refused {
        archive.file(name, &fs::read(work.join(name))?);
    }
    let files = module_files(&kernel.join("kernel"), release, &MODULES)?;
    let modules = add_modules(&mut archive, &files, &kernel.join("module/runnelfs.ko"))?;
    let bases = images.iter().filter(|image| image.starts_with(BASE)).cloned().collect();
    let (mutants, seed) = (options.mutants, options.seed);
    let plan = Plan { modules, images, refused, bases, mutants, seed, measured: Vec::new() };
    archive.file("plan.json", &serde_json::to_vec(&plan)?);
    Ok(archive.finish())
}

/// Starts the guest and fails with what it found.
fn start(options: &Options, refused: Refused, work: &Path, kernel: &Path, release: &str) -> anyhow::Result<()> {
    let archive = kernel.join("initramfs");
    fs::write(&archive, initramfs(options, refused, [work, kernel], release)?)?;
    let machine = Machine {
        kernel: kernel.join("kernel/boot").join(format!("vmlinuz-{release}")),
        initramfs: archive,
        command_line: COMMAND_LINE.to_string(),
        disks: vec![disk(work)?],
        memory_mib: MEMORY_MIB,
        processors: 2,
        counted: false,
        deadline: DEADLINE + Duration::from_secs(options.mutants),
    };
    let boot = machine.run()?;
    fs::write(kernel.join("console.log"), &boot.console)?;
    let said: Vec<&str> = boot.console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, said)| said).collect();
    for line in &said {
        eprintln!("   {}", line.trim_end());
    }
    if !boot.ended || !said.iter().any(|line| line.trim_end() == "done") {
        let lines: Vec<&str> = boot.console.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        bail!("the guest {}; its console ends with\n{tail}", if boot.ended { "died" } else { "hung" });
    }
    let failed = said.iter().filter(|line| line.starts_with("FAIL")).count();
    ensure!(failed == 0, "{failed} failure(s); the console is in {}", kernel.join("console.log").display());
    Ok(())
}

/// A disk with an image. Disks have whole sectors, and what follows an image does not matter.
fn disk(work: &Path) -> anyhow::Result<PathBuf> {
    let disk = work.join("disk.img");
    let mut bytes = fs::read(work.join("large.d").join(DISK))?;
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    fs::write(&disk, bytes)?;
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_found_by_its_numbers() {
        let order = |release: &str| release_order(Path::new(&format!("/usr/src/linux-headers-{release}")));
        assert!(order("6.9.10-amd64") < order("6.12.117+deb12-amd64"));
        assert!(order("6.1.0-56-amd64") < order("6.9.10-amd64"));
        assert!(order("6.1.0-9-amd64") < order("6.1.0-56-amd64"));
    }
}
