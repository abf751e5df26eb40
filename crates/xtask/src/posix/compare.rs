//! The same work on the volume and on a folder of this machine, in turn, and how long it took.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::watch;

/// Runs of each side. The middle one counts: other work of the machine makes any of them slow.
const RUNS: usize = 3;

/// The middle of what both sides took.
pub struct Times {
    pub local: Duration,
    pub volume: Duration,
}

impl Times {
    pub fn ratio(&self) -> f64 {
        self.volume.as_secs_f64() / self.local.as_secs_f64()
    }
}

/// Runs `work` in new folders below both, in turn.
pub fn in_turn(
    local: &Path,
    volume: &Path,
    name: &str,
    work: impl Fn(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Times> {
    let mut took = [Vec::new(), Vec::new()];
    for run in 0..RUNS {
        for (side, took) in [local, volume].into_iter().zip(&mut took) {
            let folder = side.join(format!("{name}-{run}"));
            fs::create_dir(&folder)?;
            let begun = Instant::now();
            work(&folder).with_context(|| folder.display().to_string())?;
            took.push(begun.elapsed());
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
    }
    let [local, volume] = took.map(|mut took| {
        took.sort();
        took[RUNS / 2]
    });
    Ok(Times { local, volume })
}

/// A shell script in a folder; it must succeed.
pub fn sh(folder: &Path, variables: &[(&str, &Path)], script: &str) -> anyhow::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    // A repository of its own, whatever configuration this machine has.
    for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
        command.env(name, "someone");
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    watch::run(command.envs(variables.iter().copied()))
}
