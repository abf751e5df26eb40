//! Kernels that guests run, with the module for them: Debian's, and ones that are built from its
//! source. Those are kept in the user's caches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, ensure};

use super::host::guest_program;
use super::{cross, style};
use crate::{root, step, watch};

/// A processor that guests have, and Debian's kernel for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Processor {
    /// As the user calls it.
    pub name: &'static str,
    /// As Debian calls it, and its kernel.
    architecture: &'static str,
    flavour: &'static str,
    /// As the kernel calls it, and the prefix of its tools.
    arch: &'static str,
    tools: &'static str,
    /// The first serial port.
    pub console: &'static str,
    /// What else its kernel is told.
    pub options: &'static str,
}

/// That of the host comes first.
pub const PROCESSORS: [Processor; 2] = [
    Processor {
        name: "x86_64",
        architecture: "amd64",
        flavour: "amd64",
        arch: "x86",
        tools: "",
        console: "ttyS0",
        // A busy host runs the emulator too seldom for the check at its start.
        options: "no_timer_check",
    },
    Processor {
        name: "aarch64",
        architecture: "arm64",
        flavour: "arm64",
        arch: "arm64",
        tools: "aarch64-linux-gnu-",
        console: "ttyAMA0",
        options: "",
    },
];

impl Processor {
    pub fn is_host(&self) -> bool {
        *self == PROCESSORS[0]
    }
}

/// Where the headers of kernels lie that modules are built against.
const HEADERS: &str = "/usr/src";

/// What the guest needs to see its disk, with what these depend on.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

/// What all kernels that are built have.
const BASE: &str = concat!(include_str!("kernels/base.config"), include_str!("kernels/x86_64.config"));

/// Where a build puts what is started.
const IMAGE: &str = "arch/x86/boot/bzImage";

/// What a kernel is built for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To load the module and to find faults.
    Sanitize,
    /// To start a system without it, since the reader is built in.
    BuiltIn,
}

impl Kind {
    /// What a configuration has for it.
    fn config(self) -> &'static str {
        match self {
            Kind::Sanitize => include_str!("kernels/sanitize.config"),
            Kind::BuiltIn => include_str!("kernels/builtin.config"),
        }
    }

    /// The name of its folder.
    fn folder(self) -> &'static str {
        match self {
            Kind::Sanitize => "x86_64-sanitize",
            Kind::BuiltIn => "x86_64-builtin",
        }
    }
}

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

/// A guest with Debian's kernel; the module's source is checked, too, if `checked`.
pub(super) fn debian(
    processor: &Processor,
    headers: Option<&Path>,
    work: &Path,
    checked: bool,
) -> anyhow::Result<Guest> {
    let mut headers = headers.map_or_else(newest_headers, |folder| Ok(folder.to_path_buf()))?;
    let name = headers.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.strip_prefix("linux-headers-").and_then(|name| name.strip_suffix(PROCESSORS[0].flavour));
    let version = version.context("a folder linux-headers-VERSION-amd64 is needed")?;
    let release = format!("{version}{}", processor.flavour);
    let folder = work.join(&release);
    fs::create_dir_all(&folder)?;
    let mut program = guest_program();
    if checked && processor.is_host() {
        step("runnelfs: DKMS", || dkms(&headers, &release, &work.join("dkms")))?;
        step("runnelfs: style", || style::run(&headers, work))?;
        step("runnelfs: module for other processors", || cross::run(work))?;
    }
    if !processor.is_host() {
        let mut build = Command::new(root().join("scripts/dist.sh"));
        build.args([processor.name, "--guest", "--quick"]);
        step("runnelfs: program of the guest", || watch::run(&mut build))?;
        program = root().join(format!("target/dist/xtask-{}-quick", processor.name));
    }
    step("runnelfs: kernel of the guest", || fetch_kernel(processor, &folder, &release))?;
    if !processor.is_host() {
        headers = other_headers(&headers, &folder.join("kernel"), &release)?;
    }
    step(&format!("runnelfs: module for {release}"), || build_module(&headers, &folder, processor))?;
    let kernel = folder.join("kernel/boot").join(format!("vmlinuz-{release}"));
    let modules = module_files(&folder.join("kernel"), &release, &MODULES)?;
    Ok(Guest { folder, release, kernel, modules, program })
}

/// A guest with a kernel that finds faults.
pub(super) fn sanitizing(work: &Path) -> anyhow::Result<Guest> {
    let kernel = build(Kind::Sanitize)?;
    let folder = work.join(Kind::Sanitize.folder());
    fs::create_dir_all(&folder)?;
    step("runnelfs: module", || build_module(&kernel.folder, &folder, &PROCESSORS[0]))?;
    let program = guest_program();
    Ok(Guest { folder, release: kernel.release, kernel: kernel.image, modules: Vec::new(), program })
}

/// The headers for another processor. They lie in `tree`, and their tools, which run on the host,
/// beside those of the host.
fn other_headers(host: &Path, tree: &Path, release: &str) -> anyhow::Result<PathBuf> {
    let headers = tree.join("usr/src").join(format!("linux-headers-{release}"));
    for tools in ["scripts", "tools"] {
        let link = headers.join(tools);
        fs::remove_file(&link)?;
        symlink(fs::canonicalize(host.join(tools))?, link)?;
    }
    Ok(headers)
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

fn build_module(headers: &Path, folder: &Path, processor: &Processor) -> anyhow::Result<()> {
    let to = folder.join("module");
    copy_module(&to)?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers).arg(format!("M={}", to.display()));
    make.args([format!("ARCH={}", processor.arch), format!("CROSS_COMPILE={}", processor.tools)]);
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

/// Unpacks Debian's kernel of this release, and the headers if they are for another processor.
pub fn fetch_kernel(processor: &Processor, to: &Path, release: &str) -> anyhow::Result<()> {
    let tree = to.join("kernel");
    if tree.join("boot").join(format!("vmlinuz-{release}")).is_file() {
        return Ok(());
    }
    let mut download = Command::new("apt-get");
    download.args(["download", "-q"]).current_dir(to);
    download.arg(format!("linux-image-{release}:{}", processor.architecture));
    if !processor.is_host() {
        download.arg(format!("linux-headers-{release}:{}", processor.architecture));
    }
    watch::run(&mut download)?;
    let packages = fs::read_dir(to)?.filter_map(|entry| Some(entry.ok()?.path()));
    for package in packages.filter(|path| path.extension().is_some_and(|extension| extension == "deb")) {
        watch::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
        fs::remove_file(package)?;
    }
    watch::run(Command::new("depmod").arg("-b").arg(&tree).arg(release))
}

/// The files of the modules that the guest needs, in the order of loading; none of what is built
/// in.
pub fn module_files(tree: &Path, release: &str, modules: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
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

/// Builds a kernel for the host's processor, unless it is there.
pub(super) fn build(kind: Kind) -> anyhow::Result<Kernel> {
    let config = [BASE, kind.config()].concat();
    step("runnelfs: source of a kernel", || watch::run(&mut Command::new(root().join("scripts/kernel-source.sh"))))?;
    let mut source = source().context("scripts/kernel-source.sh fetched no source")?;
    let builds = caches().context("neither XDG_CACHE_HOME nor HOME is set")?.join("runnelfs");
    let folder = builds.join(kind.folder());
    fs::create_dir_all(&folder)?;
    if kind == Kind::BuiltIn {
        source = with_reader(&source, &builds.join("source"))?;
    }
    let (stamp, fragment) = (folder.join("stamp"), folder.join("fragment"));
    let make = |goals: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(&source).arg(format!("O={}", folder.display()));
        make.env("KCONFIG_ALLCONFIG", &fragment).args(goals);
        watch::run(&mut make)
    };
    let known = fs::read_to_string(&stamp).is_ok_and(|text| text == config);
    if !known {
        fs::write(&fragment, &config)?;
        make(&["allnoconfig"])?;
        let finished = fs::read_to_string(folder.join(".config"))?;
        let lacks = |line: &&str| line.starts_with("CONFIG_") && !finished.lines().any(|other| other == *line);
        let unmet: Vec<&str> = config.lines().filter(lacks).collect();
        ensure!(unmet.is_empty(), "the kernel does not take {}", unmet.join(", "));
    }
    // The reader may be another one than before.
    if !known || kind == Kind::BuiltIn {
        let jobs = format!("-j{}", available_parallelism().map_or(1, usize::from));
        step(&format!("runnelfs: kernel in {}", folder.display()), || make(&[&jobs, "all"]))?;
        fs::write(&stamp, &config)?;
    }
    let release = fs::read_to_string(folder.join("include/config/kernel.release"))?.trim().to_string();
    let image = folder.join(IMAGE);
    Ok(Kernel { folder, release, image })
}

/// Links to all of a source, with the reader in it.
fn with_reader(source: &Path, to: &Path) -> anyhow::Result<PathBuf> {
    if !to.join("Makefile").exists() {
        watch::run(Command::new("cp").arg("-as").arg(source).arg(to))?;
    }
    let kernel = format!("KERNEL={}", to.display());
    watch::run(
        Command::new("make").arg("-s").arg("-C").arg(root().join("kernel/runnelfs")).args(["into-kernel", &kernel]),
    )?;
    Ok(to.to_path_buf())
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
