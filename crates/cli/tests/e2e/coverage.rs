//! `runnel record` of kernels without one: counters, lists of thawed functions, merging, and what
//! is refused. Recording in QEMU is tested where kernels are built.

use std::fs;
use std::process::Command;

use crate::support::*;

const MAP: &str = r#"{"format":"runnel block map 1","release":"6.12.117","functions":[
{"name":"vfs_read","bytes":300,"blocks":[[0,40],[60,10]]},
{"name":"panic","bytes":90,"blocks":[[0,90]]}
]}"#;

#[test]
fn coverages_of_devices_are_made_merged_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::write(at("map"), MAP).unwrap();
    fs::write(at("counters"), [0, 7, 0]).unwrap();
    fs::write(at("thawed"), "0xffffffff81234000 3 vfs_write+0x1c/0x40\n").unwrap();
    let (one, two, all) = (at("one.cov"), at("two.cov"), at("all.cov"));
    let counters =
        ["record", "--kernel-counters", &at("counters"), "--map", &at("map"), "--phase", "service", "-o", &one];
    ok(&counters);
    fails(&counters, 2, "--force");
    let thawed =
        ["record", "--kernel-thawed", &at("thawed"), "--release", "6.12.117", "--scenario", "field", "-o", &two];
    ok(&thawed);
    let output = run(&["record", "--merge", &one, "--merge", &two, "-o", &all, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((json["functions"].as_u64(), json["executed_bytes_in_service"].as_u64()), (Some(2), Some(74)));
    let text = fs::read_to_string(&all).unwrap();
    assert!(text.contains("function vfs_read 300 - s 60+10s\nfunction vfs_write 64 - s 0+64s\n"), "{text}");
    let shown = ok(&["dump", &all]);
    assert!(shown.contains("scenario field (thawed): functions 1") && shown.contains("scenario one (instr"), "{shown}");

    // The file is written even if nobody reads the messages.
    let deaf = at("deaf.cov");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status =
        runnel().args(["record", "--merge", &one, "--merge", &two, "-o", &deaf]).stderr(full).status().unwrap();
    assert!(status.success() && fs::read_to_string(&deaf).unwrap() == text);

    // The output may be an input.
    ok(&["record", "--merge", &all, "--merge", &one, "-o", &all, "--force"]);
    assert_eq!(fs::read_to_string(&all).unwrap(), text);
    fs::write(at("other"), text.replace("6.12.117", "6.12.1")).unwrap();
    fails(&["record", "--merge", &all, "--merge", &at("other"), "-o", &at("none")], 2, "6.12.1");
    fs::write(at("bad"), &text[..text.len() - 2]).unwrap();
    fails(&["record", "--merge", &at("bad"), "-o", &at("none")], 3, "bad: line");
    fails(&["dump", &at("bad")], 3, "bad");
    fs::write(at("counters"), [0, 7]).unwrap();
    fails(&["record", "--kernel-counters", &at("counters"), "--map", &at("map"), "-o", &at("none")], 3, "2 counters");
    assert!(!folder.path().join("none").exists());
}

#[test]
fn a_full_disk_leaves_the_coverage_that_was_to_be_replaced() {
    if !can_mount("a_full_disk_at_merge") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::write(at("thawed"), "0xffffffff81234000 3 vfs_write+0x1c/0x40\n").unwrap();
    ok(&["record", "--kernel-thawed", &at("thawed"), "--release", "6.12.117", "--scenario", "field", "-o", &at("one")]);
    let text = fs::read_to_string(at("one")).unwrap();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&small).status().unwrap().success();
    assert!(mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"]));
    let all = small.join("all.cov");
    fs::write(&all, &text).unwrap();
    assert!(fs::write(small.join("rest"), vec![1; 1 << 20]).is_err(), "the disk is full");
    let all = all.to_str().unwrap();
    let output = run(&["record", "--merge", all, "-o", all, "--force"]);
    let (after, left) = (fs::read_to_string(all).unwrap(), fs::read_dir(&small).unwrap().count());
    // No failure below leaves the mount behind.
    Command::new("umount").arg(&small).status().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(told.contains("all.cov") && told.contains("no space left") && !told.contains("panicked"), "{told}");
    assert_eq!((output.status.code(), after, left), (Some(1), text, 2), "{told}");
}

#[test]
fn ways_to_a_coverage_do_not_go_together() {
    for (arguments, what) in [
        (&["--kernel", "a", "-o", "c"][..], "--vmlinux"),
        (&["--kernel", "a", "--vmlinux", "b"], "--output"),
        (&["--kernel", "a", "--vmlinux", "b", "-o", "c", "--", "true"], "--kernel"),
        (&["--kernel", "a", "--vmlinux", "b", "-o", "c", "--merge", "d"], "--merge"),
        (&["--kernel-counters", "a", "-o", "c"], "--map"),
        (&["--kernel-thawed", "a", "-o", "c", "--reads", "none"], "--reads"),
        (&["--vmlinux", "a", "--", "true"], "--kernel"),
        (&["--scenario", "a", "--", "true"], "--kernel"),
        (&["--kernel", "a", "--vmlinux", "b", "-o", "c", "--cpus", "0"], "--cpus"),
    ] {
        fails(&[&["record"], arguments].concat(), 2, what);
    }
    let folder = tempfile::tempdir().unwrap();
    let (list, none) = (folder.path().join("list"), folder.path().join("none"));
    fs::write(&list, "vfs_read\n").unwrap();
    let (list, none) = (list.to_str().unwrap(), none.to_str().unwrap());
    fails(&["record", "--kernel-thawed", list, "-o", none], 2, "--release");
    fails(&["record", "--kernel", list, "--vmlinux", "/no/such/file", "-o", none], 4, "/no/such/file");
    fails(&["record", "--kernel", list, "--vmlinux", list, "-o", none], 2, "no boot image");
    let image = folder.path().join("image");
    fs::write(&image, [&[0; 0x202][..], b"HdrS"].concat()).unwrap();
    let image = image.to_str().unwrap();
    fails(&["record", "--kernel", image, "--vmlinux", list, "-o", none], 3, "no ELF file");
    // Nobody writes into it.
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    fails(&["record", "--kernel", fifo, "--vmlinux", list, "-o", none], 1, "fifo: not a regular file");
    fails(&["record", "--kernel-thawed", list, "--vmlinux", fifo, "-o", none], 1, "fifo: not a regular file");
    // What is there stays until there is something better.
    let there = folder.path().join("there");
    fs::write(&there, "old").unwrap();
    fails(&["record", "--kernel", image, "--vmlinux", list, "--force", "-o", there.to_str().unwrap()], 3, "no ELF");
    assert_eq!(fs::read_to_string(&there).unwrap(), "old");
    let century = (100u64 * 366 * 24 * 3600).to_string();
    fails(&["record", "--kernel", image, "--vmlinux", list, "-o", none, "--timeout", &century], 2, "--timeout");
    assert!(!std::path::Path::new(none).exists());
}
