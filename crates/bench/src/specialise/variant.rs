//! One kernel in all its variants: stock, collected by the linker, with one pass more each time,
//! compact.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use kernel::{Asked, Build, Calls, Job, KernelSizes, Layout, Link, Output, Source, reference};
use pack::LocalRoot;
use specialise::Passes;
use syscalls::analysis::{Options, Subject, analyse};

use super::Size;
use super::micro;
use super::results::{ALL, COMPACT, MAINSTREAM, Results, SMALL};
use crate::stream::say;

/// The program of the device.
const PROGRAM: &str = "/bin/busybox";

/// A device to build a kernel for.
pub struct Device {
    pub(super) name: &'static str,
    pub(super) work: PathBuf,
    pub(super) job: Job,
    /// The program that is all it has.
    pub(super) program: PathBuf,
}

/// A pass by its name, and how it is switched on.
type Step = (&'static str, fn(&mut Passes));

/// The passes in their order; each row of the bench has all before it too.
const STEPS: [Step; 11] = [
    ("unreachable", |passes| passes.unreachable = true),
    ("syscalls", |passes| passes.syscalls = true),
    ("parameters", |passes| passes.parameters = true),
    ("quirks", |passes| passes.quirks = true),
    ("drivers", |passes| passes.drivers = true),
    ("constants", |passes| passes.constants = true),
    ("blocks", |passes| passes.blocks = true),
    ("padding", |passes| passes.padding = true),
    ("names", |passes| passes.names = true),
    ("duplicates", |passes| passes.duplicates = true),
    ("initialisation", |passes| passes.initialisation = true),
];

impl Device {
    /// The small configuration.
    pub fn small(source: &Path, work: &Path, tree: &Path) -> anyhow::Result<Device> {
        Device::new(SMALL, reference::TINY_WEB, source, work, tree)
    }

    /// The mainstream configuration.
    pub fn mainstream(source: &Path, work: &Path, tree: &Path) -> anyhow::Result<Device> {
        Device::new(MAINSTREAM, reference::MAINSTREAM, source, work, tree)
    }

    fn new(name: &'static str, config: &str, source: &Path, work: &Path, tree: &Path) -> anyhow::Result<Device> {
        let file = |name: String, text: &str| -> anyhow::Result<PathBuf> {
            let path = work.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            Ok(path)
        };
        let mut calls = Calls::default();
        let options = Options { with_arguments: true, ..Options::default() };
        let subject = Subject::Programs(vec![PROGRAM.as_bytes().to_vec()]);
        calls.add(Path::new(PROGRAM), &analyse(&LocalRoot::new(tree), &subject, &options)?)?;
        let job = Job {
            source: source.to_path_buf(),
            build: work.join(format!("build-{name}")),
            output: work.join(format!("bench-{name}")),
            asked: Asked {
                config: file(format!("{name}.config"), config)?,
                command_line: Some(kernel::Processor::X86_64.command_line().to_string()),
                devices: Some(file("qemu-q35.devices".to_string(), reference::DEVICES)?),
                ..Asked::default()
            },
            calls,
            passes: Passes::all(),
            layout: Layout::Stock,
            codec: None,
            freeze: None,
            instrument: false,
        };
        let program = tree.join(PROGRAM.trim_start_matches('/'));
        Ok(Device { name, work: work.to_path_buf(), job, program })
    }
}

/// Sizes of one variant, against which others are set.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub(super) sizes: KernelSizes,
    pub(super) bzimage: u64,
}

impl Measured {
    pub(super) fn of(output: &Output) -> anyhow::Result<Measured> {
        let bytes = fs::read(&output.vmlinux).with_context(|| output.vmlinux.display().to_string())?;
        let sizes = KernelSizes::measure(&bytes).context("the link made no kernel")?;
        Ok(Measured { sizes, bzimage: fs::metadata(&output.bzimage)?.len() })
    }

    /// What is loaded, as the bar of the mainstream configuration counts: code, constants,
    /// variables, unwinder tables.
    pub(super) fn loaded(&self) -> u64 {
        let sizes = &self.sizes;
        sizes.text + sizes.rodata + sizes.kallsyms + sizes.data + sizes.orc
    }

    pub(super) fn add(&self, stock: &Measured, case: &str, peer: &'static str, mode: &str, results: &mut Results) {
        let sizes = &self.sizes;
        let padded = |sizes: &KernelSizes| sizes.resident() + sizes.padding;
        for (metric, bytes) in [
            ("resident", sizes.resident()),
            ("bzimage", self.bzimage),
            ("text", sizes.text),
            ("rodata", sizes.rodata),
            ("kallsyms", sizes.kallsyms),
            ("data", sizes.data),
            ("orc", sizes.orc),
            ("bss", sizes.bss),
            ("padding", sizes.padding),
            ("init", sizes.init_text + sizes.init_data),
        ] {
            results.add(case, peer, mode, metric, "B", bytes as f64);
        }
        let less = |value: u64, stock: u64| 1.0 - value as f64 / stock as f64;
        for (metric, share) in [
            ("resident_reduction", less(sizes.resident(), stock.sizes.resident())),
            ("bzimage_reduction", less(self.bzimage, stock.bzimage)),
            ("loaded_reduction", less(self.loaded(), stock.loaded())),
            ("padded_reduction", less(padded(sizes), padded(&stock.sizes))),
        ] {
            results.add(case, peer, mode, metric, "share", share);
        }
    }
}

/// What other kernels of a device are set against.
pub struct Beside {
    /// The stock kernel.
    pub(super) stock: Measured,
    /// The one with all passes, in the layout that the device would have.
    pub(super) reduced: Measured,
    /// Instructions of operations on the stock kernel.
    pub(super) instructions: BTreeMap<String, f64>,
}

/// Measures all variants of a device.
///
/// # Errors
/// A kernel cannot be built, linked or started.
pub fn measure(device: &Device, size: Size, results: &mut Results) -> anyhow::Result<Beside> {
    let case = device.name;
    let build = device.job.build(&mut |text| say(&format!("{case}: {text}")))?;
    let object = fs::read(build.object())?;
    let link = Link::new(&build, &device.work.join(format!("bench-link-{case}")))?;
    let program = micro::program(&device.work)?;
    let count = |output: &Output| micro::instructions(&program, &output.bzimage, &device.work);

    say(&format!("{case}: stock"));
    let output = link.run(&object, Layout::Stock)?;
    let stock = Measured::of(&output)?;
    stock.add(&stock, case, "stock", "default", results);
    let instructions = count(&output)?;
    add_counts(case, "stock", "default", &instructions, results);

    say(&format!("{case}: gc-sections"));
    Measured::of(&link.run_collected(&object)?)?.add(&stock, case, "gc-sections", "default", results);
    thin_lto(device, size, &stock, results, &count)?;

    let mut passes = Passes::none();
    for (index, (name, switch)) in STEPS.iter().enumerate() {
        switch(&mut passes);
        let is_last = index + 1 == STEPS.len();
        if size != Size::Quick && !is_last {
            say(&format!("{case}: {name}"));
            let outcome = reduce(device, &build, &object, passes)?;
            Measured::of(&link.run(&outcome.object, Layout::Stock)?)?.add(&stock, case, "runnel", name, results);
        }
    }
    say(&format!("{case}: all passes"));
    reset_peak();
    let start = Instant::now();
    let outcome = reduce(device, &build, &object, Passes::all())?;
    results.add(case, "runnel", ALL, "analysis_seconds", "s", start.elapsed().as_secs_f64());
    if let Some(bytes) = peak_bytes() {
        results.add(case, "runnel", ALL, "analysis_peak_bytes", "B", bytes as f64);
    }
    let output = link.run(&outcome.object, Layout::Stock)?;
    Measured::of(&output)?.add(&stock, case, "runnel", ALL, results);
    let reduced = count(&output)?;
    add_counts(case, "runnel", ALL, &reduced, results);
    if let Some(change) = micro::change(&instructions, &reduced) {
        results.add(case, "runnel", ALL, "instructions_change", "share", change);
    }
    let mut smallest = Measured::of(&output)?;
    if Layout::Compact.check(&build).is_ok() {
        say(&format!("{case}: compact"));
        let output = link.run(&outcome.object, Layout::Compact)?;
        smallest = Measured::of(&output)?;
        smallest.add(&stock, case, "runnel", COMPACT, results);
    }
    Ok(Beside { stock, reduced: smallest, instructions })
}

/// The kernel's own ThinLTO, by another compiler, where that is there: only with the small
/// configuration, since it takes a build of its own.
fn thin_lto(
    device: &Device,
    size: Size,
    stock: &Measured,
    results: &mut Results,
    count: &dyn Fn(&Output) -> anyhow::Result<BTreeMap<String, f64>>,
) -> anyhow::Result<()> {
    let case = device.name;
    let why_not = if size != Size::Full {
        Some("only with --full".to_string())
    } else if case != SMALL {
        Some("only of the small configuration".to_string())
    } else {
        (!kernel::has_clang()).then(|| format!("it needs the packages {}", kernel::CLANG_PACKAGES.join(", ")))
    };
    if let Some(why_not) = why_not {
        results.notes.push(format!("{case}: ThinLTO is not measured: {why_not}"));
        return Ok(());
    }
    say(&format!("{case}: ThinLTO"));
    let source = Source::open(&device.job.source)?;
    let config =
        fs::read_to_string(&device.job.asked.config).with_context(|| device.job.asked.config.display().to_string())?;
    let folder = device.work.join(format!("build-{case}-thinlto"));
    let output = kernel::thin_lto(&source, &config, &folder, &mut |text| say(&format!("{case}: {text}")))?;
    Measured::of(&output)?.add(stock, case, "thinlto", "default", results);
    // It must start, too.
    add_counts(case, "thinlto", "default", &count(&output)?, results);
    Ok(())
}

pub(super) fn add_counts(
    case: &str,
    peer: &'static str,
    mode: &str,
    counts: &BTreeMap<String, f64>,
    results: &mut Results,
) {
    for (name, count) in counts {
        results.add(case, peer, mode, &format!("instructions_{name}"), "count", *count);
    }
}

fn reduce(device: &Device, build: &Build, object: &[u8], passes: Passes) -> anyhow::Result<specialise::Outcome> {
    let options = specialise::Options { passes, ..device.job.options(build)? };
    Ok(specialise::specialise(object, &options)?)
}

/// Lets the kernel count the most memory of this process anew; where it cannot, the count has all
/// that was before.
fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
