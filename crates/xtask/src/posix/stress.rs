//! stress-ng: each of its stressors of file systems for some seconds, here and on one mount.
//!
//! None may hang on the volume, and what passes here has to pass there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{Setting, mounted::Server, tools};

/// What does not work in a folder: it mounts, or uses other places.
const ELSEWHERE: [&str; 4] = ["binderfs", "bind-mount", "eventfd", "procfs"];

/// How one ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    /// It says that it cannot run there.
    Skipped,
    Failed,
    Hung,
}

pub fn run(setting: &Setting) -> anyhow::Result<()> {
    if !setting.full || !tools::has("stress-ng", "stress") {
        return Ok(());
    }
    let server = Server::start(&setting.runnel, &setting.folder.join("stress"))?;
    let mount = server.mount("mnt")?;
    let local = setting.local("stress")?;
    let mut wrong = Vec::new();
    println!("stressor        here     volume");
    for name in stressors()? {
        let here = stress(&name, &local)?;
        let there = stress(&name, &mount.path)?;
        println!("{name:15} {:8} {:8}", format!("{here:?}"), format!("{there:?}"));
        if there == Outcome::Hung || (here == Outcome::Passed && there != Outcome::Passed) {
            wrong.push(name);
        }
    }
    mount.end()?;
    ensure!(wrong.is_empty(), "worse than here: {}", wrong.join(", "));
    Ok(())
}

fn stressors() -> anyhow::Result<Vec<String>> {
    let said = Command::new("stress-ng").args(["--class", "filesystem?"]).output()?;
    let said = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let (_, names) = said.split_once("stressors:").with_context(|| format!("stress-ng said {said:?}"))?;
    Ok(names.split_whitespace().filter(|name| !ELSEWHERE.contains(name)).map(str::to_owned).collect())
}

fn stress(name: &str, folder: &Path) -> anyhow::Result<Outcome> {
    let folder = folder.join(name);
    fs::create_dir(&folder)?;
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", "stress-ng", "--verify", "--timeout", "5", "--temp-path"]).arg(&folder);
    let output = command.args([&format!("--{name}"), "1"]).stdin(Stdio::null()).output()?;
    // What a stressor leaves behind is of its own making.
    let _ = Command::new("timeout").args(["-k", "5", "60", "rm", "-rf"]).arg(&folder).status();
    let outcome = match output.status.code() {
        Some(0) => Outcome::Passed,
        Some(3 | 4) => Outcome::Skipped,
        // Of timeout, and none if it had to use SIGKILL on itself too.
        Some(124 | 137) | None => Outcome::Hung,
        Some(_) => Outcome::Failed,
    };
    if !matches!(outcome, Outcome::Passed | Outcome::Skipped) {
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        said.lines().filter(|line| line.contains("fail:") || line.contains("error:")).take(5).for_each(|line| {
            println!("  {line}");
        });
    }
    Ok(outcome)
}
