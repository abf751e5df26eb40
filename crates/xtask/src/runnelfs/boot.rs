//! Systems that start from an image: a Debian root with its own initial file system, as a user
//! would make it. Each one logs in by itself on its console and says what it sees.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kernel::Machine;

use super::guest::MARK;
use super::host::TAIL_LINES;
use super::kernels::{self, Kind, module_files};
use crate::{root, watch};

/// The release of the root, whatever the host is.
pub(super) const SUITE: &str = "bookworm";

/// Where it comes from if apt names no mirror of it.
const MIRROR: &str = "http://deb.debian.org/debian/";

/// What the root has beside a minimal system.
const PACKAGES: &str = "systemd-sysv,udev,kmod,initramfs-tools,dracut-core,busybox";

/// Changes when the root is made in another way.
const ROOT_VERSION: &str = "1";

/// What guests need to see their disk and to mount from it, with what these depend on.
const MODULES: [&str; 7] = ["virtio_pci", "virtio_blk", "ext4", "overlay", "squashfs", "erofs", "null_blk"];

/// On a busy host the emulator may not run for a while, so nothing gives up before the deadline.
const COMMAND_LINE: &str = "console=ttyS0 mitigations=off audit=0 apparmor=0 panic=-1 oops=panic panic_on_warn=1 \
    watchdog_thresh=60 systemd.default_timeout_start_sec=900 \
    rootfstype=runnelfs ro";

const MEMORY_MIB: u32 = 512;

/// Several times what a system takes to start on one slow core.
const DEADLINE: Duration = Duration::from_secs(900);

/// Logs root in on the console.
const AUTOLOGIN: &str = "[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --keep-baud 115200 %I vt100\n";

/// What root does once logged in: `$1` is `overlay` or `runnelfs`. All files of packages are as
/// their packages have them, so what programs read from the image is right.
const LOOK: &str = r#"#!/bin/sh
say() { echo "@runnelfs $*" >/dev/console; }
type=$(findmnt -no FSTYPE /)
say "root: $type on $(uname -r), $(grep -c . /proc/mounts) mounts, up $(cut -d' ' -f1 /proc/uptime) s"
case $type in
overlay)
  echo changed >/etc/written && [ "$(cat /etc/written)" = changed ] || say "FAIL / takes no changes"
  grep -q '^runnelfs / overlay .*lowerdir=/\(run/runnelfs/image\)\{0,1\},' /proc/mounts || say "FAIL no image is below the changes" ;;
runnelfs) touch /etc/written 2>/dev/null && say "FAIL / takes changes" ;;
*) say "FAIL the root is no image" ;;
esac
wrong=$(dpkg --verify --verify-format=rpm 2>&1 | grep -v ' c ')
[ -z "$wrong" ] || say "FAIL $wrong"
# Some need a root that takes changes.
[ "$type" = runnelfs ] || systemctl --failed --plain --no-legend | while read -r unit rest; do say "FAIL $unit: $rest"; done
say "console: $(systemctl is-active serial-getty@ttyS0.service)"
say done
poweroff -f
"#;

/// What makes the initial file system, inside the root: `$1` is the release.
const MAKE_INITRD: &str = r#"set -e
mount -t proc proc /proc
depmod "$1"
mkinitramfs -o /boot/initrd.img "$1"
dracut --force --quiet --no-hostonly --no-hostonly-cmdline --add runnelfs --add-drivers "virtio_pci virtio_blk" \
  --kver "$1" /boot/initrd.dracut
"#;

/// A system that was made.
struct System {
    /// The image.
    image: PathBuf,
    /// Its id.
    id: String,
    kernel: PathBuf,
    /// The initial file systems, by Debian's tools and by dracut.
    initrd: PathBuf,
    dracut: PathBuf,
}

/// How one is started.
struct Start<'a> {
    name: &'a str,
    kernel: &'a Path,
    /// Its initial file system; an empty path for none.
    initrd: &'a Path,
    disk: &'a Path,
    /// More for the kernel's command line.
    options: String,
    /// What is its root, or `None` if it must not start.
    root_type: Option<&'a str>,
}

/// Makes a system and starts it in all ways.
pub(super) fn run(runnel: &Path, work: &Path, kernel: &Path, release: &str) -> anyhow::Result<()> {
    let system = make(runnel, work, kernel, release)?;
    let System { image, id, kernel: vmlinuz, initrd, dracut } = &system;
    let (disk, holder) = (work.join("boot.img"), work.join("boot-file.img"));
    let mut bytes = fs::read(image)?;
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    fs::write(&disk, bytes)?;
    disk_with_file(image, &holder, work)?;
    let with_id = format!("root=/dev/vda rootflags=id={id}");
    let other = format!("root=/dev/vda rootflags=id={}", "0".repeat(id.len()));
    let in_file = "root=/dev/vda runnel.image=system/debian.rnl runnel.changes=no";
    let mut starts = vec![
        Start {
            name: "a device",
            kernel: vmlinuz,
            initrd,
            disk: &disk,
            options: with_id.clone(),
            root_type: Some("overlay"),
        },
        Start { name: "another id", kernel: vmlinuz, initrd, disk: &disk, options: other, root_type: None },
        Start {
            name: "a file",
            kernel: vmlinuz,
            initrd,
            disk: &holder,
            options: in_file.into(),
            root_type: Some("runnelfs"),
        },
        Start {
            name: "dracut",
            kernel: vmlinuz,
            initrd: dracut,
            disk: &disk,
            options: with_id.clone(),
            root_type: Some("overlay"),
        },
    ];
    let builtin;
    if kernels::source().is_some() {
        builtin = kernels::build(Kind::BuiltIn)?.image;
        let options = format!("{with_id} init=/usr/share/runnelfs/init");
        let initrd = Path::new("");
        starts.push(Start {
            name: "built in",
            kernel: &builtin,
            initrd,
            disk: &disk,
            options,
            root_type: Some("overlay"),
        });
    } else {
        eprintln!("   skipped the reader built in: no source of a kernel; scripts/kernel-source.sh fetches it");
    }
    for start in &starts {
        boot(start, &kernel.join("boot.log")).with_context(|| format!("boot from {}", start.name))?;
    }
    Ok(())
}

fn boot(start: &Start<'_>, log: &Path) -> anyhow::Result<()> {
    let machine = Machine {
        kernel: start.kernel.to_path_buf(),
        initramfs: start.initrd.to_path_buf(),
        command_line: format!("{COMMAND_LINE} {}", start.options),
        disks: vec![start.disk.to_path_buf()],
        memory_mib: MEMORY_MIB,
        processors: 1,
        counted: false,
        deadline: DEADLINE,
    };
    let console = machine.run()?.console;
    fs::write(log, &console)?;
    let said: Vec<&str> =
        console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, said)| said.trim()).collect();
    for line in &said {
        eprintln!("   {}: {line}", start.name);
    }
    let Some(root_type) = start.root_type else {
        ensure!(said.is_empty() && console.contains("Failed to mount the image"), "it started:\n{}", tail(&console));
        return Ok(());
    };
    if said.last() != Some(&"done") {
        bail!("it did not start; its console ends with\n{}", tail(&console));
    }
    ensure!(!said.iter().any(|line| line.starts_with("FAIL")), "it has faults; {} has its console", log.display());
    let wanted = format!("root: {root_type} ");
    ensure!(said.iter().any(|line| line.starts_with(&wanted)), "its root is not of type {root_type}");
    Ok(())
}

fn tail(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// An image of ext4 with the image in a folder.
fn disk_with_file(image: &Path, disk: &Path, work: &Path) -> anyhow::Result<()> {
    let folder = work.join("boot-file");
    fs::create_dir_all(folder.join("system"))?;
    fs::copy(image, folder.join("system/debian.rnl"))?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-m", "0", "-d"]).arg(&folder).arg(disk);
    watch::run(make.arg(format!("{}M", (fs::metadata(image)?.len() >> 20) * 5 / 4 + 32)))
}

/// Makes the root, its initial file systems and its image.
fn make(runnel: &Path, work: &Path, kernel: &Path, release: &str) -> anyhow::Result<System> {
    let system = kernel.join("debian");
    make_root(&system, work, kernel, release, LOOK)?;
    make_initrd(&system, MAKE_INITRD, release)?;
    let (initrd, dracut) = (kernel.join("initrd.img"), kernel.join("initrd.dracut"));
    fs::rename(system.join("boot/initrd.img"), &initrd)?;
    fs::rename(system.join("boot/initrd.dracut"), &dracut)?;
    let image = kernel.join("debian.rnl");
    let mut pack = Command::new(runnel);
    pack.arg("pack").arg(&system).args(["--bootable", "--small", "--force", "--no-sandbox", "-o"]).arg(&image);
    let output = pack.output()?;
    ensure!(output.status.success(), "{pack:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let id = text.split("rootflags=id=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let id = id.with_context(|| format!("it does not say how to boot the image: {text}"))?.to_string();
    let vmlinuz = kernel.join("kernel/boot").join(format!("vmlinuz-{release}"));
    Ok(System { image, id, kernel: vmlinuz, initrd, dracut })
}

/// Makes a root with the modules and scripts that it starts with; `look` is what root runs once
/// logged in.
pub(super) fn make_root(system: &Path, work: &Path, kernel: &Path, release: &str, look: &str) -> anyhow::Result<()> {
    let pristine = work.join("debian");
    debian(&pristine)?;
    remove(system)?;
    watch::run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&pristine).arg(system))?;
    install_modules(system, kernel, release)?;
    let destination = format!("DESTDIR={}", system.display());
    let scripts = root().join("kernel/runnelfs");
    watch::run(Command::new("make").arg("-s").arg("-C").arg(scripts).args(["install-boot", &destination]))?;
    write(system, "etc/initramfs-tools/conf.d/test", "MODULES=list\nCOMPRESS=gzip\n")?;
    write(system, "etc/initramfs-tools/modules", "virtio_pci\nvirtio_blk\next4\n")?;
    write(system, "etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf", AUTOLOGIN)?;
    write(system, "root/look", look)?;
    fs::set_permissions(system.join("root/look"), fs::Permissions::from_mode(0o755))?;
    write(system, "root/.profile", "exec /root/look\n")
}

/// Runs `script` in the root, with the release as its argument.
pub(super) fn make_initrd(system: &Path, script: &str, release: &str) -> anyhow::Result<()> {
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--fork", "chroot"]).arg(system).args(["/bin/sh", "-c", script, "sh", release]);
    watch::run(inside.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C"))
}

/// The root as debootstrap makes it, once.
fn debian(folder: &Path) -> anyhow::Result<()> {
    let (stamp, wanted) = (folder.with_extension("stamp"), format!("{SUITE} {PACKAGES} {ROOT_VERSION}"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    remove(folder)?;
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include", PACKAGES, SUITE]).arg(folder).arg(mirror());
    let output = make.output().context("debootstrap is missing; apt-get install debootstrap")?;
    ensure!(output.status.success(), "debootstrap: {}", String::from_utf8_lossy(&output.stdout));
    // Caches of packages and lists are no part of a system.
    for cache in ["var/cache/apt/archives", "var/lib/apt/lists"] {
        remove(&folder.join(cache))?;
        fs::create_dir_all(folder.join(cache).join("partial"))?;
    }
    fs::write(stamp, wanted)?;
    Ok(())
}

/// The mirror that apt on this machine uses.
pub(super) fn mirror() -> String {
    let output = Command::new("apt-get").args(["indextargets", "--format", "$(CODENAME) $(REPO_URI)"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(SUITE)?.strip_prefix(' '));
    found.unwrap_or(MIRROR).to_string()
}

/// Puts the modules that the system needs into it.
fn install_modules(system: &Path, kernel: &Path, release: &str) -> anyhow::Result<()> {
    let from = kernel.join("kernel");
    let to = system.join("lib/modules").join(release);
    for file in module_files(&from, release, &MODULES)? {
        let copy = system.join(file.strip_prefix(&from)?);
        fs::create_dir_all(copy.parent().unwrap_or(system))?;
        fs::copy(&file, copy)?;
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(from.join("lib/modules").join(release).join(list), to.join(list))?;
    }
    fs::create_dir_all(to.join("extra"))?;
    fs::copy(kernel.join("module/runnelfs.ko"), to.join("extra/runnelfs.ko"))?;
    let config = format!("config-{release}");
    fs::copy(from.join("boot").join(&config), system.join("boot").join(&config))?;
    Ok(())
}

pub(super) fn write(system: &Path, path: &str, text: &str) -> anyhow::Result<()> {
    let path = system.join(path);
    fs::create_dir_all(path.parent().unwrap_or(system))?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

pub(super) fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}
