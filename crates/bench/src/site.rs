//! A mounted tree whose starts can be measured, whatever serves it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use report::row::{Metric, Sample};

use crate::interrupt;
use crate::link::{Link, Traffic};
use crate::process::{timed, try_tool};
use crate::workload::Workload;

/// Longest start that is waited for: the slowest case on the slowest named link takes about six
/// minutes.
const START_LIMIT: Duration = Duration::from_secs(900);

/// Longest time that counters may go on changing after a start before they are read all the same.
const QUIET_LIMIT: Duration = Duration::from_secs(10);

/// A root folder that is served somehow. Dropping it takes it away.
pub trait Site {
    /// The folder in which programs find their root.
    fn root(&self) -> &Path;

    /// What passed the link so far; nothing without a link.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Counters so far: any metric that grows. [`measure`] takes differences.
    fn counters(&self) -> anyhow::Result<Sample> {
        Ok(Sample::new())
    }

    /// What mounting cost; goes into the sample of the first start as it is.
    fn mounting(&self) -> Sample {
        Sample::new()
    }

    /// The client's process, whose memory is reported.
    fn client(&self) -> Option<u32> {
        None
    }
}

/// A folder of the local file system.
#[derive(Debug)]
pub struct Local(pub PathBuf);

impl Site for Local {
    fn root(&self) -> &Path {
        &self.0
    }
}

/// How programs are started in a root: the same way for every system.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The `runnel` binary.
    pub runnel: PathBuf,
    /// Folder for files that programs write; below the temporary folder, which stays visible
    /// inside.
    pub scratch: PathBuf,
}

impl Starter {
    /// Starts `workload` in `site`, waits for its end and for quiet counters; returns what it cost.
    pub fn measure(&self, site: &dyn Site, workload: &Workload, link: Option<&Link>) -> anyhow::Result<Sample> {
        let before = site.counters()?;
        let passed = site.traffic();
        let mut command = std::process::Command::new(&self.runnel);
        command.arg("enter").arg(site.root()).arg("--").args(workload.command(&self.scratch));
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/tmp")]);
        // The tree is read-only on most systems; python would try to write byte code beside the
        // program's own file.
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&self.scratch);
        let done = timed(workload.name, &mut command, START_LIMIT)?;
        let output = String::from_utf8_lossy(&done.output);
        let expected = workload.expected;
        ensure!(output.contains(expected), "{} printed {output:?} without {expected:?}", workload.name);

        let after = quiet_counters(site, link)?;
        let traffic = site.traffic().since(passed);
        let mut sample: Sample =
            after.into_iter().map(|(metric, value)| (metric, value - before.get(&metric).unwrap_or(&0.0))).collect();
        sample.insert(Metric::Wall, done.wall.as_secs_f64());
        if link.is_some() {
            sample.insert(Metric::Bytes, traffic.down_bytes as f64);
            sample.entry(Metric::Requests).or_insert(traffic.turns as f64);
        }
        if let Some(bytes) = site.client().and_then(resident_bytes) {
            sample.insert(Metric::Resident, bytes);
        }
        Ok(sample)
    }

    /// Like [`Starter::measure`] for the first start in a fresh mount: with what mounting cost.
    pub fn measure_first(&self, site: &dyn Site, workload: &Workload, link: Option<&Link>) -> anyhow::Result<Sample> {
        let mut sample = self.measure(site, workload, link)?;
        sample.append(&mut site.mounting());
        Ok(sample)
    }
}

/// The counters once neither they nor the link have changed for a while: what is on its way when a
/// program ends (pushed pages, reports of what was touched) belongs to its start.
fn quiet_counters(site: &dyn Site, link: Option<&Link>) -> anyhow::Result<Sample> {
    let while_quiet = link.map_or(Duration::ZERO, |link| 3 * link.rtt + Duration::from_millis(60));
    let end = Instant::now() + QUIET_LIMIT;
    let mut last = (site.counters()?, site.traffic());
    if link.is_none() {
        return Ok(last.0);
    }
    loop {
        interrupt::check()?;
        std::thread::sleep(while_quiet);
        let now = (site.counters()?, site.traffic());
        // Asking a client for its counters is local: it does not touch the link.
        if now == last || Instant::now() > end {
            return Ok(now.0);
        }
        last = now;
    }
}

/// Resident memory of a process and its children, bytes.
fn resident_bytes(pid: u32) -> Option<f64> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok()).filter_map(resident_bytes);
    let of_children: f64 = children.sum();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0 + of_children)
}

/// Empties the page cache, then reads `warm` back in: the binaries of the systems under test and
/// the files of their servers, which stand for another machine. False if this needs rights that the
/// caller lacks.
pub fn drop_caches(warm: &[PathBuf]) -> bool {
    rustix::fs::sync();
    let dropped = std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok();
    for file in warm {
        // A file that cannot be read will be missed by whoever needs it, with a better message.
        let _ = std::fs::File::open(file).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
    }
    dropped
}

/// True if something is mounted at `path`.
pub fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    match (device(path), path.parent().map(device)) {
        (Ok(own), Some(Ok(parent))) => own != parent,
        // A mount whose server is gone cannot be looked at.
        (Err(error), _) => error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()),
        _ => false,
    }
}

/// A mount point that is unmounted and removed when dropped; lazily if programs still use it.
#[derive(Debug)]
pub struct MountPoint(PathBuf);

impl MountPoint {
    /// Makes the folder.
    pub fn create(path: PathBuf) -> anyhow::Result<MountPoint> {
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make the mount point {}", path.display()))?;
        ensure!(!is_mounted(&path), "{} is already a mount; unmount it first", path.display());
        Ok(MountPoint(path))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        for flags in [&[][..], &["-l"][..]] {
            if is_mounted(&self.0) {
                try_tool(std::process::Command::new("umount").args(flags).arg(&self.0));
            }
        }
        // Never more than the empty folder.
        let _ = std::fs::remove_dir(&self.0);
    }
}
