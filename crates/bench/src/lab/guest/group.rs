//! Control groups: who used the processor how long. One level below the root, no controllers:
//! `cpu.stat` is always there and exact, where `/proc` counts in ticks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where the init script mounts the hierarchy.
const ROOT: &str = "/sys/fs/cgroup";

/// Processor time of a group, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// In the programs.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl Usage {
    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }

    /// What was used after `before`.
    pub fn since(self, before: Usage) -> Usage {
        Usage { user: self.user - before.user, system: self.system - before.system }
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// Makes the group.
pub fn create(name: &str) -> anyhow::Result<()> {
    let folder = folder(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the control group {}", folder.display()))
}

/// Moves the calling process into the group.
pub fn join(name: &str) -> anyhow::Result<()> {
    let path = folder(name).join("cgroup.procs");
    fs::write(&path, "0").with_context(|| format!("cannot write {}", path.display()))
}

/// What the group used so far.
pub fn usage(name: &str) -> anyhow::Result<Usage> {
    let path = folder(name).join("cpu.stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("cannot understand {}", path.display()))
}

/// Reads a `cpu.stat`.
fn parse(text: &str) -> Option<Usage> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<f64>().ok().map(|micros| micros * 1e-6)
    };
    Some(Usage { user: field("user_usec")?, system: field("system_usec")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_stat_is_read() {
        let text = "usage_usec 3500000\nuser_usec 1500000\nsystem_usec 2000000\nnr_periods 0\n";
        let usage = parse(text).expect("both are there");
        assert_eq!((usage.user, usage.system, usage.total()), (1.5, 2.0, 3.5));
        assert_eq!(usage.since(Usage { user: 0.5, system: 1.0 }), Usage { user: 1.0, system: 1.0 });
        assert_eq!(parse("usage_usec 1\n"), None);
    }
}
