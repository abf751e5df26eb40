//! The guest's half of the measurements: disks in memory, what reading costs, and which pages a
//! system has touched.
//!
//! The guest's clock counts instructions. A disk in memory costs nothing, and what a read from it
//! takes is the processor's time; or it answers as a flash does.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use memmap2::Mmap;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use units::{PAGE_BYTES, Rng, SplitMix64};

use super::guest::{MARK, forget_pages};
use super::probe;

/// Where images are mounted.
pub(super) const TARGET: &str = "/mnt";

/// Bytes of one read of a file that is read as a whole.
const READ_BYTES: usize = 128 << 10;

/// Single pages that are read.
const RANDOM_READS: u32 = 4000;

/// Where the kernel lets disks in memory be made.
const DISKS: &str = "/sys/kernel/config/nullb";

/// A device of 4 KiB pages that gives one page after the other, each in 75 us.
const FLASH: [(&str, u64); 7] = [
    ("blocksize", 4096),
    ("max_sectors", 8),
    ("queue_mode", 2),
    ("submit_queues", 1),
    ("hw_queue_depth", 1),
    ("irqmode", 2),
    ("completion_nsec", 75_000),
];

/// A device that costs nothing.
const MEMORY: [(&str, u64); 2] = [("blocksize", 512), ("irqmode", 0)];

/// An image that is measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// What it is called in results.
    pub name: String,
    /// The type of its file system.
    pub kind: String,
    /// Bytes of the image.
    pub bytes: u64,
    /// What is done with it.
    pub task: Task,
}

/// What is measured of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// The processor's time to read it all, and to read single pages.
    Reading,
    /// Reading of the pages that a file of the guest lists, from a flash.
    Hot(String),
    /// Starts of programs, from a flash.
    Starts,
    /// Which pages these programs touch. It is no image but a disk of ext4.
    Touched,
    /// The memory that a mount takes.
    Memory,
}

/// Neighbouring pages of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The file's path below the root.
    pub path: String,
    /// The file's bytes.
    pub bytes: u64,
    /// The first page.
    pub first: u32,
    /// Pages.
    pub count: u32,
}

/// Measures the images on the disks `vda`, `vdb` and so on.
pub fn run(images: &[Measured]) -> anyhow::Result<()> {
    mount(Some("configfs"), "/sys/kernel/config", Some("configfs"), MsFlags::empty(), None::<&str>)?;
    for (index, image) in images.iter().enumerate() {
        let disk = PathBuf::from(format!("/dev/vd{}", (b'a' + index as u8) as char));
        let measured = match &image.task {
            Task::Reading => reading(image, &MemoryDisk::new(&disk, image.bytes, &MEMORY)?),
            Task::Hot(list) => probe::hot(image, list, &MemoryDisk::new(&disk, image.bytes, &FLASH)?),
            Task::Starts => probe::starts(image, &MemoryDisk::new(&disk, image.bytes, &FLASH)?),
            Task::Touched => probe::touched_by_programs(&disk),
            Task::Memory => probe::memory(image, &MemoryDisk::new(&disk, image.bytes, &MEMORY)?),
        };
        match measured {
            // A result, too: kernels cannot read all that newer tools write.
            Err(error) if matches!(image.kind.as_str(), "squashfs" | "erofs") => {
                println!("{MARK}row {} | cannot be measured | {error:#}", image.name);
            }
            measured => measured.with_context(|| image.name.clone())?,
        }
    }
    Ok(())
}

impl Measured {
    /// Says a result.
    pub fn say(&self, what: &str, value: i64, unit: &str) {
        println!("{MARK}row {} | {what} | {value} | {unit}", self.name);
    }

    /// Mounts the image, until what is returned is dropped.
    pub fn mount(&self, disk: &MemoryDisk) -> anyhow::Result<Mounted> {
        mount(Some(&disk.device), TARGET, Some(self.kind.as_str()), MsFlags::MS_RDONLY, None::<&str>)
            .with_context(|| format!("cannot mount {}", self.name))?;
        Ok(Mounted)
    }
}

/// A mount at [`TARGET`].
pub struct Mounted;

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = umount2(TARGET, MntFlags::empty()) {
            println!("{MARK}FAIL cannot unmount: {error}");
        }
    }
}

fn reading(image: &Measured, disk: &MemoryDisk) -> anyhow::Result<()> {
    let _mounted = image.mount(disk)?;
    let files = files()?;
    for _ in 0..2 {
        forget_pages()?;
        let start = Instant::now();
        let bytes = read_all(&files)?;
        image.say("whole tree", start.elapsed().as_micros() as i64, "us");
        image.say("bytes of the tree", bytes as i64, "bytes");
    }
    forget_pages()?;
    let start = Instant::now();
    read_pages(&files)?;
    image.say("random pages", start.elapsed().as_micros() as i64 / i64::from(RANDOM_READS), "us/page");
    Ok(())
}

/// A disk in memory, gone when it is dropped.
pub struct MemoryDisk {
    /// Its device.
    pub device: PathBuf,
    folder: PathBuf,
}

impl MemoryDisk {
    /// A disk with what another disk holds.
    fn new(from: &Path, bytes: u64, settings: &[(&str, u64)]) -> anyhow::Result<MemoryDisk> {
        let folder = Path::new(DISKS).join("measured");
        let before = disks()?;
        fs::create_dir(&folder).context("cannot make a disk in memory")?;
        let size = [("size", bytes.div_ceil(1 << 20) + 1), ("memory_backed", 1)];
        for (key, value) in size.iter().chain(settings).chain(&[("power", 1)]) {
            fs::write(folder.join(key), value.to_string()).with_context(|| key.to_string())?;
        }
        let device = disks()?.into_iter().find(|disk| !before.contains(disk)).context("the kernel made no disk")?;
        let mut source = File::open(from).with_context(|| from.display().to_string())?.take(bytes);
        let mut target = File::options().write(true).open(&device)?;
        std::io::copy(&mut source, &mut target)?;
        target.sync_all()?;
        Ok(MemoryDisk { device, folder })
    }

    /// Requests that were read, and bytes.
    pub fn counters(&self) -> anyhow::Result<[i64; 2]> {
        let name = self.device.file_name().unwrap_or_default();
        let text = fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
        let numbers: Vec<i64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        ensure!(numbers.len() >= 3, "the disk counts {text:?}");
        Ok([numbers[0], numbers[2] * 512])
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        let gone = fs::write(self.folder.join("power"), "0").and_then(|()| fs::remove_dir(&self.folder));
        if let Err(error) = gone {
            println!("{MARK}FAIL a disk in memory stays: {error}");
        }
    }
}

fn disks() -> anyhow::Result<Vec<PathBuf>> {
    let names = fs::read_dir("/sys/block")?.filter_map(|entry| Some(entry.ok()?.file_name()));
    Ok(names.map(|name| Path::new("/dev").join(name)).collect())
}

/// All files with contents, in the order of folders.
pub(super) fn files() -> anyhow::Result<Vec<(PathBuf, u64)>> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::from(TARGET)]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                open.push(entry.path());
            } else if about.is_file() && about.len() > 0 {
                found.push((entry.path(), about.len()));
            }
        }
    }
    // Images of the same tree are read in the same order.
    found.sort();
    Ok(found)
}

fn read_all(files: &[(PathBuf, u64)]) -> anyhow::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    for (path, _) in files {
        let mut file = File::open(path)?;
        loop {
            let read = file.read(&mut buffer).with_context(|| path.display().to_string())?;
            bytes += read as u64;
            if read == 0 {
                break;
            }
        }
    }
    Ok(bytes)
}

/// Reads pages anywhere in the tree, each as likely as another, without read-ahead.
fn read_pages(files: &[(PathBuf, u64)]) -> anyhow::Result<()> {
    let pages_of = |size: u64| size.div_ceil(PAGE_BYTES as u64);
    let ends: Vec<u64> = files
        .iter()
        .scan(0, |sum, (_, size)| {
            *sum += pages_of(*size);
            Some(*sum)
        })
        .collect();
    let all = *ends.last().context("there are no files")?;
    let mut random = SplitMix64(4);
    let mut buffer = [0; PAGE_BYTES];
    for _ in 0..RANDOM_READS {
        let page = random.below(all);
        let index = ends.partition_point(|end| *end <= page);
        let (path, size) = &files[index];
        let file = File::open(path)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let at = (page - (ends[index] - pages_of(*size))) * PAGE_BYTES as u64;
        ensure!(file.read_at(&mut buffer, at)? > 0, "{}: nothing at {at}", path.display());
    }
    Ok(())
}

/// Prints which pages of the files below `folder` are in memory, under a name: for a file system
/// that reads no page that nobody asked for, those that were touched.
pub fn touched(folder: &Path, name: &str) -> anyhow::Result<()> {
    let device = fs::metadata(folder)?.dev();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() && about.dev() == device {
                open.push(entry.path());
            } else if about.is_file() && about.len() > 0 {
                let path = entry.path();
                let pages = resident(&path)?;
                let file = OsStr::from_bytes(path.strip_prefix(folder)?.as_os_str().as_bytes());
                if !pages.is_empty() && file.to_str().is_some_and(|file| !file.contains(['|', '\n'])) {
                    let pages: Vec<String> = pages.iter().map(usize::to_string).collect();
                    println!("{MARK}touched {name} | {} | {} | {}", file.display(), about.len(), pages.join(","));
                }
            }
        }
    }
    Ok(())
}

#[allow(unsafe_code, reason = "no crate has a safe mincore")]
fn resident(path: &Path) -> anyhow::Result<Vec<usize>> {
    let file = File::open(path)?;
    // SAFETY: nobody writes to the file, and its bytes are not read.
    let map = unsafe { Mmap::map(&file)? };
    let mut states = vec![0u8; map.len().div_ceil(PAGE_BYTES)];
    // SAFETY: the addresses are those of the mapping, and there is a byte for each page.
    let result = unsafe { nix::libc::mincore(map.as_ptr() as *mut _, map.len(), states.as_mut_ptr()) };
    ensure!(result == 0, "mincore: {}", std::io::Error::last_os_error());
    Ok(states.iter().enumerate().filter(|(_, state)| *state & 1 != 0).map(|(page, _)| page).collect())
}
