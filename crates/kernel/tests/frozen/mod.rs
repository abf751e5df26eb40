//! Kernels with frozen code: they do what stock ones do, whatever happens to them.

use std::fs;
use std::path::{Path, PathBuf};

use kernel::{Asked, Boot, Codec, Frozen, Job, Layout, Machine, Processor, Recorder};
use specialise::Passes;

use crate::device::Device;
use crate::{World, address, check_log, is_full, job, measure, results, symbols, world};

/// What runs of `linked` until it is done, in a file of `folder`: how it ends is not part of it.
fn record(world: &World, linked: &kernel::Output, more: &str, processors: u32, folder: &Path) -> PathBuf {
    let machine = world.machine(folder, &linked.bzimage, (&[], &[]), processors);
    let recorder = Recorder {
        machine: Machine { command_line: format!("{} {more}", machine.command_line), ..machine },
        vmlinux: linked.vmlinux.clone(),
        service_at: Some("@@heard".to_string()),
        until: Some("@@done".to_string()),
        scenario: "web".to_string(),
    };
    let recorded = recorder.run(&|| false, &mut |_| ()).unwrap();
    let path = folder.join("coverage");
    fs::write(&path, coverage::write(&recorded.coverage).unwrap()).unwrap();
    path
}

/// The job with frozen code and its tests, and more lines of its configuration, in a build of its
/// own.
fn with_frozen(work: &Path, job: &Job, name: &str, more: &str, codec: Codec) -> Job {
    let config = work.join(format!("{name}-frozen.config"));
    let text = fs::read_to_string(&job.asked.config).unwrap();
    fs::write(&config, format!("{text}CONFIG_FROZEN_TEXT_TEST=y\n{more}")).unwrap();
    let command_line = job.asked.command_line.as_ref().map(|line| format!("{line} rdinit=/init"));
    Job {
        build: work.join(format!("build-{name}-frozen")),
        asked: Asked { config, command_line, ..job.asked.clone() },
        codec: Some(codec),
        ..job.clone()
    }
}

/// Frozen and linked; almost all that did not run.
fn link_frozen(world: &World, layout: Layout) -> kernel::Output {
    let reduced = specialise::specialise(&world.object, &world.options(Passes::all(), false)).unwrap();
    let frozen = reduced.report.frozen.clone().unwrap();
    eprintln!("{frozen:?}");
    assert!(frozen.never_ran > 1 << 20 && frozen.never_ran_frozen * 100 >= frozen.never_ran * 95, "{frozen:?}");
    let linked = world.link("frozen", &reduced.object, layout);
    measure("frozen", &linked);
    linked
}

/// What the kernel's own tests try.
fn contexts(world: &World) -> Vec<&'static str> {
    let mut contexts = vec!["irq", "softirq", "together", "empty", "poke", "dictionary"];
    if world.device.processor() == Processor::X86_64 {
        contexts.push("nmi");
    }
    contexts
}

/// What a frozen kernel says when it has started.
fn says(boot: &Boot) -> Option<String> {
    boot.console.lines().find(|line| line.contains("bytes compressed")).map(str::to_string)
}

/// Code that did not run is frozen: the device does the same, and frozen code comes back wherever
/// it is entered.
fn check_frozen(world: World, codec: Codec, layout: Layout, processors: u32) {
    let folder = tempfile::tempdir().unwrap();
    let stock = world.link("stock", &world.object, Layout::Stock);
    let booted = world.boot(&stock.bzimage, &[], &[], processors);
    check_log("stock", &booted);
    let expected = results(&booted);
    let coverage = record(&world, &stock, "", processors, folder.path());
    let name = format!("{}-{codec:?}", world.job.asked.config.file_stem().unwrap().display());
    let mut job = with_frozen(&world.work, &world.job, &name, "", codec);
    job.freeze = Some(Frozen::open(&coverage, false).unwrap());
    let build = job.build(&mut |text| eprintln!("{text}")).unwrap();
    let object = fs::read(build.object()).unwrap();
    let world = World { job, build, object, ..world };
    let linked = link_frozen(&world, layout);
    check_frozen_kernel(&world, &linked, &expected, processors);
}

/// Every start of a frozen kernel, with the results that the device must have. Where frames are few
/// the clock counts instructions: on a processor far slower than a device's all time would go into
/// what timers need, page by page.
fn check_frozen_kernel(world: &World, linked: &kernel::Output, expected: &[String], processors: u32) {
    let boot = |more: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = world.machine(folder.path(), &linked.bzimage, (&[], &[]), processors);
        machine.command_line.push_str(&format!(" {more}"));
        if more.contains("pool:") {
            machine.counted = true;
            machine.deadline *= 4;
        }
        machine.run().unwrap()
    };
    for (name, more, freezes) in [("frozen", "", true), ("frozen, but off", "frozen_text=off", false)] {
        let booted = boot(more);
        check_log(name, &booted);
        assert_eq!(results(&booted), expected, "{name}");
        eprintln!("{name}: {:?}", says(&booted));
        assert_eq!(says(&booted).is_some(), freezes, "{name}");
    }
    let booted = boot(&format!("rdinit=/frozen frozen_text=pool:6 commands={}", contexts(world).join(",")));
    check_log("every context", &booted);
    for context in contexts(world) {
        assert!(booted.console.contains(&format!("@@{context} passed")), "{context}\n{}", booted.console);
    }
    assert!(!booted.console.contains("unknown reason"), "{}", booted.console);
    for pool in ["pool:6", "pool:32,norefill"] {
        let booted = boot(&format!("rdinit=/pressure frozen_text={pool}"));
        assert!(booted.ended && !booted.console.contains("FAILED"), "{}", booted.console);
        for line in ["@@processes were killed", "@@memory is back", "@@words passed", "@@done"] {
            assert!(booted.console.contains(line), "{pool}: {line}\n{}", booted.console);
        }
        let lines = booted.console.lines().filter(|line| line.starts_with("round ") || line.starts_with("free "));
        eprintln!("{pool}: {:?}", lines.collect::<Vec<_>>());
    }
    let booted = boot("rdinit=/frozen commands=corrupt");
    let panic = "Kernel panic - not syncing: frozen text: the compressed page of frozen_text_test_pages+0x9000";
    assert!(booted.ended && booted.console.contains(panic), "{}", booted.console);
    assert!(!booted.console.contains("damaged code ran"));
}

#[test]
fn qemu_code_that_never_runs_is_frozen_and_comes_back() {
    let Some(world) = world("tiny-web", Device::web) else { return };
    check_frozen(world, Codec::Lz4, Layout::Compact, 1);
}

#[test]
fn qemu_a_mainstream_kernel_is_frozen_on_two_processors() {
    if !is_full() {
        return;
    }
    let Some(world) = world("mainstream", Device::web) else { return };
    check_frozen(world, Codec::Zstd, Layout::Stock, 2);
}

#[test]
fn qemu_code_of_aarch64_is_frozen_on_two_processors() {
    if !Device::has_virt() {
        return;
    }
    let Some(world) = world("tiny-virt", Device::virt) else { return };
    check_frozen(world, Codec::Lz4, Layout::Stock, 2);
}

#[test]
fn qemu_code_of_aarch64_is_frozen_with_zstandard() {
    if !is_full() || !Device::has_virt() {
        return;
    }
    let Some(world) = world("tiny-virt", Device::virt) else { return };
    check_frozen(world, Codec::Zstd, Layout::Stock, 1);
}

/// What a kernel needs that is started by another one, and two processors; AArch64 must be able to
/// take one away for that.
const RESTARTED: &str = "CONFIG_SMP=y\nCONFIG_RELOCATABLE=y\nCONFIG_KEXEC_FILE=y\nCONFIG_HOTPLUG_CPU=y\n";

/// After a restart, from another kernel and after a panic everything is as after any other start.
fn check_restarts(world: World, layout: Layout) {
    let folder = tempfile::tempdir().unwrap();
    // Of one processor: what two of them run besides is frozen too.
    let stock = world.link("stock", &world.object, Layout::Stock);
    let coverage = record(&world, &stock, "", 1, folder.path());
    let name = format!("{}-kexec", world.job.asked.config.file_stem().unwrap().display());
    let mut job = with_frozen(&world.work, &world.job, &name, RESTARTED, Codec::Lz4);
    job.freeze = Some(Frozen::open(&coverage, false).unwrap());
    let build = job.build(&mut |text| eprintln!("{text}")).unwrap();
    assert!(build.is_set("KEXEC_FILE") && build.is_set("SMP"));
    let object = fs::read(build.object()).unwrap();
    let world = World { job, build, object, ..world };
    let linked = link_frozen(&world, layout);
    let [start, end] = ["__frozen_text_start", "__frozen_text_end"].map(|name| address(&linked.system_map, name));
    let is_x86 = world.device.processor() == Processor::X86_64;
    let shutdown = if is_x86 { "native_machine_shutdown" } else { "machine_restart" };
    for name in ["kernel_kexec", "emergency_restart", shutdown, "migrate_to_reboot_cpu"] {
        assert!((start..end).contains(&address(&linked.system_map, name)), "{name} is not frozen");
    }
    // What kexec takes is not compressed as a whole.
    let kernel = if is_x86 { linked.bzimage.clone() } else { linked.bzimage.with_file_name("Image") };
    for processors in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = world.machine(folder.path(), &linked.bzimage, (&[], &[]), processors);
        let commands = contexts(&world).join(",");
        machine.command_line.push_str(&format!(" rdinit=/restart frozen_text=pool:6 commands={commands}"));
        machine.disks.extend([kernel.clone(), machine.initramfs.clone()]);
        machine.counted = true;
        // It starts four times.
        machine.deadline *= 4;
        let booted = machine.run_restarting().unwrap();
        assert!(booted.ended && booted.console.contains("@@done"), "{}", booted.console);
        for complaint in ["WARNING:", "BUG:", "Oops", "unknown reason", "FAILED"] {
            assert!(!booted.console.contains(complaint), "{complaint}\n{}", booted.console);
        }
        let panics = booted.console.lines().filter(|line| line.contains("Kernel panic")).collect::<Vec<_>>();
        assert!(panics.len() == 1 && panics[0].contains("Attempted to kill init"), "{}", booted.console);
        assert!(booted.console.contains("@@start 2 way=kexec"), "{}", booted.console);
        let pages: Vec<&str> = booted.console.lines().filter(|line| line.contains("bytes compressed")).collect();
        assert_eq!(pages.len(), 4, "{}", booted.console);
        for (start, context) in
            (0..4).flat_map(|start| contexts(&world).into_iter().map(move |context| (start, context)))
        {
            let line = format!("@@{start} {context} passed");
            assert!(booted.console.contains(&line), "{processors}: {line}\n{}", booted.console);
        }
    }
}

#[test]
fn qemu_a_frozen_kernel_ends_in_every_way_and_starts_again() {
    if !is_full() {
        return;
    }
    let Some(world) = world("tiny-web", Device::web) else { return };
    check_restarts(world, Layout::Compact);
}

#[test]
fn qemu_a_frozen_kernel_of_aarch64_ends_in_every_way_and_starts_again() {
    if !is_full() || !Device::has_virt() {
        return;
    }
    let Some(world) = world("tiny-virt", Device::virt) else { return };
    check_restarts(world, Layout::Stock);
}

/// Linux 6.1, of `RUNNEL_KERNEL_SOURCE_6_1` or `source-6.1` in the folder for builds: the same
/// object written anew, and frozen.
#[test]
fn qemu_linux_6_1_is_written_anew_and_frozen() {
    if !is_full() {
        return;
    }
    let Some((work, job, device)) = job("tiny-web", Device::web) else { return };
    let source = std::env::var_os("RUNNEL_KERNEL_SOURCE_6_1").map_or_else(|| work.join("source-6.1"), PathBuf::from);
    if !source.join("Makefile").is_file() {
        eprintln!("skipped: there is no source of Linux 6.1 in {}; see RUNNEL_KERNEL_SOURCE_6_1", source.display());
        return;
    }
    let job = Job { source, ..with_frozen(&work, &job, "tiny-web-6.1", "", Codec::Lz4) };
    let build = job.build(&mut |text| eprintln!("{text}")).unwrap();
    let object = fs::read(build.object()).unwrap();
    let mut world = World { work, device, job, build, object };
    let stock = world.link("stock", &world.object, Layout::Stock);
    let booted = world.boot(&stock.bzimage, &[], &[], 1);
    check_log("stock", &booted);
    let expected = results(&booted);
    let whole = specialise::specialise(&world.object, &world.options(Passes::none(), false)).unwrap();
    let linked = world.link("whole", &whole.object, Layout::Stock);
    assert_eq!(symbols(&stock.vmlinux), symbols(&linked.vmlinux));
    let booted = world.boot(&linked.bzimage, &[], &[], 1);
    check_log("round trip", &booted);
    assert_eq!(results(&booted), expected);
    let folder = tempfile::tempdir().unwrap();
    let coverage = record(&world, &stock, "frozen_text=off", 1, folder.path());
    world.job.freeze = Some(Frozen::open(&coverage, false).unwrap());
    let linked = link_frozen(&world, Layout::Compact);
    check_frozen_kernel(&world, &linked, &expected, 1);
}
