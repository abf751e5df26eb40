//! `fs-verity`: image files that the kernel mounts and seals, in a virtual machine with Debian's
//! kernel, since that of the host may have no fs-verity.
//!
//! The host signs an image and makes two disks with ext4, one with fs-verity and one without. The
//! guest mounts the image from both, then with its file swapped, written to, and damaged on the
//! disk below the file system.

mod guest;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kernel::{Initramfs, Machine};

use crate::runnelfs::kernels::{PROCESSORS, fetch_kernel, module_files};
use crate::{cargo_command, root, step, watch};

pub use self::guest::run as run_guest;

/// What tells the guest's first program that it is one.
pub const GUEST: &str = "fs-verity-guest";

/// The oldest kernel of Debian whose EROFS mounts files.
const KERNEL: &str = "linux-image-6.12-amd64";

/// What the guest needs of its kernel, with what these depend on.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "erofs"];

const COMMAND_LINE: &str =
    "console=ttyS0 no_timer_check loglevel=4 mitigations=off audit=0 apparmor=0 selinux=0 panic=-1";

/// When the guest counts as hung: ten times what it takes on one slow core.
const DEADLINE: Duration = Duration::from_secs(900);

/// Bytes of each of two files that do not shrink.
const FILE_BYTES: u64 = 1 << 20;

/// Where in the image file a byte of the swapped one differs: in the middle lie blocks.
const SWAPPED_DIVISOR: usize = 2;

/// Runs everything; `--binary=PATH` with a program that is there.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let runnel = match arguments {
        [] => {
            step("building the program", || {
                watch::run(&mut cargo_command(&["build", "--package", "runnel", "--quiet"]))
            })?;
            root().join("target/debug/runnel")
        }
        [option] if option.starts_with("--binary=") => fs::canonicalize(&option["--binary=".len()..])?,
        _ => bail!("usage: ./x test --fs-verity [--binary=PATH]"),
    };
    let work = root().join("target/fs-verity");
    let release = release()?;
    let folder = work.join(&release);
    fs::create_dir_all(&folder)?;
    step("fs-verity: kernel of the guest", || fetch_kernel(&PROCESSORS[0], &folder, &release))?;
    step("fs-verity: image and disks", || disks(&runnel, &work))?;
    step("fs-verity: guest", || start(&runnel, &work, &folder, &release))
}

/// The release of Debian's kernel.
fn release() -> anyhow::Result<String> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).output().context("apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    names.map(str::to_string).next().with_context(|| format!("apt knows no package {KERNEL}: apt-get update"))
}

/// The two disks: an image, the metadata that sign it beside, the tree, another image, and one with
/// the same id and another byte.
fn disks(runnel: &Path, work: &Path) -> anyhow::Result<()> {
    let content = work.join("content");
    for folder in [&content, &work.join("publisher"), &work.join("other")] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    let tree = content.join("tree");
    for folder in [&tree, &content.join("swapped"), &work.join("other")] {
        fs::create_dir_all(folder)?;
    }
    for (name, seed) in [("one", 1), ("two", 2)] {
        fs::write(tree.join(name), noise(seed))?;
    }
    fs::write(work.join("other/three"), noise(3))?;
    let run = |arguments: &[&str]| -> anyhow::Result<()> {
        let output = Command::new(runnel).args(arguments).current_dir(work).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    run(&["pack", "content/tree", "--force", "-o", "content/app.rnl"])?;
    run(&["pack", "other", "--force", "-o", "content/other.rnl"])?;
    run(&["trust", "init", "publisher", "--no-passphrase"])?;
    run(&["trust", "sign", "publisher", "app:1", "content/app.rnl"])?;
    watch::run(Command::new("cp").arg("-r").arg(work.join("publisher/metadata")).arg(content.join("trust")))?;
    let mut swapped = fs::read(content.join("app.rnl"))?;
    let middle = swapped.len() / SWAPPED_DIVISOR;
    swapped[middle] ^= 1;
    fs::write(content.join("swapped/app.rnl"), swapped)?;
    for (disk, feature) in [("sealed.img", "verity"), ("plain.img", "^verity")] {
        let disk = work.join(disk);
        let _ = fs::remove_file(&disk);
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", feature, "-d"]).arg(&content).arg(&disk).arg("48M");
        watch::run(&mut make)?;
    }
    Ok(())
}

/// Bytes that do not shrink, and differ from page to page.
fn noise(seed: u64) -> Vec<u8> {
    use units::{Rng, SplitMix64};
    let mut random = SplitMix64(seed);
    (0..FILE_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

fn start(runnel: &Path, work: &Path, folder: &Path, release: &str) -> anyhow::Result<()> {
    let archive = folder.join("initramfs");
    fs::write(&archive, initramfs(runnel, work, folder, release)?)?;
    let machine = Machine {
        kernel: folder.join("kernel/boot").join(format!("vmlinuz-{release}")),
        initramfs: archive,
        command_line: format!("{COMMAND_LINE} -- {GUEST}"),
        disks: vec![work.join("sealed.img"), work.join("plain.img")],
        memory_mib: 1024,
        processors: 1,
        counted: false,
        deadline: DEADLINE,
    };
    let boot = machine.run()?;
    let log = folder.join("console.log");
    fs::write(&log, &boot.console)?;
    let said: Vec<&str> =
        boot.console.lines().filter_map(|line| Some(line.split_once(guest::MARK)?.1.trim_end())).collect();
    said.iter().for_each(|line| eprintln!("   {line}"));
    ensure!(boot.ended && said.last() == Some(&"done"), "the guest died or hung; its console is in {}", log.display());
    let failed = said.iter().filter(|line| line.starts_with("FAIL")).count();
    ensure!(failed == 0, "{failed} failure(s); the console is in {}", log.display());
    Ok(())
}

fn initramfs(runnel: &Path, work: &Path, folder: &Path, release: &str) -> anyhow::Result<Vec<u8>> {
    let mut files = vec![("init".to_string(), std::env::current_exe()?), ("runnel".to_string(), runnel.to_path_buf())];
    files.push(("usr/bin/setsid".into(), "/usr/bin/setsid".into()));
    for program in [&files[0].1.clone(), runnel, Path::new("/usr/bin/setsid")] {
        let found = libraries(program)?.into_iter();
        files.extend(found.map(|path| (path.display().to_string().trim_start_matches('/').to_string(), path)));
    }
    let mut archive = Initramfs::new();
    let mut folders = BTreeSet::new();
    for fixed in ["dev", "proc", "sys", "tmp", "run", "mnt", "modules", "sealed", "plain"] {
        archive.folder(fixed);
    }
    let mut known = BTreeSet::new();
    for (name, path) in files.into_iter().filter(|(name, _)| known.insert(name.clone())) {
        let above: Vec<&Path> =
            Path::new(&name).ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        for above in above.into_iter().rev() {
            if folders.insert(above.to_path_buf()) {
                archive.folder(&above.display().to_string());
            }
        }
        archive.file(&name, &fs::read(&path).with_context(|| path.display().to_string())?);
    }
    archive.file("root.json", &fs::read(work.join("publisher/root.json"))?);
    let mut order = Vec::new();
    for file in module_files(&folder.join("kernel"), release, &MODULES)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().trim_end_matches(".xz").to_string();
        if order.contains(&name) {
            continue;
        }
        let is_plain = file.extension().is_some_and(|extension| extension == "ko");
        let bytes = if is_plain { fs::read(&file)? } else { Command::new("xz").arg("-dc").arg(&file).output()?.stdout };
        archive.file(&format!("modules/{name}"), &bytes);
        order.push(name);
    }
    archive.file(guest::ORDER.trim_start_matches('/'), order.join("\n").as_bytes());
    Ok(archive.finish())
}

/// The libraries of a program, and what loads them.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(found.map(PathBuf::from).collect())
}
