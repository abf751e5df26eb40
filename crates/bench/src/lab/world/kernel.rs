//! The guest's kernel: Debian's own package, with the modules that the lab needs and the initial
//! file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::debian;
use super::stage::{Stages, finish, unfinished};
use crate::process::{find_program, tool};

/// What the guest may load, with what these depend on. Names that the kernel has built in, or
/// lacks, are passed over.
const MODULES: [&str; 20] = [
    "nfsv4",
    "nfs",
    "nfsd",
    "sch_netem",
    "tcp_diag",
    "veth",
    "erofs",
    "squashfs",
    "overlay",
    "nbd",
    "ext4",
    "loop",
    "null_blk",
    "fuse",
    "af_packet",
    "9p",
    "9pnet_virtio",
    "virtio_pci",
    "nd_pmem",
    "nfit",
];

/// Loaded before the root is mounted.
const EARLY: [&str; 3] = ["nfit", "nd_pmem", "ext4"];

/// The first program: loads the early modules in order and hands over to the root's own init.
const INIT: &str = r#"#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for m in $($B cat /modules/order); do $B insmod /modules/$m; done
# The device appears once its driver has looked at it: at most a second.
i=0; while [ ! -b /dev/pmem1 ] && [ $i -lt 50 ]; do $B usleep 20000; i=$((i+1)); done
$B mount -t ext4 -o ro /dev/pmem1 /root || $B echo "lab: cannot mount the root of the guest"
$B umount /proc /sys; $B mount --move /dev /root/dev
exec $B switch_root /root /lab-init
"#;

/// A kernel that was unpacked.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What `uname -r` says.
    pub release: String,
    /// The kernel.
    pub image: PathBuf,
    /// The initial file system, a compressed cpio archive.
    pub initramfs: PathBuf,
    /// Folder that holds `lib/modules/RELEASE`, decompressed.
    pub modules: PathBuf,
}

/// Downloads and prepares the kernel in `CACHE/kernel`, unless it is there.
pub fn prepare(cache: &Path, stages: &Stages) -> anyhow::Result<Kernel> {
    let folder = cache.join("kernel");
    // The kernel that was used first stays until the cache is removed: a new one would change
    // results.
    let kept = stages.inputs("kernel").and_then(|text| text.split_whitespace().next().map(str::to_string));
    let package = match kept {
        Some(package) if folder.exists() => package,
        _ => debian::kernel_package()?,
    };
    let release = package.trim_start_matches("linux-image-").to_string();
    let inputs = format!("{package}\n{}\n{INIT}", MODULES.join(" "));
    stages.run("kernel", &inputs, &folder, || {
        let new = unfinished(&folder)?;
        debian::unpack(&[&package, "busybox-static"], &new.join("x"))?;
        let unpacked = new.join("x").join("lib/modules").join(&release);
        ensure!(unpacked.is_dir(), "the package {package} has no modules of {release}");
        copy_modules(&new.join("x"), &new.join("modules"), &release)?;
        fs::rename(new.join("x/boot").join(format!("vmlinuz-{release}")), new.join("vmlinuz"))?;
        initramfs(&new, &release)?;
        super::stage::remove(&new.join("x"))?;
        finish(&folder)
    })?;
    Ok(Kernel {
        release,
        image: folder.join("vmlinuz"),
        initramfs: folder.join("initramfs.gz"),
        modules: folder.join("modules"),
    })
}

/// The files of `module` and of what it depends on, in the order of loading; none if it is built
/// in.
fn files_of(module: &str, base: &Path, release: &str) -> Vec<PathBuf> {
    let Some(modprobe) = find_program("modprobe") else { return Vec::new() };
    let mut command = Command::new(modprobe);
    command.arg("-d").arg(base).args(["-S", release, "--show-depends", module]);
    let output = tool(&mut command).unwrap_or_default();
    let text = String::from_utf8_lossy(&output).into_owned();
    insmod_files(&text)
}

fn insmod_files(text: &str) -> Vec<PathBuf> {
    // What follows the file are options, from the host's own settings.
    let files = text.lines().filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
    files.map(PathBuf::from).collect()
}

fn copy_modules(from: &Path, to: &Path, release: &str) -> anyhow::Result<()> {
    let depmod = find_program("depmod").context("depmod is missing; apt-get install kmod")?;
    tool(Command::new(&depmod).arg("-b").arg(from).arg(release))?;
    let base = from.join("lib/modules").join(release);
    let target = to.join("lib/modules").join(release);
    for module in MODULES {
        for file in files_of(module, from, release) {
            let name = file.strip_prefix(&base).context("modprobe names a file outside its folder")?;
            let compressed = name.extension().is_some_and(|extension| extension == "xz");
            let copy = target.join(if compressed { name.with_extension("") } else { name.to_path_buf() });
            if copy.exists() {
                continue;
            }
            fs::create_dir_all(copy.parent().context("a module lies in a folder")?)?;
            match compressed {
                true => fs::write(&copy, tool(Command::new("xz").arg("-dc").arg(&file))?),
                false => fs::copy(&file, &copy).map(drop),
            }
            .with_context(|| format!("cannot copy the module {}", file.display()))?;
        }
    }
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(base.join(name), target.join(name)).with_context(|| format!("the kernel package lacks {name}"))?;
    }
    tool(Command::new(&depmod).arg("-b").arg(to).arg(release))?;
    Ok(())
}

fn initramfs(folder: &Path, release: &str) -> anyhow::Result<()> {
    let root = folder.join("initramfs");
    for name in ["bin", "proc", "sys", "dev", "root", "modules"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(folder.join("x/bin/busybox"), root.join("bin/busybox")).context("busybox-static has no bin/busybox")?;
    let mut order: Vec<String> = Vec::new();
    for file in EARLY.iter().flat_map(|module| files_of(module, &folder.join("modules"), release)) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !order.contains(&name) {
            fs::copy(&file, root.join("modules").join(&name))?;
            order.push(name);
        }
    }
    fs::write(root.join("modules/order"), order.join("\n"))?;
    fs::write(root.join("init"), INIT)?;
    let script = "chmod 755 init && find . | cpio -o -H newc --quiet | gzip -1 > ../initramfs.gz";
    tool(Command::new("sh").args(["-ec", script]).current_dir(&root))?;
    super::stage::remove(&root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_without_options_and_not_if_built_in() {
        let text = "builtin fuse\ninsmod /m/lib/a.ko.xz \ninsmod /m/nbd.ko max_part=15\n";
        assert_eq!(insmod_files(text), [PathBuf::from("/m/lib/a.ko.xz"), PathBuf::from("/m/nbd.ko")]);
    }
}
