//! `ci [--fast | CRATE…]`: everything that checks the product, the cheapest failure first; with
//! `--fast` what a developer runs on each change; with names of crates their tests alone.
//!
//! Says at its start what it will run, and how long each step took last time. The times are kept
//! in the build folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::ensure;

use crate::{cached_kernel, cargo, cargo_command, kernel, posix, root, s3, tidy, watch};

/// A step: its name, and what it does.
type Step = (&'static str, fn() -> anyhow::Result<()>);

/// What breaks most often, in the order in which it is found soonest; `--fast` runs these alone.
const FIRST: [Step; 5] = [
    ("format", format),
    ("tidy", || tidy::run(&root())),
    ("lints", lints),
    ("building unit tests", || cargo(&["test", "--workspace", "--lib", "--bins", "--no-run", "--quiet"])),
    (UNIT_TESTS, || tests(&["--lib", "--bins"])),
];

// Steps whose tests wait more than they compute, so that a build of low priority takes next to
// nothing from them; and the steps that wait for those builds.
const UNIT_TESTS: &str = "unit tests";
const S3_SERVICE: &str = "S3 service";
const PROCESS_TESTS: &str = "tests of processes";
const STATIC_BUILD: &str = "static build";

/// What is built beside a step, and the step that needs it.
fn beside_of(step: &str) -> Option<(&'static str, Command)> {
    match step {
        UNIT_TESTS => {
            let mut install = Command::new("nice");
            // A build may have put another one in the place of the program that runs here.
            let xtask = std::env::current_exe().ok().filter(|program| program.exists())?;
            install.args(["-n", "19"]).arg(xtask).arg("s3").current_dir(root());
            Some((S3_SERVICE, install))
        }
        PROCESS_TESTS => Some((STATIC_BUILD, static_command(&["--quick"]))),
        _ => None,
    }
}

/// After [`FIRST`], all the rest: what needs a mount, a second process or a machine.
const REST: [Step; 11] = [
    // What tests of stores connect to.
    (S3_SERVICE, s3::install),
    // Tests of launching use them where they lie beside the binary.
    ("libraries", || cargo(&["build", "--package", "runnel-preload", "--package", "runnel-rtld-audit", "--quiet"])),
    ("building tests", || cargo(&["test", "--workspace", "--no-run", "--quiet"])),
    (PROCESS_TESTS, || tests(&["--test", "*"])),
    ("examples in documentation", || tests(&["--doc"])),
    ("volumes", volumes),
    ("kernels", small_kernel),
    ("device build", device_build),
    (STATIC_BUILD, || static_build(&["--quick"])),
    ("demo", demo),
    ("lab smoke", lab_smoke),
];

/// Runs the steps that the arguments name.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    if !arguments.is_empty() && arguments.iter().all(|argument| !argument.starts_with('-')) {
        return of_crates(arguments);
    }
    let fast = arguments == ["--fast"];
    ensure!(fast || arguments.is_empty(), "usage: ./x test [--fast | CRATE…]; CRATE is a folder in crates");
    let steps: Vec<Step> = if fast { FIRST.to_vec() } else { [&FIRST[..], &REST].concat() };
    let mut times = Times::read();
    times.announce(&steps);
    let mut beside: Option<(&str, watch::Beside)> = None;
    for (name, work) in &steps {
        let start = Instant::now();
        if let Some((until, mut build)) = beside_of(name).filter(|(until, _)| steps.iter().any(|step| step.0 == *until))
        {
            beside = Some((until, watch::Beside::begin(&mut build)?));
        }
        crate::step(name, || match beside.take_if(|(until, _)| until == name) {
            Some((_, build)) => build.end(),
            None => work(),
        })?;
        times.took(name, start.elapsed().as_secs());
    }
    Ok(())
}

/// The tests of some crates alone.
fn of_crates(names: &[String]) -> anyhow::Result<()> {
    let mut arguments = vec!["test".to_owned(), "--no-fail-fast".to_owned()];
    for name in names {
        ensure!(root().join("crates").join(name).is_dir(), "there is no crate {name} in crates");
        let package = if name == "cli" { "runnel".to_owned() } else { format!("runnel-{name}") };
        let package = if name == "xtask" { "xtask".to_owned() } else { package };
        arguments.extend(["--package".to_owned(), package]);
    }
    if names.iter().any(|name| ["cli", "objects"].contains(&name.as_str())) {
        crate::step("S3 service", s3::install)?;
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    crate::step("tests", || watch::run_tests(cargo_command(&arguments).stdin(Stdio::null())))
}

fn format() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"])
}

fn lints() -> anyhow::Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

fn tests(which: &[&str]) -> anyhow::Result<()> {
    let arguments = [&["test", "--workspace"], which, &["--no-fail-fast"]].concat();
    watch::run_tests(cargo_command(&arguments).stdin(Stdio::null()))
}

/// With the program that the tests built: with the features of its package alone all would be built
/// anew.
fn volumes() -> anyhow::Result<()> {
    posix(&[format!("--binary={}", root().join("target/debug/runnel").display())])
}

/// Only where a kernel was built before: the first build takes most of an hour.
fn small_kernel() -> anyhow::Result<()> {
    match cached_kernel() {
        Some(source) => kernel(vec![source.display().to_string(), "--small".to_string()]),
        None => {
            eprintln!("== kernels: skipped: none was built in the cache folder; ./x test --kernel builds one");
            Ok(())
        }
    }
}

fn device_build() -> anyhow::Result<()> {
    cargo(&["clippy", "--package", "runnel", "--no-default-features", "--quiet", "--", "-D", "warnings"])
}

/// The binary that the tests built: a release takes minutes to link, and nothing here is measured.
fn bench() -> PathBuf {
    root().join("target/debug/runnel-bench")
}

fn static_build(options: &[&str]) -> anyhow::Result<()> {
    watch::run(&mut static_command(options))
}

fn static_command(options: &[&str]) -> Command {
    let mut build = Command::new("nice");
    build.args(["-n", "19"]).arg(root().join("scripts/dist.sh")).arg("x86_64").args(options);
    build.current_dir(root()).env_remove("CARGO_TARGET_DIR");
    build
}

/// With the static binary on the device.
fn demo() -> anyhow::Result<()> {
    let mut demo = Command::new(bench());
    watch::run(demo.args(["demo", "--device", "target/dist/runnel-x86_64-quick"]).current_dir(root()))
}

/// Debian's release in the guest of the lab. What was built on the same release runs there, and the
/// build of a static binary with all features is saved: it takes ten minutes on two cores.
const GUEST_RELEASE: &str = "VERSION_CODENAME=bookworm";

/// Rows are measured anew each time: the lab itself is what is tested here, not how fast anything
/// is.
fn lab_smoke() -> anyhow::Result<()> {
    let host = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let binary = if host.lines().any(|line| line == GUEST_RELEASE) {
        "target/debug/runnel"
    } else {
        static_build(&["--full", "--quick"])?;
        "target/dist/runnel-x86_64-full-quick"
    };
    let mut lab = Command::new(bench());
    watch::run(lab.args(["lab", "--smoke", "--fresh", "--binary", binary]).current_dir(root()))
}

/// Seconds that each step took last time, in a file of lines `NAME: SECONDS`. A file that cannot be
/// read or written is none.
struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, u64>,
}

impl Times {
    fn read() -> Times {
        let file = root().join("target/test-times");
        let text = fs::read_to_string(&file).unwrap_or_default();
        Times { file, seconds: parse(&text) }
    }

    fn announce(&self, steps: &[Step]) {
        let known = |name: &str| self.seconds.get(name).map_or_else(|| "?".to_owned(), |time| format!("{time} s"));
        let list: Vec<String> = steps.iter().map(|(name, _)| format!("{name} ({})", known(name))).collect();
        let sum: u64 = steps.iter().filter_map(|(name, _)| self.seconds.get(*name)).sum();
        eprintln!("== to run, with the time of last time: {}; together {} min", list.join(", "), sum.div_ceil(60));
    }

    fn took(&mut self, name: &str, seconds: u64) {
        self.seconds.insert(name.to_owned(), seconds);
        let lines: String = self.seconds.iter().map(|(name, seconds)| format!("{name}: {seconds}\n")).collect();
        let _ = fs::write(&self.file, lines);
    }
}

fn parse(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.filter_map(|(name, seconds)| Some((name.to_owned(), seconds.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_nonsense_is_none() {
        let times = parse("tidy: 1\nbuilding tests: 600\nlab smoke: many\nnothing\n");
        assert_eq!(times.into_iter().collect::<Vec<_>>(), [("building tests".to_owned(), 600), ("tidy".to_owned(), 1)]);
    }

    #[test]
    fn what_is_no_crate_is_said() {
        assert!(run(&["no-such-crate".to_owned()]).unwrap_err().to_string().contains("no-such-crate"));
        assert!(run(&["--quick".to_owned()]).unwrap_err().to_string().contains("usage"));
    }
}
