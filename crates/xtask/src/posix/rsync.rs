//! rsync of folders to a volume: the copy is equal, a second run moves nothing, and how long a file
//! takes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::{Setting, mounted::Server, tools};
use crate::watch;

/// Most milliseconds a file of the first run.
const MILLISECONDS_MAX: f64 = 3.0;

pub fn run(setting: &Setting) -> anyhow::Result<()> {
    if !setting.full || !tools::has("rsync", "rsync") {
        return Ok(());
    }
    let server = Server::start(&setting.runnel, &setting.folder.join("rsync"))?;
    let mount = server.mount("mnt")?;
    let local = setting.local("rsync")?;
    let mut slow = Vec::new();
    for (name, source) in sources(setting)? {
        // What is not in the page cache would be read for the first of both alone.
        copy(&source, &local.join("warm"))?;
        let here = copy(&source, &local.join(name))?;
        let there = copy(&source, &mount.path.join(name))?;
        println!("rsync of {name}, {} files: here {:.2}, volume {:.2} ms a file", there.0, here.1, there.1);
        same(&source, &mount.path.join(name))?;
        if there.1 > MILLISECONDS_MAX {
            slow.push(name);
        }
    }
    mount.end()?;
    ensure!(slow.is_empty(), "more than {MILLISECONDS_MAX} ms a file: {}", slow.join(", "));
    Ok(())
}

/// Folders of many small files, with links of both kinds.
fn sources(setting: &Setting) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let mut sources = vec![("doc", PathBuf::from("/usr/share/doc"))];
    let venv = setting.folder.join("venv");
    let made = Command::new("python3").args(["-m", "venv"]).arg(&venv).status();
    if made.is_ok_and(|status| status.success()) {
        sources.push(("venv", venv));
    } else {
        eprintln!("== posix: rsync of a venv: skipped: python3 -m venv fails");
    }
    Ok(sources)
}

/// Files of all kinds, and milliseconds for each.
fn copy(source: &Path, target: &Path) -> anyhow::Result<(u64, f64)> {
    let begun = Instant::now();
    let said = rsync(source, target, &["--stats"])?;
    let took = begun.elapsed();
    let files = number(&said, "Number of files:")?;
    Ok((files, took.as_secs_f64() * 1e3 / files as f64))
}

/// Content, kinds, owners, times and links are those of the source.
fn same(source: &Path, target: &Path) -> anyhow::Result<()> {
    watch::run(Command::new("diff").args(["-r", "--no-dereference"]).args([source, target]))?;
    let said = rsync(source, target, &["--stats", "--itemize-changes"])?;
    ensure!(number(&said, "Number of regular files transferred:")? == 0, "the second run sends files:\n{said}");
    ensure!(number(&said, "Literal data:")? == 0, "the second run sends data:\n{said}");
    let changed: Vec<&str> = said.lines().take_while(|line| !line.is_empty()).collect();
    ensure!(changed.is_empty(), "the second run changes {changed:?}");
    Ok(())
}

fn rsync(source: &Path, target: &Path, options: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "600", "rsync", "-aHAX"]).args(options).arg(source.join("")).arg(target);
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A number of the statistics, which has commas.
fn number(said: &str, name: &str) -> anyhow::Result<u64> {
    let rest = said.lines().find_map(|line| line.strip_prefix(name));
    let word =
        rest.and_then(|rest| rest.split_whitespace().next()).with_context(|| format!("no {name:?} in {said}"))?;
    Ok(word.replace(',', "").parse()?)
}
