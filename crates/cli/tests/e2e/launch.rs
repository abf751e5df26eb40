//! `runnel launch` and `runnel plans` on programs of this machine.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::*;

/// A program that reads one file, computes for a while in a function of its own that nothing has
/// called before, and reads another file. The functions lie in pages of their own, so that their
/// first run is seen whatever the kernel maps around.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static unsigned long read_all(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found)) return 1;
    unsigned char *bytes = mmap(0, found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    unsigned long sum = 0;
    for (long at = 0; bytes != MAP_FAILED && at < found.st_size; at += 4096) sum += bytes[at];
    close(file);
    return sum;
}

__attribute__((noinline, aligned(4096))) unsigned long compute(unsigned long sum) {
    for (clock_t begin = clock(); clock() - begin < 3 * CLOCKS_PER_SEC / 2;)
        for (int round = 0; round < 10000; round++) sum = sum * 6364136223846793005UL + 1442695040888963407UL;
    return sum ? 1 : 2;
}

int main(int count, char **paths) {
    unsigned long sum = read_all(paths[1]);
    unsigned long factor = compute(sum);
    sum += read_all(paths[2]);
    printf("%lu %d\n", sum, factor > 0);
    fprintf(stderr, "process %d\n", getpid());
    return count == 3 ? 0 : 9;
}
"#;

fn launch(plans: &Path, options: &[&str], command: &[&OsStr]) -> Output {
    let mut launch = runnel();
    launch.arg("launch").arg("--plans").arg(plans).args(options).arg("--").args(command);
    launch.stdin(Stdio::null()).output().expect("the binary starts")
}

/// The last line of standard error.
fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

fn listed(plans: &Path) -> serde_json::Value {
    let text = ok(&["plans".as_ref(), "--plans".as_ref(), plans.as_os_str(), "list".as_ref(), "--json".as_ref()]);
    serde_json::from_str(&text).expect("JSON")
}

/// Whether runs can be recorded here: containers may deny perf events.
fn can_record(test: &str, learned: &Output) -> bool {
    let text = String::from_utf8_lossy(&learned.stderr);
    let denied = learned.status.code() == Some(1) && text.contains("perf");
    if denied {
        eprintln!("skipped {test}: {text}");
    }
    !denied
}

#[test]
fn ptrace_a_learned_program_is_prefetched_and_its_later_burst_by_a_breakpoint() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("program.c"), PROGRAM).unwrap();
    let built = Command::new("cc").arg("-O1").arg("-o").arg(at("program")).arg(at("program.c")).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return;
    }
    for name in ["first", "second"] {
        // In small pieces: of one large write the kernel makes folios of 2 MiB, which one fault
        // maps whole and unseen.
        let mut file = fs::File::create(at(name)).unwrap();
        (0..64).for_each(|_| file.write_all(&[7; 64 << 10]).unwrap());
    }
    let files = ["program", "first", "second"].map(at);
    let command: Vec<&OsStr> = files.iter().map(|path| path.as_os_str()).collect();
    let plain = Command::new(&files[0]).args(&files[1..]).output().unwrap();
    let plans = at("plans");
    for _ in 0..2 {
        let learned = launch(&plans, &["--learn"], &command);
        if !can_record("launch", &learned) {
            return;
        }
        assert_eq!(learned.stdout, plain.stdout, "{}", String::from_utf8_lossy(&learned.stderr));
    }
    let entry = &listed(&plans)[0];
    assert_eq!((entry["runs"].as_u64(), entry["launches"].as_u64()), (Some(2), Some(0)), "{entry}");
    assert!(entry["groups"].as_u64() >= Some(2) && entry["bytes"].as_u64() >= Some(8 << 20), "{entry}");
    let launched = launch(&plans, &["--always", "--json"], &command);
    assert_eq!((launched.stdout.clone(), launched.status.code()), (plain.stdout.clone(), Some(0)));
    let told = json(&launched);
    assert!(told["fetched"]["bytes"].as_u64() >= Some(8 << 20), "{told}");
    // Without ptrace, or without the library that makes breakpoints safe, the launch group alone is
    // fetched.
    let why = told["traced"]["untraced"].as_str().or(told["notes"][0].as_str());
    match why {
        Some(why) => eprintln!("no breakpoints here: {why}"),
        None => assert!(told["traced"]["hits"].as_u64() >= Some(1), "{told}"),
    }
    let without = json(&launch(&plans, &["--always", "--json", "--no-ptrace"], &command));
    assert!(without["traced"].is_null() && without["code"] == 0, "{without}");
    assert_eq!(listed(&plans)[0]["launches"], 2);
    // Where nobody asks for a report, the launcher becomes the program, and a process beside it
    // records the launch.
    let mut becoming = runnel();
    becoming.arg("launch").arg("--plans").arg(&plans).arg("--always").arg("--").args(&command);
    let becoming = becoming.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = becoming.id();
    let became = becoming.wait_with_output().unwrap();
    assert_eq!((became.stdout, became.status.code()), (plain.stdout.clone(), Some(0)));
    assert_eq!(String::from_utf8_lossy(&became.stderr), format!("process {process}\n"));
    let entered = (0..2000).any(|_| listed(&plans)[0]["launches"] == 3);
    assert!(entered, "{}", listed(&plans));
    // A file that changed drops out, the rest stays.
    fs::write(at("second"), b"another one").unwrap();
    let stale = json(&launch(&plans, &["--always", "--json"], &command));
    assert!(stale["fetched"]["stale"].as_u64() >= Some(1), "{stale}");
    assert!(stale["fetched"]["bytes"].as_u64() >= Some(4 << 20), "{stale}");
}

/// A program that computes, loads a library, computes, and reads a file; told by lines on its
/// standard input when to go on, so that a test can look at what is in memory in between.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void wait_line(void) {
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n') continue;
}

static unsigned long read_all(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found)) return 1;
    unsigned char *bytes = mmap(0, found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    unsigned long sum = 0;
    for (long at = 0; bytes != MAP_FAILED && at < found.st_size; at += 4096) sum += bytes[at];
    close(file);
    return sum;
}

int main(int count, char **paths) {
    unsigned long sum = read_all(paths[1]);
    wait_line();
    void *library = dlopen(paths[2], RTLD_NOW);
    unsigned long (*answer)(void) = library ? (unsigned long (*)(void))dlsym(library, "answer") : 0;
    sum += answer ? answer() : 0;
    printf("loaded\n");
    fflush(stdout);
    wait_line();
    printf("%lu\n", sum + read_all(paths[3]));
    return count == 4 ? 0 : 9;
}
"#;

/// Bytes of a file that memory holds; `None` without fincore(1).
fn resident(path: &Path) -> Option<u64> {
    let output =
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Writes a file out and drops it from memory.
fn make_cold(path: &Path) {
    let mut dd = Command::new("dd");
    dd.args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"]);
    let mut to = std::ffi::OsString::from("of=");
    to.push(path);
    assert!(dd.arg(to).status().unwrap().success());
}

#[test]
fn without_ptrace_a_library_has_the_later_burst_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("program.c"), LOADER).unwrap();
    fs::write(at("answer.c"), "unsigned long answer(void) { return 42; }").unwrap();
    let compile = |options: &[&str], from: &str, to: &str| {
        let status = Command::new("cc").args(options).arg("-o").arg(at(to)).arg(at(from)).arg("-ldl").status();
        status.is_ok_and(|status| status.success())
    };
    if !compile(&["-O1"], "program.c", "program") || !compile(&["-shared", "-fPIC"], "answer.c", "libanswer.so") {
        eprintln!("skipped: no C compiler");
        return;
    }
    if !Path::new(env!("CARGO_BIN_EXE_runnel")).with_file_name("librunnel_audit.so").is_file() {
        eprintln!("skipped: librunnel_audit.so is not built");
        return;
    }
    for name in ["first", "second"] {
        // In small pieces: see above.
        let mut file = fs::File::create(at(name)).unwrap();
        (0..64).for_each(|_| file.write_all(&[7; 64 << 10]).unwrap());
    }
    let files = ["program", "first", "libanswer.so", "second"].map(at);
    let plans = at("plans");
    let start = |options: &[&str], input: Stdio| {
        let mut launch = runnel();
        launch.arg("launch").arg("--plans").arg(&plans).args(options).arg("--").args(&files);
        launch.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for _ in 0..2 {
        // The idle periods are what is to be learned.
        let mut idle = Command::new("sh");
        let mut idle = idle.args(["-c", "sleep 1.5; echo; sleep 1.5; echo"]).stdout(Stdio::piped()).spawn().unwrap();
        let learned = start(&["--learn"], idle.stdout.take().unwrap().into()).wait_with_output().unwrap();
        idle.wait().unwrap();
        if !can_record("libraries", &learned) {
            return;
        }
        eprintln!("{}", String::from_utf8_lossy(&learned.stderr));
    }
    make_cold(&files[3]);
    // Not everywhere: a file system in memory has nothing cold.
    let is_cold = resident(&files[3]).is_some_and(|bytes| bytes == 0);
    let mut launched = start(&["--always", "--json", "--no-ptrace"], Stdio::piped());
    let (mut input, output) = (launched.stdin.take().unwrap(), launched.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output));
    input.write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "loaded");
    // The program waits for its second line and has not opened the file.
    while is_cold && resident(&files[3]).is_some_and(|bytes| bytes < 4 << 20) {
        assert!(launched.try_wait().unwrap().is_none(), "it waits");
    }
    input.write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), (2 * 1024 * 7 + 42).to_string());
    let told = json(&launched.wait_with_output().unwrap());
    assert_eq!((told["code"].as_u64(), told["libraries"].as_u64()), (Some(0), Some(1)), "{told}");
    assert!(told["traced"].is_null() && (!is_cold || told["fetched"]["groups"].as_u64() >= Some(2)), "{told}");
}

/// Whether this process, and so every program that it starts, ignores a signal.
fn ignores(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal - 1)) != 0
}

#[test]
fn without_a_plan_and_with_a_bad_one_the_program_starts_plainly() {
    let folder = tempfile::tempdir().unwrap();
    let plans = folder.path();
    let shell = |script: &str| launch(plans, &["--json"], &["sh", "-c", script].map(OsStr::new));
    let output = shell("echo out; exit 7");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"out\n"[..]));
    assert!(json(&output)["mode"].is_null());
    // Started in the background by a shell, or by nohup, the tests and all their programs ignore
    // SIGINT or SIGHUP, and no shell may undo that.
    for signal in [9, 15, 1, 2].into_iter().filter(|signal| !ignores(*signal)) {
        let output = shell(&format!("kill -{signal} $$"));
        assert_eq!(output.status.signal(), Some(signal), "the launcher ends as the program did");
        assert_eq!(json(&output)["code"], 128 + signal);
    }
    for (program, code) in [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126)] {
        assert_eq!(launch(plans, &[], &[OsStr::new(program)]).status.code(), Some(code), "{program}");
    }
    // Whatever lies where a plan is looked for, the program does not notice.
    let learned = launch(plans, &["--learn"], &["cat", "/etc/passwd"].map(OsStr::new));
    if !can_record("a bad plan", &learned) {
        return;
    }
    let file = listed(plans)[0]["file"].as_str().unwrap().to_string();
    let good = fs::read(&file).unwrap();
    let expected = fs::read("/etc/passwd").unwrap();
    for bytes in [&good[..good.len() - 1], b"", b"RNLLPLAN", &[0xff; 4096]] {
        fs::write(&file, bytes).unwrap();
        let output = launch(plans, &["--json"], &["cat", "/etc/passwd"].map(OsStr::new));
        assert_eq!((output.status.code(), &output.stdout), (Some(0), &expected));
        assert_eq!(json(&output)["notes"].as_array().map(Vec::len), Some(1), "what is wrong is told to who asks");
        assert!(listed(plans)[0]["error"].is_string());
    }
    let pruned = ok(&["plans".as_ref(), "--plans".as_ref(), plans.as_os_str(), "prune".as_ref()]);
    assert!(pruned.starts_with(&file), "{pruned}");
    assert_eq!(listed(plans), serde_json::json!([]));
}

#[test]
fn signals_sent_to_the_launcher_reach_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = runnel()
        .args(["launch", "--plans"])
        .arg(folder.path())
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    send(&child, Signal::TERM);
    assert_eq!(lines.next().unwrap().unwrap(), "caught");
    assert_eq!(wait(&mut child).code(), Some(3));
}

#[test]
fn the_user_switches_and_forgets_plans() {
    let folder = tempfile::tempdir().unwrap();
    let plans = |arguments: &[&str]| {
        let mut all = vec!["plans", "--plans", folder.path().to_str().unwrap()];
        all.extend(arguments);
        run(&all)
    };
    assert_eq!(plans(&["off", "cat"]).status.code(), Some(4), "there is none yet");
    if !can_record("plans", &launch(folder.path(), &["--learn"], &["cat", "/etc/passwd"].map(OsStr::new))) {
        return;
    }
    for (action, state) in [("off", "off!"), ("on", "on!"), ("auto", "on")] {
        assert!(plans(&[action, "cat"]).status.success());
        assert_eq!(listed(folder.path())[0]["state"], state);
    }
    assert!(plans(&["forget", "cat"]).status.success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "neither trace nor record stays");
    // A trace of an image is no learning run.
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    let header = trace::Header { image: units::ImageId([1; 32]), source: trace::Source::Mount };
    let mut writer = trace::Writer::new(&header);
    writer.finish().unwrap();
    trace.write_all(&writer.take()).unwrap();
    let output = plans(&["learn", trace.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_shim_starts_the_program_through_the_launcher() {
    let home = tempfile::tempdir().unwrap();
    let install = |option: &str| {
        let mut command = runnel();
        command.args(["launch", option, "--", "cat"]).env("HOME", home.path());
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CACHE_HOME").output().unwrap()
    };
    assert!(install("--install").status.success());
    let shim = home.path().join(".local/bin/cat");
    let output = Command::new(&shim).arg("/etc/passwd").env("HOME", home.path()).output().unwrap();
    assert_eq!(output.stdout, fs::read("/etc/passwd").unwrap(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(install("--uninstall").status.success() && !shim.exists());
    assert_eq!(install("--uninstall").status.code(), Some(4));
    // With the shim first in PATH the plain name still means the program.
    let path = format!("{}:{}", home.path().join(".local/bin").display(), std::env::var("PATH").unwrap());
    let by_name = |option: &str| {
        let mut command = runnel();
        command.args(["launch", option, "--", "cat"]).env("HOME", home.path()).env("PATH", &path);
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CACHE_HOME").output().unwrap()
    };
    for _ in 0..2 {
        assert!(by_name("--install").status.success());
        let text = fs::read_to_string(&shim).unwrap();
        assert!(!text.contains(&format!("-- '{}'", shim.display())), "it would start itself: {text}");
    }
    let output = Command::new("cat").arg("/etc/passwd").env("HOME", home.path()).env("PATH", &path).output().unwrap();
    assert_eq!(output.stdout, fs::read("/etc/passwd").unwrap());
    assert!(by_name("--uninstall").status.success() && !shim.exists());
}

#[test]
fn without_a_home_the_program_starts_plainly() {
    let output = runnel().args(["launch", "--", "/bin/sh", "-c", "exit 4"]).env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_the_launcher_lacks_costs_the_program_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let bad = folder.path().join("bad");
    fs::write(&bad, "no plan").unwrap();
    let absent = folder.path().join("absent");
    for plan in [&fifo, &bad, &absent] {
        let options = ["--plan", plan.to_str().unwrap()];
        let output = launch(folder.path(), &options, &["sh", "-c", "echo out; exit 5"].map(OsStr::new));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(5), &b"out\n"[..]), "{text}");
        assert!(text.contains(plan.to_str().unwrap()), "{text}");
    }
    fails(&["dump".as_ref(), fifo.as_os_str()], 1, "not a regular file");
    fails(&["plans".as_ref(), "learn".as_ref(), fifo.as_os_str()], 1, "not a regular file");
    // The limits are the program's too, which has the default action for SIGXFSZ.
    let limited = |limit: &str, script: &str| {
        let command = format!("ulimit {limit}; exec \"$0\" launch --plans \"$1\" -- sh -c '{script}'");
        let mut shell = Command::new("sh");
        shell.args(["-c", &command, env!("CARGO_BIN_EXE_runnel")]).arg(folder.path()).output().unwrap()
    };
    for limit in ["-n 5", "-f 0"] {
        let output = limited(limit, "echo out; exit 6");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(6), &b"out\n"[..]), "{limit}: {text}");
    }
    let output = limited("-f 0", &format!("exec cat /etc/passwd > {}/file", folder.path().display()));
    assert_eq!(output.status.signal(), Some(25), "{}", String::from_utf8_lossy(&output.stderr));
}
