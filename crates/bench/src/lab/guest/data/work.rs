//! The workloads, over [`DataFolder`]: what is read or written in which order, and what that takes.
//!
//! The helper `runnel-bench lab-data` runs one of them in a process of its own and prints what was
//! found as JSON. The driver runs the same over the server's own folder afterwards and compares
//! fingerprints: no system is measured that does not deliver the right bytes.

use std::hint::black_box;

use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::super::disk::tree_folder;
use super::super::kernel::clock_seconds;
use super::file::{DataFile, DataFolder};
use crate::lab::data::TREE;
use crate::lab::data::case::{Case, Filling, SEQUENTIAL_BYTES, TEXT_FILE, Work};
use crate::lab::data::pattern::{
    FILES, KEY_BYTES, RANDOM_READ_BYTES, RECORD_BYTES, RECORDS, random_positions, searched_record, written_content,
    written_name,
};
use crate::stage::Fingerprint;

/// Rounds by which the speed of computing is found.
const CALIBRATION_ROUNDS: u64 = 1 << 18;

/// How a workload is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub struct How {
    /// Number of the run, from 1: chooses what is looked up
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub run: u32,
    /// A server learns from it: look up something else than measured runs do
    #[arg(long)]
    pub learning: bool,
    /// Processor time spent on each block, seconds
    #[arg(long = "compute", value_name = "SECONDS", default_value_t = 0.0)]
    pub compute_seconds: f64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Monotonic clock when the work began, seconds.
    pub start: f64,
    /// From then until everything was read, computed and written.
    pub seconds: f64,
    /// Different bytes that were read, or all bytes that were written.
    pub needed_bytes: u64,
    /// Calls that read or write.
    pub calls: u64,
    /// Processor time of computing, seconds.
    pub compute: f64,
    /// Of the bytes in the order in which they were read.
    pub fingerprint: String,
    /// Of sequential reads: when each of them was done, seconds from the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<f64>,
}

/// Does the work of `case` in `folder`.
pub fn run(case: &Case, folder: &dyn DataFolder, how: &How) -> anyhow::Result<Found> {
    let mut burner = (how.compute_seconds > 0.0).then(|| Burner::calibrated(how.compute_seconds));
    // What the table holds is no part of the work.
    let key = (case.work == Work::Search).then(|| key_of(how));
    if let Work::Write(filling) = case.work {
        return write(folder, text(filling)?.as_deref());
    }
    let start = clock_seconds();
    let file = folder.open(case.file).with_context(|| format!("cannot open {}", case.file))?;
    let mut reader = Reader::new(file);
    match (case.work, key) {
        (Work::Sequential | Work::Interleaved(_), _) => sequential(&mut reader, start, burner.as_mut())?,
        (Work::Random, _) => {
            for position in random_positions() {
                reader.read(position, RANDOM_READ_BYTES)?;
            }
        }
        (Work::Search, Some(key)) => search(&mut reader, &key)?,
        (Work::Search | Work::Game | Work::Write(_), _) => anyhow::bail!("{} is no work on one file", case.name),
    }
    let seconds = clock_seconds() - start;
    let compute = burner.map_or(0.0, |burner| burner.spent);
    let Reader { places, fingerprint, first, .. } = reader;
    let calls = places.len() as u64;
    let fingerprint = fingerprint.to_string();
    Ok(Found { start, seconds, needed_bytes: different_bytes(places), calls, compute, fingerprint, first })
}

/// A file and what was read of it.
struct Reader {
    file: Box<dyn DataFile>,
    buffer: Vec<u8>,
    places: Vec<(u64, u64)>,
    fingerprint: Fingerprint,
    first: Vec<f64>,
}

impl Reader {
    fn new(file: Box<dyn DataFile>) -> Reader {
        let buffer = vec![0; SEQUENTIAL_BYTES];
        Reader { file, buffer, places: Vec::new(), fingerprint: Fingerprint::EMPTY, first: Vec::new() }
    }

    /// Reads `count` bytes from byte `at`, fewer at the end of the file. At most
    /// [`SEQUENTIAL_BYTES`].
    fn read(&mut self, at: u64, count: usize) -> anyhow::Result<&[u8]> {
        let mut filled = 0;
        while filled < count {
            let read = self.file.read_at(at + filled as u64, &mut self.buffer[filled..count]);
            match read.with_context(|| format!("cannot read {count} bytes from byte {at}"))? {
                0 => break,
                read => filled += read,
            }
        }
        let bytes = &self.buffer[..filled];
        if filled > 0 {
            self.places.push((at, filled as u64));
            self.fingerprint = self.fingerprint.and(bytes);
        }
        Ok(bytes)
    }
}

fn sequential(reader: &mut Reader, start: f64, mut burner: Option<&mut Burner>) -> anyhow::Result<()> {
    let mut at = 0;
    loop {
        let read = reader.read(at, SEQUENTIAL_BYTES)?.len() as u64;
        if read == 0 {
            return Ok(());
        }
        at += read;
        reader.first.push(clock_seconds() - start);
        if let Some(burner) = &mut burner {
            burner.burn();
        }
    }
}

/// The key that is looked up.
fn key_of(how: &How) -> Vec<u8> {
    let record = searched_record(how.run, how.learning) * RECORD_BYTES;
    crate::lab::data::content::table()[record..record + KEY_BYTES].to_vec()
}

fn search(reader: &mut Reader, key: &[u8]) -> anyhow::Result<()> {
    let size = reader.file.size().context("cannot tell the size of the table")?;
    ensure!(size == (RECORDS * RECORD_BYTES) as u64, "the table has {size} bytes");
    let (mut low, mut high) = (0, RECORDS);
    while low < high {
        let middle = low.midpoint(high);
        let record = reader.read((middle * RECORD_BYTES) as u64, RECORD_BYTES)?;
        ensure!(record.len() == RECORD_BYTES, "record {middle} is cut off");
        match record[..KEY_BYTES].cmp(key) {
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    anyhow::bail!("the key was not found")
}

/// The text of which files are made, if they are: from a local disk of the device, before the clock
/// starts.
pub fn text(filling: Filling) -> anyhow::Result<Option<Vec<u8>>> {
    if filling == Filling::Random {
        return Ok(None);
    }
    let path = tree_folder(TREE).join(TEXT_FILE);
    std::fs::read(&path).map(Some).with_context(|| format!("cannot read {}", path.display()))
}

/// New files, each on stable storage before the next one is begun.
fn write(folder: &dyn DataFolder, text: Option<&[u8]>) -> anyhow::Result<Found> {
    let start = clock_seconds();
    let (mut bytes, mut fingerprint) = (0, Fingerprint::EMPTY);
    for index in 0..FILES {
        let (name, content) = (written_name(index), written_content(index, text));
        let written = || -> std::io::Result<()> {
            let mut file = folder.create(&name)?;
            file.write_at(0, &content)?;
            file.sync()
        };
        written().with_context(|| format!("cannot write {name}"))?;
        bytes += content.len() as u64;
        fingerprint = fingerprint.and(&content[..KEY_BYTES]);
    }
    let seconds = clock_seconds() - start;
    let fingerprint = fingerprint.to_string();
    Ok(Found { start, seconds, needed_bytes: bytes, calls: FILES as u64, fingerprint, ..Found::default() })
}

/// Bytes in at least one of the places, each an offset and a size.
fn different_bytes(mut places: Vec<(u64, u64)>) -> u64 {
    places.sort_unstable();
    let (mut sum, mut end) = (0, 0);
    for (at, count) in places {
        let next = end.max(at + count);
        sum += next - end.max(at);
        end = next;
    }
    sum
}

/// Computes for a set processor time: a loop of a known number of rounds, so that time in which
/// something else runs does not count.
struct Burner {
    rounds: u64,
    state: u64,
    spent: f64,
}

impl Burner {
    fn calibrated(seconds: f64) -> Burner {
        let mut burner = Burner { rounds: CALIBRATION_ROUNDS, state: 1, spent: 0.0 };
        burner.burn();
        let per_round = burner.spent / CALIBRATION_ROUNDS as f64;
        Burner { rounds: (seconds / per_round).round() as u64, state: 1, spent: 0.0 }
    }

    fn burn(&mut self) {
        let before = thread_seconds();
        let mut state = self.state;
        for _ in 0..self.rounds {
            // Several steps without a branch: what emulates the processor leaves its translated
            // code at every branch.
            for _ in 0..16 {
                state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 0x5150;
            }
        }
        self.state = black_box(state);
        self.spent += thread_seconds() - before;
    }
}

/// Processor time of this thread, seconds.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::super::file::Plain;
    use super::*;
    use crate::lab::data::content;
    use crate::lab::data::pattern::{FILE_BYTES, random_bytes};

    fn found(name: &str, folder: &std::path::Path, how: How) -> anyhow::Result<Found> {
        run(Case::named(name)?, &Plain(folder.to_path_buf()), &how)
    }

    #[test]
    fn every_workload_needs_what_it_says() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("random.bin"), random_bytes(1, FILE_BYTES))?;
        std::fs::write(folder.path().join("table.bin"), content::table())?;
        let whole = found("seq", folder.path(), How::default())?;
        assert_eq!((whole.needed_bytes, whole.calls, whole.first.len()), (FILE_BYTES as u64, 256, 256));
        assert!(whole.first.is_sorted() && whole.compute == 0.0);
        let computed = found("stat-1", folder.path(), How { compute_seconds: 1e-5, ..How::default() })?;
        assert_eq!(computed.fingerprint, whole.fingerprint);
        assert!(computed.compute > 0.0);
        let random = found("rand1k", folder.path(), How::default())?;
        assert!((random.needed_bytes as f64 / FILE_BYTES as f64 - 0.4).abs() < 0.01, "{}", random.needed_bytes);
        for run in 1..50 {
            for learning in [false, true] {
                let search = found("bsearch", folder.path(), How { run, learning, ..How::default() })?;
                assert!(search.calls <= 16 && search.needed_bytes == search.calls * RECORD_BYTES as u64, "{search:?}");
            }
        }
        assert!(found("game", folder.path(), How::default()).is_err());
        Ok(())
    }

    #[test]
    fn what_is_wrong_shows_in_the_fingerprint() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let mut bytes = random_bytes(1, FILE_BYTES);
        std::fs::write(folder.path().join("random.bin"), &bytes)?;
        let right = found("seq", folder.path(), How::default())?;
        bytes[70_000] ^= 1;
        std::fs::write(folder.path().join("random.bin"), &bytes)?;
        assert_ne!(found("seq", folder.path(), How::default())?.fingerprint, right.fingerprint);
        Ok(())
    }

    #[test]
    fn files_are_written_as_they_should_be() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let written = found("files1000", folder.path(), How::default())?;
        assert_eq!(std::fs::read(folder.path().join(written_name(7)))?, written_content(7, None));
        assert_eq!(std::fs::read_dir(folder.path())?.count(), FILES);
        assert!((30_000_000..40_000_000).contains(&written.needed_bytes));
        Ok(())
    }

    #[test]
    fn bytes_are_counted_once() {
        assert_eq!(different_bytes(vec![(10, 5), (0, 4), (12, 10), (0, 4), (13, 2)]), 16);
        assert_eq!(different_bytes(Vec::new()), 0);
    }
}
