//! Measurements beside SquashFS, with the same codec, level and block size: what reading costs the
//! processor, and how long a system takes to start from a slow card. The guests' clock counts
//! instructions, so that the load of the host does not matter.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use kernel::{Initramfs, Machine};
use trace::{Event, Header, How, Source, Writer};
use units::{ImageId, InodeId, Moment, PageId, Token};

use super::boot;
use super::guest::{MARK, Plan};
use super::host::{add_modules, guest_program, module_files};
use super::meter::Measured;
use crate::watch;

/// Sizes of blocks.
const BLOCKS: [&str; 2] = ["64k", "128k"];

/// Level of zstd.
const LEVEL: &str = "19";

/// What the guest that reads needs.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "squashfs", "null_blk"];

const MEMORY_MIB: u32 = 1024;

/// Counting instructions takes the emulator several times as long.
const DEADLINE: Duration = Duration::from_secs(3000);

const COMMAND_LINE: &str =
    "console=ttyS0 quiet mitigations=off audit=0 apparmor=0 selinux=0 panic=-1 systemd.show_status=0";

/// What the kernel mounts as the root, in the initial file system: from a card that answers a
/// request after 0.7 ms and gives 25 MB/s, or from the disk without read-ahead, so that only
/// touched pages come into memory.
const MOUNT: &str = r#"mountroot()
{
	. /scripts/runnelfs-mount
	local_top
	wait_for_udev 10
	device=/dev/vda
	if [ "$(runnelfs_option card)" = yes ]; then
		modprobe null_blk nr_devices=0
		mount -t configfs configfs /sys/kernel/config
		card=/sys/kernel/config/nullb/card
		mkdir $card
		echo $(($(cat /sys/block/vda/size) / 2048 + 1)) >$card/size
		for setting in blocksize=512 memory_backed=1 queue_mode=2 submit_queues=1 hw_queue_depth=1 irqmode=2 \
			completion_nsec=700000 mbps=25 power=1; do
			echo "${setting#*=}" >"$card/${setting%%=*}"
		done
		wait_for_udev 10
		for name in nullb0 card; do [ -b /dev/$name ] && device=/dev/$name; done
		dd if=/dev/vda of=$device bs=1M 2>/dev/null
		sync
		echo 3 >/proc/sys/vm/drop_caches
	else
		echo 0 >/sys/block/vda/queue/read_ahead_kb
	fi
	modprobe -q "$ROOTFSTYPE"
	modprobe -q overlay
	echo "@runnelfs mounting $(cat /proc/uptime) $(cat /sys/block/${device#/dev/}/stat)"
	mkdir -p $runnelfs_base/image
	mount -t "$ROOTFSTYPE" -o ro $device $runnelfs_base/image
	runnelfs_add_changes $runnelfs_base/image "${rootmnt?}"
}
"#;

/// What root does once logged in.
const LOOK: &str = r#"#!/bin/sh
now=$(cat /proc/uptime)
for name in card nullb0 vda; do [ -b /dev/$name ] && break; done
echo "@runnelfs login $now $(cat /sys/block/$name/stat)" >/dev/console
case $(cat /proc/cmdline) in
*runnel.touched=yes*) /run/runnelfs/image/root/xtask runnelfs-touched /run/runnelfs/image >/dev/console ;;
esac
poweroff -f
"#;

const MAKE_INITRD: &str = r#"set -e
mount -t proc proc /proc
depmod "$1"
mkinitramfs -o /boot/initrd.img "$1"
"#;

/// Where the scripts lie that mount a root, in the root.
const SCRIPT: &str = "usr/share/initramfs-tools/scripts/measure";

/// An image and how it was made.
struct Image {
    name: String,
    kind: &'static str,
    path: PathBuf,
}

/// Measures everything and prints it.
pub(super) fn run(runnel: &Path, work: &Path, kernel: &Path, release: &str) -> anyhow::Result<()> {
    let system = kernel.join("measured");
    boot::make_root(&system, work, kernel, release, LOOK)?;
    boot::write(&system, SCRIPT, MOUNT)?;
    boot::write(
        &system,
        "etc/initramfs-tools/modules",
        "virtio_pci\nvirtio_blk\next4\nsquashfs\nnull_blk nr_devices=0\n",
    )?;
    fs::copy(guest_program(), system.join("root/xtask"))?;
    boot::make_initrd(&system, MAKE_INITRD, release)?;
    let initrd = kernel.join("measured.initrd");
    fs::rename(system.join("boot/initrd.img"), &initrd)?;
    let machine = |disks: Vec<PathBuf>, initramfs: &Path, options: &str, counted| Machine {
        kernel: kernel.join("kernel/boot").join(format!("vmlinuz-{release}")),
        initramfs: initramfs.to_path_buf(),
        command_line: format!("{COMMAND_LINE} {options}"),
        disks,
        memory_mib: MEMORY_MIB,
        processors: 1,
        counted,
        deadline: DEADLINE,
    };
    let trace = kernel.join("boot.trace");
    let plain = ext4(&system, &kernel.join("measured.ext4"))?;
    let started = machine(vec![plain], &initrd, "boot=measure rootfstype=ext4 runnel.touched=yes ro", false).run()?;
    write_trace(&started.console, &trace).context("which pages a start touches")?;

    let unfiltered = [OsStr::new("--no-filter")];
    let traced = [OsStr::new("--trace"), trace.as_os_str()];
    let mut images = Vec::new();
    for block in BLOCKS {
        images.push(squashfs(&system, kernel, block)?);
        let options = ["--bootable", "--small", "--level", LEVEL, "--block-size", block].map(OsStr::new);
        for (variant, more) in [("", &[][..]), ("unfiltered", &unfiltered), ("traced", &traced)] {
            images.push(ours(runnel, &system, kernel, block, variant, &[&options, more].concat())?);
        }
    }
    let reading = kernel.join("reading.initramfs");
    fs::write(&reading, reader(&images, kernel, release)?)?;
    let disks = images.iter().map(|image| image.path.clone()).collect();
    let boot = machine(disks, &reading, "", true).run()?;
    let rows: Vec<&str> = said(&boot.console).filter(|line| line.starts_with("row ")).collect();
    ensure!(!rows.is_empty() && boot.ended, "the guest that reads died:\n{}", boot.console);
    rows.iter().for_each(|row| eprintln!("   {row}"));
    for image in images.iter().rev() {
        let options = format!("boot=measure rootfstype={} runnel.card=yes ro", image.kind);
        let boot = machine(vec![image.path.clone()], &initrd, &options, true).run()?;
        fs::write(kernel.join("measure.log"), &boot.console)?;
        print_start(&image.name, &boot.console).with_context(|| format!("start from {}", image.name))?;
    }
    Ok(())
}

fn said(console: &str) -> impl Iterator<Item = &str> {
    console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, said)| said.trim())
}

/// Prints how long a start took, and what it read from the card.
fn print_start(name: &str, console: &str) -> anyhow::Result<()> {
    let numbers = |what: &str| -> anyhow::Result<Vec<f64>> {
        let line = said(console)
            .find_map(|line| line.strip_prefix(what))
            .with_context(|| format!("its console has no line \"{what}\""))?;
        Ok(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    };
    let (before, after) = (numbers("mounting ")?, numbers("login ")?);
    ensure!(before.len() >= 5 && after.len() >= 5, "too few numbers");
    let difference = |index: usize| after[index] - before[index];
    let (milliseconds, megabytes) = (1e3 * difference(0), difference(4) * 512.0 / 1e6);
    eprintln!("   row {name} | start | {milliseconds:.0} | ms; {} reads, {megabytes:.1} MB", difference(2));
    Ok(())
}

/// A trace of the pages that a guest named, in the order of the files.
fn write_trace(console: &str, to: &Path) -> anyhow::Result<()> {
    // Files have their names, so it does not matter of which image it is.
    let mut writer = Writer::new(&Header { image: ImageId([1; 32]), source: Source::Mount });
    let token = Token(1);
    writer.push(&Event::Start { token, at: Moment(0), name: b"boot".to_vec() })?;
    let (mut at, mut files) = (0, BTreeMap::new());
    for line in said(console).filter_map(|line| line.strip_prefix("touched ")) {
        if let [path, size, pages] = line.split(" | ").collect::<Vec<_>>()[..] {
            files.insert(path, (size.parse::<u64>()?, pages));
        }
    }
    for (inode, (path, (size, pages))) in (1..).zip(&files) {
        let inode = InodeId(inode);
        writer.push(&Event::File { inode, size: *size, path: path.as_bytes().to_vec() })?;
        for index in pages.split(',') {
            at += 1;
            let page = PageId { inode, index: index.parse()? };
            writer.push(&Event::Touch { token, at: Moment(at), page, how: How::Demand })?;
        }
    }
    writer.push(&Event::End { token, at: Moment(at + 1) })?;
    writer.finish()?;
    ensure!(at > 1000, "only {at} pages were touched");
    eprintln!("   a start touches {at} pages of {} files", files.len());
    fs::write(to, writer.take()).with_context(|| to.display().to_string())
}

/// An image of ours; `variant` says what is special about its `options`.
fn ours(
    runnel: &Path,
    system: &Path,
    to: &Path,
    block: &str,
    variant: &str,
    options: &[&OsStr],
) -> anyhow::Result<Image> {
    let path = to.join(format!("measured-{block}{variant}.rnl"));
    let mut pack = Command::new(runnel);
    pack.arg("pack").arg(system).args(options).args(["--force", "--no-sandbox", "-o"]).arg(&path);
    watch::run(&mut pack)?;
    finish(Image { name: format!("runnelfs {block} {variant}").trim_end().to_string(), kind: "runnelfs", path })
}

fn squashfs(system: &Path, to: &Path, block: &str) -> anyhow::Result<Image> {
    let path = to.join(format!("measured-{block}.squashfs"));
    let mut make = Command::new("mksquashfs");
    make.arg(system).arg(&path).args(["-comp", "zstd", "-Xcompression-level", LEVEL, "-b", block]);
    watch::run(make.args(["-noappend", "-no-progress", "-quiet"]))?;
    finish(Image { name: format!("squashfs {block}"), kind: "squashfs", path })
}

/// Says how large an image is, and fills its last sector.
fn finish(image: Image) -> anyhow::Result<Image> {
    let bytes = fs::metadata(&image.path)?.len();
    eprintln!("   row {} | size | {bytes} | bytes", image.name);
    fs::File::options().write(true).open(&image.path)?.set_len(bytes.next_multiple_of(4096))?;
    Ok(image)
}

fn ext4(system: &Path, disk: &Path) -> anyhow::Result<PathBuf> {
    let mut make = Command::new("mke2fs");
    watch::run(make.args(["-q", "-F", "-t", "ext4", "-m", "0", "-d"]).arg(system).arg(disk).arg("512M"))?;
    Ok(disk.to_path_buf())
}

/// The initial file system of the guest that reads.
fn reader(images: &[Image], kernel: &Path, release: &str) -> anyhow::Result<Vec<u8>> {
    let mut archive = Initramfs::new();
    for folder in ["dev", "proc", "sys", "tmp", "mnt", "modules"] {
        archive.folder(folder);
    }
    archive.file("init", &fs::read(guest_program())?);
    let files = module_files(&kernel.join("kernel"), release, &MODULES)?;
    let modules = add_modules(&mut archive, &files, &kernel.join("module/runnelfs.ko"))?;
    let measured = images.iter().map(|image| {
        let bytes = fs::metadata(&image.path)?.len();
        Ok(Measured { name: image.name.clone(), kind: image.kind.to_string(), bytes })
    });
    let plan = Plan { modules, measured: measured.collect::<anyhow::Result<_>>()?, ..Plan::default() };
    archive.file("plan.json", &serde_json::to_vec(&plan)?);
    Ok(archive.finish())
}
