//! Project chores, run as `cargo xtask NAME`:
//!
//! * `tidy`: the structural rules of ARCHITECTURE.md, checked;
//! * `ci`: everything that checks the product, in the order in which a failure is cheapest. `./x test` calls exactly this.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

mod tidy;

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let outcome = match command.as_deref() {
        Some("tidy") => tidy::run(&root()),
        Some("ci") => ci(),
        _ => {
            eprintln!("usage: cargo xtask tidy|ci");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace root, two folders above this crate.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/xtask").to_path_buf()
}

fn ci() -> anyhow::Result<()> {
    step("tidy", || tidy::run(&root()))?;
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    step("lints", || cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))?;
    // Tests of launching use them where they lie beside the binary.
    step("libraries", || cargo(&["build", "--package", "runnel-preload", "--package", "runnel-audit", "--quiet"]))?;
    step("tests", || cargo(&["test", "--workspace", "--quiet"]))?;
    step("device build", || {
        cargo(&["clippy", "--package", "runnel", "--no-default-features", "--quiet", "--", "-D", "warnings"])
    })?;
    step("release build", || {
        let packages = ["--package", "runnel", "--package", "runnel-preload", "--package", "runnel-audit"];
        cargo(&[&["build", "--release"], &packages[..], &["--quiet"]].concat())
    })?;
    step("demo", || {
        let status = Command::new(root().join("target/release/runnel")).arg("demo").status()?;
        anyhow::ensure!(status.success(), "runnel demo ended with {status}");
        Ok(())
    })?;
    // Rows are measured anew each time: the lab itself is what is tested here, not how fast anything is.
    step("lab smoke", || {
        let mut lab = Command::new(root().join("target/release/runnel"));
        let status = lab.args(["bench", "lab", "--smoke", "--fresh"]).current_dir(root()).status()?;
        anyhow::ensure!(status.success(), "runnel bench lab --smoke ended with {status}");
        Ok(())
    })
}

/// Runs one step and says how long it took.
fn step(name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    eprintln!("== {name}");
    let start = Instant::now();
    work().map_err(|error| error.context(format!("step '{name}' failed")))?;
    eprintln!("== {name}: ok in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(root()).status()?;
    anyhow::ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(())
}
