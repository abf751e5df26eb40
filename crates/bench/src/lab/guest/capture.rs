//! The times of all packets on the device's end of the link, and what a radio would do for them.
//!
//! `tcpdump` writes them to memory, in a control group of its own, so that its work is not taken
//! for the device's. A radio stays on for a while after each packet (its tail), which is where
//! small devices lose their energy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::group;
use super::net::DEVICE_INTERFACE;
use super::system::WORK;
use crate::process::Service;

/// Control group of the capture.
pub const CAPTURE_GROUP: &str = "capture";

/// How long `tcpdump` may take to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(30);

/// Packets stay in the kernel for up to a second before `tcpdump` gets them.
const BUFFER_DELAY: Duration = Duration::from_millis(2500);

/// Head of a capture file.
const FILE_HEAD_BYTES: usize = 24;

/// Head of each packet in it: seconds, microseconds, bytes held, bytes sent.
const PACKET_HEAD_BYTES: usize = 16;

/// First number of a capture file with microseconds, little-endian.
const MAGIC: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    service: Service,
    file: PathBuf,
}

impl Capture {
    /// Starts capturing; returns when packets are seen.
    pub fn start() -> anyhow::Result<Capture> {
        let file = Path::new(WORK).join("capture.pcap");
        let mut command = Command::new("/proc/self/exe");
        command.args(["lab-exec", "--group", CAPTURE_GROUP, "--", "tcpdump", "-i", DEVICE_INTERFACE]);
        // Only heads, no names, nobody else's rights: it could not write the file.
        command.args(["-n", "-s", "64", "-B", "16384", "-Z", "root", "-w"]).arg(&file);
        let mut service = Service::start("tcpdump", &mut command, Path::new(WORK))?;
        let log = Path::new(WORK).join("tcpdump.log");
        let listening = || fs::read_to_string(&log).ok().filter(|text| text.contains("listening on")).map(drop);
        service.wait_ready(READY_DEADLINE, listening).context("energy is measured with tcpdump")?;
        Ok(Capture { service, file })
    }

    /// Processor seconds of the capture so far.
    pub fn seconds(&self) -> anyhow::Result<f64> {
        Ok(group::usage(CAPTURE_GROUP)?.total())
    }

    /// Ends the capture; returns the times of the packets, seconds of the clock of the day.
    pub fn stop(mut self) -> anyhow::Result<Vec<f64>> {
        let ended = self.service.wait_end(BUFFER_DELAY)?;
        ensure!(!ended, "tcpdump ended too early{}", self.service.log_tail());
        self.service.stop()?;
        let bytes = fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        times_of(&bytes).with_context(|| format!("cannot understand {}", self.file.display()))
    }
}

/// The times of the packets in a capture file. A packet cut off at the end is left out.
fn times_of(bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
    ensure!(bytes.len() >= FILE_HEAD_BYTES && bytes[..4] == MAGIC, "not a capture file with microseconds");
    let mut times = Vec::new();
    let mut rest = &bytes[FILE_HEAD_BYTES..];
    while let Some((head, after)) = rest.split_at_checked(PACKET_HEAD_BYTES) {
        let number = |index: usize| {
            let four = head[4 * index..4 * index + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(four)
        };
        let Some((_, next)) = after.split_at_checked(number(2) as usize) else { break };
        times.push(f64::from(number(0)) + 1e-6 * f64::from(number(1)));
        rest = next;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// A radio that is on when there are packets.
#[derive(Clone, Copy, Debug)]
pub struct Radio<'a> {
    /// Times of the packets, seconds, ascending.
    pub packets: &'a [f64],
}

impl Radio<'_> {
    fn gaps(&self) -> impl Iterator<Item = f64> + '_ {
        self.packets.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Seconds that it is on, if it stays on for `tail` seconds after each packet.
    pub fn on_seconds(&self, tail: f64) -> f64 {
        if self.packets.is_empty() { 0.0 } else { tail + self.gaps().map(|gap| gap.min(tail)).sum::<f64>() }
    }

    /// How often it is woken: by the first packet and by each after a gap longer than `gap`.
    pub fn wakeups(&self, gap: f64) -> f64 {
        let first = usize::from(!self.packets.is_empty());
        (first + self.gaps().filter(|found| *found > gap).count()) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_radio_is_on_for_its_tail_and_woken_after_gaps() {
        let radio = Radio { packets: &[10.0, 10.02, 10.05, 11.0, 11.15] };
        assert!((radio.on_seconds(0.06) - (0.02 + 0.03 + 0.06 + 0.06 + 0.06)).abs() < 1e-9);
        assert!((radio.on_seconds(0.2) - (0.02 + 0.03 + 0.2 + 0.15 + 0.2)).abs() < 1e-9);
        assert_eq!(radio.wakeups(0.1), 3.0);
        let silent = Radio { packets: &[] };
        assert_eq!((silent.on_seconds(1.0), silent.wakeups(0.1)), (0.0, 0.0));
    }

    #[test]
    fn times_are_read_from_a_capture() -> anyhow::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(FILE_HEAD_BYTES, 0);
        for (seconds, micros, held) in [(100u32, 500_000u32, 3u32), (101, 0, 0), (102, 0, 9)] {
            for number in [seconds, micros, held, 1500] {
                bytes.extend(number.to_le_bytes());
            }
            // The last one is cut off.
            bytes.resize(bytes.len() + held.min(3) as usize, 0);
        }
        assert_eq!(times_of(&bytes)?, [100.5, 101.0]);
        assert!(times_of(&bytes[4..]).is_err() && times_of(&[]).is_err());
        Ok(())
    }
}
