//! Experiments `start`, `first`, `mount`, `cache` and `energy`: a cold and a warm start of a
//! program.
//!
//! Times and processor use are those until the program ended; traffic and the system's own counters
//! are taken when the link has become quiet, so that what is pushed without being used is counted
//! too. `first` starts the server anew, with its files in memory, as after an update of its
//! software; `cache` with nothing in memory. `mount` leaves no time between mounting and the start,
//! in which a system could fetch what it will need. `energy` captures the packets.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::capture::{Capture, Radio};
use super::group::Usage;
use super::kernel::{Traffic, clock_seconds, day_seconds, idle_seconds, threads, threads_seconds, traffic};
use super::net::SERVER_GROUP;
use super::system::{APP, System};
use super::{Outcome, Values, execution, group, make_cold, mount_cold, mount_timed, page_cache, pages};
use crate::lab::program::Program;

/// The link is quiet when nothing has arrived for so long: several packets of the slowest link.
const QUIET: Duration = Duration::from_millis(500);

/// Longest wait for quiet, seconds: a megabyte over the slowest link takes about as long.
const QUIET_SECONDS_MAX: f64 = 120.0;

/// `start`.
pub fn measure(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let mut outcome = mount_cold(system, program)?;
    cold(&mut outcome, system, program)?;
    outcome.set("warm", execution::run(program)?.seconds);
    Ok(outcome)
}

/// `first`: the server is new.
pub fn measure_new_server(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    system.unmount()?;
    system.stop()?;
    system.serve(program.tree)?;
    measure_first(system, program)
}

/// The first cold start at a server that is there already.
pub fn measure_first(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let mut outcome = mount_cold(system, program)?;
    cold(&mut outcome, system, program)?;
    Ok(outcome)
}

/// `mount`: until the first byte of the program's file is there, and in a second mount until the
/// program has ended.
pub fn measure_mount(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let file = pages::first_file(program)?;
    make_cold(system, program)?;
    let (before, begun) = (traffic()?, clock_seconds());
    system.mount(program.tree).context("cannot mount")?;
    let mounted = clock_seconds();
    let path = pages::below(Path::new(APP), &file);
    let mut byte = [0];
    let read = File::open(&path).and_then(|file| file.read_exact_at(&mut byte, 0));
    let (answered, after) = (clock_seconds(), traffic()?);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let mut outcome = Outcome::default();
    outcome.set("mount", mounted - begun);
    outcome.set("first_read", answered - begun);
    outcome.set("first_read_rx_bytes", after.rx_bytes - before.rx_bytes);

    make_cold(system, program)?;
    let (before, begun) = (traffic()?, clock_seconds());
    system.mount(program.tree).context("cannot mount")?;
    let execution = execution::run(program)?;
    outcome.set("together", execution.start + execution.seconds - begun);
    outcome.set("cold", execution.seconds);
    if system.is_remote() {
        wait_quiet()?;
        outcome.set("rx_bytes", traffic()?.rx_bytes - before.rx_bytes);
    }
    Ok(outcome)
}

/// `cache`: the server is new, and what it publishes is on its disk only.
pub fn measure_cold_server(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    system.unmount()?;
    system.stop()?;
    system.serve(program.tree)?;
    page_cache::drop_all()?;
    page_cache::read_back(&system.client_files())?;
    let mut outcome = mount_timed(system, program)?;
    cold(&mut outcome, system, program)?;
    outcome.set("warm", execution::run(program)?.seconds);
    Ok(outcome)
}

/// `energy`: how long the radio would be on, and what the device computes.
pub fn measure_with_capture(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let mut outcome = mount_cold(system, program)?;
    let capture = Capture::start()?;
    let before = capture.seconds()?;
    let start = cold(&mut outcome, system, program)?;
    let capturing = capture.seconds()? - before;
    // The capture has the clock of the day.
    let start = start + day_seconds() - clock_seconds();
    let times: Vec<f64> = capture.stop()?.into_iter().filter(|time| *time >= start).collect();
    let radio = Radio { packets: &times };
    outcome.set("radio_on_60ms", radio.on_seconds(0.060));
    outcome.set("radio_on_200ms", radio.on_seconds(0.200));
    outcome.set("wakeups", radio.wakeups(0.100));
    outcome.set("packets", times.len() as f64);
    let value = |name: &str| outcome.values.get(name).copied().unwrap_or_default();
    let device_busy = value("busy") - value("server_busy") - capturing;
    outcome.set("device_busy", device_busy.max(0.0));
    outcome.set("warm", execution::run(program)?.seconds);
    Ok(outcome)
}

/// What is read before and after the cold start.
struct Reading {
    time: f64,
    idle: f64,
    server: Usage,
    threads: f64,
    traffic: Traffic,
}

impl Reading {
    fn now(server_threads: &[u32]) -> anyhow::Result<Reading> {
        Ok(Reading {
            server: group::usage(SERVER_GROUP)?,
            threads: threads_seconds(server_threads),
            traffic: traffic()?,
            idle: idle_seconds()?,
            time: clock_seconds(),
        })
    }
}

/// A cold start; adds its values and returns the monotonic clock at its start.
pub fn cold(outcome: &mut Outcome, system: &mut dyn System, program: &Program) -> anyhow::Result<f64> {
    let counters = system.counters()?;
    let nfsd = threads("nfsd")?;
    let before = Reading::now(&nfsd)?;
    let execution = execution::run(program)?;
    let after = Reading::now(&nfsd)?;
    outcome.set("cold", execution.seconds);
    // Anything else would have been an error.
    outcome.set("status", 0.0);
    outcome.set("user", execution.usage.user);
    outcome.set("system", execution.usage.system);
    outcome.set("faults", execution.faults);
    let server = after.server.since(before.server).total() + after.threads - before.threads;
    outcome.set("busy", after.time - before.time - (after.idle - before.idle));
    if system.is_remote() {
        outcome.set("server_busy", server);
        // With the server on a machine of its own, if both are at work all the time: no less than
        // this where they wait for each other or for the link.
        outcome.set("cold_apart", execution.seconds - server);
        wait_quiet()?;
        let (from, to) = (before.traffic, traffic()?);
        outcome.set("rx_bytes", to.rx_bytes - from.rx_bytes);
        outcome.set("tx_bytes", to.tx_bytes - from.tx_bytes);
        outcome.set("rx_packets", to.rx_packets - from.rx_packets);
        outcome.set("tx_packets", to.tx_packets - from.tx_packets);
    }
    with_counters(outcome, &counters, &system.counters()?);
    Ok(execution.start)
}

/// Adds what the system's counters grew by.
pub fn with_counters(outcome: &mut Outcome, before: &Values, after: &Values) {
    for (name, value) in after {
        outcome.set(name, value - before.get(name).copied().unwrap_or_default());
    }
}

/// Waits until the link is quiet; goes on all the same if it never is.
pub fn wait_quiet() -> anyhow::Result<()> {
    let end = clock_seconds() + QUIET_SECONDS_MAX;
    let mut last = traffic()?.rx_packets;
    while clock_seconds() < end {
        // This is the condition itself, not a guess at when it holds.
        std::thread::sleep(QUIET);
        let now = traffic()?.rx_packets;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_differences() {
        let mut outcome = Outcome::default();
        let values = |number: f64| Values::from([("requests".to_string(), number)]);
        with_counters(&mut outcome, &values(5.0), &values(12.0));
        with_counters(&mut outcome, &Values::new(), &Values::from([("stall".to_string(), 0.5)]));
        assert_eq!((outcome.values["requests"], outcome.values["stall"]), (7.0, 0.5));
    }
}
