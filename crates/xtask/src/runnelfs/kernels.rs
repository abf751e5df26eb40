//! Kernels that guests run, with the module for them: Debian's, and one that is built from its
//! source and finds faults while they happen. It is kept in the user's caches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, ensure};

use super::host::guest_program;
use super::{cross, style};
use crate::{root, step, watch};

/// Where the headers of kernels lie that modules are built against.
const HEADERS: &str = "/usr/src";

/// What the guest needs to see its disk, with what these depend on.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// What kernels that are built have.
const BASE: &str = include_str!("kernels/base.config");
/// What finds faults.
const SANITIZE: &str = include_str!("kernels/sanitize.config");
/// What those for PCs have.
const X86_64: &str = include_str!("kernels/x86_64.config");

/// A kernel that was built.
pub(super) struct Kernel {
    /// Where: modules are built against this folder.
    pub folder: PathBuf,
    pub release: String,
    /// What is started.
    pub image: PathBuf,
}

/// Where kernels and their source are.
fn caches() -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
    Some(caches.join("runnel/kernel"))
}

/// The source of a kernel, if it was fetched before.
pub(super) fn source() -> Option<PathBuf> {
    let source = caches()?.join("source");
    source.join("Makefile").is_file().then_some(source)
}

/// The kernel of a guest, and what it needs.
pub(super) struct Guest {
    /// Where all that is made for it lies.
    pub folder: PathBuf,
    pub release: String,
    /// What is started.
    pub kernel: PathBuf,
    /// Modules in the order of loading, before ours.
    pub modules: Vec<PathBuf>,
    /// The first program.
    pub program: PathBuf,
}

/// A guest with Debian's kernel.
pub(super) fn debian(headers: Option<&Path>, work: &Path) -> anyhow::Result<Guest> {
    let headers = headers.map_or_else(newest_headers, |folder| Ok(folder.to_path_buf()))?;
    let name = headers.file_name().unwrap_or_default().to_string_lossy();
    let release = name.strip_prefix("linux-headers-").context("a folder linux-headers-RELEASE is needed")?.to_string();
    let folder = work.join(&release);
    fs::create_dir_all(&folder)?;
    step(&format!("runnelfs: module for {release}"), || build_module(&headers, &folder))?;
    step("runnelfs: DKMS", || dkms(&headers, &release, &work.join("dkms")))?;
    step("runnelfs: style", || style::run(&headers, work))?;
    step("runnelfs: module for other processors", || cross::run(work))?;
    step("runnelfs: kernel of the guest", || fetch_kernel(&folder, &release))?;
    let kernel = folder.join("kernel/boot").join(format!("vmlinuz-{release}"));
    let modules = module_files(&folder.join("kernel"), &release, &MODULES)?;
    Ok(Guest { folder, release, kernel, modules, program: guest_program() })
}

/// A guest with a kernel that finds faults.
pub(super) fn sanitizing(work: &Path) -> anyhow::Result<Guest> {
    let kernel = build()?;
    let folder = work.join(kernel.folder.file_name().unwrap_or_default());
    fs::create_dir_all(&folder)?;
    step("runnelfs: module", || build_module(&kernel.folder, &folder))?;
    let program = guest_program();
    Ok(Guest { folder, release: kernel.release, kernel: kernel.image, modules: Vec::new(), program })
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

fn build_module(headers: &Path, folder: &Path) -> anyhow::Result<()> {
    let to = folder.join("module");
    copy_module(&to)?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers).arg(format!("M={}", to.display()));
    watch::run(make.args(["W=1", "modules"]))
}

/// Builds the module as DKMS does, if it is there, in folders of its own.
fn dkms(headers: &Path, release: &str, folder: &Path) -> anyhow::Result<()> {
    if Command::new("dkms").arg("--version").output().is_err() {
        eprintln!("   skipped: no DKMS; apt-get install dkms");
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let (tree, sources) = (folder.join("tree"), folder.join("source"));
    fs::create_dir_all(&tree)?;
    copy_module(&sources.join("runnelfs-1"))?;
    for action in ["add", "build"] {
        let mut command = Command::new("dkms");
        command.arg("--dkmstree").arg(&tree).arg("--sourcetree").arg(&sources);
        command.args([action, "-m", "runnelfs", "-v", "1", "-k", release]).arg("--kernelsourcedir").arg(headers);
        let output = command.output()?;
        ensure!(output.status.success(), "dkms {action}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
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

/// Builds the kernel that finds faults, unless it is there.
fn build() -> anyhow::Result<Kernel> {
    let config = [BASE, X86_64, SANITIZE].concat();
    step("runnelfs: source of a kernel", || watch::run(&mut Command::new(root().join("scripts/kernel-source.sh"))))?;
    let source = source().context("scripts/kernel-source.sh fetched no source")?;
    let builds = caches().context("neither XDG_CACHE_HOME nor HOME is set")?.join("runnelfs");
    let folder = builds.join("x86_64-sanitize");
    fs::create_dir_all(&folder)?;
    let (stamp, fragment) = (folder.join("stamp"), folder.join("fragment"));
    let make = |goals: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(&source).arg(format!("O={}", folder.display()));
        make.env("KCONFIG_ALLCONFIG", &fragment).args(goals);
        watch::run(&mut make)
    };
    if !fs::read_to_string(&stamp).is_ok_and(|text| text == config) {
        fs::write(&fragment, &config)?;
        make(&["allnoconfig"])?;
        let finished = fs::read_to_string(folder.join(".config"))?;
        let lacks = |line: &&str| line.starts_with("CONFIG_") && !finished.lines().any(|other| other == *line);
        let unmet: Vec<&str> = config.lines().filter(lacks).collect();
        ensure!(unmet.is_empty(), "the kernel does not take {}", unmet.join(", "));
        let jobs = format!("-j{}", available_parallelism().map_or(1, usize::from));
        step(&format!("runnelfs: kernel in {}", folder.display()), || make(&[&jobs, "all"]))?;
        fs::write(&stamp, &config)?;
    }
    let release = fs::read_to_string(folder.join("include/config/kernel.release"))?.trim().to_string();
    let image = folder.join("arch/x86/boot/bzImage");
    Ok(Kernel { folder, release, image })
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
