//! Reduced kernels are built, linked and started: the same results as stock, no warning in the log, and removed system calls
//! answer ENOSYS.
//!
//! Building a kernel takes minutes, so these run only with `RUNNEL_KERNEL_SOURCE` set, by `cargo xtask kernel`. They need
//! what a kernel's build needs, busybox-static, e2fsprogs and qemu-system-x86.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kernel::{Boot, Build, Initramfs, Job, KernelSizes, Layout, Link, Machine, read_syscalls};
use specialise::{Options, Passes};

/// Far more than a start takes, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(100);

const COMMAND_LINE: &str = "console=ttyS0 panic=-1";

/// ENOSYS of Linux on x86-64.
const ENOSYS: &str = "38";

/// What a log must not have.
const COMPLAINTS: [&str; 7] =
    ["WARNING:", "BUG:", "Oops", "Call Trace", "invalid opcode", "Kernel panic", "general protection"];

struct World {
    work: PathBuf,
    job: Job,
    build: Build,
    object: Vec<u8>,
}

/// The world of a device; `None`, with a note, where no kernel is to be built.
fn world(config: &str) -> Option<World> {
    let Some(source) = std::env::var_os("RUNNEL_KERNEL_SOURCE").map(PathBuf::from) else {
        eprintln!("skipped: RUNNEL_KERNEL_SOURCE names no kernel source; see cargo xtask kernel");
        return None;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = std::env::var_os("RUNNEL_KERNEL_WORK").map_or_else(|| here.join("../../target/kernel"), PathBuf::from);
    fs::create_dir_all(&work).unwrap();
    let work = fs::canonicalize(work).unwrap();
    let devices = here.join("devices");
    let job = Job {
        source,
        config: devices.join(format!("{config}.config")),
        build: work.join(format!("build-{config}")),
        output: work.join(format!("out-{config}")),
        command_line: Some(COMMAND_LINE.to_string()),
        devices: Some(devices.join("qemu-q35.devices")),
        syscalls: Some(devices.join("busybox.syscalls")),
        policy: None,
        passes: Passes::all(),
        layout: Layout::Stock,
        trap: false,
    };
    let build = job.build(&mut |text| eprintln!("{text}")).unwrap();
    let object = fs::read(build.object()).unwrap();
    Some(World { work, job, build, object })
}

impl World {
    fn options(&self, passes: Passes, trap: bool) -> Options {
        Options { passes, trap, ..self.job.options(&self.build).unwrap() }
    }

    fn link(&self, name: &str, object: &[u8], layout: Layout) -> kernel::Output {
        let folder = self.work.join(format!("link-{}-{name}", self.job.config.file_stem().unwrap().display()));
        Link::new(&self.build, &folder).unwrap().run(object, layout).unwrap()
    }

    /// Starts a kernel with the calls of `calls` to try.
    fn boot(&self, kernel: &Path, calls: &[u32], processors: u32) -> Boot {
        let folder = tempfile::tempdir().unwrap();
        let initramfs = folder.path().join("initramfs");
        fs::write(&initramfs, self.initramfs(calls)).unwrap();
        let disk = folder.path().join("disk");
        fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "hash_seed=00000000-0000-4000-8000-000000000001"])
            .arg(&disk));
        let machine = Machine {
            kernel: kernel.to_path_buf(),
            initramfs,
            command_line: COMMAND_LINE.to_string(),
            disk: Some(disk),
            memory_mib: 192,
            processors,
            deadline: DEADLINE,
        };
        machine.run().unwrap()
    }

    fn initramfs(&self, calls: &[u32]) -> Vec<u8> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device");
        let program = self.work.join("calls");
        run(Command::new("gcc").args(["-static", "-O1", "-o"]).arg(&program).arg(here.join("calls.c")));
        let mut archive = Initramfs::new();
        for name in ["bin", "dev", "proc", "sys", "tmp", "mnt", "www", "etc"] {
            archive.folder(name);
        }
        archive.file("bin/busybox", &fs::read("/bin/busybox").expect("apt-get install busybox-static"));
        archive.file("init", &fs::read(here.join("init")).unwrap());
        archive.file("calls", &fs::read(&program).unwrap());
        let list: Vec<String> = calls.iter().map(u32::to_string).collect();
        archive.file("calls.list", list.join(" ").as_bytes());
        archive.file("www/index.html", b"hello\n");
        archive.file("etc/passwd", b"root::0:0::/:/bin/sh\nnobody::65534:65534::/:/bin/sh\n");
        let mut blob = Vec::new();
        for index in 0..40_000u32 {
            blob.extend_from_slice(&index.wrapping_mul(0x9e37_79b9).to_le_bytes());
        }
        archive.file("www/blob", &blob);
        archive.finish()
    }

    /// Numbers of the system calls that the list leaves out, without those that the kernel needs itself.
    fn removed_calls(&self, removed: &[String]) -> Vec<u32> {
        let table = self.build.source().folder().join("arch/x86/entry/syscalls/syscall_64.tbl");
        let removed: BTreeSet<&str> = removed.iter().map(String::as_str).collect();
        let text = fs::read_to_string(table).unwrap();
        let entries = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let of_64 = entries.filter(|words| words.len() >= 4 && matches!(words[1], "common" | "64"));
        of_64.filter(|words| removed.contains(words[3])).filter_map(|words| words[0].parse().ok()).collect()
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
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

/// Every step of one configuration.
fn check(config: &str, processors: u32) {
    let Some(world) = world(config) else { return };
    let stock = world.link("stock", &world.object, Layout::Stock);
    let stock_sizes = measure("stock", &stock);
    let booted = world.boot(&stock.bzimage, &[], processors);
    check_log("stock", &booted);
    let expected = results(&booted);
    assert!(expected.len() >= 20, "the device did its work: {expected:?}");

    let whole = specialise::specialise(&world.object, &world.options(Passes::none(), false)).unwrap();
    let whole = world.link("whole", &whole.object, Layout::Stock);
    measure("round trip", &whole);
    // Strings are merged in another order, and names compressed by other counts; all else is equal.
    let but_rodata = |output: &kernel::Output| {
        sections(&output.vmlinux).into_iter().filter(|line| !line.starts_with(".rodata ")).collect::<Vec<_>>()
    };
    assert_eq!(but_rodata(&stock), but_rodata(&whole));
    assert_eq!(symbols(&stock.vmlinux), symbols(&whole.vmlinux));
    let booted = world.boot(&whole.bzimage, &[], processors);
    check_log("round trip", &booted);
    assert_eq!(results(&booted), expected);

    // What is removed is first filled with traps: whatever is entered has a name in the log.
    let trap = specialise::specialise(&world.object, &world.options(Passes::all(), true)).unwrap();
    let calls = world.removed_calls(&trap.report.syscalls_removed);
    let trap = world.link("trap", &trap.object, Layout::Stock);
    let booted = world.boot(&trap.bzimage, &calls, processors);
    check_log("trap build", &booted);
    assert_eq!(results(&booted), expected);

    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let linked = world.link("reduced", &reduced.object, Layout::Stock);
    let sizes = measure("reduced", &linked);
    assert!(sizes.resident() * 100 < stock_sizes.resident() * 86, "less than 14 % is gone");
    let booted = world.boot(&linked.bzimage, &calls, processors);
    check_log("reduced", &booted);
    assert_eq!(results(&booted), expected);
    let answers: Vec<&str> =
        booted.console.lines().map(str::trim_end).filter(|line| line.starts_with("calls ")).collect();
    assert!(calls.len() > 20 && answers.len() == calls.len(), "{} answers to {} calls", answers.len(), calls.len());
    for answer in answers {
        assert_eq!(answer.split(' ').nth(2), Some(ENOSYS), "{answer}");
    }
}

#[test]
fn qemu_a_small_kernel_is_reduced_and_does_its_work() {
    check("tiny-web", 1);
}

#[test]
fn qemu_a_mainstream_kernel_is_reduced_and_does_its_work() {
    if std::env::var_os("RUNNEL_KERNEL_FULL").is_none() {
        eprintln!("skipped: RUNNEL_KERNEL_FULL is not set; see cargo xtask kernel --full");
        return;
    }
    let Some(device) = world("mainstream") else { return };
    // Page table isolation maps the kernel by 2 MiB.
    let refused = Layout::Compact.check(&device.build);
    assert!(matches!(&refused, Err(kernel::KernelError::Config { .. })), "{refused:?}");
    drop(device);
    check("mainstream", 2);
}

#[test]
fn qemu_the_compact_layout_starts_and_gives_padding_back() {
    let Some(world) = world("tiny-web") else { return };
    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let linked = world.link("compact", &reduced.object, Layout::Compact);
    let sizes = measure("reduced, compact", &linked);
    assert!(sizes.padding < 64 << 10, "{sizes:?}");
    let booted = world.boot(&linked.bzimage, &[], 1);
    check_log("compact", &booted);
}

#[test]
fn the_list_of_system_calls_of_the_device_is_known_to_every_kernel() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = read_syscalls(&here.join("devices/busybox.syscalls")).unwrap();
    assert!(names.contains("read") && names.contains("execve") && names.len() > 100);
}
