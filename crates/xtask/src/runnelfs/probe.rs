//! The guest's half of the measurements from a flash: pages of a set, and starts of programs. Also
//! the memory that a mount takes.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use units::PAGE_BYTES;

use super::guest::forget_pages;
use super::meter::{self, Measured, MemoryDisk, Run, TARGET};

/// The programs that are started: each with a name and what a shell in the tree is told.
pub const PROGRAMS: [(&str, &str); 7] = [
    ("python3", "exec python3 -c 'import json,email,argparse,subprocess,logging,urllib.request,sqlite3,decimal'"),
    ("perl", "exec perl -e 'use POSIX; use Data::Dumper; use Getopt::Long; use File::Temp; use Encode; print 1'"),
    ("bash", "exec bash -c 'ls -l /etc; grep -r root /etc/passwd | sed s/root/x/ | sort; find /etc -name a*; date'"),
    ("dpkg", "dpkg-query -W; dpkg -L dpkg; exec apt-cache policy"),
    ("git", GIT),
    (
        "compiler",
        "echo 'int main(void){return 0;}' | exec /usr/lib/gcc/x86_64-linux-gnu/12/cc1 -quiet -O2 -o /dev/null -",
    ),
    ("vi", "exec vim.tiny -es -c q </dev/null"),
];

const GIT: &str = "cd /tmp && git init -q work && cd work && echo text >file && git add -A && \
    git -c user.name=a -c user.email=a@b commit -q -m first && exec git log --stat";

/// Environment of the programs.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LANG", "C.UTF-8"),
    ("HOME", "/tmp"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
];

/// Threads that read while memory is sampled.
const READERS: usize = 4;

/// Time between two samples of memory.
const SAMPLE: Duration = Duration::from_micros(500);

/// Time after which a mount that nobody reads has given back what it kept.
const REST: Duration = Duration::from_secs(12);

/// Reads the pages that `list` names, one by one, as a program does that reads a file in parts:
/// the kernel reads ahead as it is used to.
pub fn hot(image: &Measured, list: &str, disk: &MemoryDisk) -> anyhow::Result<()> {
    let runs: Vec<Run> = serde_json::from_slice(&fs::read(Path::new("/").join(list))?)?;
    let _mounted = image.mount(disk)?;
    forget_pages()?;
    let (before, start) = (disk.counters()?, Instant::now());
    let (mut buffer, mut pages) = ([0; PAGE_BYTES], 0);
    for run in &runs {
        let file = File::open(Path::new(TARGET).join(&run.path)).with_context(|| run.path.clone())?;
        for index in run.first..run.first + run.count {
            let got = file.read_at(&mut buffer, u64::from(index) * PAGE_BYTES as u64)?;
            ensure!(got > 0, "{}: no page {index}", run.path);
            pages += 1;
        }
    }
    let (took, after) = (start.elapsed(), disk.counters()?);
    let what = list.trim_end_matches(".json");
    image.say(&format!("{what} pages"), pages, "pages");
    image.say(&format!("{what} time"), took.as_micros() as i64, "us");
    image.say(&format!("{what} stored bytes"), after[1] - before[1], "bytes");
    image.say(&format!("{what} requests"), after[0] - before[0], "requests");
    Ok(())
}

/// Starts each program twice after a fresh mount: with nothing in memory, and with everything that
/// the first start left there.
pub fn starts(image: &Measured, disk: &MemoryDisk) -> anyhow::Result<()> {
    pages_of_the_disk(image, disk)?;
    let mut sums = [0; 3];
    for (name, script) in PROGRAMS {
        let (before, start) = (disk.counters()?, Instant::now());
        let mounted = image.mount(disk)?;
        let (took, after) = (start.elapsed(), disk.counters()?);
        if name == PROGRAMS[0].0 {
            image.say("mount time", took.as_micros() as i64, "us");
            image.say("mount stored bytes", after[1] - before[1], "bytes");
        }
        let surroundings = Surroundings::new()?;
        forget_pages()?;
        let before = disk.counters()?;
        let cold = start_of(script).context(name)?.as_micros() as i64;
        let bytes = disk.counters()?[1] - before[1];
        fs::remove_dir_all(Path::new(TARGET).join("tmp/work")).ok();
        let warm = start_of(script).context(name)?.as_micros() as i64;
        image.say(&format!("{name} cold"), cold, "us");
        image.say(&format!("{name} cached"), warm, "us");
        image.say(&format!("{name} stored bytes"), bytes, "bytes");
        [cold, warm, bytes].iter().zip(&mut sums).for_each(|(value, sum)| *sum += value);
        drop(surroundings);
        drop(mounted);
    }
    for (what, sum, unit) in [("cold", sums[0], "us"), ("cached", sums[1], "us"), ("stored bytes", sums[2], "bytes")] {
        image.say(&format!("all starts {what}"), sum, unit);
    }
    Ok(())
}

/// Says what a page of the disk takes, to see that it is the flash that it should be.
fn pages_of_the_disk(image: &Measured, disk: &MemoryDisk) -> anyhow::Result<()> {
    forget_pages()?;
    let (before, start) = (disk.counters()?, Instant::now());
    let read = std::io::copy(&mut File::open(&disk.device)?.take(4 << 20), &mut std::io::sink())?;
    let pages = (disk.counters()?[1] - before[1]) / PAGE_BYTES as i64;
    ensure!(read == 4 << 20 && pages >= 1024, "{pages} pages of the disk were read");
    image.say("a page of the flash", start.elapsed().as_nanos() as i64 / pages, "ns");
    Ok(())
}

/// Prints which pages each program touches, of a file system that reads no others.
pub fn touched_by_programs(disk: &Path) -> anyhow::Result<()> {
    let name = disk.file_name().unwrap_or_default();
    fs::write(Path::new("/sys/block").join(name).join("queue/read_ahead_kb"), "0")?;
    mount(Some(disk), TARGET, Some("ext4"), MsFlags::MS_RDONLY, None::<&str>)?;
    for (name, script) in PROGRAMS {
        let surroundings = Surroundings::new()?;
        forget_pages()?;
        start_of(script).context(name)?;
        drop(surroundings);
        meter::touched(Path::new(TARGET), name)?;
    }
    umount2(TARGET, MntFlags::empty())?;
    Ok(())
}

/// What programs need beside the image, in the folders of it that are there for this.
struct Surroundings;

impl Surroundings {
    fn new() -> anyhow::Result<Surroundings> {
        for (kind, folder) in [("proc", "proc"), ("devtmpfs", "dev"), ("tmpfs", "tmp")] {
            let target = Path::new(TARGET).join(folder);
            mount(Some(kind), &target, Some(kind), MsFlags::empty(), None::<&str>).context(folder)?;
        }
        Ok(Surroundings)
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        for folder in ["proc", "dev", "tmp"] {
            let _ = umount2(&Path::new(TARGET).join(folder), MntFlags::empty());
        }
    }
}

/// Starts a program in the tree, and waits for its end.
fn start_of(script: &str) -> anyhow::Result<Duration> {
    let mut program = Command::new("/proc/self/exe");
    program.args(["runnelfs-start", TARGET, script]).env_clear().envs(ENVIRONMENT);
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let start = Instant::now();
    let output = program.output()?;
    let took = start.elapsed();
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(took)
}

/// Becomes a shell in `root` that does what `script` says.
pub fn become_program(root: &Path, script: &str) -> anyhow::Result<()> {
    nix::unistd::chroot(root)?;
    std::env::set_current_dir("/")?;
    Err(Command::new("/bin/sh").args(["-c", script]).exec().into())
}

/// What a mount takes at rest, and at its peak while four threads read the tree, beside the page
/// cache and what the kernel keeps of names and inodes: the kernel's pages that are mapped
/// (`VmallocUsed`) and its objects that cannot be reclaimed (`SUnreclaim`, in which large ones
/// count), which is where `kvmalloc` takes memory from.
pub fn memory(image: &Measured, disk: &MemoryDisk) -> anyhow::Result<()> {
    forget_pages()?;
    thread::sleep(REST);
    let before = Memory::now()?;
    let mounted = image.mount(disk)?;
    let say = |what: &str, memory: Memory| {
        image.say(&format!("memory {what}"), memory.allocated, "KiB allocated");
        image.say(&format!("memory {what}"), memory.other, "KiB neither free nor cache");
    };
    thread::sleep(REST);
    let rest = Memory::now()?.since(&before);
    say("after a mount", rest);
    let files = meter::files()?;
    image.say("files", files.len() as i64, "files");
    let more = read_by_threads(&files)?;
    let peak = Memory { allocated: rest.allocated + more.allocated, other: rest.other + more.other };
    say("at its peak", peak);
    forget_pages()?;
    thread::sleep(REST);
    say("at rest after reading", Memory::now()?.since(&before));
    drop(mounted);
    Ok(())
}

/// What memory there is more at the most while threads read the files, each some of them. What the
/// threads take themselves does not count.
fn read_by_threads(files: &[(PathBuf, u64)]) -> anyhow::Result<Memory> {
    let ready = Barrier::new(READERS + 1);
    let read = |reader: usize| -> anyhow::Result<()> {
        let mut buffer = vec![1; 128 << 10];
        // Once all threads are there, and once memory without what they read is known.
        ready.wait();
        ready.wait();
        for (path, _) in files.iter().skip(reader).step_by(READERS) {
            let mut file = File::open(path)?;
            while file.read(&mut buffer)? > 0 {}
        }
        Ok(())
    };
    let read = &read;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|reader| scope.spawn(move || read(reader))).collect();
        ready.wait();
        let idle = Memory::now();
        ready.wait();
        let idle = idle?;
        let mut peak = Memory::default();
        while !readers.iter().all(|reader| reader.is_finished()) {
            let now = Memory::now()?.since(&idle);
            peak = Memory { allocated: peak.allocated.max(now.allocated), other: peak.other.max(now.other) };
            thread::sleep(SAMPLE);
        }
        readers.into_iter().try_for_each(|reader| reader.join().unwrap_or_else(|_| bail!("a reader panicked")))?;
        Ok(peak)
    })
}

/// Memory of the kernel, in KiB.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Mapped pages and objects that cannot be reclaimed.
    allocated: i64,
    /// Neither free nor page cache nor reclaimable.
    other: i64,
}

impl Memory {
    fn since(&self, before: &Memory) -> Memory {
        Memory { allocated: self.allocated - before.allocated, other: self.other - before.other }
    }

    fn now() -> anyhow::Result<Memory> {
        // Counters of single processors are added.
        fs::write("/proc/sys/vm/stat_refresh", "1")?;
        let text = fs::read_to_string("/proc/meminfo")?;
        let kilobytes = |name: &str| -> anyhow::Result<i64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()).with_context(|| format!("no {name}"))?;
            Ok(number.parse()?)
        };
        let sum = |names: &[&str]| names.iter().map(|name| kilobytes(name)).sum::<anyhow::Result<i64>>();
        let allocated = sum(&["VmallocUsed", "SUnreclaim"])?;
        let other = kilobytes("MemTotal")?
            - sum(&["MemFree", "Cached", "Buffers", "SReclaimable", "AnonPages", "KernelStack", "PageTables"])?;
        Ok(Memory { allocated, other })
    }
}
