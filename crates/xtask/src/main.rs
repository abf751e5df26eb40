//! Project chores, run as `cargo xtask NAME`:
//!
//! * `tidy`: the structural rules of ARCHITECTURE.md, checked;
//! * `ci`: everything that checks the product, in the order in which a failure is cheapest. `./x test` calls exactly this;
//! * `kernel SOURCE [--full]`: builds kernels of that source, reduces and starts them; `./x test --kernel` fetches one and calls
//!   this. Takes a quarter of an hour the first time, so it is no part of `ci`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

mod tidy;

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let outcome = match command.as_deref() {
        Some("tidy") => tidy::run(&root()),
        Some("ci") => ci(),
        Some("kernel") => kernel(std::env::args().skip(2).collect()),
        _ => {
            eprintln!("usage: cargo xtask tidy|ci|kernel SOURCE [--full]");
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

/// The tests that build kernels: of the small configuration, with `--full` of the mainstream one too.
fn kernel(arguments: Vec<String>) -> anyhow::Result<()> {
    let full = arguments.iter().any(|argument| argument == "--full");
    let source = arguments.iter().find(|argument| !argument.starts_with("--"));
    let source = source.ok_or_else(|| anyhow::anyhow!("usage: cargo xtask kernel SOURCE [--full]"))?;
    let source = std::fs::canonicalize(source)?;
    step("kernels", || {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut test = Command::new(program);
        test.args(["test", "--package", "runnel-kernel", "--test", "boot", "--", "--test-threads", "1", "--nocapture"]);
        test.env("RUNNEL_KERNEL_SOURCE", source).current_dir(root());
        if full {
            test.env("RUNNEL_KERNEL_FULL", "1");
        }
        let status = test.status()?;
        anyhow::ensure!(status.success(), "the tests of kernels ended with {status}");
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
