//! Reads of a Debian system, and starts of it from a slow card.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::applications::ext4;
use super::host::guest_program;
use super::measure::{Bench, said};
use super::meter::Task;
use super::rivals::{Codec, Image, Maker, Tree};
use super::{boot, sets};

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
*runnel.touched=yes*) /run/runnelfs/image/root/xtask runnelfs-touched /run/runnelfs/image boot >/dev/console ;;
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

/// Where a program of ours lies that says which pages were touched.
const PROGRAM: &str = "root/xtask";

/// Makes the system, and measures reads of its images, starts from them, or both.
pub(super) fn run(bench: &Bench<'_>, reading: bool, booting: bool) -> anyhow::Result<()> {
    let (system, initrd) = (bench.kernel.join("measured"), bench.kernel.join("measured.initrd"));
    make(bench, &system, &initrd)?;
    let tree = Tree::new(&system)?;
    let maker = Maker { tree: &tree, folder: bench.kernel, prefix: "measured", tools: &bench.tools };
    if reading {
        let mut images = Vec::new();
        for codec in &bench.choice.codecs {
            for block in bench.choice.blocks(&["64k", "128k"]) {
                images.push(maker.ours(*codec, &block, "", &["--bootable"], None)?);
                images.push(maker.ours(*codec, &block, "unfiltered", &["--bootable", "--no-filter"], None)?);
                images.push(maker.squashfs(*codec, &block, "", None)?);
                images.push(maker.erofs(*codec, &block, false)?);
                images.push(maker.erofs(*codec, &block, true)?);
            }
        }
        bench.measure(&images, &Task::Reading, &[], 1)?;
    }
    if booting {
        let trace = trace(bench, &tree, &system, &initrd)?;
        for codec in &bench.choice.codecs {
            for block in bench.choice.blocks(&["128k"]) {
                for image in images(&maker, *codec, &block, &trace)? {
                    starts(bench, &image, &initrd).with_context(|| format!("start from {}", image.name))?;
                }
            }
        }
    }
    Ok(())
}

/// The system, without what changes with the reader: so its images can be kept.
fn make(bench: &Bench<'_>, system: &Path, initrd: &Path) -> anyhow::Result<()> {
    boot::make_root(system, bench.work, bench.kernel, bench.release, LOOK)?;
    boot::write(system, SCRIPT, MOUNT)?;
    let modules = "virtio_pci\nvirtio_blk\next4\nsquashfs\nerofs\nnull_blk nr_devices=0\n";
    boot::write(system, "etc/initramfs-tools/modules", modules)?;
    boot::make_initrd(system, MAKE_INITRD, bench.release)?;
    fs::rename(system.join("boot/initrd.img"), initrd)?;
    boot::remove(&system.join("lib/modules").join(bench.release).join("extra"))
}

/// A trace of the pages that a start touches.
fn trace(bench: &Bench<'_>, tree: &Tree, system: &Path, initrd: &Path) -> anyhow::Result<PathBuf> {
    let trace = bench.kernel.join("boot.trace");
    if tree.made(&trace, "boot") {
        return Ok(trace);
    }
    fs::copy(guest_program(), system.join(PROGRAM))?;
    let disk = bench.kernel.join("measured.ext4");
    ext4(system, &disk, "512M")?;
    fs::remove_file(system.join(PROGRAM))?;
    let options = "boot=measure rootfstype=ext4 runnel.touched=yes ro";
    // Counted: by the clock of a busy host, the system gives up waiting for its console.
    let started = bench.machine(vec![disk.clone()], initrd, options, true, 1).run()?;
    fs::remove_file(disk)?;
    let found = sets::touched(said(&started.console)).context("which pages a start touches")?;
    ensure!(found.iter().all(|set| set.pages() > 1000), "a start touched few pages");
    sets::write_trace(&found, &trace)?;
    tree.keep(&trace, "boot")?;
    Ok(trace)
}

/// Images that a system starts from.
fn images(maker: &Maker<'_>, codec: Codec, block: &str, trace: &Path) -> anyhow::Result<Vec<Image>> {
    Ok(vec![
        maker.ours(codec, block, "traced", &["--bootable"], Some(trace))?,
        maker.ours(codec, block, "", &["--bootable"], None)?,
        maker.squashfs(codec, block, "", None)?,
        maker.erofs(codec, block, false)?,
        maker.erofs(codec, block, true)?,
    ])
}

/// Starts a system from an image as often as wanted, and prints the middle and the extremes.
fn starts(bench: &Bench<'_>, image: &Image, initrd: &Path) -> anyhow::Result<()> {
    let options = format!("boot=measure rootfstype={} runnel.card=yes ro", image.kind);
    let mut found = Vec::new();
    for _ in 0..bench.choice.runs.max(1) {
        let boot = bench.machine(vec![image.path.clone()], initrd, &options, true, 1).run()?;
        fs::write(bench.kernel.join("measure.log"), &boot.console)?;
        found.push(numbers(&boot.console)?);
    }
    for (index, what, unit) in
        [(0, "start", "us"), (1, "start requests", "requests"), (2, "start stored bytes", "bytes")]
    {
        let mut values: Vec<i64> = found.iter().map(|numbers| numbers[index]).collect();
        values.sort_unstable();
        let (least, most) = (values[0], values[values.len() - 1]);
        eprintln!("   row {} | {what} | {} | {unit} ({least} to {most})", image.name, values[values.len() / 2]);
    }
    Ok(())
}

/// How long a start took, and what it read from the card: requests, and bytes.
fn numbers(console: &str) -> anyhow::Result<[i64; 3]> {
    let numbers = |what: &str| -> anyhow::Result<Vec<f64>> {
        let line = said(console)
            .find_map(|line| line.strip_prefix(what))
            .with_context(|| format!("its console has no line \"{what}\""))?;
        Ok(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    };
    let (before, after) = (numbers("mounting ")?, numbers("login ")?);
    ensure!(before.len() >= 5 && after.len() >= 5, "too few numbers");
    let difference = |index: usize| after[index] - before[index];
    Ok([(1e6 * difference(0)) as i64, difference(2) as i64, (512.0 * difference(4)) as i64])
}
