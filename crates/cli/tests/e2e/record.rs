//! `runnel record`: a trace of exactly what was read, complete however the program ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use trace::{Event, Limits, Tail, Trace};

use crate::devices::{start_python, wait_until_learned};
use crate::support::*;

/// Records python3 of the image while it runs `script`.
fn record(output: &Path, more: &[&str], script: &str) -> Output {
    runnel()
        .arg("record")
        .arg(python_image())
        .arg("--output")
        .arg(output)
        .args(more)
        .args(["--", "/usr/bin/python3", "-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

fn read(path: &Path) -> Trace {
    let trace = trace::read(&std::fs::read(path).expect("a trace"), &Limits::default()).expect("a good trace");
    assert_eq!(trace.tail, Tail::Whole);
    trace
}

/// The pages of the file at `path` in the image, in the order of their touches.
fn pages(trace: &Trace, path: &str) -> Vec<u32> {
    let named = trace.events.iter().find_map(|event| match event {
        Event::File { inode, path: found, .. } if found == path.as_bytes() => Some(*inode),
        _ => None,
    });
    let Some(named) = named else { return Vec::new() };
    let page = |event: &Event| match event {
        Event::Touch { page, .. } if page.inode == named => Some(page.index),
        _ => None,
    };
    trace.events.iter().filter_map(page).collect()
}

/// A file that python3 never reads by itself: 600 kB, and inside the image under the same path as
/// here.
const FILE: &str = "usr/lib/python3.11/pydoc_data/topics.py";

#[test]
fn fuse_record_sees_exactly_the_pages_a_program_reads() {
    if !can_mount("fuse_record") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "import os, mmap, sys
file = os.open('/{FILE}', os.O_RDONLY)
for page in 5, 2, 5: os.pread(file, 100, page * 4096 + 7)
memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)
[memory[page * 4096] for page in (40, 9, 2, 0)]
os.pread(file, 3 * 4096, 19 * 4096)
sys.exit(7)"
    );
    let mut sets = Vec::new();
    for name in ["a.trace", "b.trace"] {
        let path = folder.path().join(name);
        let output = record(&path, &[], &script);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(text.contains("recorded ") && text.contains(" pages"), "{text}");
        let trace = read(&path);
        assert_eq!(pages(&trace, FILE), [5, 2, 40, 9, 0, 19, 20, 21]);
        assert_eq!(pages(&trace, "usr/bin/python3.11")[0], 0, "an executable is read from its start");
        let named = trace.events.iter().filter(|event| matches!(event, Event::File { .. })).count();
        let touched: Vec<_> = trace
            .events
            .iter()
            .filter_map(|event| if let Event::Touch { page, .. } = event { Some(*page) } else { None })
            .collect();
        let inodes: std::collections::HashSet<_> = touched.iter().map(|page| page.inode).collect();
        assert_eq!(named, inodes.len(), "every file is named");
        let set: std::collections::HashSet<_> = touched.iter().copied().collect();
        assert_eq!(set.len(), touched.len(), "every page once");
        sets.push(set);
    }
    // Hash seeds and addresses differ from run to run, and with them a few pages at most.
    let (both, either) = (sets[0].intersection(&sets[1]).count(), sets[0].union(&sets[1]).count());
    assert!(both * 100 >= either * 95, "{both} pages in both runs, {either} in either");

    let files = [folder.path().join("a.trace"), folder.path().join("b.trace")];
    let shown = ok(&["hot".as_ref(), "--json".as_ref(), files[0].as_os_str(), files[1].as_os_str()]);
    let hot: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((hot["order"].as_array().unwrap().len(), hot["runs"].as_u64()), (either, Some(2)));
    let dump = ok(&["dump".as_ref(), files[0].as_os_str()]);
    assert!(dump.contains(&format!("\"{FILE}\"")) && dump.ends_with("tail whole\n"));
}

#[test]
fn fuse_a_trace_is_complete_when_its_program_is_killed() {
    if !can_mount("fuse_record_killed") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let script = format!("import os; open('/{FILE}', 'rb', 0).read(1); os.kill(os.getpid(), 9)");
    let output = record(&path, &["--json"], &script);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9), "it ends as its program did");
    let trace = read(&path);
    assert_eq!(pages(&trace, FILE), [0]);
    let text = String::from_utf8_lossy(&output.stderr);
    let json: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let touches = trace.events.iter().filter(|event| matches!(event, Event::Touch { .. })).count();
    assert_eq!((json["pages"].as_u64(), json["exit_code"].as_u64()), (Some(touches as u64), Some(137)));
    assert_eq!(json["trace_bytes"].as_u64(), Some(std::fs::metadata(&path).unwrap().len()));
}

#[test]
fn fuse_a_bad_output_is_found_before_the_program_starts_and_a_full_disk_does_not_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    std::fs::write(&path, "precious").unwrap();
    let output = record(&path, &[], "print('ran')");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let output = record(&folder.path().join("none/t"), &[], "print('ran')");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(4), &b""[..]));
    fails(&["record", "/no/such.rnl", "--output", folder.path().join("u").to_str().unwrap(), "--", "x"], 4, "such.rnl");
    assert!(!folder.path().join("u").exists(), "no file stays where nothing ran");

    if !can_mount("fuse_record_full") || !Path::new("/dev/full").exists() {
        return;
    }
    let missing = folder.path().join("m");
    let arguments = ["record".as_ref(), python_image().as_os_str(), "--output".as_ref(), missing.as_os_str()];
    fails(&[&arguments[..], &["--".as_ref(), "/no/such/program".as_ref()]].concat(), 127, "no trace");
    assert!(!missing.exists());
    let output = record(Path::new("/dev/full"), &["--force"], "print('ran')");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"ran\n"[..]), "{text}");
    assert!(text.contains("warning: /dev/full") && text.contains("is not complete"), "{text}");
}

#[test]
fn fuse_record_a_mount_until_it_is_unmounted() {
    if !can_mount("fuse_record_mount") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (place, path) = (folder.path().join("mnt"), folder.path().join("t"));
    std::fs::create_dir(&place).unwrap();
    let mut child = runnel()
        .arg("record")
        .arg(python_image())
        .arg("--mount")
        .arg(&place)
        .arg("--output")
        .arg(&path)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("recording what is read"), "{line}");
    for skip in ["30", "11"] {
        let copied = Command::new("dd")
            .args(["bs=4096", "count=1", "of=/dev/null", "status=none", &format!("skip={skip}")])
            .arg(format!("if={}", place.join(FILE).display()))
            .status()
            .unwrap();
        assert!(copied.success());
    }
    ok(&["umount".as_ref(), place.as_os_str()]);
    assert!(child.wait().unwrap().success());
    let trace = read(&path);
    assert_eq!(pages(&trace, FILE), [30, 11]);
    let starts = trace.events.iter().filter(|event| matches!(event, Event::Start { .. })).count();
    assert_eq!(starts, 2, "two processes read");
}

#[test]
fn fuse_what_a_server_learned_is_hot_too() {
    if !can_mount("fuse_learned_is_hot") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let server = Server::start(&store);
    ok(&["push".as_ref(), python_image().as_os_str(), server.url("python").as_ref()]);
    start_python(&Mount::start(server.url("python"), &[]));
    wait_until_learned(&server);
    let learned: Vec<_> =
        std::fs::read_dir(store.join("learned")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [actions] = &learned[..] else { panic!("{learned:?}") };
    fails(&["hot".as_ref(), actions.as_os_str()], 2, "needs --trace-image");
    let shown = ok(&[
        "hot".as_ref(),
        actions.as_os_str(),
        "--trace-image".as_ref(),
        python_image().as_os_str(),
        "--json".as_ref(),
    ]);
    let hot: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let paths: Vec<&str> = hot["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"usr/bin/python3.11") && paths.iter().any(|path| path.contains("/json/")), "{paths:?}");
    assert!(hot["order"].as_array().unwrap().len() > 1000);
}

/// What a shell makes of `script`, in which `$1` is this program and `$2` a folder.
fn shell(script: &str, folder: &Path) -> Output {
    let mut command = Command::new("sh");
    let command = command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_runnel")]).arg(folder).stdin(Stdio::null());
    command.output().expect("there is a shell")
}

#[test]
fn learning_that_cannot_be_starts_the_program_plainly() {
    let folder = tempfile::tempdir().unwrap();
    for script in [
        "ulimit -n 4; exec \"$1\" launch --learn --plans \"$2\" -- sh -c 'echo ran; exit 7'",
        "unset HOME XDG_CACHE_HOME; exec \"$1\" launch --learn -- sh -c 'echo ran; exit 7'",
    ] {
        let output = shell(script, folder.path());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"ran\n"[..]), "{text}");
        assert!(text.contains("nothing is learned") && text.contains("starts plainly"), "{text}");
    }
}

#[test]
fn ptrace_a_file_size_limit_is_an_error_with_the_name_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let output = shell("ulimit -f 0; exec \"$1\" record -o \"$2/t\" -- sh -c 'echo ran'", folder.path());
    let text = String::from_utf8_lossy(&output.stderr);
    let Some(1) = output.status.code() else { panic!("{}: {text}", output.status) };
    assert_eq!(output.stdout, b"ran\n");
    assert!(text.contains(&format!("no trace: {}/t could not be written", folder.path().display())), "{text}");
    assert!(!folder.path().join("t").exists(), "an empty file is of no use");
}
