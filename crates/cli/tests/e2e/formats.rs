//! export and convert: to tar and SquashFS, from SquashFS and EROFS, by the tools of others where
//! they are installed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use pack::compare::{Attribute, CompareOptions, assert_equal};

use crate::support::*;

/// Files, long names, links, holes, a name that is not UTF-8; as root also owners, devices and
/// attributes.
fn tree(at: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let deep = (0..5).fold(at.to_path_buf(), |path, number| path.join(format!("{number}{}", "x".repeat(60))));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "deep").unwrap();
    fs::write(at.join(std::ffi::OsStr::from_bytes(&[b"\xff\xfe".as_slice(), &[b'n'; 120]].concat())), "odd").unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at >> 3) as u8 ^ (at >> 9) as u8).collect();
    fs::write(at.join("data"), bytes).unwrap();
    fs::hard_link(at.join("data"), deep.join("same")).unwrap();
    symlink("y".repeat(200), at.join("long link")).unwrap();
    fs::File::create(at.join("sparse")).unwrap().set_len(9 << 20).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    fs::set_permissions(at.join("data"), fs::Permissions::from_mode(0o4755)).unwrap();
    if is_root() {
        let run = |program: &str, arguments: &[&str]| {
            assert!(Command::new(program).args(arguments).current_dir(at).status().unwrap().success(), "{program}");
        };
        run("mknod", &["null", "c", "1", "3"]);
        run("mknod", &["disk", "b", "259", "70000"]);
        run("chown", &["-h", "1234:3000000", "long link"]);
    }
    Command::new("mkfifo").arg(at.join("pipe")).status().unwrap();
    let time = "1969-12-31 23:59:55.25Z";
    assert!(Command::new("touch").arg("-d").arg(time).arg(at.join("empty")).status().unwrap().success());
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0)
}

fn has(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped {test}: no {program}");
    }
    found
}

/// Names in a directory, hidden ones too.
fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn ref_an_exported_archive_packs_to_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    tree(&at("tree"));
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("a.rnl").as_os_str()]);
    ok(&["export".as_ref(), at("a.rnl").as_os_str(), "--tar".as_ref(), at("a.tar").as_os_str()]);
    ok(&["pack".as_ref(), at("a.tar").as_os_str(), "-o".as_ref(), at("b.rnl").as_os_str()]);
    assert!(fs::read(at("a.rnl")).unwrap() == fs::read(at("b.rnl")).unwrap(), "not the same image");
    let piped = run(&["export".as_ref(), at("a.rnl").as_os_str(), "--tar".as_ref(), "-".as_ref()]);
    assert!(piped.status.success() && piped.stdout == fs::read(at("a.tar")).unwrap());
    // GNU tar makes the same tree of it.
    fs::create_dir(at("out")).unwrap();
    let made = Command::new("tar").arg("-xpf").arg(at("a.tar")).arg("-C").arg(at("out")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let ignored = if is_root() { vec![] } else { vec![Attribute::Owner, Attribute::Permissions] };
    assert_equal(&at("tree"), &at("out"), &CompareOptions { ignored, ..CompareOptions::default() });
}

#[test]
fn ref_squashfs_there_and_back() {
    if !has("sqfstar", "ref_squashfs_there_and_back") || !has("unsquashfs", "ref_squashfs_there_and_back") {
        return;
    }
    if !is_root() {
        eprintln!("skipped ref_squashfs_there_and_back: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    tree(&at("tree"));
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("a.rnl").as_os_str()]);
    let export = |name: &str| {
        let output =
            runnel().arg("export").arg(at("a.rnl")).arg("--force").arg("--squashfs").arg(at(name)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.contains("1 modification times are replaced"), "{said}");
    };
    // An sqfstar before 4.6 gives the root the second of the day: two exports in one second are the
    // same.
    let same = (0..5).any(|_| {
        export("a.sqfs");
        export("b.sqfs");
        fs::read(at("a.sqfs")).unwrap() == fs::read(at("b.sqfs")).unwrap()
    });
    assert!(same, "not deterministic");
    let before = names(folder.path());
    ok(&["convert".as_ref(), at("a.sqfs").as_os_str(), "-o".as_ref(), at("c.rnl").as_os_str()]);
    ok(&["extract".as_ref(), at("c.rnl").as_os_str(), "-C".as_ref(), at("out").as_os_str()]);
    // Whole seconds from 1970 on is what SquashFS has.
    let options = CompareOptions { ignored: vec![Attribute::Mtime], ..CompareOptions::default() };
    assert_equal(&at("tree"), &at("out"), &options);

    // A part of an image is an error in the words of its tool, and leaves nothing.
    let whole = fs::read(at("a.sqfs")).unwrap();
    fs::write(at("a.sqfs"), &whole[..whole.len() - 4096]).unwrap();
    fails(&["convert".as_ref(), at("a.sqfs").as_os_str(), "-o".as_ref(), at("d.rnl").as_os_str()], 1, "sq");
    let mut expected: Vec<String> = before.into_iter().chain(["c.rnl".into(), "out".into()]).collect();
    expected.sort();
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn ref_from_erofs() {
    if !has("mkfs.erofs", "ref_from_erofs") || !has("fsck.erofs", "ref_from_erofs") {
        return;
    }
    if !is_root() {
        eprintln!("skipped ref_from_erofs: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("tree/a")).unwrap();
    fs::write(at("tree/a/file"), "hello ".repeat(5000)).unwrap();
    symlink("a/file", at("tree/link")).unwrap();
    let made = Command::new("mkfs.erofs").arg("-zlz4").arg(at("image")).arg(at("tree")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let convert = |output: &str| {
        let mut command = runnel();
        // What old versions lose is not in this tree.
        command.arg("convert").arg(at("image")).arg("-o").arg(at(output)).arg("--lossy");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = convert("a.rnl");
    assert_eq!(code, Some(0), "{said}");
    ok(&["extract".as_ref(), at("a.rnl").as_os_str(), "-C".as_ref(), at("out").as_os_str()]);
    assert_equal(&at("tree"), &at("out"), &CompareOptions::default());
    let whole = fs::read(at("image")).unwrap();
    fs::write(at("image"), &whole[..2048]).unwrap();
    let (code, said) = convert("b.rnl");
    assert!(code == Some(1) && said.contains("fsck.erofs ended with"), "{said}");
    assert_eq!(names(folder.path()), ["a.rnl", "image", "out", "tree"]);
}

#[test]
fn what_cannot_be_exported_or_converted_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/file"), "x".repeat(4096)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(951_868_800);
    fs::File::options().write(true).open(at("tree/file")).unwrap().set_modified(time).unwrap();
    ok(&["pack".as_ref(), at("tree").as_os_str(), "-o".as_ref(), at("a.rnl").as_os_str()]);
    let convert = |name: &str, code: i32, what: &str| {
        fails(&["convert".as_ref(), at(name).as_os_str(), "-o".as_ref(), at("b.rnl").as_os_str()], code, what)
    };
    convert("none", 4, "none");
    convert("a.rnl", 3, "neither a SquashFS nor an EROFS image");
    convert("tree", 2, "not a regular file");
    // A machine without the tools.
    fs::write(at("squashfs"), b"hsqs").unwrap();
    for (arguments, package) in [
        (vec!["convert", "squashfs", "-o", "b.rnl"], "squashfs-tools"),
        (vec!["export", "a.rnl", "--squashfs", "b.sqfs"], "squashfs-tools"),
    ] {
        let output = runnel().args(arguments).current_dir(folder.path()).env("PATH", folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(package), "{said}");
    }
    let image = at("a.rnl");
    let image = image.as_os_str();
    fails(&["export".as_ref(), image], 2, "--tar");
    fails(
        &["export".as_ref(), image, "--squashfs".as_ref(), "x".as_ref(), "--level".as_ref(), "3".as_ref()],
        2,
        "--codec",
    );
    let out = at("x");
    let tar: [&OsStr; 4] = ["export".as_ref(), image, "--tar".as_ref(), out.as_os_str()];
    for option in [["--codec", "zstd"], ["--block-size", "65536"]] {
        let arguments: Vec<&OsStr> = tar.into_iter().chain(option.map(OsStr::new)).collect();
        fails(&arguments, 2, option[0]);
    }
    let (from, to) = (at("squashfs"), at("b.rnl"));
    let convert: [&OsStr; 4] = ["convert".as_ref(), from.as_os_str(), "-o".as_ref(), to.as_os_str()];
    for option in [["--select", "latest"], ["--layout", "oci"]] {
        let arguments: Vec<&OsStr> = convert.into_iter().chain(option.map(OsStr::new)).collect();
        fails(&arguments, 2, option[0]);
    }
    let help = ok(&["convert", "--help"]);
    assert!(help.contains("SquashFS or EROFS image") && !help.contains("docker-save") && !help.contains("--select"));
    let listed = ok(&["ls".as_ref(), "-l".as_ref(), image]);
    assert!(listed.contains(" 2000-03-01 00:00 file"), "{listed}");
    let missing = at("no/such/folder");
    fails(&["export".as_ref(), image, "--tar".as_ref(), missing.as_os_str()], 4, "folder");
    assert_eq!(names(folder.path()), ["a.rnl", "squashfs", "tree"]);
}

/// SIGINT while a tool runs: the tool ends, the folder and the unfinished image go.
#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // A tool that makes its folder, says so, and never ends.
    fs::create_dir(at("bin")).unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --help ] && {{ echo --extract; exit 0; }}\nmkdir \"${{1#--extract=}}\"\n\
         echo $$ > {}/started.new\nmv {0}/started.new {0}/started\nexec /bin/sleep 1000\n",
        folder.path().display()
    );
    fs::write(at("bin/fsck.erofs"), script).unwrap();
    fs::set_permissions(at("bin/fsck.erofs"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut image = vec![0; 4096];
    image[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
    fs::write(at("image"), image).unwrap();
    let mut child = runnel()
        // This tool is a script that starts others, which the sandbox refuses.
        .args(["convert", "image", "-o", "out.rnl", "--lossy", "--no-sandbox"])
        .current_dir(folder.path())
        .env("PATH", format!("{}:/usr/bin:/bin", at("bin").display()))
        .env_remove("TMPDIR")
        .spawn()
        .unwrap();
    let tool = wait_for_file(&at("started"), &mut child, "the conversion");
    assert!(names(folder.path()).iter().any(|name| name.ends_with(".part")));
    send(&child, Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(130));
    assert_eq!(names(folder.path()), ["bin", "image", "started"]);
    assert!(!Path::new(&format!("/proc/{tool}")).exists());
}
