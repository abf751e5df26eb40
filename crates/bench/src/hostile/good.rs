//! The process of the good devices: each of twenty reads, commits and pushes at a modest pace, and
//! takes the times.
//!
//! The pace is an open loop: an operation's time counts from when it was due, also if the one
//! before it was late. Each kind of operation of each device has a thread and a connection of its
//! own, so that none waits for another kind.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use units::{Rng, SplitMix64};

use super::content::Content;
use super::device::{Commits, Reads};
use super::timings::{Timing, Timings, hand_over};
use super::upload::{Pushes, pushed_images};

/// Devices.
pub(super) const DEVICES: u8 = 20;

/// Time before the measured one, in which the devices already work: connections are made, the image
/// is opened.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);

/// A kind of operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// Its name in rows.
    pub name: &'static str,
    /// From one to the next of a device.
    pub period: Duration,
    /// Time after which it has failed; what a failed one counts as.
    pub deadline: Duration,
}

/// A demand for a random page.
const READ: Operation =
    Operation { name: "read", period: Duration::from_millis(100), deadline: Duration::from_secs(5) };

/// A small transaction, acknowledged from stable storage.
const COMMIT: Operation =
    Operation { name: "commit", period: Duration::from_millis(500), deadline: Duration::from_secs(5) };

/// An upload of a small new image.
pub(super) const PUSH: Operation =
    Operation { name: "push", period: Duration::from_secs(2), deadline: Duration::from_secs(10) };

/// All kinds, in the order of reports.
pub(super) const OPERATIONS: [Operation; 3] = [READ, COMMIT, PUSH];

/// Be the good devices of `hostile`
#[derive(Clone, Debug, clap::Args)]
pub struct Work {
    /// Address of the server
    pub server: SocketAddr,
    /// The image that it serves
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,
    /// Folder of images to push
    #[arg(long, value_name = "DIR")]
    pub pushes: PathBuf,
    /// Time that is measured
    #[arg(long, value_name = "SECONDS")]
    pub seconds: f64,
    /// Write the times to this file
    #[arg(long, value_name = "FILE")]
    pub result: PathBuf,
}

/// One kind of operation of one device.
pub(super) trait Perform {
    /// Does it once.
    ///
    /// # Errors
    /// It failed, or was not done by the deadline.
    fn perform(&mut self, deadline: Instant) -> io::Result<()>;
}

/// The address of a device. Peers are told apart by their address.
pub(super) fn address(device: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, 1 + device)
}

/// Works to the end and writes the times.
///
/// # Errors
/// A file cannot be read or written.
pub fn work(work: &Work) -> anyhow::Result<()> {
    let content = &Content::read(&work.image)?;
    let images = &pushed_images(&work.pushes)?;
    let begin = Instant::now() + Duration::from_millis(50);
    let measured = Duration::from_secs_f64(work.seconds);
    let mut timings = Timings::new();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let mut threads = Vec::new();
        for device in 0..DEVICES {
            let mut start = |operation: Operation, mut performed: Box<dyn Perform + Send>| -> anyhow::Result<()> {
                let mut rng = SplitMix64(u64::from(device) << 8 | operation.name.len() as u64);
                let shift = operation.period.mul_f64(rng.below(1000) as f64 / 1000.0);
                let run = move || (operation.name, pace(operation, &mut *performed, begin, shift, measured));
                let thread = std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, run);
                threads.push(thread.context("cannot start a thread")?);
                Ok(())
            };
            start(READ, Box::new(Reads::new(work.server, device, content)))?;
            start(COMMIT, Box::new(Commits::new(work.server, device)))?;
            start(PUSH, Box::new(Pushes::new(work.server, device, images)))?;
        }
        for thread in threads {
            let (name, timing) = thread.join().map_err(|_| anyhow::anyhow!("a device panicked"))?;
            timings.entry(name.to_string()).or_default().merge(timing);
        }
        Ok(())
    })?;
    hand_over(&work.result, &timings)
}

/// Performs an operation at its pace, and takes the times of those that are due within the measured
/// time.
fn pace(
    operation: Operation,
    performed: &mut dyn Perform,
    begin: Instant,
    shift: Duration,
    measured: Duration,
) -> Timing {
    let mut timing = Timing::default();
    let mut due = shift;
    while due < WARM_UP + measured {
        let since = begin + due;
        std::thread::sleep(since.saturating_duration_since(Instant::now()));
        let deadline = since + operation.deadline;
        // Those that wait behind one that took too long have failed without being tried.
        let outcome = match Instant::now() < deadline {
            true => performed.perform(deadline),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "the one before took too long")),
        };
        if due >= WARM_UP {
            let took = if outcome.is_ok() { since.elapsed() } else { operation.deadline };
            timing.seconds.push(took.min(operation.deadline).as_secs_f64());
            if let Err(error) = outcome {
                timing.failures += 1;
                *timing.reasons.entry(error.to_string()).or_default() += 1;
            }
        }
        due += operation.period;
    }
    timing
}
