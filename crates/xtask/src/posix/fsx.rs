//! fsx: random reads, writes, truncations and mappings of one file, held against a copy in memory.

use std::process::Command;

use super::{Setting, mounted::Server, tools};
use crate::watch;

const VERSION: &str = "0.3.2";

/// Runs the sequences one after another, each on a file of its own.
pub fn run(setting: &Setting) -> anyhow::Result<()> {
    let program = tools::install("fsx", VERSION, &setting.cache)?;
    let (seeds, operations) = if setting.full { (20, 100_000) } else { (3, 10_000) };
    let config = setting.root.join("crates/xtask/posix/fsx.toml");
    let server = Server::start(&setting.runnel, &setting.folder.join("fsx"))?;
    let mount = server.mount("mnt")?;
    for seed in 1..=seeds {
        let mut fsx = Command::new(&program);
        // Odd sequences as fsx has them, even ones also close the file and sync it.
        if seed % 2 == 0 {
            fsx.arg("-f").arg(&config);
        }
        fsx.args(["-q", "-S", &seed.to_string(), "-N", &operations.to_string(), "-P"]).arg(&setting.folder);
        watch::run(fsx.arg(mount.path.join(format!("fsx-{seed}"))))?;
    }
    mount.end()
}
