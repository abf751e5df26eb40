//! pjdfstest: what POSIX says of each call, rights and times included.
//!
//! `crates/xtask/posix/pjdfstest.toml` names the tests that a volume fails, with the reasons. One
//! that fails and is not named there is an error, and so is one that is named and passes.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use super::{Setting, mounted::Server, tools};

const VERSION: &str = "0.2.2";

/// Runs all tests on a volume; prints those that fail.
pub fn run(setting: &Setting) -> anyhow::Result<()> {
    let program = tools::install("pjdfstest", VERSION, &setting.cache)?;
    let config = setting.root.join("crates/xtask/posix/pjdfstest.toml");
    let server = Server::start(&setting.runnel, &setting.folder.join("pjdfstest"))?;
    let mount = server.mount("mnt")?;
    let (summary, passes) = on(&program, &config, &mount.path)?;
    if setting.full {
        // Some of what is named passes here, so that only the sums can be compared.
        let local = setting.local("pjdfstest")?;
        eprintln!("pjdfstest: here: {}", on(&program, &config, &local)?.0);
        eprintln!("pjdfstest: volume: {summary}");
    }
    ensure!(passes, "pjdfstest: {summary}; {} names what may fail", config.display());
    mount.end()
}

/// Runs all tests below `folder`: the sums, and whether nothing failed but what is named.
fn on(program: &Path, config: &Path, folder: &Path) -> anyhow::Result<(String, bool)> {
    let mut command = Command::new(program);
    command.env("RUST_BACKTRACE", "0").arg("-c").arg(config).arg("-p").arg(folder);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().context("cannot start pjdfstest")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let matters =
        |line: &&str| !line.is_empty() && !["ok", "skipped", "expected"].iter().any(|end| line.ends_with(end));
    said.lines().filter(matters).for_each(|line| println!("{line}"));
    let Some(summary) = said.lines().find(|line| line.starts_with("Summary")) else {
        bail!("pjdfstest ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    };
    Ok((summary.to_owned(), output.status.success()))
}
