//! What a program touches: exactly which pages of which files, in which order, and which parts of
//! files it maps.
//!
//! The program is started once from a disk without delay and without read-ahead (`read_ahead_kb`
//! 0), with nothing cached. Each page is then brought in when it is first touched, alone, and the
//! kernel's tracepoint `filemap:mm_filemap_add_to_page_cache` tells so, in an instance of tracefs
//! of our own and only for this file system. Meanwhile `/proc/PID/maps` of its processes is looked
//! at: that is what preload knows. Places on the disk are asked from `filefrag`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, mount};
use serde::{Deserialize, Serialize};

use super::place::Place;
use super::program::Program;
use crate::process::tool;

/// Bytes of the kernel's trace buffer for each processor: about half a million events.
const TRACE_KILOBYTES: u32 = 32 << 10;

/// How often mappings are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of one command at most: the kernel's limit is far above.
const FILES_AT_ONCE: usize = 500;

const PAGE: u64 = units::PAGE_BYTES as u64;

/// Pages of a file that lie next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First page.
    pub page: u64,
    /// How many.
    pub pages: u64,
    /// Where the first one lies on the disk, pages.
    pub place: u64,
    /// Its position in the order of first touches.
    pub order: u64,
    /// In which later phase it is first touched; 0 is the start.
    pub phase: usize,
}

/// A file that is touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its path in the root, without the first slash.
    pub path: PathBuf,
    /// Its inode number.
    pub inode: u64,
    /// Its size in pages.
    pub pages: u64,
    /// Where its first page lies on the disk.
    pub place: u64,
    /// What is touched, in the order of the first touches.
    pub touched: Vec<Range>,
    /// What processes have mapped: first pages and numbers of pages.
    pub mapped: Vec<(u64, u64)>,
}

/// What a program touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// The files, by inode number.
    pub files: Vec<File>,
    /// Folders that hold them, and those above, by inode number.
    pub folders: Vec<PathBuf>,
    /// Bytes that the disk gave: touched pages and metadata.
    pub disk_bytes: u64,
}

impl Touched {
    /// Touched pages.
    pub fn pages(&self) -> u64 {
        self.files.iter().flat_map(|file| &file.touched).map(|range| range.pages).sum()
    }
}

/// One event: a page came into the page cache.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Added {
    at: f64,
    inode: u64,
    page: u64,
    pages: u64,
}

/// Starts `program` and notes what it touches; known ones are read from `file`.
///
/// # Errors
/// The kernel lacks the tracepoint, events were lost, or the program fails.
pub fn learn(place: &mut Place, program: &Program, folder: &Path, file: &Path) -> anyhow::Result<Touched> {
    if let Some(known) = fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(known);
    }
    place.disk.change(&disk::INSTANT, 0)?;
    place.disk.mount_cold()?;
    let root = place.disk.root().to_path_buf();
    let names = names(&root)?;
    place.refresh(&disk::INSTANT, 0)?;
    let device = fs::metadata(&root)?.dev();
    let recorder = Recorder::start(folder, device)?;
    let before = place.disk.counters();
    let over = AtomicBool::new(false);
    let mut phases = Vec::new();
    let command: Vec<String> = program.command.iter().map(|word| word.to_string()).collect();
    let (run, mapped) = std::thread::scope(|scope| {
        let mapped = scope.spawn(|| watch_mappings(&root, device, &over));
        let run = place.run(&command, Instant::now(), &before, &mut |_| phases.push(clock()));
        over.store(true, Ordering::Relaxed);
        (run, mapped.join().unwrap_or_default())
    });
    let run = run?;
    let added = recorder.finish()?;
    ensure!(!added.is_empty(), "the kernel reported no page that {} touched", program.name);
    let mut touched = assemble(&added, &phases, &names, &mapped);
    touched.disk_bytes = run.disk.bytes;
    locate(&mut touched, &root)?;
    touched.folders = folders(&touched.files, &root);
    fs::write(file, serde_json::to_vec(&touched)?).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(touched)
}

fn clock() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// An instance of tracefs that notes pages of one file system.
struct Recorder {
    folder: PathBuf,
}

impl Recorder {
    fn start(folder: &Path, device: u64) -> anyhow::Result<Recorder> {
        let tracing = folder.join("tracing");
        if !tracing.join("instances").is_dir() {
            fs::create_dir_all(&tracing)?;
            mount("tracefs", &tracing, "tracefs", MountFlags::empty(), None)
                .context("cannot mount tracefs; what programs touch is learned from its filemap events")?;
        }
        let instance = tracing.join("instances").join(format!("runnel-{}", std::process::id()));
        if !instance.is_dir() {
            fs::create_dir(&instance).with_context(|| format!("cannot make {}", instance.display()))?;
        }
        let recorder = Recorder { folder: instance };
        let event = "events/filemap/mm_filemap_add_to_page_cache";
        let number = u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device));
        recorder.set("trace_clock", "mono")?;
        recorder.set("buffer_size_kb", &TRACE_KILOBYTES.to_string())?;
        recorder.set(&format!("{event}/filter"), &format!("s_dev == {number}"))?;
        recorder.set(&format!("{event}/enable"), "1")?;
        recorder.set("tracing_on", "1")?;
        Ok(recorder)
    }

    fn set(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, value).with_context(|| format!("cannot set {} to {value}", path.display()))
    }

    fn finish(self) -> anyhow::Result<Vec<Added>> {
        self.set("tracing_on", "0")?;
        for entry in fs::read_dir(self.folder.join("per_cpu"))? {
            let text = fs::read_to_string(entry?.path().join("stats")).unwrap_or_default();
            let lost = text.lines().find_map(|line| line.strip_prefix("overrun: ")).unwrap_or("0");
            ensure!(lost.trim() == "0", "the kernel's trace buffer lost {lost} events");
        }
        let text = fs::read(self.folder.join("trace")).context("cannot read the trace")?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.set("tracing_on", "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A line such as `python3-42 [001] ..... 17.000123: mm_filemap_add_to_page_cache: dev 7:0 ino 1f
/// pfn=0x3 ofs=4096 order=0`; nothing for other lines.
fn parse(line: &str) -> Option<Added> {
    let (head, rest) = line.split_once(": mm_filemap_add_to_page_cache: ")?;
    let at = head.rsplit(' ').next()?.parse().ok()?;
    let word = |name: &str| rest.split(' ').find_map(|word| word.strip_prefix(name));
    let inode = u64::from_str_radix(rest.split(" ino ").nth(1)?.split(' ').next()?, 16).ok()?;
    let page = word("ofs=")?.parse::<u64>().ok()? / PAGE;
    let order = word("order=").and_then(|order| order.parse::<u32>().ok()).unwrap_or(0);
    Some(Added { at, inode, page, pages: 1 << order.min(20) })
}

/// Path of each file, by inode number.
fn names(root: &Path) -> anyhow::Result<HashMap<u64, (PathBuf, u64)>> {
    let (mut names, mut open) = (HashMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let found = entry.metadata()?;
            if found.is_dir() {
                open.push(entry.path());
            } else if found.is_file() {
                let path = entry.path().strip_prefix(root)?.to_path_buf();
                names.entry(found.ino()).or_insert((path, found.len().div_ceil(PAGE)));
            }
        }
    }
    Ok(names)
}

/// Looks at the mappings of the processes whose root is `root` until it is over: by inode number,
/// first pages and numbers of pages.
fn watch_mappings(root: &Path, device: u64, over: &AtomicBool) -> BTreeMap<u64, BTreeSet<(u64, u64)>> {
    let number = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut mapped: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let path = entry.path();
            if fs::read_link(path.join("root")).ok().as_deref() != Some(root) {
                continue;
            }
            let maps = fs::read(path.join("maps")).unwrap_or_default();
            for (inode, part) in String::from_utf8_lossy(&maps).lines().filter_map(|line| mapping(line, &number)) {
                mapped.entry(inode).or_default().insert(part);
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    mapped
}

/// Inode, first page and number of pages of a line of a process's maps, if it is of the device.
fn mapping(line: &str, device: &str) -> Option<(u64, (u64, u64))> {
    let words: Vec<&str> = line.split_whitespace().take(5).collect();
    let [range, _, offset, found, inode] = words[..] else { return None };
    let (from, to) = range.split_once('-')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let pages = (hexadecimal(to)? - hexadecimal(from)?) / PAGE;
    (found == device).then_some((inode.parse().ok()?, (hexadecimal(offset)? / PAGE, pages)))
}

/// Files with their ranges, from events in the order of time.
fn assemble(
    added: &[Added],
    phases: &[f64],
    names: &HashMap<u64, (PathBuf, u64)>,
    mapped: &BTreeMap<u64, BTreeSet<(u64, u64)>>,
) -> Touched {
    let mut files: BTreeMap<u64, File> = BTreeMap::new();
    let mut seen: BTreeSet<(u64, u64)> = BTreeSet::new();
    for (order, event) in added.iter().enumerate() {
        let Some((path, pages)) = names.get(&event.inode) else { continue };
        let phase = phases.iter().filter(|at| **at <= event.at).count();
        let file = files.entry(event.inode).or_insert_with(|| File {
            path: path.clone(),
            inode: event.inode,
            pages: *pages,
            mapped: mapped.get(&event.inode).into_iter().flatten().copied().collect(),
            ..File::default()
        });
        for page in (event.page..event.page + event.pages).filter(|page| page < pages) {
            if !seen.insert((event.inode, page)) {
                continue;
            }
            match file.touched.last_mut() {
                Some(last) if last.page + last.pages == page && last.phase == phase => last.pages += 1,
                _ => file.touched.push(Range { page, pages: 1, place: 0, order: order as u64, phase }),
            }
        }
    }
    Touched { files: files.into_values().collect(), ..Touched::default() }
}

/// Fills in where pages lie on the disk.
fn locate(touched: &mut Touched, root: &Path) -> anyhow::Result<()> {
    for files in touched.files.chunks_mut(FILES_AT_ONCE) {
        let mut command = Command::new("filefrag");
        command.args(["-v", "-b4096"]).args(files.iter().map(|file| root.join(&file.path)));
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let output =
            tool(command.env("PATH", path)).context("filefrag says where files lie; apt-get install e2fsprogs")?;
        let extents = extents(&String::from_utf8_lossy(&output));
        ensure!(extents.len() == files.len(), "filefrag spoke of {} files and not {}", extents.len(), files.len());
        for (file, extents) in files.iter_mut().zip(&extents) {
            let place = |page: u64| {
                let found = extents.iter().find(|[first, last, _]| (*first..=*last).contains(&page));
                found.map_or(0, |[first, _, place]| place + page - first)
            };
            file.place = place(0);
            file.touched.iter_mut().for_each(|range| range.place = place(range.page));
        }
    }
    Ok(())
}

/// Of each file that `filefrag -v` speaks of, its extents: first and last page, and where the first
/// lies.
fn extents(text: &str) -> Vec<Vec<[u64; 3]>> {
    let mut files: Vec<Vec<[u64; 3]>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("File size of ") {
            files.push(Vec::new());
        } else if let (Some(file), Some(extent)) = (files.last_mut(), extent(line)) {
            file.push(extent);
        }
    }
    files
}

/// A line such as `   0:        0..      14:      34304..     34318:     15:             last,eof`.
fn extent(line: &str) -> Option<[u64; 3]> {
    let mut parts = line.split(':').map(str::trim);
    parts.next()?.parse::<u64>().ok()?;
    let (first, last) = parts.next()?.split_once("..")?;
    let (place, _) = parts.next()?.split_once("..")?;
    let number = |text: &str| text.trim().parse().ok();
    Some([number(first)?, number(last)?, number(place)?])
}

/// Folders of the files and those above them, by inode number.
fn folders(files: &[File], root: &Path) -> Vec<PathBuf> {
    let all: BTreeSet<PathBuf> =
        files.iter().flat_map(|file| file.path.ancestors().skip(1).map(Path::to_path_buf)).collect();
    let mut numbered: Vec<(u64, PathBuf)> = all
        .into_iter()
        .filter_map(|path| fs::metadata(root.join(&path)).ok().map(|found| (found.ino(), path)))
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_and_of_filefrag_are_understood() {
        let line = "  python3-42  [001] ..... 17.000123: mm_filemap_add_to_page_cache: dev 7:0 ino 1f pfn=0x3 ofs=8192 order=1";
        assert_eq!(parse(line), Some(Added { at: 17.000123, inode: 31, page: 2, pages: 2 }));
        assert_eq!(parse("# tracer: nop"), None);
        let text = "Filesystem type is: ef53\nFile size of /a is 1 (1 block of 4096 bytes)\n ext:     logical_offset:        physical_offset: length:   expected: flags:\n   0:        0..       9:      34304..     34313:     10:\n   1:       10..      14:        100..       104:      5:      34314: last,eof\n/a: 2 extents found\nFile size of /b is 0 (0 blocks of 4096 bytes)\n/b: 0 extents found\n";
        assert_eq!(extents(text), [vec![[0, 9, 34304], [10, 14, 100]], vec![]]);
        let line = "7f0000000000-7f0000003000 r-xp 00002000 07:0a 77     /usr/lib/x.so";
        assert_eq!(mapping(line, "07:0a"), Some((77, (2, 3))));
        assert_eq!(mapping(line, "07:0b"), None);
    }

    #[test]
    fn events_become_ranges_in_their_order_and_phase() {
        let event = |at: f64, inode, page| Added { at, inode, page, pages: 1 };
        let added = [
            event(1.0, 5, 0),
            event(1.1, 5, 1),
            event(1.2, 6, 3),
            event(1.3, 5, 9),
            event(2.0, 5, 10),
            event(2.1, 5, 1),
            event(2.2, 99, 0),
            event(2.3, 6, 400),
        ];
        let names = HashMap::from([(5, ("a".into(), 20)), (6, ("b".into(), 4))]);
        let mapped = BTreeMap::from([(6, BTreeSet::from([(0, 4)]))]);
        let touched = assemble(&added, &[1.9], &names, &mapped);
        let range = |page, pages, order, phase| Range { page, pages, place: 0, order, phase };
        assert_eq!(touched.files[0].touched, [range(0, 2, 0, 0), range(9, 1, 3, 0), range(10, 1, 4, 1)]);
        assert_eq!((touched.files[1].touched.len(), touched.files[1].mapped.as_slice()), (1, &[(0, 4)][..]));
        assert_eq!(touched.pages(), 5);
    }
}
