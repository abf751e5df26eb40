//! The host's half: builds the module and the images, starts the guest, and judges what it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kernel::{Initramfs, Machine};

use super::guest::{INNER, MANIFEST, MARK, NESTED, OUTER, Plan};
use super::kernels::{self, Guest, PROCESSORS, Processor};
use super::manifest::{self, Order};
use super::measure::Bench;
use super::rivals::Tools;
use super::{boot, measure, trees, variants};
use crate::{cargo_command, root, step, watch};

/// For which processor the guest's half is built: as a static program, whatever the host has.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Most reports of the kernel about itself end the guest. A processor counts as stuck after two
/// minutes, since a busy host may not run the emulator for some of the usual twenty seconds.
const COMMAND_LINE: &str = "loglevel=5 mitigations=off audit=0 apparmor=0 selinux=0 panic=-1 oops=panic panic_on_warn=1 \
    softlockup_panic=1 watchdog_thresh=60 hung_task_panic=1";

/// What is in the console when the kernel reports a fault of its own, also one that it lives on
/// with.
const REPORTS: [&str; 6] = ["BUG:", "BUG ", "WARNING:", "INFO: ", "UBSAN:", "Oops:"];

/// All features that an image can have, by bits.
const FEATURES: u32 = 63;

/// Memory of the guest: all images, twice, and the page cache; and with what finds faults.
const MEMORY_MIB: u32 = 768;
const MEMORY_MIB_SANITIZED: u32 = 1536;

/// When a guest counts as hung: ten times what it takes on one slow core, and more for mutants.
const DEADLINE: Duration = Duration::from_secs(1200);

/// What finds faults makes all of it so many times slower.
const SANITIZED_SLOWER: u32 = 4;

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

/// Images that must be refused, each with the error of a mount and a part of what the kernel says.
type Refused = Vec<(String, i32, String)>;

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

/// `[--headers=FOLDER | --sanitize | --processor=NAME] [--mutants=N] [--seed=N] [--binary=FILE]
/// [--part=mounts|boot|measure]`, and for measurements `[--only=reading,hot,starts,memory,boot]
/// [--trees=NAME,…] [--sets=NAME,…] [--blocks=SIZE,…] [--codecs=zstd,lz4] [--runs=N]`.
struct Options {
    parts: Vec<Part>,
    headers: Option<PathBuf>,
    /// A kernel is built that finds faults.
    sanitizes: bool,
    processor: &'static Processor,
    mutants: u64,
    seed: u64,
    runnel: Option<PathBuf>,
    choice: measure::Choice,
}

impl Options {
    fn parse(arguments: &[String]) -> anyhow::Result<Options> {
        let mut options = Options {
            parts: vec![Part::Mounts, Part::Boot],
            headers: None,
            sanitizes: false,
            processor: &PROCESSORS[0],
            mutants: MUTANTS,
            seed: 0,
            runnel: None,
            choice: measure::Choice::default(),
        };
        for argument in arguments {
            match argument.split_once('=') {
                Some(("--headers", folder)) => options.headers = Some(PathBuf::from(folder)),
                Some(("--processor", name)) => {
                    let found = PROCESSORS.iter().find(|processor| processor.name == name);
                    options.processor = found.with_context(|| format!("there are no guests for {name}"))?;
                }
                Some(("--mutants", count)) => options.mutants = count.parse()?,
                Some(("--seed", number)) => options.seed = number.parse()?,
                Some(("--binary", file)) => options.runnel = Some(fs::canonicalize(file)?),
                Some(("--part", "mounts")) => options.parts = vec![Part::Mounts],
                Some(("--part", "boot")) => options.parts = vec![Part::Boot],
                Some(("--part", "measure")) => options.parts = vec![Part::Measure],
                Some((option, value)) if options.choice.take(option, value)? => {}
                None if argument == "--sanitize" => options.sanitizes = true,
                _ => bail!(
                    "usage: ./x test --runnelfs [--headers=FOLDER | --sanitize | --processor=NAME] [--mutants=N] [--seed=N] \
                     [--binary=FILE] [--part=mounts|boot|measure] [--only=reading,hot,starts,memory,boot] \
                     [--trees=NAME,…] [--sets=NAME,…] [--blocks=SIZE,…] [--codecs=zstd,lz4] [--runs=N]"
                ),
            }
        }
        if options.sanitizes || !options.processor.is_host() {
            options.parts = vec![Part::Mounts];
        }
        ensure!(!options.sanitizes || options.processor.is_host(), "--sanitize is for the host's processor");
        Ok(options)
    }
}

/// Runs everything.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let options = Options::parse(arguments)?;
    ensure!(rustix::process::geteuid().is_root(), "run this as root: the trees have devices and owners");
    let work = root().join("target/runnelfs");
    let guest = if options.sanitizes {
        kernels::sanitizing(&work)?
    } else {
        let checked = options.parts != [Part::Measure];
        kernels::debian(options.processor, options.headers.as_deref(), &work, checked)?
    };
    let (kernel, release) = (&guest.folder, &guest.release);
    step("runnelfs: programs", || build_programs(&options))?;
    let runnel = options.runnel.clone().unwrap_or_else(|| root().join("target/debug/runnel"));
    if options.parts.contains(&Part::Mounts) {
        step("runnelfs: images", || pack_all(&runnel, &work))?;
        let refused = refused(&runnel, &work)?;
        step("runnelfs: guest", || start(&options, refused, &work, &guest))?;
    }
    if options.parts.contains(&Part::Boot) {
        step("runnelfs: boot", || boot::run(&runnel, &work, kernel, release))?;
    }
    if options.parts.contains(&Part::Measure) {
        let tools = Tools::find(&runnel)?;
        let bench = Bench { tools, choice: options.choice.clone(), work: &work, kernel, release };
        step("runnelfs: measure", || measure::run(&bench))?;
    }
    Ok(())
}

pub(super) fn guest_program() -> PathBuf {
    root().join("target").join(GUEST_TARGET).join("quick/xtask")
}

fn build_programs(options: &Options) -> anyhow::Result<()> {
    if options.runnel.is_none() {
        watch::run(&mut cargo_command(&["build", "--package", "runnel", "--quiet"]))?;
    }
    // That for another processor is there.
    if !options.processor.is_host() {
        return Ok(());
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
            pack(runnel, &source, options, &image)?;
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
    let nest = work.join("nest");
    fs::create_dir_all(&nest)?;
    fs::copy(large.join(DISK), nest.join(INNER))?;
    pack(runnel, &nest, "--block-size 4k --no-dictionary", &work.join(NESTED))?;
    let base = work.join(format!("{BASE}.d"));
    fs::write(base.join(OLDER), variants::older(&fs::read(base.join(ONE))?))?;
    ensure!(check(runnel, &base.join(OLDER))?, "the image of the older layout is not one");
    ensure!(features == FEATURES, "the images have features {features}, and {FEATURES} are to be tried");
    Ok(())
}

fn pack(runnel: &Path, source: &Path, options: &str, image: &Path) -> anyhow::Result<()> {
    let mut pack = Command::new(runnel);
    pack.arg("pack").arg(source).args(options.split_whitespace());
    let output = pack.args(["--force", "--no-sandbox", "-o"]).arg(image).output()?;
    ensure!(output.status.success(), "{pack:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Whether `runnel check` accepts an image.
fn check(runnel: &Path, image: &Path) -> anyhow::Result<bool> {
    Ok(Command::new(runnel).arg("check").arg(image).output()?.status.success())
}

/// Makes the images that must be refused, which our other reader refuses, too. Returns their names
/// with the error that a mount gives and words of the kernel.
fn refused(runnel: &Path, work: &Path) -> anyhow::Result<Refused> {
    let folder = work.join(REFUSED);
    fs::create_dir_all(&folder)?;
    let right = fs::read(work.join(format!("{BASE}.d")).join(RIGHT))?;
    let mut names = Vec::new();
    for (name, error, words, bytes) in variants::refused(&right) {
        let name = format!("{name}.rnl");
        let image = folder.join(&name);
        fs::write(&image, bytes)?;
        ensure!(!check(runnel, &image)?, "{} is accepted by {}", image.display(), runnel.display());
        names.push((format!("{REFUSED}/{name}"), error as i32, words.to_string()));
    }
    Ok(names)
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

fn initramfs(options: &Options, refused: Refused, work: &Path, guest: &Guest) -> anyhow::Result<Vec<u8>> {
    let mut archive = Initramfs::new();
    for folder in ["dev", "proc", "sys", "tmp", "mnt", "modules", OUTER.trim_start_matches('/')] {
        archive.folder(folder);
    }
    archive.file(NESTED, &fs::read(work.join(NESTED))?);
    archive.file("init", &fs::read(&guest.program)?);
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
    for (name, _, _) in &refused {
        archive.file(name, &fs::read(work.join(name))?);
    }
    let modules = add_modules(&mut archive, &guest.modules, &guest.folder.join("module/runnelfs.ko"))?;
    let bases = images.iter().filter(|image| image.starts_with(BASE)).cloned().collect();
    let (mutants, seed) = (options.mutants, options.seed);
    let plan = Plan { modules, images, refused, bases, mutants, seed, measured: Vec::new() };
    archive.file("plan.json", &serde_json::to_vec(&plan)?);
    Ok(archive.finish())
}

/// Starts the guest and fails with what it found.
fn start(options: &Options, refused: Refused, work: &Path, guest: &Guest) -> anyhow::Result<()> {
    let (archive, log) = (guest.folder.join("initramfs"), guest.folder.join("console.log"));
    fs::write(&archive, initramfs(options, refused, work, guest)?)?;
    let slower = if options.sanitizes { SANITIZED_SLOWER } else { 1 };
    let Processor { console, options: told, .. } = options.processor;
    let machine = Machine {
        kernel: guest.kernel.clone(),
        initramfs: archive,
        command_line: format!("console={console} {told} {COMMAND_LINE}"),
        disks: vec![disk(work)?],
        memory_mib: if options.sanitizes { MEMORY_MIB_SANITIZED } else { MEMORY_MIB },
        processors: 2,
        counted: false,
        deadline: (DEADLINE + Duration::from_secs(options.mutants)) * slower,
    };
    let boot = machine.run()?;
    fs::write(&log, &boot.console)?;
    let (said, reports) = judge(&boot.console);
    for line in &said {
        eprintln!("   {line}");
    }
    if !boot.ended || said.last() != Some(&"done") {
        let lines: Vec<&str> = boot.console.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        bail!("the guest {}; its console ends with\n{tail}", if boot.ended { "died" } else { "hung" });
    }
    let failed = said.iter().filter(|line| line.starts_with("FAIL")).count();
    ensure!(reports.is_empty(), "the kernel reports {}; the console is in {}", reports.join("\n"), log.display());
    ensure!(failed == 0, "{failed} failure(s); the console is in {}", log.display());
    Ok(())
}

/// What the guest says on its console, and what the kernel reports.
fn judge(console: &str) -> (Vec<&str>, Vec<&str>) {
    let said = console.lines().filter_map(|line| Some(line.split_once(MARK)?.1.trim_end())).collect();
    let reports = console.lines().filter(|line| !line.contains(MARK) && REPORTS.iter().any(|word| line.contains(word)));
    (said, reports.collect())
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
    fn reports_of_the_kernel_are_found() {
        let console = "[    1.0] Run /init as init process\n@runnelfs ok BUG: a name\r\n\
            [    2.0] BUG: KASAN: slab-out-of-bounds in fill+0x1/0x2 [runnelfs]\n\
            [    2.1] BUG: sleeping function called from invalid context at mm/util.c:1\n\
            [    2.2] WARNING: possible circular locking dependency detected\n\
            [    2.3] UBSAN: shift-out-of-bounds in map.c:1:2\n[    2.4] runnelfs (loop0): block 1 is damaged\n";
        let (said, reports) = judge(console);
        assert_eq!(said, ["ok BUG: a name"]);
        assert_eq!(reports, console.lines().skip(2).take(4).collect::<Vec<_>>());
    }
}
