//! `runnel launchd`: programs that are started plainly, as root.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use launch::{PlanStore, Program};
use profile::plan::{Group, GroupExtent, LaunchPlan, PlanFile};
use serde_json::Value;

use crate::support::*;

/// How long the daemon may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pages of each file that is fetched.
const PAGES: u32 = 64;

/// Nobody in particular.
const USER: u32 = 65534;

/// Reads half of its files, waits for a line, computes for a while in a function of its own, waits
/// for its input to end, and reads the others. That function is the last page that it touches
/// before: the next would be code of the C library, where the daemon gives up a probe that other
/// processes run into.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void read_all(const char *path) {
    static char bytes[65536];
    int file = open(path, O_RDONLY);
    while (read(file, bytes, sizeof bytes) > 0);
    close(file);
}

__attribute__((noinline, aligned(4096))) unsigned long compute(unsigned long sum) {
    for (clock_t begin = clock(); clock() - begin < 3 * CLOCKS_PER_SEC / 2;)
        for (int round = 0; round < 10000; round++) sum = sum * 6364136223846793005UL + 1442695040888963407UL;
    return sum ? 1 : 2;
}

__attribute__((aligned(4096))) int main(int count, char **paths) {
    clock();
    for (int at = 1; at <= count / 2; at++) read_all(paths[at]);
    getchar();
    unsigned long factor = compute(count);
    while (getchar() >= 0);
    for (int at = count / 2 + 1; at < count; at++) read_all(paths[at]);
    return factor > 9;
}
"#;

/// A daemon and what it tells.
struct Daemon {
    child: Child,
    told: Receiver<Value>,
}

impl Daemon {
    /// Starts one and waits until it is ready; `None` where the kernel or a container does not
    /// allow it.
    fn start(test: &str, folder: &Path, plans: &[&Path]) -> Option<Daemon> {
        if !is_root() {
            eprintln!("skipped {test}: needs root");
            return None;
        }
        let mut command = runnel();
        command.args(["launchd", "--json"]).env_remove("XDG_CACHE_HOME").env("HOME", folder.join("home"));
        for plans in plans {
            command.arg("--plans").arg(plans);
        }
        let errors = File::create(folder.join("errors")).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let (sender, told) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let daemon = Daemon { child, told };
        let Ok(mut ready) = daemon.told.recv_timeout(PATIENCE) else {
            let errors = fs::read_to_string(folder.join("errors")).unwrap();
            assert!(errors.contains("fanotify"), "{errors}");
            eprintln!("skipped {test}: {errors}");
            return None;
        };
        if ready["event"] == "note" {
            ready = daemon.next();
        }
        assert_eq!(ready["event"], "ready");
        Some(daemon)
    }

    fn next(&self) -> Value {
        self.told.recv_timeout(PATIENCE).expect("the daemon tells something")
    }

    /// The next one that tells of `event`.
    fn wait(&self, event: &str) -> Value {
        loop {
            let told = self.next();
            if told["event"] == event {
                return told;
            }
        }
    }

    /// SIGTERM, and its end, which must be a success.
    fn terminate(mut self) {
        send(&self.child, Signal::TERM);
        assert!(wait(&mut self.child).success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes files, in small pieces as they come from a package manager.
fn write_files(folder: &Path, names: &[String]) -> Vec<PathBuf> {
    let write = |name: &String| {
        let path = folder.join(name);
        let mut file = File::create(&path).unwrap();
        (0..PAGES / 16).for_each(|_| file.write_all(&[7; 64 << 10]).unwrap());
        path
    };
    names.iter().map(write).collect()
}

/// Takes files out of memory; whether that can be done here.
fn make_cold(paths: &[PathBuf]) -> bool {
    paths.iter().all(|path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let is_cold = resident_pages(path) == 0;
        if !is_cold {
            eprintln!("skipped: files here (a tmpfs?) cannot be made cold");
        }
        is_cold
    })
}

fn resident_pages(path: &Path) -> u64 {
    let ranges = probe::residency::resident(&File::open(path).unwrap()).unwrap();
    ranges.iter().map(|(first, end)| end.div_ceil(4096) - first / 4096).sum()
}

/// Waits until all of the files are in memory, which nobody but the daemon reads.
fn wait_resident(paths: &[PathBuf]) {
    let start = Instant::now();
    while paths.iter().any(|path| resident_pages(path) < u64::from(PAGES)) {
        assert!(start.elapsed() < PATIENCE, "the files do not come into memory");
        // The kernel reads; a short pause leaves it the processor.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A copy of cat, which waits for its input to end, with a plan that reads `files`. The store
/// belongs to `owner`.
fn planned_cat(folder: &Path, files: &[PathBuf], owner: u32) -> (PathBuf, PathBuf) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let (cat, plans) = (folder.join("cat"), folder.join("plans"));
    fs::copy("/bin/cat", &cat).unwrap();
    let program = Program::find(&[cat.clone().into_os_string()]).unwrap();
    let file =
        |path: &PathBuf| PlanFile { path: path.as_os_str().as_bytes()[1..].to_vec(), identity: launch::identity(path) };
    let extent = |file: usize| GroupExtent { file: file as u32, page: 0, pages: PAGES };
    let group = Group { extents: (0..files.len()).map(extent).collect(), ..Group::default() };
    let plan = LaunchPlan {
        program: program.real.as_os_str().as_bytes().to_vec(),
        runs: 2,
        files: files.iter().map(file).collect(),
        groups: vec![group],
    };
    PlanStore::open(Some(&plans)).unwrap().save(&program, &plan).unwrap();
    give(&plans, owner);
    (program.real, plans)
}

/// Makes a folder of plans that of `owner`.
fn give(plans: &Path, owner: u32) {
    chown(plans, Some(owner), Some(owner)).unwrap();
    fs::read_dir(plans).unwrap().for_each(|file| chown(file.unwrap().path(), Some(owner), Some(owner)).unwrap());
}

fn start_cat(cat: &Path, user: u32) -> Child {
    Command::new(cat).stdin(Stdio::piped()).uid(user).gid(user).spawn().unwrap()
}

#[test]
fn root_a_plain_start_is_fetched_and_its_later_group_at_a_probe() {
    let test = "root_a_plain_start_is_fetched_and_its_later_group_at_a_probe";
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("program.c"), PROGRAM).unwrap();
    let built = Command::new("cc").arg("-O1").arg("-o").arg(at("program")).arg(at("program.c")).status();
    if !is_root() || !built.is_ok_and(|status| status.success()) {
        return eprintln!("skipped {test}: needs root and a C compiler");
    }
    let files = write_files(folder.path(), &(0..24).map(|number| format!("file{number}")).collect::<Vec<_>>());
    let learn = || {
        let mut learn = runnel();
        learn.args(["launch", "--learn", "--plans"]).arg(at("plans")).arg("--").arg(at("program")).args(&files);
        learn.stdin(Stdio::null()).output().unwrap()
    };
    for _ in 0..2 {
        let learned = learn();
        if !learned.status.success() {
            return eprintln!("skipped {test}: {}", String::from_utf8_lossy(&learned.stderr));
        }
    }
    let Some(daemon) = Daemon::start(test, folder.path(), &[&at("plans")]) else { return };
    if !make_cold(&files) {
        return;
    }
    // What `runnel launch` starts it fetches itself: the daemon tells nothing of it.
    let mut launched = runnel();
    launched.args(["launch", "--json", "--plans"]).arg(at("plans")).arg("--").arg(at("program")).args(&files);
    let launched = launched.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(launched.stderr).unwrap();
    let launched: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(launched["mode"], "with", "{launched}");
    make_cold(&files);
    let mut program = Command::new(at("program")).args(&files).stdin(Stdio::piped()).spawn().unwrap();
    let told = daemon.wait("launch");
    assert_eq!((&told["process"], &told["mode"]), (&program.id().into(), &"with".into()), "{told}");
    // The probe is there: a program that goes on before may run past it.
    program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let errors = fs::read_to_string(at("errors")).unwrap();
    if errors.contains("uprobes") {
        eprintln!("no probes here: {errors}");
    } else {
        assert_eq!(daemon.wait("group")["group"], 1);
        // The program waits for its input, and has not come to these files.
        wait_resident(&files[12..]);
    }
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    let over = daemon.wait("over");
    assert_eq!(over["launch"]["mode"], "with");
    let fetched = &daemon.wait("ended")["fetched"];
    assert!(fetched["bytes"].as_u64() >= Some(12 * u64::from(PAGES) * 4096), "{fetched}");
    let listed =
        ok(&["plans".as_ref(), "--plans".as_ref(), at("plans").as_os_str(), "list".as_ref(), "--json".as_ref()]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed[0]["launches"], &listed[0]["cold_launches"]), (&2.into(), &2.into()), "both are counted");
    daemon.terminate();
    // A user's plan sets no probe in a program that is root's.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    give(&at("plans"), USER);
    let Some(daemon) = Daemon::start(test, folder.path(), &[&at("plans")]) else { return };
    make_cold(&files);
    let mut program = Command::new(at("program"));
    program.args(&files).uid(USER).gid(USER).stdin(Stdio::null());
    assert!(program.status().unwrap().success());
    let fetched = &daemon.wait("ended")["fetched"];
    assert_eq!(fetched["groups"], 1, "{fetched}");
    daemon.terminate();
}

#[test]
fn root_a_plan_of_a_user_is_for_what_that_user_starts_and_may_read() {
    let test = "root_a_plan_of_a_user_is_for_what_that_user_starts_and_may_read";
    if !is_root() {
        return eprintln!("skipped {test}: needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let files = write_files(folder.path(), &["open".into(), "secret".into()]);
    fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).unwrap();
    let (cat, plans) = planned_cat(folder.path(), &files, USER);
    let Some(daemon) = Daemon::start(test, folder.path(), &[&plans]) else { return };
    if !make_cold(&files) {
        return;
    }
    let mut of_root = start_cat(&cat, 0);
    drop(of_root.stdin.take());
    of_root.wait().unwrap();
    let mut of_user = start_cat(&cat, USER);
    let told = daemon.wait("launch");
    assert_eq!(told["process"], of_user.id(), "root's start is none of this plan's: {told}");
    wait_resident(&files[..1]);
    assert_eq!(daemon.wait("over")["launch"]["mode"], "with");
    drop(of_user.stdin.take());
    let ended = daemon.wait("ended");
    assert_eq!((&ended["fetched"]["stale"], resident_pages(&files[1])), (&1.into(), 0), "{ended}");
    for file in fs::read_dir(&plans).unwrap().map(Result::unwrap) {
        let owner = std::os::unix::fs::MetadataExt::uid(&file.metadata().unwrap());
        assert_eq!(owner, USER, "{:?} is no longer the user's", file.path());
    }
    of_user.wait().unwrap();
    daemon.terminate();
}

#[test]
fn root_a_script_is_told_from_others_and_new_plans_are_seen() {
    let test = "root_a_script_is_told_from_others_and_new_plans_are_seen";
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("plans")).unwrap();
    let Some(daemon) = Daemon::start(test, folder.path(), &[&at("plans")]) else { return };
    let store = PlanStore::open(Some(&at("plans"))).unwrap();
    for name in ["known.sh", "other.sh"] {
        fs::write(at(name), "exit 0\n").unwrap();
    }
    let program = Program::find(&["sh".into(), at("known.sh").into_os_string()]).unwrap();
    let plan = LaunchPlan { program: program.real.as_os_str().as_bytes().to_vec(), runs: 1, ..LaunchPlan::default() };
    store.save(&program, &plan).unwrap();
    let plans = daemon.wait("plans");
    assert_eq!((&plans["plans"], &plans["programs"]), (&1.into(), &1.into()));
    let start = |script: &str| {
        // By a relative name, and from a shell, whose forks look like itself for a moment.
        let line = format!("sh {script} more; true");
        let mut shell = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).spawn().unwrap();
        assert!(shell.wait().unwrap().success());
    };
    start("other.sh");
    // It must live until it was looked at.
    fs::write(at("known.sh"), "read line\n").unwrap();
    let mut known = Command::new("sh");
    known.args(["./known.sh", "more"]).current_dir(folder.path()).stdin(Stdio::piped());
    let mut known = known.spawn().unwrap();
    let told = daemon.wait("launch");
    assert_eq!(told["process"], known.id(), "{told}");
    assert!(told["program"].as_str().unwrap().ends_with("/known.sh") && told["mode"] == "warm", "{told}");
    drop(known.stdin.take());
    known.wait().unwrap();
    fs::remove_file(store.plan_path(&program)).unwrap();
    assert_eq!(daemon.wait("plans")["programs"], 0);
    daemon.terminate();
}

#[test]
fn root_a_daemon_that_is_asked_to_end_leaves_programs_alone() {
    let test = "root_a_daemon_that_is_asked_to_end_leaves_programs_alone";
    if !is_root() {
        return eprintln!("skipped {test}: needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let files = write_files(folder.path(), &["file".into()]);
    let (cat, plans) = planned_cat(folder.path(), &files, 0);
    let Some(daemon) = Daemon::start(test, folder.path(), &[&plans]) else { return };
    if !make_cold(&files) {
        return;
    }
    // An update of the program: another file in its place.
    fs::copy(&cat, folder.path().join("new")).unwrap();
    fs::rename(folder.path().join("new"), &cat).unwrap();
    assert_eq!(daemon.wait("plans")["programs"], 1);
    let mut cat = start_cat(&cat, USER);
    assert_eq!(daemon.wait("launch")["process"], cat.id(), "root's plans are for everybody");
    // In the middle of the launch.
    daemon.terminate();
    assert!(cat.try_wait().unwrap().is_none());
    drop(cat.stdin.take());
    assert!(cat.wait().unwrap().success());
}

#[test]
fn what_a_daemon_cannot_use_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let launchd = |arguments: &[&Path]| {
        let mut command = runnel();
        command.arg("launchd").args(arguments).env("HOME", folder.path()).env_remove("XDG_CACHE_HOME");
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let units = folder.path().join("units");
    let unit = |option: &str| launchd(&[Path::new(option), Path::new("--units"), &units]).0;
    let both = (unit("--install"), unit("--uninstall"), unit("--uninstall"));
    assert_eq!(both, (Some(0), Some(0), Some(4)));
    if !is_root() {
        let (code, text) = launchd(&[]);
        return assert!(code == Some(1) && text.contains("as root"), "{text}");
    }
    fs::create_dir(folder.path().join("plans")).unwrap();
    fs::set_permissions(folder.path().join("plans"), fs::Permissions::from_mode(0o777)).unwrap();
    for (name, said) in [("plans", "chmod go-w"), ("none", "No such file"), ("/etc/passwd", "is no folder")] {
        let (code, text) = launchd(&[Path::new("--plans"), &folder.path().join(name)]);
        assert!(matches!(code, Some(1 | 4)) && (text.contains(said) || text.contains("fanotify")), "{name}: {text}");
    }
}
