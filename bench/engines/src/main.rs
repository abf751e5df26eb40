//! Writes the blocks of images into the device cache and into other engines, each on an ext4 of its
//! own, and prints a table: bytes written to the disk, time to open, memory, and what is left when
//! the process is killed or the power fails.
//!
//!     cargo run --release -- IMAGE.rnl...       # as root; more than twice the limit
//!
//! The disks are loop devices on files in memory (`/dev/shm`). All dirty pages are written each
//! 8 MiB, as the kernel does it every five seconds of a fetch at 13 Mbit/s. A power cut is a copy
//! of the disk that is taken while the writing process is stopped: what was not written back is not
//! in it. A process of its own opens each cache, from a disk that was mounted afresh. It is in a
//! session of its own, which gets its share of the processor beside what else runs.

mod disk;
mod engine;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use engine::{Key, LIMIT};
use image::{Limits, Metadata};

use crate::disk::Disk;

/// Dirty pages are written after so many bytes.
const WRITEBACK_BYTES: usize = 8 << 20;

/// A cache is opened so often, and its writer ends early so often.
const OPENS: usize = 9;
const CRASHES: usize = 8;

struct Record {
    key: Key,
    payload: Vec<u8>,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", engine, folder, ref images @ ..] => write(engine, Path::new(folder), &records(images)?),
        ["open", engine, folder, keys] => check(engine, Path::new(folder), Path::new(keys)),
        [_, ..] => compare(&arguments),
        [] => bail!("give images whose blocks are written"),
    }
}

/// The blocks of images, in their order, each once.
fn records(images: &[&str]) -> anyhow::Result<Vec<Record>> {
    let mut found: Vec<Record> = Vec::new();
    let mut keys = std::collections::HashSet::new();
    for path in images {
        let file = std::fs::read(path).with_context(|| path.to_string())?;
        let metadata = Metadata::open(&file, &Limits::default())?;
        for number in 0..metadata.block_count() {
            let block = metadata.block(units::BlockId(number)).context("a block that is counted is there")?;
            let start = block.file_offset as usize;
            let payload = file.get(start..start + block.stored_bytes as usize).context("a block outside its file")?;
            let key = *blake3::hash(payload).as_bytes();
            if keys.insert(key) {
                found.push(Record { key, payload: payload.to_vec() });
            }
        }
    }
    Ok(found)
}

/// Writes all records; a line for each that was taken, and one about all.
fn write(name: &str, folder: &Path, records: &[Record]) -> anyhow::Result<()> {
    // The most that was in memory begins anew.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = memory("VmRSS:")?;
    let disk = std::fs::File::open(folder)?;
    let mut engine = engine::open(name, folder)?;
    let mut out = std::io::stdout().lock();
    let mut unwritten = 0;
    for (at, record) in records.iter().enumerate() {
        engine.put(&record.key, &record.payload)?;
        writeln!(out, "put {at}")?;
        unwritten += record.payload.len();
        if unwritten >= WRITEBACK_BYTES {
            unwritten = 0;
            rustix::fs::syncfs(&disk)?;
        }
    }
    let most = memory("VmHWM:")?.saturating_sub(before);
    drop(engine);
    writeln!(out, "done {most}")?;
    Ok(())
}

/// Opens a cache; prints milliseconds to open it, to open and list it, and the processor's part of
/// that, KiB that this takes, and how many
/// records of these keys are whole and how many wrong.
fn check(name: &str, folder: &Path, keys: &Path) -> anyhow::Result<()> {
    let keys = std::fs::read(keys)?;
    let before = memory("VmRSS:")?;
    let (begun, used) = (Instant::now(), processor());
    let mut engine = engine::open(name, folder)?;
    let opened = begun.elapsed();
    let listed = engine.list()?;
    let (all, used) = (begun.elapsed(), processor() - used);
    let taken = memory("VmRSS:")?.saturating_sub(before);
    let (mut whole, mut wrong) = (0, 0);
    for key in keys.as_chunks().0 {
        match engine.get(key)? {
            Some(payload) if blake3::hash(&payload) == *key => whole += 1,
            Some(_) => wrong += 1,
            None => {}
        }
    }
    let (opened, all) = (opened.as_secs_f64() * 1e3, all.as_secs_f64() * 1e3);
    println!("{opened:.2} {all:.2} {used:.2} {taken} {listed} {whole} {wrong}");
    Ok(())
}

/// Milliseconds of a processor that this process took.
fn processor() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 * 1e-6
}

/// A line of this process's status, KiB.
fn memory(name: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// What a process that opened a cache said.
#[derive(Clone, Copy, Default)]
struct Opened {
    open: f64,
    list: f64,
    processor: f64,
    memory: u64,
    whole: usize,
    wrong: usize,
}

struct Bench<'a> {
    engine: &'a str,
    images: &'a [String],
    /// A file with the keys of all records.
    keys: &'a Path,
}

impl Bench<'_> {
    fn open(&self, folder: &Path) -> anyhow::Result<Opened> {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(std::env::current_exe()?).arg("open").arg(self.engine).arg(folder);
        let output = command.arg(self.keys).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "{}", said);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [open, list, processor, memory, _, whole, wrong] = words[..] else { bail!("{text}") };
        Ok(Opened { open, list, processor, memory: memory as u64, whole: whole as usize, wrong: wrong as usize })
    }

    fn write(&self, folder: &Path) -> anyhow::Result<(Child, BufReader<std::process::ChildStdout>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("write").arg(self.engine).arg(folder).args(self.images);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok((child, lines))
    }
}

fn compare(images: &[String]) -> anyhow::Result<()> {
    let names: Vec<&str> = images.iter().map(String::as_str).collect();
    let records = records(&names)?;
    let payload: usize = records.iter().map(|record| record.payload.len()).sum();
    println!("{} records, {payload} bytes, limit {LIMIT}", records.len());
    let keys = disk::path("keys");
    std::fs::write(&keys, records.iter().flat_map(|record| record.key).collect::<Vec<u8>>())?;
    for engine in engine::NAMES {
        let bench = Bench { engine, images, keys: &keys };
        if let Err(error) = wear_and_opening(&bench, payload).and_then(|()| crashes(&bench, &records)) {
            println!("{engine}: {error:#}");
        }
    }
    Ok(std::fs::remove_file(&keys)?)
}

fn wear_and_opening(bench: &Bench<'_>, payload: usize) -> anyhow::Result<()> {
    let engine = bench.engine;
    let disk = Disk::new(engine)?;
    let mounted = disk.mount()?;
    let before = disk.written_bytes()?;
    let (mut child, lines) = bench.write(mounted.path())?;
    let last = lines.lines().map_while(Result::ok).last().unwrap_or_default();
    ensure!(child.wait()?.success(), "{engine} failed");
    let memory: u64 = last.strip_prefix("done ").context("no last line")?.parse()?;
    let kept = size(mounted.path())?;
    drop(mounted);
    let written = disk.written_bytes()? - before;
    println!(
        "{engine}: {written} bytes written, {:.3} a byte cached; {kept} bytes of files; {memory} KiB to write",
        written as f64 / payload as f64
    );
    let mut opened = Vec::new();
    for _ in 0..OPENS {
        opened.push(bench.open(disk.mount()?.path())?);
    }
    let middle = |of: fn(&Opened) -> f64| {
        let mut all: Vec<f64> = opened.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        format!("{:.1} ({:.1} to {:.1})", all[OPENS / 2], all[0], all[OPENS - 1])
    };
    println!(
        "{engine}: opens in {} ms, and lists in {} ms, of which the processor takes {}; {} KiB; {} whole",
        middle(|one| one.open),
        middle(|one| one.list),
        middle(|one| one.processor),
        middle(|one| one.memory as f64),
        opened[0].whole
    );
    Ok(())
}

fn crashes(bench: &Bench<'_>, records: &[Record]) -> anyhow::Result<()> {
    for crash in 0..CRASHES {
        let disk = Disk::new(bench.engine)?;
        let mounted = disk.mount()?;
        let (mut child, mut lines) = bench.write(mounted.path())?;
        // Anywhere but at the beginning, mostly after the first records had to go.
        let put = records.len() / 4 + (records.len() * 3 / 4 - 1) * (crash * 7 % CRASHES) / CRASHES;
        let mut line = String::new();
        while !line.starts_with(&format!("put {put}\n")) {
            line.clear();
            ensure!(lines.read_line(&mut line)? > 0, "{} ended early", bench.engine);
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
        let copy = disk.copy()?;
        child.kill()?;
        child.wait()?;
        // Those that it wrote before it stopped, as far as there is room.
        let acknowledged = 1 + put + lines.lines().map_while(Result::ok).filter(|line| line.starts_with("put")).count();
        let (mut bytes, mut wanted) = (0, 0);
        for record in records[..acknowledged.min(records.len())].iter().rev() {
            bytes += record.payload.len() as u64;
            wanted += usize::from(bytes <= LIMIT);
        }
        let killed = bench.open(mounted.path());
        drop(mounted);
        let cut = copy.mount().and_then(|mounted| bench.open(mounted.path()));
        for (what, opened) in [("killed", killed), ("power cut", cut)] {
            match opened {
                Ok(Opened { open, whole, wrong, .. }) => println!(
                    "{} {what}: of {wanted} that fit {whole} whole, {wrong} wrong, opens in {open:.1} ms",
                    bench.engine
                ),
                Err(error) => println!("{} {what}: {error:#}", bench.engine),
            }
        }
    }
    Ok(())
}

/// Bytes that the files below a folder take.
fn size(folder: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut pending: Vec<PathBuf> = vec![folder.into()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next)? {
            let about = entry.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?.metadata()?;
            if about.is_dir() {
                pending.push(entry?.path());
            } else {
                bytes += about.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}
