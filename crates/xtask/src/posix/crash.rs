//! Records that were acknowledged are there, once, whatever was killed or cut meanwhile.
//!
//! Writers append numbered records to files of their own, and sync. The server and the mounts are
//! killed, and connections cut, at random moments. A writer whose mount died reads on the new mount
//! what is there: all that was acknowledged, perhaps more, and goes on behind it. What a power cut
//! does to the server's disk is tried in the tests of `volume`, on a simulated one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use units::{Rng, SplitMix64};

use super::Setting;
use super::link::Link;
use super::mounted::{Mount, Server};

/// Writers on each of the two mounts.
const WRITERS: usize = 3;

/// Bytes of a record: no divisor of a block, so that records lie in two.
const RECORD_BYTES: usize = 23;

/// Most records between two syncs.
const BATCH_MAX: u64 = 60;

/// Kills and cuts in a run, at random numbers of acknowledged records.
const INCIDENTS: u64 = 150;

/// Without a record for so long nothing goes on.
const STANDSTILL: Duration = Duration::from_secs(60);

pub fn run(setting: &Setting) -> anyhow::Result<()> {
    let records = if setting.full { 1_000_000 } else { 10_000 };
    let mut server = Server::start(&setting.runnel, &setting.folder.join("crash"))?;
    let link = Link::new(&server.address)?;
    // The second one keeps what it has not sent, and repeats it when it is mounted again.
    let unsent = setting.folder.join("crash/unsent").display().to_string();
    let mut mounts =
        [server.mount_by(&link.address, "one", &[])?, server.mount_by(&link.address, "two", &["--unsent", &unsent])?];
    let mut writers = Vec::new();
    for at in 0..WRITERS * 2 {
        // Never made by a writer: while a mount is away it would make it beneath.
        File::create(server.data().join(format!("log-{at}")))?;
        writers.push(Writer::start(&mounts[at % 2].path, at)?);
    }
    let counts = kill_and_cut(records, &writers, &mut server, &mut mounts, &link)?;
    let mut acknowledged = 0;
    for (at, writer) in writers.into_iter().enumerate() {
        let kept = writer.end()?;
        let there = in_order(&fs::read(server.data().join(format!("log-{at}")))?)?;
        ensure!(there >= kept, "log-{at}: {there} records on the server, {kept} acknowledged");
        acknowledged += kept;
    }
    for mount in mounts {
        mount.end()?;
    }
    let [servers, mounts, cuts] = counts;
    println!("{acknowledged} records acknowledged, each there once");
    println!("killed: {servers} servers, {mounts} mounts; connections cut {cuts} times");
    Ok(())
}

/// Until so many records were acknowledged. Gives how often a server and a mount was killed, and
/// connections were cut.
fn kill_and_cut(
    records: u64,
    writers: &[Writer],
    server: &mut Server,
    mounts: &mut [Mount; 2],
    link: &Link,
) -> anyhow::Result<[u32; 3]> {
    let mut random = SplitMix64(records);
    let mut counts = [0; 3];
    let mut at = 0;
    loop {
        at += 1 + random.below(records * 2 / INCIDENTS);
        let begun = Instant::now();
        while writers.iter().map(Writer::acknowledged).sum::<u64>() < at.min(records) {
            ensure!(begun.elapsed() < STANDSTILL, "no more records after {counts:?} kills and cuts");
            std::thread::sleep(Duration::from_millis(1));
        }
        if at >= records {
            return Ok(counts);
        }
        let what = random.below(3) as usize;
        match what {
            0 => server.kill_and_restart().context("the server was killed")?,
            1 => mounts[random.below(2) as usize].kill_and_remount().context("a mount was killed")?,
            _ => link.cut(),
        }
        counts[what] += 1;
    }
}

/// A process that writes. It is not this one: whoever starts a program closes copies of its own
/// files on the way, which waits for the server; so this process could not start the server.
struct Writer {
    child: Child,
    acknowledged: Arc<AtomicU64>,
    listener: JoinHandle<()>,
}

impl Writer {
    fn start(mountpoint: &Path, at: usize) -> anyhow::Result<Writer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("posix-writer").arg(mountpoint.join(format!("log-{at}"))).arg(at.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("a writer has an output")?);
        let acknowledged = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&acknowledged);
        let listener = std::thread::spawn(move || {
            for number in said.lines().map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                counter.store(number, Ordering::Relaxed);
            }
        });
        Ok(Writer { child, acknowledged, listener })
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends it; the records that were acknowledged.
    fn end(mut self) -> anyhow::Result<u64> {
        // The end of its input is what it waits for.
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "a writer ended with {status}");
        self.listener.join().ok().context("a listener")?;
        Ok(self.acknowledged.load(Ordering::Relaxed))
    }
}

/// The process of a writer: says after each sync how many records there are, until its input ends.
/// Some append, and do so where `--unsent` is: what is on its way when such a mount is killed is
/// refused once the next one, which is the same device, has sent more. Others write at offsets: a
/// write of a killed mount that is applied late is of an older version, or the same again.
pub fn write(path: &Path, at: u64) -> anyhow::Result<()> {
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    std::thread::spawn(move || {
        // Nothing comes but the end.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        told.store(true, Ordering::Relaxed);
    });
    let ends = || ends.load(Ordering::Relaxed);
    let mut random = SplitMix64(at);
    let appends = at % 4 == 1;
    let mut acknowledged = 0;
    while !ends() {
        let Ok((file, content)) = read(path, appends) else {
            // The mount is away, and beneath it lies an empty folder.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let there = in_order(&content).with_context(|| path.display().to_string())?;
        ensure!(there >= acknowledged, "{}: {there} records, {acknowledged} acknowledged", path.display());
        acknowledged = there;
        // Until the mount is killed.
        while !ends() {
            let count = 1 + random.below(BATCH_MAX);
            if append(&file, appends, acknowledged, count).is_err() {
                break;
            }
            acknowledged += count;
            println!("{acknowledged}");
        }
    }
    Ok(())
}

/// The file and what is in it.
fn read(path: &Path, appends: bool) -> io::Result<(File, Vec<u8>)> {
    let file = OpenOptions::new().read(true).append(appends).write(!appends).open(path)?;
    let mut content = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut content, 0)?;
    Ok((file, content))
}

fn append(mut file: &File, appends: bool, first: u64, count: u64) -> io::Result<()> {
    for number in first..first + count {
        let record = record(number);
        if appends {
            file.write_all(&record)?;
        } else {
            file.write_all_at(&record, number * RECORD_BYTES as u64)?;
        }
    }
    file.sync_data()
}

fn record(number: u64) -> Vec<u8> {
    format!("record {number:015}\n").into_bytes()
}

/// How many records there are, each once and in order, and nothing else.
fn in_order(content: &[u8]) -> anyhow::Result<u64> {
    for (number, found) in content.chunks(RECORD_BYTES).enumerate() {
        let expected = record(number as u64);
        ensure!(found == expected, "{:?} is there as record {number}", String::from_utf8_lossy(found));
    }
    Ok((content.len() / RECORD_BYTES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_lost_doubled_or_torn_are_found() {
        let all = [record(0), record(1), record(2)];
        assert_eq!(in_order(&all.concat()).unwrap(), 3);
        assert!(in_order(&[record(0), record(2)].concat()).is_err());
        assert!(in_order(&[record(0), record(1), record(1)].concat()).is_err());
        assert!(in_order(&all.concat()[..50]).is_err());
    }
}
