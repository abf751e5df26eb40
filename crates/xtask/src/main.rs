//! Project chores, run as `cargo xtask NAME`:
//!
//! * `tidy`: the structural rules of ARCHITECTURE.md, checked;
//! * `spec`: SPEC.md, written from its template and the history of the benches;
//! * `ci [--fast | CRATE…]`: everything that checks the product, in the order in which a failure is
//!   cheapest, with the programs of a fresh machine and a limit for each step. `./x test` calls
//!   exactly this;
//! * `s3`: builds the S3 service that tests of stores need, if it is not there; `ci` does so too;
//! * `posix [--full] [--binary=PATH] [PART…]`: what programs expect of files, tried on mounted
//!   volumes, as root; `./x test --posix` calls this, and `ci` the short form;
//! * `runnelfs [--sanitize] [--mutants=N] [--seed=N]`: the kernel module for images, tried in a
//!   virtual machine, as root; `./x test --runnelfs` calls this, `ci` does not;
//! * `fs-verity [--binary=PATH]`: image files that the kernel seals, tried in a virtual machine;
//!   `./x test --fs-verity` calls this, `ci` does not;
//! * `kernel SOURCE [--full|--small]`: builds kernels of that source, reduces and starts them; `./x
//!   test --kernel` fetches one and calls this. Takes most of an hour the first time, so `ci` does
//!   only the small part, and only where a kernel was built before. Builds are kept in the user's
//!   caches.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

mod ci;
#[cfg(feature = "guests")]
mod fs_verity;
mod posix;
mod runnelfs;
mod s3;
mod spec;
mod surroundings;
mod tidy;
mod watch;

fn argument(index: usize) -> String {
    std::env::args().nth(index).unwrap_or_default()
}

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    let outcome = match command.as_deref() {
        Some("tidy") => tidy::run(&root()),
        Some("spec") => spec::run(&root()),
        Some("ci") => ci_on_a_fresh_machine(),
        Some("ci-steps") => ci::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        Some("s3") => s3::install(),
        Some("posix") => posix(&std::env::args().skip(2).collect::<Vec<_>>()),
        // A process of its own for the tests of crashes.
        Some("posix-writer") => posix_writer(),
        Some("runnelfs") => runnelfs::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        // In a guest whose root is measured.
        Some("runnelfs-touched") => runnelfs::touched(Path::new(&argument(2)), &argument(3)),
        Some("runnelfs-start") => runnelfs::become_program(Path::new(&argument(2)), &argument(3)),
        #[cfg(feature = "guests")]
        Some("fs-verity") => fs_verity::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        // The first programs of guests.
        #[cfg(feature = "guests")]
        Some(fs_verity::GUEST) if std::process::id() == 1 => fs_verity::run_guest(),
        None if std::process::id() == 1 => runnelfs::run_guest(),
        Some("kernel") => kernel(std::env::args().skip(2).collect()),
        _ => {
            eprintln!(
                "usage: cargo xtask tidy|spec|ci [--fast | CRATE…]|s3|posix [--full] [--binary=PATH] [PART…]|runnelfs […]|fs-verity|kernel SOURCE [--full|--small]"
            );
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

/// Runs `ci` in a process whose PATH holds what a fresh machine has, since a process cannot change
/// its own safely.
fn ci_on_a_fresh_machine() -> anyhow::Result<()> {
    let path = match surroundings::path(&root())? {
        Some(folder) => folder.into_os_string(),
        None => std::env::var_os("PATH").unwrap_or_default(),
    };
    let status = Command::new(std::env::current_exe()?)
        .arg("ci-steps")
        .args(std::env::args_os().skip(2))
        .env("PATH", path)
        .status()?;
    anyhow::ensure!(status.success(), "the checks failed");
    Ok(())
}

/// Tests of mounted volumes; `--full` takes them far, with the program as it is released, since
/// times count then; `--binary=PATH` with one that is there.
fn posix(arguments: &[String]) -> anyhow::Result<()> {
    let cache = cache().ok_or_else(|| anyhow::anyhow!("set HOME: tools are kept in its .cache"))?.join("posix");
    let (options, parts): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|word| word.starts_with('-'));
    let full = options.contains(&"--full");
    let runnel = match options.iter().find_map(|option| option.strip_prefix("--binary=")) {
        Some(path) => std::fs::canonicalize(path)?,
        None => {
            let profile = if full { "release" } else { "dev" };
            step("building the program", || cargo(&["build", "--package", "runnel", "--quiet", "--profile", profile]))?;
            root().join(if full { "target/release/runnel" } else { "target/debug/runnel" })
        }
    };
    step("posix", || posix::run(&root(), &runnel, &cache, full, &parts))
}

fn posix_writer() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [path, number] = &arguments[..] else { anyhow::bail!("a path and a number are needed") };
    posix::crash_writer(Path::new(path), number.parse()?)
}

/// The user's cache folder of this product.
fn cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    caches.map(|caches| caches.join("runnel"))
}

/// Where sources and builds of kernels are kept, for benches too.
fn kernel_cache() -> Option<PathBuf> {
    cache().map(|cache| cache.join("kernel"))
}

/// The source of a kernel that was built before.
fn cached_kernel() -> Option<PathBuf> {
    let cache = kernel_cache()?;
    let source = cache.join("source");
    (source.join("Makefile").is_file() && cache.join("build-tiny-web/arch/x86/boot/bzImage").exists()).then_some(source)
}

/// The tests that build kernels: for x86-64 and AArch64, with frozen code; with `--full` the
/// mainstream configuration too, and with `--small` only the first one, which takes a few minutes.
fn kernel(arguments: Vec<String>) -> anyhow::Result<()> {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let (full, small) = (has("--full"), has("--small"));
    let source = arguments.iter().find(|argument| !argument.starts_with("--"));
    let source = source.ok_or_else(|| anyhow::anyhow!("usage: cargo xtask kernel SOURCE [--full|--small]"))?;
    let source = std::fs::canonicalize(source)?;
    step("kernels", || {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut test = Command::new(program);
        test.args(["test", "--package", "runnel-kernel", "--test", "boot", "--", "--test-threads", "1", "--nocapture"]);
        test.env("RUNNEL_KERNEL_SOURCE", source).current_dir(root());
        if let Some(cache) = kernel_cache().filter(|_| std::env::var_os("RUNNEL_KERNEL_WORK").is_none()) {
            test.env("RUNNEL_KERNEL_WORK", cache);
        }
        if full {
            test.env("RUNNEL_KERNEL_FULL", "1");
        }
        if small {
            test.arg("qemu_a_small_kernel");
        }
        watch::run_tests(&mut test)
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
    watch::run(&mut cargo_command(arguments))
}

fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}
