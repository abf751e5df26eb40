//! Measurements beside SquashFS and EROFS, with the same codec, level and block size: what reading
//! costs the processor, what a hot set and starts of programs cost on a flash, how long a system
//! takes to start from a slow card, and the memory of a mount. The guests' clock counts
//! instructions, so that the load of the host does not matter.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use kernel::{Initramfs, Machine};

use super::guest::{MARK, Plan};
use super::host::{add_modules, guest_program};
use super::kernels::module_files;
use super::meter::{Measured, Task};
use super::rivals::{Codec, Image, Maker, Tools, Tree, write_sort_list};
use super::sets::{self, Length, Set};
use super::{applications, roots, start};

/// What the guest that reads needs.
const MODULES: [&str; 6] = ["virtio_pci", "virtio_blk", "squashfs", "erofs", "ext4", "null_blk"];

const MEMORY_MIB: u32 = 1024;

/// Counting instructions takes the emulator several times as long.
const DEADLINE: Duration = Duration::from_secs(6000);

const COMMAND_LINE: &str =
    "console=ttyS0 quiet mitigations=off audit=0 apparmor=0 selinux=0 panic=-1 systemd.show_status=0";

/// The tree with programs to start.
pub(super) const APPLICATIONS: &str = "applications";

/// Images that one guest measures.
const IMAGES_OF_A_GUEST: usize = 6;

/// Hot sets: the length of runs, the share of the tree in per cent, and the sizes of blocks.
const HOT: [(Length, u64, &[&str]); 4] = [
    (Length::Short, 12, &["4k", "16k", "64k", "128k", "1m"]),
    (Length::Long, 12, &["4k", "16k", "64k", "128k", "1m"]),
    (Length::Short, 40, &["64k", "128k"]),
    (Length::Long, 40, &["64k", "128k"]),
];

/// Parts of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Reading,
    Hot,
    Starts,
    Memory,
    Boot,
}

/// What is measured, of what and how often.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    what: Vec<What>,
    blocks: Option<Vec<String>>,
    /// Trees for hot sets and for memory.
    trees: Vec<String>,
    /// Hot sets, by their names; all if there are none.
    sets: Vec<String>,
    pub(super) codecs: Vec<Codec>,
    /// Starts of a system from each image.
    pub(super) runs: usize,
}

impl Default for Choice {
    fn default() -> Choice {
        let what = vec![What::Reading, What::Hot, What::Starts, What::Memory, What::Boot];
        let trees = vec![APPLICATIONS.to_string()];
        Choice { what, blocks: None, trees, sets: Vec::new(), codecs: vec![Codec::Zstd, Codec::Lz4], runs: 3 }
    }
}

impl Choice {
    /// Takes an option; whether it is one.
    pub(super) fn take(&mut self, option: &str, value: &str) -> anyhow::Result<bool> {
        match option {
            "--only" => self.what = value.split(',').map(What::parse).collect::<anyhow::Result<_>>()?,
            "--blocks" => self.blocks = Some(value.split(',').map(str::to_string).collect()),
            "--sets" => self.sets = value.split(',').map(str::to_string).collect(),
            "--trees" => self.trees = value.split(',').map(str::to_string).collect(),
            "--codecs" => self.codecs = value.split(',').map(Codec::parse).collect::<anyhow::Result<_>>()?,
            "--runs" => self.runs = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The sizes of blocks, unless the user named others.
    pub(super) fn blocks(&self, usual: &[&str]) -> Vec<String> {
        self.blocks.clone().unwrap_or_else(|| usual.iter().map(|block| block.to_string()).collect())
    }
}

impl What {
    fn parse(name: &str) -> anyhow::Result<What> {
        Ok(match name {
            "reading" => What::Reading,
            "hot" => What::Hot,
            "starts" => What::Starts,
            "memory" => What::Memory,
            "boot" => What::Boot,
            _ => bail!("the parts are reading, hot, starts, memory and boot"),
        })
    }
}

/// Where things lie, and what guests are made of.
pub(super) struct Bench<'a> {
    pub(super) tools: Tools,
    pub(super) choice: Choice,
    pub(super) work: &'a Path,
    pub(super) kernel: &'a Path,
    pub(super) release: &'a str,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench<'_>) -> anyhow::Result<()> {
    let has = |what| bench.choice.what.contains(&what);
    if has(What::Reading) || has(What::Boot) {
        start::run(bench, has(What::Reading), has(What::Boot))?;
    }
    if has(What::Starts) {
        of_tree(APPLICATIONS, bench, starts)?;
    }
    for name in &bench.choice.trees {
        if has(What::Hot) {
            of_tree(name, bench, hot)?;
        }
        if has(What::Memory) {
            of_tree(name, bench, memory)?;
        }
    }
    Ok(())
}

type Part = fn(&Bench<'_>, &Maker<'_>, &Path) -> anyhow::Result<()>;

/// Measures a part of a tree, which is made first unless it is a folder.
fn of_tree(name: &str, bench: &Bench<'_>, part: Part) -> anyhow::Result<()> {
    let root = roots::find(name, bench.work)?;
    eprintln!("   tree {name}");
    let prefix = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let maker = Maker { tree: &Tree::new(&root)?, folder: bench.kernel, prefix: &prefix, tools: &bench.tools };
    part(bench, &maker, &root)
}

/// Hot sets, from a flash.
fn hot(bench: &Bench<'_>, maker: &Maker<'_>, tree: &Path) -> anyhow::Result<()> {
    for (length, percent, blocks) in HOT {
        let set = sets::chosen(percent, length, tree)?;
        if !bench.choice.sets.is_empty() && !bench.choice.sets.contains(&set.name) {
            continue;
        }
        let files = sets::order(std::slice::from_ref(&set)).len();
        eprintln!("   {} has {} pages in {} runs of {files} files", set.name, set.pages(), set.runs.len());
        let list = format!("{}.json", set.name);
        let pages = serde_json::to_vec(&set.runs)?;
        let mut images = Vec::new();
        for codec in &bench.choice.codecs {
            for block in bench.choice.blocks(blocks) {
                images.extend(rivals_of_set(maker, *codec, &block, &set.name, std::slice::from_ref(&set))?);
            }
        }
        let task = Task::Hot(list.clone());
        bench.measure(&images, &task, &[(&list, pages)], 1)?;
    }
    Ok(())
}

/// Images for what `sets` read: of ours, with these hot; of SquashFS, with these files first and in
/// its own order; and of EROFS, which has no order.
fn rivals_of_set(maker: &Maker<'_>, codec: Codec, block: &str, name: &str, sets: &[Set]) -> anyhow::Result<Vec<Image>> {
    let trace = maker.folder.join(format!("{}-{name}.trace", maker.prefix));
    sets::write_trace(sets, &trace)?;
    let same = ["--hot-block-size", block];
    let ours = maker.ours(codec, block, name, &same, Some(&trace))?;
    let list = trace.with_extension("sort");
    write_sort_list(&sets::order(sets), &list)?;
    let mut images = vec![ours, maker.squashfs(codec, block, &format!("sorted {name}"), Some(&list))?];
    images.push(maker.squashfs(codec, block, "", None)?);
    images.push(maker.erofs(codec, block, false)?);
    images.push(maker.erofs(codec, block, true)?);
    // What the packer does unless it is told: hot blocks of 1 MiB, which are read in one go.
    if block == "64k" {
        images.push(maker.ours(codec, block, &format!("{name} large"), &[], Some(&trace))?);
    }
    Ok(images)
}

/// Starts of programs, from a flash.
fn starts(bench: &Bench<'_>, maker: &Maker<'_>, tree: &Path) -> anyhow::Result<()> {
    let sets = applications::touched(bench, maker.tree, tree)?;
    let mut images = Vec::new();
    for codec in &bench.choice.codecs {
        for block in bench.choice.blocks(&["64k", "128k"]) {
            images.extend(rivals_of_set(maker, *codec, &block, "started", &sets)?);
        }
    }
    bench.measure(&images, &Task::Starts, &[], 1)
}

/// Memory of mounts, with four processors.
fn memory(bench: &Bench<'_>, maker: &Maker<'_>, _: &Path) -> anyhow::Result<()> {
    for codec in &bench.choice.codecs {
        for block in bench.choice.blocks(&["64k"]) {
            let images = [
                maker.ours(*codec, &block, "", &[], None)?,
                maker.squashfs(*codec, &block, "", None)?,
                maker.erofs(*codec, &block, false)?,
            ];
            for image in images {
                bench.measure(&[image], &Task::Memory, &[], 4)?;
            }
        }
    }
    Ok(())
}

impl Bench<'_> {
    /// A guest whose clock counts instructions, if `counted`.
    pub(super) fn machine(
        &self,
        disks: Vec<PathBuf>,
        initramfs: &Path,
        options: &str,
        counted: bool,
        processors: u32,
    ) -> Machine {
        Machine {
            kernel: self.kernel.join("kernel/boot").join(format!("vmlinuz-{}", self.release)),
            initramfs: initramfs.to_path_buf(),
            command_line: format!("{COMMAND_LINE} {options}"),
            disks,
            memory_mib: MEMORY_MIB,
            processors,
            counted,
            deadline: DEADLINE,
        }
    }

    /// Does `task` with images in guests that have `files`, and prints what they say.
    pub(super) fn measure(
        &self,
        images: &[Image],
        task: &Task,
        files: &[(&str, Vec<u8>)],
        processors: u32,
    ) -> anyhow::Result<()> {
        for some in images.chunks(IMAGES_OF_A_GUEST) {
            self.guest(some, task, files, processors, |line| {
                if line.starts_with("row ") {
                    eprintln!("   {line}");
                }
            })?;
        }
        Ok(())
    }

    /// Does `task` with images in one guest; `hear` gets what it says.
    pub(super) fn guest(
        &self,
        images: &[Image],
        task: &Task,
        files: &[(&str, Vec<u8>)],
        processors: u32,
        hear: impl FnMut(&str),
    ) -> anyhow::Result<()> {
        let initramfs = self.kernel.join("measure.initramfs");
        fs::write(&initramfs, self.initramfs(images, task, files)?)?;
        let disks = images.iter().map(|image| image.path.clone()).collect();
        let boot = self.machine(disks, &initramfs, "", !matches!(task, Task::Touched), processors).run()?;
        fs::write(self.kernel.join("measure.log"), &boot.console)?;
        said(&boot.console).for_each(hear);
        let failed = said(&boot.console).find(|line| line.starts_with("FAIL"));
        ensure!(failed.is_none(), "{}", failed.unwrap_or_default());
        let whole = boot.ended && said(&boot.console).any(|line| line == "done");
        ensure!(whole, "the guest that measures died:\n{}", boot.console);
        Ok(())
    }

    fn initramfs(&self, images: &[Image], task: &Task, more: &[(&str, Vec<u8>)]) -> anyhow::Result<Vec<u8>> {
        let mut archive = Initramfs::new();
        for folder in ["dev", "proc", "sys", "tmp", "mnt", "modules"] {
            archive.folder(folder);
        }
        archive.file("init", &fs::read(guest_program())?);
        for (name, bytes) in more {
            archive.file(name, bytes);
        }
        let files = module_files(&self.kernel.join("kernel"), self.release, &MODULES)?;
        let modules = add_modules(&mut archive, &files, &self.kernel.join("module/runnelfs.ko"))?;
        let measured = images.iter().map(|image| {
            let bytes = fs::metadata(&image.path)?.len();
            Ok(Measured { name: image.name.clone(), kind: image.kind.to_string(), bytes, task: task.clone() })
        });
        let plan = Plan { modules, measured: measured.collect::<anyhow::Result<_>>()?, ..Plan::default() };
        archive.file("plan.json", &serde_json::to_vec(&plan)?);
        Ok(archive.finish())
    }
}

/// What a guest says.
pub(super) fn said(console: &str) -> impl Iterator<Item = &str> {
    console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, said)| said.trim())
}
