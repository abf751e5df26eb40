//! `runnel record --kernel`: which code of a kernel a device executes.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::kernel::{End, Machine, Processor, Recorded, Recorder};
use anyhow::Context;
use coverage::{BlockMap, Coverage, Phase, Symbols, format::FILE_BYTES_MAX};
use host::signals::Signals;

use crate::failure;
use crate::progress::{counted, human};
use crate::recording::output::Output;

/// Options for programs and images only.
const OTHERS: [&str; 16] = [
    "target",
    "mount",
    "overlay",
    "command",
    "source",
    "reads",
    "mmaps",
    "candidates",
    "library",
    "wait_all",
    "bind",
    "cwd",
    "env",
    "user_namespace",
    "soft",
    "no_push",
];

/// Longest scenario, a year.
const TIMEOUT_SECONDS_MAX: u64 = 366 * 24 * 3600;

/// The four ways to a coverage.
pub const WAYS: [&str; 4] = ["kernel", "kernel_counters", "kernel_thawed", "merge"];

/// Options of recordings of a kernel.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Recording a kernel")]
#[group(skip)]
pub struct Options {
    #[command(flatten)]
    machine: MachineArgs,

    #[command(flatten)]
    ends: ScenarioArgs,

    #[command(flatten)]
    counters: CounterArgs,

    #[command(flatten)]
    thawed: ThawedArgs,

    /// Unite coverage files (several times for several)
    #[arg(long, value_name = "FILE", requires = "output", conflicts_with_all = OTHERS, group = "way")]
    merge: Vec<PathBuf>,

    /// What the scenario is called (default: the name of the output)
    #[arg(long, value_name = "NAME", requires = "way", conflicts_with = "merge")]
    scenario: Option<String>,
}

/// The machine in QEMU.
#[derive(clap::Args, Clone)]
#[group(skip)]
struct MachineArgs {
    /// Start this boot image (bzImage; of AArch64 Image or Image.gz) in QEMU and record which
    /// blocks of the kernel are executed, until it powers off, for --timeout, or until the recorder
    /// gets SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "IMAGE", requires_all = ["vmlinux", "output"], conflicts_with_all = OTHERS, group = "way")]
    kernel: Option<PathBuf>,

    /// The linked kernel that the boot image was made of, with symbols
    #[arg(long, value_name = "VMLINUX", requires = "way", conflicts_with_all = ["kernel_counters", "merge"])]
    vmlinux: Option<PathBuf>,

    /// Its initial file system
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,

    /// A disk (virtio, raw; several times for several); what is written to it is gone afterwards
    #[arg(long, value_name = "FILE", requires = "kernel")]
    disk: Vec<PathBuf>,

    /// The command line (default: QEMU's console, and no restart after a panic)
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    cmdline: Option<String>,

    /// Memory in MiB
    #[arg(long, value_name = "MIB", requires = "kernel", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,

    /// Processors
    #[arg(long, value_name = "N", requires = "kernel", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
}

/// When service begins, and the scenario ends.
#[derive(clap::Args, Clone)]
#[group(skip)]
struct ScenarioArgs {
    /// The device's service begins where the console says a line with this text: tells what runs
    /// only before. Without it everything counts for both
    #[arg(long, value_name = "TEXT", requires = "kernel", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    service_at: Option<String>,

    /// The scenario also ends where the console says a line with this text, after the service has
    /// begun
    #[arg(long, value_name = "TEXT", requires = "kernel", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    until: Option<String>,

    /// When the scenario ends if nothing else ends it
    #[arg(long, value_name = "SECONDS", requires = "kernel", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_SECONDS_MAX))]
    timeout: u64,
}

/// The counters of an instrumented kernel.
#[derive(clap::Args, Clone)]
#[group(skip)]
struct CounterArgs {
    /// Take the counters of an instrumented kernel, a byte for each block, as they were read from
    /// the device
    #[arg(long, value_name = "FILE", requires_all = ["map", "output"], conflicts_with_all = OTHERS, group = "way")]
    kernel_counters: Option<PathBuf>,

    /// The map that was written with the instrumented kernel
    #[arg(long, value_name = "FILE", requires = "kernel_counters")]
    map: Option<PathBuf>,

    /// When the counters counted
    #[arg(long, value_enum, requires = "kernel_counters", default_value = "whole")]
    phase: PhaseName,
}

/// A list of functions that were thawed.
#[derive(clap::Args, Clone)]
#[group(skip)]
struct ThawedArgs {
    /// Take a device's list of functions that had to be thawed; their sizes are those of --vmlinux
    #[arg(long, value_name = "FILE", requires = "output", conflicts_with_all = OTHERS, group = "way")]
    kernel_thawed: Option<PathBuf>,

    /// Release of the device's kernel (default: that of --vmlinux)
    #[arg(long, value_name = "TEXT", requires = "kernel_thawed")]
    release: Option<String>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum PhaseName {
    /// From the start to when they were read, which is boot and service
    Whole,
    /// Only until the service began
    Boot,
    /// Only since then: they were zeroed there
    Service,
}

/// Records, converts or merges; `None` if none of that is asked for.
pub fn run(args: &super::Args) -> Option<anyhow::Result<ExitCode>> {
    let options = &args.kernel;
    let path = args.output.clone().unwrap_or_default();
    let stem = || path.file_stem().map_or_else(|| "kernel".into(), |stem| stem.to_string_lossy().into_owned());
    let scenario = options.scenario.clone().unwrap_or_else(stem);
    let made = if let Some(kernel) = &options.machine.kernel {
        return Some(record(args, kernel, scenario, &path));
    } else if let Some(counters) = &options.counters.kernel_counters {
        from_counters(options, counters, &scenario)
    } else if let Some(list) = &options.thawed.kernel_thawed {
        from_thawed(options, list, &scenario)
    } else if !options.merge.is_empty() {
        merge(&options.merge)
    } else {
        return None;
    };
    // Inputs are read before: the output may be one of them.
    let written = made.and_then(|coverage| {
        let output = Output::create(&path, args.force)?;
        write(args, &coverage, output, &serde_json::Map::new())
    });
    Some(written)
}

fn record(args: &super::Args, kernel: &Path, scenario: String, path: &Path) -> anyhow::Result<ExitCode> {
    let options = &args.kernel;
    let recorder = Recorder {
        machine: options.machine.of(kernel, Duration::from_secs(options.ends.timeout))?,
        vmlinux: options.machine.vmlinux.clone().unwrap_or_default(),
        service_at: options.ends.service_at.clone(),
        until: options.ends.until.clone(),
        scenario,
    };
    let output = Output::create(path, args.force)?;
    let mut panicked = false;
    let mut say = |line: &str| {
        panicked |= line.contains("Kernel panic - not syncing");
        tell!("device: {line}");
    };
    // Before the first thread: what is recorded until then is kept, and the device does not outlive
    // us.
    let signals = Signals::block(host::signals::STOP).context("cannot block signals")?;
    let asked = || !matches!(signals.next(), Ok(None));
    let recorded = recorder.run(&asked, &mut say).inspect_err(|_| output.discard())?;
    signals.restore();
    if panicked {
        tell!("warning: the kernel panicked; what ran until then is recorded");
    }
    match recorded.end {
        End::Deadline => {
            tell!("note: the scenario did not end within {} s; what ran until then is recorded", options.ends.timeout);
        }
        End::Asked => tell!("note: ended by a signal; what ran until then is recorded"),
        End::PoweredOff | End::Said => {}
    }
    if !args.json {
        tell_shares(&recorded);
    }
    let Recorded { coverage, seen, totals: (functions, bytes), end } = recorded;
    let more = serde_json::json!({
        "kernel_functions": functions, "kernel_bytes": bytes, "blocks_seen": seen.blocks, "blocks_outside": seen.outside,
        "blocks_different": seen.different, "ended": matches!(end, End::PoweredOff | End::Said), "panicked": panicked,
    });
    write(args, &coverage, output, more.as_object().unwrap_or(&serde_json::Map::new()))
}

impl MachineArgs {
    /// The machine that starts `kernel`. Its files can be opened.
    fn of(&self, kernel: &Path, deadline: Duration) -> anyhow::Result<Machine> {
        for file in self.disk.iter().chain(&self.initrd).chain(&self.kernel).chain(&self.vmlinux) {
            host::file::open(file).with_context(|| file.display().to_string())?;
        }
        let command_line = match &self.cmdline {
            Some(line) => line.clone(),
            None => Processor::of_image(kernel)?.command_line().to_string(),
        };
        Ok(Machine {
            kernel: kernel.to_path_buf(),
            initramfs: self.initrd.clone().unwrap_or_default(),
            command_line,
            disks: self.disk.clone(),
            memory_mib: self.memory,
            processors: self.cpus,
            counted: false,
            deadline,
        })
    }
}

/// Tells how much of the kernel ran.
fn tell_shares(Recorded { coverage, seen, totals: (functions, bytes), .. }: &Recorded) {
    let share = |part: u64| 100.0 * part as f64 / (*bytes).max(1) as f64;
    let all: u64 = coverage.functions.iter().map(|function| function.bytes).sum();
    let in_service = coverage.functions.iter().filter(|function| function.service);
    let service: u64 = in_service.map(|function| function.bytes).sum();
    tell!(
        "of {functions} functions with {}, those that ran have {:.1} %, those that ran in service {:.1} %",
        human(*bytes),
        share(all),
        share(service)
    );
    tell!(
        "{}, {} in no function that has a name, {} with other instructions than linked",
        counted(seen.blocks, "block"),
        seen.outside,
        seen.different
    );
}

fn from_counters(options: &Options, counters: &Path, scenario: &str) -> anyhow::Result<Coverage> {
    let path = options.counters.map.clone().unwrap_or_default();
    let map = BlockMap::read(&bytes(&path)?).with_context(|| path.display().to_string())?;
    let phase = match options.counters.phase {
        PhaseName::Whole => Phase::Whole,
        PhaseName::Boot => Phase::Boot,
        PhaseName::Service => Phase::Service,
    };
    let coverage = coverage::from_counters(&map, &bytes(counters)?, phase, scenario);
    coverage.with_context(|| counters.display().to_string())
}

fn from_thawed(options: &Options, list: &Path, scenario: &str) -> anyhow::Result<Coverage> {
    let symbols = match &options.machine.vmlinux {
        Some(path) => {
            let bytes = host::file::read(path).with_context(|| path.display().to_string())?;
            Some(Symbols::read(&bytes).with_context(|| path.display().to_string())?)
        }
        None => None,
    };
    let release = options.thawed.release.as_deref().or(symbols.as_ref().map(Symbols::release));
    let release = release.ok_or_else(|| failure::usage("--kernel-thawed needs --vmlinux or --release"))?;
    let name = || list.display().to_string();
    let text = String::from_utf8(bytes(list)?).map_err(|_| failure::corrupt(format!("{}: no text", name())))?;
    coverage::from_thawed(&text, release, symbols.as_ref(), scenario).with_context(name)
}

fn merge(files: &[PathBuf]) -> anyhow::Result<Coverage> {
    let read = |path: &PathBuf| {
        let (bytes, name) = (bytes(path)?, path.display());
        if bytes.starts_with(&trace::format::MAGIC) {
            return Err(failure::usage(format!(
                "{name} is a trace, and --merge takes coverage of a kernel\nhint: `runnel pack --trace FILE --trace FILE` \
                 takes several traces"
            )));
        }
        coverage::read(&bytes).with_context(|| name.to_string())
    };
    Ok(coverage::merge(files.iter().map(read).collect::<anyhow::Result<Vec<Coverage>>>()?)?)
}

/// A file, but not more of it than can be right.
fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = host::file::open(path).with_context(|| path.display().to_string())?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// Writes the file and tells what is in it.
fn write(
    args: &super::Args,
    coverage: &Coverage,
    mut output: Output,
    more: &serde_json::Map<String, serde_json::Value>,
) -> anyhow::Result<ExitCode> {
    let text = coverage::write(coverage).inspect_err(|_| output.discard())?;
    let written = output.write_all(text.as_bytes());
    let path = output.path().display();
    written.inspect_err(|_| output.discard()).with_context(|| path.to_string())?;
    let functions = || coverage.functions.iter();
    let service = functions().filter(|function| function.service).count();
    let executed: u64 = functions().map(coverage::Function::executed).sum();
    let executed_in_service: u64 = functions().map(coverage::Function::executed_in_service).sum();
    if args.json {
        let mut json = serde_json::json!({
            "coverage": path.to_string(), "release": coverage.release, "scenarios": coverage.scenarios.len(),
            "functions": coverage.functions.len(), "functions_in_service": service, "executed_bytes": executed,
            "executed_bytes_in_service": executed_in_service,
        });
        if let Some(json) = json.as_object_mut() {
            json.extend(more.clone());
        }
        tell!("{json}");
    } else {
        tell!(
            "recorded {} of Linux {} ({} in service), {} executed ({} in service), {} in {path}",
            counted(coverage.functions.len() as u64, "function"),
            coverage.release,
            service,
            human(executed),
            human(executed_in_service),
            counted(coverage.scenarios.len() as u64, "scenario"),
        );
    }
    Ok(ExitCode::SUCCESS)
}
