//! Bursts and idle periods of a run: Spidermine's analysis (SAC 2023, doi 10.1145/3555776.3577754).
//!
//! A circular queue holds the last [`BurstConfig::queue_reads`] reads. While the time from its
//! oldest to its newest is under [`BurstConfig::threshold`], its reads belong to one burst; reads
//! that were in no such queue are part of an idle period. Before the queue is full for the first
//! time it counts as it is, so that a small program has a launch burst too. Then short idle periods
//! are merged into the bursts around them, and bursts of few reads into the idle period.
//!
//! A read is one request of a program: touches of one moment, one process image and one file. A
//! request of more than [`READ_PAGES`] pages counts as several, because the kernel asks the disk
//! that often. The first look-up of a path is a read too: on a cold disk it costs what a page
//! costs. Only first touches count, see [`Run`].
//!
//! Times are those of the learning run. A run whose files were in memory reads much faster than a
//! cold one, and has the idle periods of a fast disk: a threshold made for a slow disk may miss
//! them. [`BurstConfig::auto`] chooses the threshold from the run itself.

use std::ops::Range;
use std::time::Duration;

use units::Moment;

use super::Run;

/// Pages of one read: 128 KiB, what the kernel reads ahead at a time by default
/// (`read_ahead_kb`).
pub const READ_PAGES: usize = 32;

/// Least relative distance between queue spans between bursts and idle periods. Less is the
/// spread of one and the same thing.
const JUMP_MIN: f64 = 1.5;

/// Smallest threshold that [`BurstConfig::auto`] chooses: a disk that seeks for 10 ms makes a full
/// queue last 0.3 s, one without moving parts 3 ms to 30 ms.
const AUTO_MIN: Duration = Duration::from_millis(100);

/// How bursts differ from idle periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstConfig {
    /// Reads that the queue holds. The paper's 32.
    pub queue_reads: usize,
    /// The reads of the queue are a burst while they took less. The paper's 3 s.
    pub threshold: Duration,
    /// Shorter idle periods are merged into the bursts around them. In 0.2 s a disk reads 10 to 100
    /// MB, and a breakpoint costs 15 us: there must be something to win.
    pub idle_min: Duration,
    /// Bursts of fewer reads are merged into the idle period; never the first one, that of the
    /// launch. By default a full queue.
    pub reads_min: usize,
}

impl Default for BurstConfig {
    fn default() -> BurstConfig {
        BurstConfig {
            queue_reads: 32,
            threshold: Duration::from_secs(3),
            idle_min: Duration::from_millis(200),
            reads_min: 32,
        }
    }
}

/// Something that a program asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// When.
    pub at: Moment,
    /// Pages that were touched by it for the first time; 0 for a look-up.
    pub pages: u32,
}

/// Reads in quick succession.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Its first read.
    pub began: Moment,
    /// Its last read.
    pub ended: Moment,
    /// Positions of its reads.
    pub reads: Range<usize>,
}

/// A run cut into bursts and idle periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// By what: the threshold is the one that was chosen.
    pub config: BurstConfig,
    /// All reads in order of time.
    pub reads: Vec<Read>,
    /// The bursts. The first one is that of the launch; there is none only if nothing was read.
    pub bursts: Vec<Burst>,
}

impl Timeline {
    /// Cuts a run. With `auto` the threshold is chosen from it.
    pub fn new(run: &Run, config: &BurstConfig, auto: bool) -> Timeline {
        let reads = reads(run);
        let config = if auto { config.auto(&reads) } else { *config };
        let bursts = bursts(&reads, &config);
        Timeline { config, reads, bursts }
    }

    /// The period that a moment lies in: a burst and the idle period after it. What comes before
    /// the first burst counts to it.
    pub fn period(&self, at: Moment) -> usize {
        self.bursts.partition_point(|burst| burst.began <= at).saturating_sub(1)
    }
}

impl BurstConfig {
    /// This configuration with the threshold that fits `reads`.
    ///
    /// The span of a full queue is short inside a burst and long where it reaches over an idle
    /// period. Sorted, the spans make two heaps; the threshold is put into the middle (geometric)
    /// of the largest relative distance between neighbours, as far as that lies between 0.1 s and
    /// the threshold of this configuration and the longer one of the two could be an idle period
    /// that is kept ([`BurstConfig::idle_min`]). Without such a distance, of 1.5 at least, the
    /// threshold stays: the run is one burst, or there is no telling.
    pub fn auto(&self, reads: &[Read]) -> BurstConfig {
        let queue = self.queue_reads.max(2);
        let mut spans: Vec<Duration> =
            reads.windows(queue).map(|queue| queue[queue.len() - 1].at.since(queue[0].at)).collect();
        spans.sort_unstable();
        let ceiling = self.threshold.max(AUTO_MIN).as_secs_f64();
        let mut best = (JUMP_MIN, self.threshold);
        for pair in spans.windows(2).filter(|pair| pair[1] >= self.idle_min) {
            // A microsecond is the grain of moments; a span of nothing would be infinitely far from
            // all others.
            let [low, high] = [pair[0], pair[1]].map(|span| span.as_secs_f64().max(1e-6));
            let middle = (low * high).sqrt().clamp(AUTO_MIN.as_secs_f64(), ceiling);
            if high / low > best.0 && low < middle && middle < high {
                best = (high / low, Duration::from_secs_f64(middle));
            }
        }
        BurstConfig { threshold: best.1, ..*self }
    }
}

/// The reads of a run, in order of time.
pub fn reads(run: &Run) -> Vec<Read> {
    let mut reads: Vec<Read> = run.lookups.iter().map(|lookup| Read { at: lookup.at, pages: 0 }).collect();
    for asked in
        run.touches.chunk_by(|left, right| (left.at, left.image, left.file) == (right.at, right.image, right.file))
    {
        reads.extend(asked.chunks(READ_PAGES).map(|part| Read { at: part[0].at, pages: part.len() as u32 }));
    }
    // Stable: look-ups come before the touches of the same moment.
    reads.sort_by_key(|read| read.at);
    reads
}

/// The bursts of `reads`, which are in order of time.
pub fn bursts(reads: &[Read], config: &BurstConfig) -> Vec<Burst> {
    let queue = config.queue_reads.max(1);
    let mut found: Vec<Burst> = Vec::new();
    for newest in 0..reads.len() {
        let oldest = (newest + 1).saturating_sub(queue);
        if newest > 0 && reads[newest].at.since(reads[oldest].at) >= config.threshold {
            continue;
        }
        match found.last_mut() {
            Some(burst) if oldest < burst.reads.end => burst.reads.end = newest + 1,
            _ => found.push(Burst { began: Moment(0), ended: Moment(0), reads: oldest..newest + 1 }),
        }
    }
    for burst in &mut found {
        (burst.began, burst.ended) = (reads[burst.reads.start].at, reads[burst.reads.end - 1].at);
    }
    merge(found, config)
}

fn merge(found: Vec<Burst>, config: &BurstConfig) -> Vec<Burst> {
    let mut merged: Vec<Burst> = Vec::new();
    for burst in found {
        match merged.last_mut() {
            Some(before) if burst.began.since(before.ended) < config.idle_min => {
                before.ended = burst.ended;
                before.reads.end = burst.reads.end;
            }
            _ => merged.push(burst),
        }
    }
    let mut position = 0;
    merged.retain(|burst| {
        position += 1;
        position == 1 || burst.reads.len() >= config.reads_min
    });
    merged
}
