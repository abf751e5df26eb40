//! CPython's own tests, run by a Python that comes from the mount.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// The tests of sqlite3, which Debian's package of the tests leaves out: from its package of the
/// source.
fn sqlite_tests() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpython-source");
    let tests = folder.join("test_sqlite3");
    if tests.exists() {
        return Some(tests);
    }
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("lists/partial")).unwrap();
    // A list of its own, so that the machine's package sources stay as they are.
    std::fs::write(folder.join("sources.list"), "deb-src http://deb.debian.org/debian bookworm main\n").unwrap();
    let script = "set -e; cd \"$0\"
        apt='apt-get -qq -o Dir::Etc::sourcelist='$PWD'/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists='$PWD'/lists'
        $apt update; $apt source --download-only python3.11
        tar -xf python3.11_*.orig.tar.* --wildcards --strip-components=3 '*/Lib/test/test_sqlite3'";
    let done = Command::new("bash").args(["-c", script]).arg(&folder).output().unwrap();
    if !done.status.success() {
        eprintln!("skipped test_sqlite3: no source package: {}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    assert!(tests.join("__init__.py").exists(), "the source package has no test_sqlite3");
    Some(tests)
}

#[test]
fn fuse_cpython_tests_pass_on_the_mount() {
    if !can_mount("fuse_cpython_tests") {
        return;
    }
    if !Path::new("/usr/lib/python3.11/test/test_json").exists() {
        eprintln!("skipped: CPython's tests are not installed; ./x setup installs libpython3.11-testsuite");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"));
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    let mount = Mount::start(server.url("python"), &[]);
    let mut command = runnel();
    command.arg("enter").arg(&mount.path).current_dir(folder.path());
    let sqlite = sqlite_tests();
    if let Some(tests) = &sqlite {
        let mut bind = tests.clone().into_os_string();
        bind.push(":/usr/lib/python3.11/test/test_sqlite3");
        command.arg("--bind").arg(bind);
    }
    command.args(["--", "/usr/bin/python3", "-m", "test", "test_json", "test_zipfile"]);
    command.args(sqlite.is_some().then_some("test_sqlite3"));
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("SUCCESS"), "{text}");
}
