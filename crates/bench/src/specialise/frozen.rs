//! Code that a web server's service does not run, kept compressed: what it saves, how long it takes
//! to come back, what it costs.
//!
//! The service is recorded once on the stock kernel. Times and instructions are of a guest that
//! counts an instruction each nanosecond, a processor of 1 GIPS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use kernel::{Boot, Codec, Frozen, Initramfs, Job, Layout, Link, Machine, Output, Processor, Recorder, reference};

use super::Size;
use super::micro;
use super::results::{FROZEN_LZ4, FROZEN_ZSTD, Results, SMALL};
use super::variant::{Beside, Device, Measured};
use crate::process::tool;
use crate::stream::say;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Pages that are thawed at any time, as the project's bar counts them.
const THAWED_PAGES: u64 = 25;

/// More than one service takes on a busy machine; five days take an hour.
const DEADLINE: Duration = Duration::from_secs(2 * 3600);

/// Five days: a request every five minutes, and what it says of itself twice a day.
const DAYS: &str = "requests=1440 pause=300 report=144";

/// Measures kernels of a device with frozen code.
///
/// # Errors
/// A kernel cannot be recorded, built, linked or started.
pub fn measure(device: &Device, size: Size, beside: &Beside, results: &mut Results) -> anyhow::Result<()> {
    let case = device.name;
    let folder = tempfile::tempdir()?;
    let guest = Guest::create(&device.program, folder.path())?;
    say(&format!("{case}: recording its service"));
    let build = device.job.build(&mut |text| say(&format!("{case}: {text}")))?;
    let link = Link::new(&build, &device.work.join(format!("bench-link-{case}")))?;
    let stock = link.run(&fs::read(build.object())?, Layout::Stock)?;
    let recorder = Recorder {
        machine: guest.machine(&stock.bzimage, "", false),
        vmlinux: stock.vmlinux.clone(),
        service_at: Some("@@service".to_string()),
        until: None,
        scenario: "web".to_string(),
    };
    let recorded = recorder.run(&|| false, &mut |_| ())?;
    let coverage = device.work.join(format!("bench-{case}.cov"));
    fs::write(&coverage, coverage::write(&recorded.coverage)?).with_context(|| coverage.display().to_string())?;
    let both = [(FROZEN_LZ4, Codec::Lz4), (FROZEN_ZSTD, Codec::Zstd)];
    for (mode, codec) in both.into_iter().filter(|(mode, _)| case == SMALL || *mode == FROZEN_ZSTD) {
        Kernel { device, mode, codec, coverage: &coverage }.measure(size, beside, &guest, results)?;
    }
    Ok(())
}

/// A kernel with frozen code.
struct Kernel<'a> {
    device: &'a Device,
    mode: &'static str,
    codec: Codec,
    coverage: &'a Path,
}

impl Kernel<'_> {
    fn measure(&self, size: Size, beside: &Beside, guest: &Guest, results: &mut Results) -> anyhow::Result<()> {
        let (case, mode) = (self.device.name, self.mode);
        let tell = |text: &str| say(&format!("{case}: {mode}: {text}"));
        let (output, frozen) = self.link(false, &tell)?;
        let mut add = |metric: &str, unit, value| results.add(case, "runnel", mode, metric, unit, value);
        add("never_ran_frozen", "share", frozen.never_ran_frozen as f64 / frozen.never_ran.max(1) as f64);
        let measured = Measured::of(&output)?;
        let bzimage_change = |image: u64| image as f64 / beside.reduced.bzimage as f64 - 1.0;
        add("bzimage_change", "share", bzimage_change(measured.bzimage));

        tell("its service");
        let started = Started::of(&guest.run(&output.bzimage, "", true)?)?;
        let net = started.net(measured.sizes.resident());
        let less = |value: u64, stock: u64| 1.0 - value as f64 / stock as f64;
        add("frozen_bytes", "B", (started.frozen * PAGE) as f64);
        add("compressed_bytes", "B", started.compressed as f64);
        add("net_resident", "B", net as f64);
        add("net_reduction", "share", less(net, beside.stock.sizes.resident()));
        add("net_loaded_reduction", "share", less(started.net(measured.loaded()), beside.stock.loaded()));
        add("thaws", "count", started.thaws);
        add("thaw_us", "us", started.thaw_ns / 1e3);
        add("thaw_most_us", "us", started.thaw_most_ns / 1e3);

        tell("instructions");
        let counts = micro::instructions(&micro::program(&self.device.work)?, &output.bzimage, &self.device.work)?;
        super::variant::add_counts(case, "runnel", mode, &counts, results);
        measured.add(&beside.stock, case, "runnel", mode, results);
        let mut add = |metric: &str, unit, value| results.add(case, "runnel", mode, metric, unit, value);
        if let Some(change) = micro::change(&beside.instructions, &counts) {
            add("instructions_change", "share", change);
        }
        if size == Size::Full && case == SMALL {
            tell("five days");
            let boot = guest.run(&output.bzimage, DAYS, true)?;
            let days = Started::of(&boot)?;
            let memory = available(&boot);
            let (Some(first), Some(last)) = (memory.get(1), memory.last()) else {
                anyhow::bail!("the guest did not say what memory it has:\n{}", tail(&boot));
            };
            add("days_thaws", "count", days.thaws);
            add("days_memory_change", "share", 1.0 - last / first);
        }
        let (output, _) = self.link(true, &tell)?;
        add("for_image_bzimage_change", "share", bzimage_change(Measured::of(&output)?.bzimage));
        Ok(())
    }

    fn link(&self, for_image: bool, tell: &dyn Fn(&str)) -> anyhow::Result<(Output, specialise::FreezeReport)> {
        let (device, mode) = (self.device, self.mode);
        let folder = |name: &str| device.work.join(format!("{name}-{}-{mode}", device.name));
        let job = Job {
            build: folder("bench-build"),
            codec: Some(self.codec),
            freeze: Some(Frozen::open(self.coverage, for_image)?),
            ..device.job.clone()
        };
        let build = job.build(&mut |text| tell(text))?;
        let object = fs::read(build.object())?;
        let outcome = specialise::specialise(&object, &job.options(&build)?)?;
        let layout = if Layout::Compact.check(&build).is_ok() { Layout::Compact } else { Layout::Stock };
        tell(if for_image { "linking for a small image" } else { "linking" });
        let output = Link::new(&build, &folder("bench-link"))?.run(&outcome.object, layout)?;
        Ok((output, outcome.report.frozen.context("nothing was frozen")?))
    }
}

/// The web server's files.
struct Guest {
    initramfs: PathBuf,
    disk: PathBuf,
}

impl Guest {
    fn create(busybox: &Path, folder: &Path) -> anyhow::Result<Guest> {
        let mut archive = Initramfs::new();
        for name in ["bin", "dev", "etc", "mnt", "proc", "sys", "tmp", "www", "www/cgi-bin"] {
            archive.folder(name);
        }
        archive.file("bin/busybox", &fs::read(busybox).with_context(|| busybox.display().to_string())?);
        archive.file("init", reference::WEB_SERVICE.as_bytes());
        let blob: Vec<u8> = (0..40_000u32).flat_map(|index| index.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        archive.file("www/blob", &blob);
        archive
            .file("www/cgi-bin/hello", b"#!/bin/sh\necho Content-type: text/plain\necho\necho hello $QUERY_STRING\n");
        archive.file("etc/passwd", b"root::0:0::/:/bin/sh\n");
        let guest = Guest { initramfs: folder.join("initramfs"), disk: folder.join("disk") };
        fs::write(&guest.initramfs, archive.finish())?;
        fs::File::create(&guest.disk)?.set_len(32 << 20)?;
        tool(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&guest.disk))?;
        Ok(guest)
    }

    fn machine(&self, kernel: &Path, settings: &str, counted: bool) -> Machine {
        Machine {
            kernel: kernel.to_path_buf(),
            initramfs: self.initramfs.clone(),
            command_line: format!("{} {settings}", Processor::X86_64.command_line()),
            disks: vec![self.disk.clone()],
            memory_mib: 128,
            processors: 1,
            counted,
            deadline: DEADLINE,
        }
    }

    fn run(&self, kernel: &Path, settings: &str, counted: bool) -> anyhow::Result<Boot> {
        let boot = self.machine(kernel, settings, counted).run()?;
        let is_well =
            boot.console.contains("@@done") && !["Kernel panic", "Oops"].iter().any(|word| boot.console.contains(word));
        ensure!(is_well, "the guest failed:\n{}", tail(&boot));
        Ok(boot)
    }
}

fn tail(boot: &Boot) -> String {
    let lines: Vec<&str> = boot.console.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// What a kernel said of its frozen code.
#[derive(Debug, PartialEq)]
struct Started {
    /// Pages.
    frozen: u64,
    /// Bytes of what replaces them, and of tables. What decodes is part of the kernel's sizes.
    compressed: u64,
    /// Bytes of tables.
    tables: u64,
    /// Pages of the pool.
    pool: u64,
    thaws: f64,
    thaw_ns: f64,
    thaw_most_ns: f64,
}

impl Started {
    /// Reads the line that begins and the numbers of the last report.
    fn of(boot: &Boot) -> anyhow::Result<Started> {
        let unclear = || format!("the kernel did not say what it froze:\n{}", tail(boot));
        let line = boot.console.lines().find(|line| line.contains("bytes compressed")).with_context(unclear)?;
        let (_, line) = line.split_once("frozen text: ").with_context(unclear)?;
        let words = line.split(|letter: char| !letter.is_ascii_digit()).filter(|word| !word.is_empty());
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().with_context(unclear)?;
        // Pages, all pages, compressed bytes, dictionary, tables, decoder, pool.
        let [frozen, _, compressed, _, tables, _, pool] = numbers[..] else { anyhow::bail!(unclear()) };
        let last = boot.console.lines().rfind(|line| line.starts_with("memory ")).with_context(unclear)?;
        let mut words = last.split_whitespace();
        let mut field = |name: &str| {
            words.find(|word| *word == name)?;
            words.next()?.parse::<f64>().ok()
        };
        // In this order.
        let thaws = field("thaws").with_context(unclear)?;
        let thaw_ns = field("thaw_ns").with_context(unclear)?;
        let thaw_most_ns = field("thaw_most_ns").with_context(unclear)?;
        Ok(Started { frozen, compressed, tables, pool, thaws, thaw_ns, thaw_most_ns })
    }

    /// Of `bytes`, frozen pages are gone and what replaces them is there.
    fn net(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.frozen * PAGE) + self.compressed + self.tables + (self.pool + THAWED_PAGES) * PAGE
    }
}

/// Memory in KiB that a program could have, at each report.
fn available(boot: &Boot) -> Vec<f64> {
    let reports = boot.console.lines().filter(|line| line.starts_with("memory "));
    let number = |line: &str| line.split_once("MemAvailable:")?.1.split_whitespace().next()?.parse().ok();
    reports.filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(console: &str) -> Boot {
        Boot { console: console.to_string(), ended: true }
    }

    #[test]
    fn what_a_kernel_says_is_counted() {
        let console = "[ 0.1] frozen text: 3 of 4 pages, 5000 bytes compressed with 65536 of dictionary, 100 of tables, 0 of decoder, pool of 8\n\
                       memory 0 MemTotal: 9 kB MemFree: 8 kB MemAvailable: 7 kB thaws 1 thaw_ns 1 thaw_most_ns 1\n\
                       memory end MemTotal: 9 kB MemFree: 8 kB MemAvailable: 6 kB pages 4 thaws 20 thaw_ns 30000 thaw_most_ns 45000 \n";
        let started = Started::of(&boot(console)).unwrap();
        let expected = Started {
            frozen: 3,
            compressed: 5000,
            tables: 100,
            pool: 8,
            thaws: 20.0,
            thaw_ns: 30000.0,
            thaw_most_ns: 45000.0,
        };
        assert_eq!(started, expected);
        assert_eq!(started.net(1_000_000), 1_000_000 - 3 * 4096 + 5000 + 100 + 33 * 4096);
        assert_eq!(available(&boot(console)), [7.0, 6.0]);
        assert!(Started::of(&boot("")).is_err() && Started::of(&boot("frozen text: 3 bytes compressed")).is_err());
    }
}
