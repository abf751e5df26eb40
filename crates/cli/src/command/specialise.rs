//! `runnel specialise`.

use std::path::PathBuf;
use std::process::ExitCode;

use ::kernel::{Asked, Calls, Codec, Frozen, Job, JobReport, KernelError, Layout, Policy};
use anyhow::Context;
use clap::ValueEnum;
use specialise::Passes;
use syscalls::analysis;

use crate::command::signed::NameArgs;
use crate::command::syscalls as system_calls;
use crate::command::trust::TrustArgs;
use crate::failure;
use crate::progress::human;

mod page;

/// Exit code where some calls of an image are unknown.
const UNKNOWN: u8 = 6;

/// Build a Linux kernel for one device, without what its programs, command line and hardware cannot
/// reach
#[derive(clap::Args)]
#[group(skip)]
#[command(
    after_help = "Results in the folder of --output: vmlinux, bzImage (of AArch64 Image.gz), System.map, report.json, report.html. The \
configuration says the processor: AArch64 with CONFIG_ARM64=y, else x86-64. The kernel is \
built once, in --build, and used again as long as the configuration is the same; the source is not changed. See docs/guides/kernels.md."
)]
pub struct Args {
    /// Source of the kernel (Linux 6.12; for x86-64 also 6.1), unpacked and not configured
    #[arg(long, value_name = "DIR")]
    kernel_source: PathBuf,

    /// Its configuration: a whole one, or a fragment that is laid over the smallest one
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Folder of the build (default: `build` in the folder of --output)
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,

    /// Folder of the results
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Only say what keeps a symbol of the kernel alive
    #[arg(long, value_name = "SYMBOL")]
    why: Option<String>,

    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    passes: PassArgs,

    #[command(flatten)]
    freezing: FreezeArgs,

    #[command(flatten)]
    names: NameArgs,

    #[command(flatten)]
    trust: TrustArgs,
}

/// The device and its programs.
#[derive(clap::Args)]
#[command(next_help_heading = "The device")]
#[group(skip)]
struct DeviceArgs {
    /// The device's command line: other boot parameters are dropped
    #[arg(long, value_name = "TEXT")]
    cmdline: Option<String>,

    /// What runs on the device: app.rnl, runnel://host/name, a directory that is the root of a
    /// system, or a program of this machine; system calls that none of its programs makes answer
    /// ENOSYS. Only x86-64; for AArch64 list them (--syscalls). May be given several times
    #[arg(long, value_name = "IMAGE")]
    image: Vec<PathBuf>,

    /// Of directories and images, only this program; may be given several times
    #[arg(long, value_name = "PATH", requires = "image")]
    program: Vec<PathBuf>,

    /// Calls of a run, as strace writes them or one name a line: places of programs that cannot be
    /// resolved make no others
    #[arg(long, value_name = "FILE", requires = "image")]
    trace: Vec<PathBuf>,

    /// System calls of the device's programs, beside those of --image or instead: JSON with a list
    /// `names`, or a name a line
    #[arg(long, value_name = "FILE")]
    syscalls: Option<PathBuf>,

    /// PCI devices there are, a line each: `vendor:device [class]`; quirks and drivers of others
    /// are dropped
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,

    /// TOML with `roots` (symbols of the kernel that stay), `syscalls` (more of them) and what
    /// places of programs call that cannot be resolved ([[site]]; see docs/guides/syscalls.md)
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

/// The passes over the kernel.
#[derive(clap::Args)]
#[command(next_help_heading = "Passes")]
#[group(skip)]
struct PassArgs {
    /// How sections lie in memory; compact drops the alignment to 2 MiB, where page table isolation
    /// and memory encryption are off (x86-64 only)
    #[arg(long, value_enum, default_value = "stock")]
    layout: LayoutName,

    /// Leave a pass out (several times for several)
    #[arg(long, value_enum, value_name = "PASS")]
    without: Vec<PassName>,

    /// Run a pass that is left out by default
    #[arg(long, value_enum, value_name = "PASS")]
    with: Vec<OptionalPass>,

    /// A variable of the kernel has this number for good (several times for several): its branches
    /// are decided. Refused if anything may write it
    #[arg(long, value_name = "VAR=VALUE", value_parser = fixed)]
    fix: Vec<(String, u64)>,

    /// Leave dead code in place, filled with instructions that trap: shows what should not have
    /// been removed
    #[arg(long)]
    trap: bool,

    /// Count which blocks of the kernel's functions run: each sets a byte from
    /// `specialise_coverage` on. What counts is in coverage.map beside the kernel. The passes for
    /// constants and blocks stay off. Only x86-64
    #[arg(long)]
    instrument: bool,
}

/// Freezing of code that does not run.
#[derive(clap::Args)]
#[command(next_help_heading = "Code that does not run")]
#[group(skip)]
struct FreezeArgs {
    /// Code that did not run in this coverage (of runnel record --kernel) is kept compressed, by a
    /// patch of the kernel, and comes back when it runs
    #[arg(long, value_name = "COVERAGE", conflicts_with = "instrument")]
    freeze: Option<PathBuf>,

    /// How frozen code is compressed: lz4 comes back three times faster, zstd is smaller
    #[arg(long, value_enum, default_value = "lz4", requires = "freeze")]
    codec: CodecName,

    /// What the order of functions is for: memory puts those together that ran together, image
    /// keeps that of the build, so that the boot image grows less
    #[arg(long, value_enum, default_value = "memory", requires = "freeze")]
    optimise: Optimise,
}

/// `--layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    Stock,
    Compact,
}

/// `--codec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CodecName {
    Lz4,
    Zstd,
}

/// `--optimise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Optimise {
    Memory,
    Image,
}

/// `--without`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PassName {
    /// All passes: the kernel is only taken apart and put together again
    All,
    /// System calls that are not in the list
    Syscalls,
    /// Boot parameters that the command line does not use
    Parameters,
    /// Quirks of absent PCI devices
    Quirks,
    /// PCI drivers none of whose devices are there
    Drivers,
    /// Branches that always go the same way, and what only they lead to
    Constants,
    /// Code inside functions that is never executed is cut out
    Blocks,
    /// Padding before functions that only a mitigation uses which the command line cannot turn on
    Padding,
    /// Names of functions that are freed after the start
    Names,
    /// One of equal functions is kept
    Duplicates,
    /// Functions of initialisation move into memory that is freed
    Initialisation,
}

/// `--with`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OptionalPass {
    /// One of equal functions is kept though their addresses are taken: pointers to different
    /// functions may be equal
    DuplicatesTaken,
    /// Constants that the programs of --image give to system calls decide branches of the handlers:
    /// a call with other arguments, which no program of the images makes, is undefined
    Arguments,
}

/// `VAR=VALUE`, the value as C writes it.
fn fixed(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("'{text}': expected a name, '=' and a number, such as debug_level=0 or mask=0xff");
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let number = match (value.strip_prefix("0x"), value.strip_prefix('-')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) => digits.parse::<u32>().ok().map(|number| i64::from(number).wrapping_neg() as u64),
        _ => value.parse().ok(),
    };
    Ok((name.to_string(), number.ok_or_else(wrong)?))
}

fn passes(without: &[PassName], with: &[OptionalPass]) -> Passes {
    let mut passes = Passes::all();
    passes.duplicates_taken = with.contains(&OptionalPass::DuplicatesTaken);
    for name in without {
        match name {
            PassName::All => passes = Passes::none(),
            PassName::Syscalls => passes.syscalls = false,
            PassName::Parameters => passes.parameters = false,
            PassName::Quirks => passes.quirks = false,
            PassName::Drivers => passes.drivers = false,
            PassName::Constants => passes.constants = false,
            PassName::Blocks => passes.blocks = false,
            PassName::Padding => passes.padding = false,
            PassName::Names => passes.names = false,
            PassName::Duplicates => passes.duplicates = false,
            PassName::Initialisation => passes.initialisation = false,
        }
    }
    passes
}

/// The system calls of the images.
fn calls(args: &Args) -> anyhow::Result<Calls> {
    let policy = args.device.policy.as_deref().map(Policy::read).transpose()?.unwrap_or_default();
    let mut options =
        analysis::Options { with_arguments: true, policy: policy.of_programs(), ..analysis::Options::default() };
    system_calls::take_traces(&mut options.policy, &args.device.trace)?;
    let mut calls = Calls::default();
    for image in &args.device.image {
        tell!("looking for system calls in {}", image.display());
        let is_program = image.is_file() && !system_calls::is_image(image);
        let programs = if is_program { &[] } else { args.device.program.as_slice() };
        let programs = programs.iter().map(|path| system_calls::bytes(path)).collect();
        let report = system_calls::find(image, programs, (args.trust.connection()?, args.names.signed()?), &options)?;
        calls.add(image, &report).map_err(|error| match error {
            KernelError::UnknownCalls { .. } => failure::with_code(
                UNKNOWN,
                format!(
                    "{error}\nhint: vouch for these places with --policy or --trace (see docs/guides/syscalls.md), or list \
                     the calls with --syscalls instead"
                ),
            ),
            error => error.into(),
        })?;
    }
    Ok(calls)
}

/// Builds the kernel.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let passes = passes(&args.passes.without, &args.passes.with);
    if args.passes.trap && !passes.unreachable {
        return Err(failure::usage("--trap fills what passes remove; it cannot go with --without all"));
    }
    if args.passes.with.contains(&OptionalPass::Arguments) && (args.device.image.is_empty() || !passes.unreachable) {
        let why = "--with arguments uses what the programs of --image give to system calls";
        return Err(failure::usage(format!("{why}; it needs --image, and cannot go with --without all")));
    }
    let layout = match args.passes.layout {
        LayoutName::Stock => Layout::Stock,
        LayoutName::Compact => Layout::Compact,
    };
    let codec = match args.freezing.codec {
        CodecName::Lz4 => Codec::Lz4,
        CodecName::Zstd => Codec::Zstd,
    };
    let for_image = args.freezing.optimise == Optimise::Image;
    let freeze = args.freezing.freeze.as_deref().map(|path| Frozen::open(path, for_image)).transpose()?;
    let calls = calls(&args)?;
    let job = Job {
        source: args.kernel_source,
        build: args.build.unwrap_or_else(|| args.output.join("build")),
        output: args.output,
        asked: Asked {
            config: args.config,
            command_line: args.device.cmdline,
            devices: args.device.devices,
            syscalls: args.device.syscalls,
            policy: args.device.policy,
            fixed: args.passes.fix.into_iter().collect(),
            arguments: args.passes.with.contains(&OptionalPass::Arguments),
            trap: args.passes.trap,
        },
        calls,
        passes,
        layout,
        codec: (freeze.is_some() || args.passes.instrument).then_some(codec),
        freeze,
        instrument: args.passes.instrument,
    };
    let mut say = |text: &str| tell!("{text}");
    if let Some(symbol) = &args.why {
        for line in job.why(symbol, &mut say)? {
            outln!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (report, linked) = job.run(&mut say)?;
    let path = job.output.join("report.html");
    std::fs::write(&path, page::page(&report)).with_context(|| path.display().to_string())?;
    show(&report)?;
    tell!("{} and {} are written", linked.bzimage.display(), path.display());
    Ok(ExitCode::SUCCESS)
}

/// Prints the sizes, and what did not go as asked.
fn show(report: &JobReport) -> anyhow::Result<()> {
    for line in &report.config_unmet {
        tell!("note: the kernel did not take {line}");
    }
    for warning in &report.removed.warnings {
        tell!("warning: {warning}");
    }
    for row in &report.kernels {
        outln!("{}: {} resident, {} boot image", row.name, human(row.resident), human(row.bzimage));
    }
    if let Some(frozen) = &report.removed.frozen {
        let share = 100.0 * frozen.never_ran_frozen as f64 / frozen.never_ran.max(1) as f64;
        outln!(
            "frozen: {} of code, {share:.1} % of what never ran, and {} of strings; the kernel says when it starts how small they became",
            human(frozen.frozen),
            human(frozen.strings)
        );
        if frozen.unknown > 0 {
            tell!("note: {} functions of the coverage are not in this kernel", frozen.unknown);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_fixed_by_numbers() {
        assert_eq!(fixed("a=12"), Ok(("a".to_string(), 12)));
        assert_eq!(fixed("a=0x1f"), Ok(("a".to_string(), 31)));
        assert_eq!(fixed("a=-1"), Ok(("a".to_string(), u64::MAX)));
        for wrong in ["a", "=1", "a=", "a=b", "a=0x", "a=--1", "a=18446744073709551616"] {
            assert!(fixed(wrong).unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn passes_are_left_out_one_by_one() {
        assert_eq!(passes(&[], &[]), Passes::all());
        assert_eq!(passes(&[PassName::All], &[]), Passes::none());
        let some = passes(&[PassName::Quirks, PassName::Syscalls], &[OptionalPass::DuplicatesTaken]);
        assert_eq!(some, Passes { quirks: false, syscalls: false, duplicates_taken: true, ..Passes::all() });
    }
}
