//! What the kernel counts: clock, idle time, packets, disk requests, NFS calls. Readers are small,
//! parsers are pure.
//!
//! Busy time is what is left of the clock when the idle time is taken away; the kernel knows that
//! to the nanosecond in `timer_list`, where `/proc/stat` has steps of 10 ms.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

use super::net::DEVICE_INTERFACE;

/// Bytes of a sector in the kernel's statistics, whatever the disk has.
const SECTOR_BYTES: f64 = 512.0;

/// Monotonic clock, seconds. The same in every process, unlike `Instant`.
pub fn clock_seconds() -> f64 {
    seconds_of(ClockId::Monotonic)
}

/// Clock of the day, seconds; packets are stamped with it.
pub fn day_seconds() -> f64 {
    seconds_of(ClockId::Realtime)
}

fn seconds_of(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

/// Release of the running kernel.
pub fn release() -> anyhow::Result<String> {
    Ok(read("/proc/sys/kernel/osrelease")?.trim().to_string())
}

/// Seconds in which no processor had anything to do, summed over processors.
pub fn idle_seconds() -> anyhow::Result<f64> {
    idle_of(&read("/proc/timer_list")?).context("/proc/timer_list does not tell the idle time")
}

fn idle_of(text: &str) -> Option<f64> {
    let nanoseconds = |line: &str| {
        let (name, value) = line.trim().split_once(':')?;
        let wanted = [".idle_sleeptime", ".iowait_sleeptime"].contains(&name.trim_end());
        wanted.then(|| value.split_whitespace().next()?.parse::<f64>().ok())?
    };
    let found: Vec<f64> = text.lines().filter_map(nanoseconds).collect();
    (!found.is_empty()).then(|| found.iter().sum::<f64>() * 1e-9)
}

/// What passed the device's end of the link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes received.
    pub rx_bytes: f64,
    /// Bytes sent.
    pub tx_bytes: f64,
    /// Packets received.
    pub rx_packets: f64,
    /// Packets sent.
    pub tx_packets: f64,
}

/// Traffic so far.
pub fn traffic() -> anyhow::Result<Traffic> {
    let count = |name: &str| -> anyhow::Result<f64> {
        let path = format!("/sys/class/net/{DEVICE_INTERFACE}/statistics/{name}");
        read(&path)?.trim().parse().with_context(|| format!("{path} holds no number"))
    };
    Ok(Traffic {
        rx_bytes: count("rx_bytes")?,
        tx_bytes: count("tx_bytes")?,
        rx_packets: count("rx_packets")?,
        tx_packets: count("tx_packets")?,
    })
}

/// Reads of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskReads {
    /// Requests that the disk answered.
    pub requests: f64,
    /// Bytes in them.
    pub bytes: f64,
}

/// Reads of the block device called `name` so far.
pub fn disk_reads(name: &str) -> anyhow::Result<DiskReads> {
    let path = format!("/sys/block/{name}/stat");
    disk_reads_of(&read(&path)?).with_context(|| format!("cannot understand {path}"))
}

fn disk_reads_of(text: &str) -> Option<DiskReads> {
    let fields: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(DiskReads { requests: *fields.first()?, bytes: fields.get(2)? * SECTOR_BYTES })
}

/// Size of a block device.
pub fn disk_bytes(device: &Path) -> anyhow::Result<f64> {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let path = format!("/sys/block/{name}/size");
    let sectors: f64 = read(&path)?.trim().parse().with_context(|| format!("{path} holds no number"))?;
    Ok(sectors * SECTOR_BYTES)
}

/// Calls of the NFS mount on `mountpoint` so far, of every kind.
pub fn nfs_calls(mountpoint: &str) -> anyhow::Result<f64> {
    nfs_calls_of(&read("/proc/self/mountstats")?, mountpoint)
        .with_context(|| format!("/proc/self/mountstats has no NFS mount on {mountpoint}"))
}

fn nfs_calls_of(text: &str, mountpoint: &str) -> Option<f64> {
    let here = format!(" mounted on {mountpoint} with fstype nfs");
    let mut lines = text.lines().skip_while(|line| !line.contains(&here));
    lines.next()?;
    let of_mount = lines.take_while(|line| !line.starts_with("device "));
    let calls = of_mount.skip_while(|line| line.trim() != "per-op statistics").skip(1);
    Some(calls.filter_map(|line| line.split_once(':')?.1.split_whitespace().next()?.parse::<f64>().ok()).sum())
}

/// Process ids of the kernel's threads called `name`.
pub fn threads(name: &str) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let number = entry.file_name().to_str().and_then(|text| text.parse().ok());
        let Some(number) = number else { continue };
        // It may have ended meanwhile.
        let called = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if called.trim_end() == name {
            found.push(number);
        }
    }
    Ok(found)
}

/// Processor seconds of these threads so far; those that ended count nothing.
pub fn threads_seconds(threads: &[u32]) -> f64 {
    let seconds = |thread: &u32| {
        let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds * 1e-9)
    };
    threads.iter().filter_map(seconds).sum()
}

/// Major page faults of a process and of the children it waited for; works until the process is
/// reaped.
pub fn major_faults(process: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/stat");
    major_faults_of(&read(&path)?).with_context(|| format!("cannot understand {path}"))
}

fn major_faults_of(text: &str) -> Option<f64> {
    // The name in parentheses may hold spaces; the first field after it is the third one.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some(field(12)? + field(13)?)
}

/// True if something is mounted on `path`.
pub fn is_mounted(path: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let wanted = path.to_string_lossy();
    text.lines().any(|line| line.split(' ').nth(1) == Some(wanted.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_summed_over_processors() {
        let cpu =
            "  .idle_tick      : 5 nsecs\n  .idle_sleeptime : 1500000000 nsecs\n  .iowait_sleeptime: 500000000 nsecs\n";
        assert_eq!(idle_of(&format!("{cpu}{cpu}")), Some(4.0));
        assert_eq!(idle_of("nothing"), None);
    }

    #[test]
    fn disk_statistics_are_read() {
        let text = "     120       3     4096      50        0        0        0        0        0       40       50\n";
        assert_eq!(disk_reads_of(text), Some(DiskReads { requests: 120.0, bytes: 4096.0 * 512.0 }));
        assert_eq!(disk_reads_of("1 2"), None);
    }

    #[test]
    fn nfs_calls_are_those_of_the_mount() {
        let text = "device tmpfs mounted on /run with fstype tmpfs\n\
            device 10.0.0.1:/perl mounted on /mnt/app with fstype nfs4 statvers=1.1\n\topts:\tro\n\tage:\t3\n\
            \tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n\t        READ: 120 120 0 1 2 3 4 5 0\n\
            device 10.0.0.1:/x mounted on /mnt/other with fstype nfs4 statvers=1.1\n\tper-op statistics\n\tREAD: 7 7\n";
        assert_eq!(nfs_calls_of(text, "/mnt/app"), Some(121.0));
        assert_eq!(nfs_calls_of(text, "/run"), None);
    }

    #[test]
    fn faults_are_found_behind_any_name() {
        let text = "42 (a) b) Z 1 42 42 0 -1 4228100 300 20 17 5 1 2 0 0 20 0 1 0 100 0 0\n";
        assert_eq!(major_faults_of(text), Some(22.0));
        assert_eq!(major_faults_of("42 (x) Z 1"), None);
    }
}
