//! Reduced kernels are built, linked and started: the same results as stock, no warning in the log,
//! and removed system calls answer ENOSYS.
//!
//! Building a kernel takes minutes, so these run only with `RUNNEL_KERNEL_SOURCE` set, by `cargo
//! xtask kernel`. They need what a kernel's build needs, busybox-static, e2fsprogs and
//! qemu-system-x86; for AArch64 gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-system-arm and a
//! mirror of Debian. AArch64 is skipped without its tools.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use coverage::{BlockMap, Function, Phase};
use kernel::{
    Asked, Boot, Build, End, Job, KernelError, KernelSizes, Layout, Link, Machine, Processor, Recorder, block_map,
};
use specialise::{Options, Passes};

mod device;
mod frozen;

use device::{Device, numbers};

/// Far more than a start takes, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(400);

/// ENOSYS of Linux on both processors.
const ENOSYS: &str = "38";

/// What a log must not have.
const COMPLAINTS: [&str; 7] =
    ["WARNING:", "BUG:", "Oops", "Call Trace", "invalid opcode", "Kernel panic", "general protection"];

/// Calls that are not tried with wrong arguments: those that end or double a process by what they
/// are for.
const NOT_TRIED: [&str; 8] = [
    "sys_rt_sigreturn",
    "sys_clone",
    "sys_fork",
    "sys_vfork",
    "sys_exit",
    "sys_reboot",
    "sys_exit_group",
    "sys_clone3",
];

struct World {
    work: PathBuf,
    device: Device,
    job: Job,
    build: Build,
    object: Vec<u8>,
}

/// The world of a device; `None`, with a note, where no kernel is to be built.
fn world(config: &str, device: fn(&Path) -> Device) -> Option<World> {
    let job = job(config, device)?;
    let build = job.1.build(&mut |text| eprintln!("{text}")).unwrap();
    let object = fs::read(build.object()).unwrap();
    Some(World { work: job.0, device: job.2, job: job.1, build, object })
}

/// As [`world`], before anything is built: the folder for builds, what is to be built, and the
/// device.
fn job(config: &str, device: fn(&Path) -> Device) -> Option<(PathBuf, Job, Device)> {
    let Some(source) = std::env::var_os("RUNNEL_KERNEL_SOURCE").map(PathBuf::from) else {
        eprintln!("skipped: RUNNEL_KERNEL_SOURCE names no kernel source; see cargo xtask kernel");
        return None;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = std::env::var_os("RUNNEL_KERNEL_WORK").map_or_else(|| here.join("../../target/kernel"), PathBuf::from);
    fs::create_dir_all(&work).unwrap();
    let work = fs::canonicalize(work).unwrap();
    let device = device(&work);
    let devices = here.join("devices");
    let job = Job {
        source,
        build: work.join(format!("build-{config}")),
        output: work.join(format!("out-{config}")),
        asked: Asked {
            config: devices.join(format!("{config}.config")),
            command_line: Some(device.processor().command_line().to_string()),
            devices: device.hardware().map(|list| devices.join(list)),
            syscalls: device.call_list(),
            ..Asked::default()
        },
        calls: device.calls(),
        passes: Passes::all(),
        layout: Layout::Stock,
        codec: None,
        freeze: None,
        instrument: false,
    };
    Some((work, job, device))
}

/// Whether what takes long is to be done; with a note where it is not.
fn is_full() -> bool {
    let full = std::env::var_os("RUNNEL_KERNEL_FULL").is_some();
    if !full {
        eprintln!("skipped: RUNNEL_KERNEL_FULL is not set; see cargo xtask kernel --full");
    }
    full
}

impl World {
    fn options(&self, passes: Passes, trap: bool) -> Options {
        Options { passes, trap, ..self.job.options(&self.build).unwrap() }
    }

    fn link(&self, name: &str, object: &[u8], layout: Layout) -> kernel::Output {
        let folder = self.work.join(format!("link-{}-{name}", self.job.asked.config.file_stem().unwrap().display()));
        Link::new(&self.build, &folder).unwrap().run(object, layout).unwrap()
    }

    /// Starts a kernel with calls to try: some that stay, and some that are removed.
    fn boot(&self, kernel: &Path, kept: &[u32], removed: &[u32], processors: u32) -> Boot {
        let folder = tempfile::tempdir().unwrap();
        self.machine(folder.path(), kernel, (kept, removed), processors).run().unwrap()
    }

    /// The device, its files in `folder`.
    fn machine(&self, folder: &Path, kernel: &Path, calls: (&[u32], &[u32]), processors: u32) -> Machine {
        let initramfs = folder.join("initramfs");
        fs::write(&initramfs, self.device.initramfs(calls.0, calls.1)).unwrap();
        Machine {
            kernel: kernel.to_path_buf(),
            initramfs,
            command_line: self.device.processor().command_line().to_string(),
            disks: self.device.disks(folder),
            memory_mib: 256,
            processors,
            counted: false,
            deadline: DEADLINE,
        }
    }

    /// Numbers of calls by entry points.
    fn numbers(&self, entries: &[String]) -> Vec<u32> {
        let (table, kinds) = self.device.processor().calls();
        numbers(&self.build.source().folder().join(table), kinds, entries)
    }
}

/// The lines that must be the same on every kernel.
fn results(boot: &Boot) -> Vec<String> {
    let lines = boot.console.lines().map(str::trim_end);
    lines.filter(|line| line.starts_with("@@")).map(str::to_string).collect()
}

fn check_log(name: &str, boot: &Boot) {
    assert!(boot.ended, "{name} hangs:\n{}", boot.console);
    for complaint in COMPLAINTS {
        assert!(!boot.console.contains(complaint), "{name}: {complaint}\n{}", boot.console);
    }
    assert!(boot.console.contains("@@done"), "{name} did not come to its end:\n{}", boot.console);
}

/// Sizes of loaded sections, as binutils see them.
fn sections(vmlinux: &Path) -> Vec<String> {
    let output = Command::new("size").arg("-A").arg(vmlinux).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.starts_with('.') || line.starts_with("__"));
    lines.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn symbols(vmlinux: &Path) -> Vec<String> {
    let output = Command::new("nm").arg("-S").arg(vmlinux).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Without the address: size (if there is one), kind, name.
    let mut lines: Vec<String> =
        text.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest.to_string()).collect();
    lines.sort();
    lines
}

fn measure(name: &str, output: &kernel::Output) -> KernelSizes {
    let sizes = KernelSizes::measure(&fs::read(&output.vmlinux).unwrap()).unwrap();
    let bzimage = fs::metadata(&output.bzimage).unwrap().len();
    eprintln!("{name}: resident {} bzImage {bzimage} {sizes:?}", sizes.resident());
    sizes
}

/// Each removed call answers ENOSYS and is logged once, with the program that made it, however
/// often it is made.
fn check_removed(name: &str, boot: &Boot, calls: &[u32]) {
    let lines: Vec<&str> = boot.console.lines().map(str::trim_end).collect();
    let answers: BTreeSet<&str> = lines.iter().filter(|line| line.starts_with("removed ")).copied().collect();
    let expected: Vec<String> = calls.iter().map(|call| format!("removed {call} {ENOSYS}")).collect();
    assert!(calls.len() > 20, "{name}: {calls:?}");
    assert_eq!(answers, expected.iter().map(String::as_str).collect(), "{name}");
    for call in calls {
        let logged: Vec<&&str> =
            lines.iter().filter(|line| line.ends_with(&format!("system call {call} is not in this kernel"))).collect();
        assert!(logged.len() == 1 && logged[0].contains("calls["), "{name}: {call}: {logged:?}\n{}", boot.console);
    }
}

/// Every step of one configuration.
fn check(world: &World, processors: u32) {
    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let removed = world.numbers(&reduced.report.device.syscalls_removed);
    let mut kept = reduced.report.device.syscalls_kept.clone();
    kept.retain(|call| !NOT_TRIED.contains(&call.as_str()));
    let kept = world.numbers(&kept);

    let stock = world.link("stock", &world.object, Layout::Stock);
    let stock_sizes = measure("stock", &stock);
    let booted = world.boot(&stock.bzimage, &kept, &[], processors);
    check_log("stock", &booted);
    let expected = results(&booted);
    assert!(expected.len() >= 35 + kept.len(), "the device did its work: {expected:?}");
    if world.device.has_fuse() {
        for line in ["@@fuse the same", "@@fuse ended"] {
            assert!(expected.iter().any(|found| found == line), "{line}\n{}", booted.console);
        }
    }

    let whole = specialise::specialise(&world.object, &world.options(Passes::none(), false)).unwrap();
    let whole = world.link("whole", &whole.object, Layout::Stock);
    measure("round trip", &whole);
    // Strings are merged in another order, and names compressed by other counts; all else is equal.
    let but_rodata = |output: &kernel::Output| {
        sections(&output.vmlinux).into_iter().filter(|line| !line.starts_with(".rodata ")).collect::<Vec<_>>()
    };
    assert_eq!(but_rodata(&stock), but_rodata(&whole));
    assert_eq!(symbols(&stock.vmlinux), symbols(&whole.vmlinux));
    let booted = world.boot(&whole.bzimage, &kept, &[], processors);
    check_log("round trip", &booted);
    assert_eq!(results(&booted), expected);

    // What is removed is first filled with traps: whatever is entered has a name in the log.
    let trap = specialise::specialise(&world.object, &world.options(Passes::all(), true)).unwrap();
    let trap = world.link("trap", &trap.object, Layout::Stock);
    let booted = world.boot(&trap.bzimage, &kept, &removed, processors);
    check_log("trap build", &booted);
    assert_eq!(results(&booted), expected);

    let linked = world.link("reduced", &reduced.object, Layout::Stock);
    let sizes = measure("reduced", &linked);
    assert!(sizes.resident() * 100 < stock_sizes.resident() * 86, "less than 14 % is gone");
    let booted = world.boot(&linked.bzimage, &kept, &removed, processors);
    check_log("reduced", &booted);
    assert_eq!(results(&booted), expected);
    check_removed("reduced", &booted, &removed);
}

/// Where the kernel's memory begins that its symbols name, where it is not at a random place.
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// The value of a symbol.
fn address(system_map: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(system_map).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(name)).unwrap();
    u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
}

/// A kernel that counts does the same work, and says what of it ran.
fn check_counting(world: &World, processors: u32) {
    let stock = world.link("stock", &world.object, Layout::Stock);
    measure("stock", &stock);
    let booted = world.boot(&stock.bzimage, &[], &[], processors);
    check_log("stock", &booted);
    let expected = results(&booted);

    let options = Options { instrument: true, ..world.options(Passes::none(), false) };
    let counted = specialise::specialise(&world.object, &options).unwrap();
    let linked = world.link("instrumented", &counted.object, Layout::Stock);
    measure("instrumented", &linked);
    let folder = tempfile::tempdir().unwrap();
    let mut machine = world.machine(folder.path(), &linked.bzimage, (&[], &[]), processors);
    machine.command_line.push_str(" nokaslr");
    let memory = folder.path().join("memory");
    let booted = machine.run_keeping_memory(&memory).unwrap();
    check_log("instrumented", &booted);
    assert_eq!(results(&booted), expected);

    let start = address(&linked.system_map, "specialise_coverage");
    let end = address(&linked.system_map, "specialise_coverage_end");
    let blocks: usize = counted.counters.iter().map(|function| function.blocks.len()).sum();
    assert_eq!(end - start, blocks as u64);
    let place = (start - KERNEL_MAP) as usize..(end - KERNEL_MAP) as usize;
    let counters = fs::read(&memory).unwrap()[place].to_vec();
    assert!(counters.iter().all(|counter| *counter <= 1));
    let blocks_of = || counted.counters.iter().flat_map(|function| &function.blocks);
    let listed: u64 = counted.counters.iter().map(|function| function.bytes).sum();
    let bytes: u64 = blocks_of().map(|block| u64::from(block.bytes)).sum();
    let executed: u64 = blocks_of().zip(&counters).map(|(block, ran)| u64::from(block.bytes) * u64::from(*ran)).sum();
    let without = counted.counters.iter().filter(|function| function.blocks.is_empty()).count();
    eprintln!(
        "{} functions, {without} not counted; {blocks} blocks, {} ran; bytes: {listed}, {bytes} counted, {executed} ran",
        counted.counters.len(),
        counters.iter().filter(|counter| **counter == 1).count()
    );
    assert!(bytes * 10 > listed * 9, "less than nine tenths are counted");

    // As `specialise --instrument` writes the map and `record --kernel-counters` reads it.
    let text = block_map(world.build.source().release(), &counted.counters).unwrap().write();
    let map = BlockMap::read(text.as_bytes()).unwrap();
    let found = coverage::from_counters(&map, &counters, Phase::Whole, "web").unwrap();
    let executed = |name: &str| found.functions.iter().find(|function| function.name == name).map(Function::executed);
    for name in ["vfs_read", "schedule", "do_exit"] {
        assert!(executed(name) > Some(0), "{name}: {:?}", executed(name));
    }
    for name in ["panic", "__x64_sys_setrlimit"] {
        let is_counted = counted.counters.iter().any(|function| function.name == name && !function.blocks.is_empty());
        assert!(is_counted && executed(name).is_none(), "{name}: {:?}", executed(name));
    }
    let read = found.functions.iter().find(|function| function.name == "vfs_read").unwrap();
    assert!(read.executed() < read.bytes, "errors are ways of their own");
    // What is not counted may have run.
    let uncounted = counted.counters.iter().find(|function| function.blocks.is_empty() && function.bytes > 0);
    let uncounted = uncounted.unwrap();
    assert!(executed(&uncounted.name) >= Some(uncounted.bytes), "{}", uncounted.name);
    assert_eq!(coverage::read(coverage::write(&found).unwrap().as_bytes()).unwrap(), found);
}

#[test]
fn qemu_a_small_kernel_counts_what_runs() {
    let Some(world) = world("tiny-web", Device::web) else { return };
    check_counting(&world, 1);
}

#[test]
fn qemu_a_mainstream_kernel_counts_what_runs() {
    if !is_full() {
        return;
    }
    let Some(world) = world("mainstream", Device::web) else { return };
    check_counting(&world, 2);
}

#[test]
fn qemu_a_small_kernel_is_reduced_and_does_its_work() {
    let Some(world) = world("tiny-web", Device::web) else { return };
    check(&world, 1);
}

#[test]
fn qemu_a_mainstream_kernel_is_reduced_and_does_its_work() {
    if !is_full() {
        return;
    }
    let Some(world) = world("mainstream", Device::web) else { return };
    // Page table isolation maps the kernel by 2 MiB.
    let refused = Layout::Compact.check(&world.build);
    assert!(matches!(&refused, Err(KernelError::Config { .. })), "{refused:?}");
    check(&world, 2);
}

#[test]
fn qemu_a_kernel_for_aarch64_is_reduced_and_does_its_work() {
    if !Device::has_virt() {
        return;
    }
    let Some(world) = world("tiny-virt", Device::virt) else { return };
    assert_eq!((world.build.processor(), &world.build.unmet), (Processor::Aarch64, &Vec::new()));
    check(&world, 2);
}

#[test]
fn qemu_a_small_kernel_is_reduced_for_python_from_an_image() {
    if !is_full() {
        return;
    }
    let Some(world) = world("tiny-web", Device::python) else { return };
    let stock = world.boot(&world.link("python-stock", &world.object, Layout::Stock).bzimage, &[], &[], 1);
    check_log("stock", &stock);
    let expected = results(&stock);
    assert!(expected.iter().any(|line| line == "@@python 0"), "{}", stock.console);
    for trap in [true, false] {
        let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), trap)).unwrap();
        assert!(reduced.report.device.syscalls_removed.len() > 50, "{:?}", reduced.report.device.syscalls_kept);
        let linked = world.link("python-reduced", &reduced.object, Layout::Stock);
        let name = if trap { "trap build" } else { "reduced" };
        measure(name, &linked);
        let booted = world.boot(&linked.bzimage, &[], &[], 1);
        check_log(name, &booted);
        assert_eq!(results(&booted), expected);
    }
}

#[test]
fn qemu_the_compact_layout_starts_and_gives_padding_back() {
    let Some(world) = world("tiny-web", Device::web) else { return };
    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let linked = world.link("compact", &reduced.object, Layout::Compact);
    let sizes = measure("reduced, compact", &linked);
    assert!(sizes.padding < 64 << 10, "{sizes:?}");
    let booted = world.boot(&linked.bzimage, &[], &[], 1);
    check_log("compact", &booted);
}

#[test]
fn qemu_what_a_kernel_executes_is_recorded() {
    let Some(world) = world("tiny-web", Device::web) else { return };
    let stock = world.link("recorded", &world.object, Layout::Stock);
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder {
        machine: world.machine(folder.path(), &stock.bzimage, (&[], &[]), 1),
        vmlinux: stock.vmlinux.clone(),
        service_at: Some("@@net".to_string()),
        until: None,
        scenario: "web".to_string(),
    };
    let mut console = String::new();
    let recorded = recorder.run(&|| false, &mut |line| console.push_str(&format!("{line}\n"))).unwrap();
    assert!(recorded.end == End::PoweredOff && console.contains("@@done"), "{console}");
    let seen = recorded.seen;
    assert!(seen.blocks > 20_000 && seen.outside * 100 < seen.blocks && seen.different * 20 < seen.blocks, "{seen:?}");
    let ran = |name: &str| recorded.coverage.function(name).map(|function| (function.boot, function.service));
    // `startup_64` runs where it is loaded, before the kernel runs where it is linked for.
    for name in ["startup_64", "start_kernel", "kernel_init", "setup_arch", "populate_rootfs"] {
        assert_eq!(ran(name), Some((true, false)), "{name}");
    }
    for name in ["do_syscall_64", "vfs_read", "vfs_write", "__schedule", "do_filp_open", "asm_exc_page_fault"] {
        assert_eq!(ran(name), Some((true, true)), "{name}");
    }
    // The device mounts its disks after that line.
    for name in ["ext4_fill_super", "ext4_readdir", "erofs_readdir", "tcp_v4_connect"] {
        assert_eq!(ran(name), Some((false, true)), "{name}");
    }
    for name in ["panic", "oops_end", "__die", "sysrq_handle_crash"] {
        assert_eq!(ran(name), None, "{name}");
    }
    let read = recorded.coverage.function("vfs_read").unwrap();
    assert!(read.executed() > 0 && read.executed() < read.bytes, "some of it handles errors: {read:?}");
    let service: u64 = recorded.coverage.functions.iter().map(coverage::Function::executed_in_service).sum();
    let all: u64 = recorded.coverage.functions.iter().map(coverage::Function::executed).sum();
    let (functions, bytes) = recorded.totals;
    eprintln!("executed {all} bytes, {service} in service, of {bytes} in {functions} functions");
    assert!((15..50).contains(&(all * 100 / bytes)) && service < all && (8..30).contains(&(service * 100 / bytes)));
    let text = coverage::write(&recorded.coverage).unwrap();
    assert_eq!(coverage::read(text.as_bytes()).unwrap(), recorded.coverage);

    // A linked kernel that is not the one that ran, and a service that never begins.
    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let other = world.link("not-recorded", &reduced.object, Layout::Stock);
    let wrong = Recorder { vmlinux: other.vmlinux, ..recorder.clone() };
    assert!(matches!(wrong.run(&|| false, &mut |_| ()), Err(KernelError::Input { .. })));
    // Ends that are not the device's own: a line, which only counts once the service began, and
    // somebody who asks.
    let until = Recorder { until: Some("@@".to_string()), ..recorder.clone() };
    let mut lines = 0;
    let recorded = until.run(&|| false, &mut |line| lines += u32::from(line.starts_with("@@"))).unwrap();
    assert!(recorded.end == End::Said && lines > 2, "{:?} {lines}", recorded.end);
    assert!(
        recorded.coverage.function("ext4_fill_super").is_none() && recorded.coverage.function("vfs_read").is_some()
    );
    let up = std::cell::Cell::new(false);
    let any = Recorder { service_at: None, ..recorder.clone() };
    let recorded = any.run(&|| up.get(), &mut |line| up.set(up.get() || line.starts_with("@@up"))).unwrap();
    assert_eq!(recorded.end, End::Asked);
    assert!(recorded.coverage.function("vfs_read").is_some());
    let silent = Recorder { service_at: Some("@@never".to_string()), ..recorder };
    assert!(matches!(silent.run(&|| false, &mut |_| ()), Err(KernelError::Recording { .. })));
}
