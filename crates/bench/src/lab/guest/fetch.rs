//! Experiments `pin` and `cut`: all of an image is fetched onto the device, over a good link and
//! over one that is cut every ten seconds.
//!
//! A cut takes the link down for a second and ends all connections over it: the kernel would go on
//! with them otherwise, and nothing would be sent twice but packets.

use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::Outcome;
use super::kernel::{clock_seconds, traffic};
use super::net::{SERVER_ADDRESS, set_link};
use super::system::System;
use crate::lab::program::Program;
use crate::process::tool;

/// From one cut to the next.
const CUT_EVERY: Duration = Duration::from_secs(10);

/// How long the link is down.
const CUT_LASTS: Duration = Duration::from_secs(1);

/// `pin`.
pub fn measure(system: &mut dyn System, program: &Program) -> anyhow::Result<Outcome> {
    let (before, begun) = (traffic()?, clock_seconds());
    system.fetch_all(program.tree)?;
    let (after, ended) = (traffic()?, clock_seconds());
    let mut outcome = Outcome::default();
    outcome.set("total", ended - begun);
    outcome.set("rx_bytes", after.rx_bytes - before.rx_bytes);
    outcome.set("tx_bytes", after.tx_bytes - before.tx_bytes);
    Ok(outcome)
}

/// `cut`.
pub fn measure_with_cuts(system: &mut dyn System, program: &Program) -> anyhow::Result<Outcome> {
    let cutter = Cutter::start()?;
    let measured = measure(system, program);
    let cuts = cutter.stop()?;
    let mut outcome = measured?;
    ensure!(cuts > 0, "the image was there before the first cut");
    outcome.set("cuts", f64::from(cuts));
    Ok(outcome)
}

/// A thread that cuts the link, until its sender is gone.
struct Cutter {
    end: Sender<()>,
    thread: JoinHandle<anyhow::Result<u32>>,
}

impl Cutter {
    fn start() -> anyhow::Result<Cutter> {
        tool(Command::new("modprobe").arg("tcp_diag")).context("the guest's kernel cannot end connections")?;
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let mut cuts = 0;
            while ended.recv_timeout(CUT_EVERY) == Err(RecvTimeoutError::Timeout) {
                cuts += u32::from(cut()?);
            }
            Ok(cuts)
        });
        Ok(Cutter { end, thread })
    }

    /// Ends the thread; the number of cuts that ended a connection.
    fn stop(self) -> anyhow::Result<u32> {
        drop(self.end);
        self.thread.join().map_err(|_| anyhow::anyhow!("the thread that cuts the link panicked"))?
    }
}

/// One cut; whether it ended a connection.
fn cut() -> anyhow::Result<bool> {
    set_link(false)?;
    let ended = tool(Command::new("ss").args(["-H", "-K", "-t", "dst", SERVER_ADDRESS]));
    // This is the cut, not a wait for something.
    thread::sleep(CUT_LASTS);
    set_link(true)?;
    Ok(ended?.iter().any(|byte| !byte.is_ascii_whitespace()))
}
