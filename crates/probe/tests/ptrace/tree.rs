//! Trees of processes: forks, vforks, clones, execs, pipes, interpreters.

use std::path::PathBuf;

use probe::{End, FileId, Site};

use crate::support::{Log, breakpoints, check, compile, launch, mapped_library, plainly, site};

const FUNCTIONS: [&str; 7] = ["in_fork", "in_parent", "in_vfork", "in_clone", "in_program", "in_thread", "at_end"];

fn sites_of(program: &std::path::Path) -> Vec<Site> {
    (0..).zip(FUNCTIONS).map(|(id, name)| site(program, name, id)).collect()
}

#[test]
fn ptrace_children_of_every_kind() {
    for flags in [&["-pthread"][..], &["-pthread", "-static"]] {
        let Some(program) = compile("cc", "tree", flags) else { continue };
        let sites = sites_of(&program);
        let path = program.to_str().expect("text");
        let (log, traced) = check(sites.clone(), &[path]);
        let mut ids = log.ids();
        ids.sort();
        assert_eq!((ids, traced.end), ((0..7).collect(), End::AllHit), "{flags:?}");
        // Each alone: the whole tree is followed to the end, and every child inherits what is not
        // hit.
        for site in sites {
            let (log, _) = check(vec![site, crate::support::site(&program, "main", 99)], &[path]);
            assert_eq!(log.hits.len(), 2, "{flags:?} {site:?}");
        }
    }
}

#[test]
fn ptrace_a_tree_that_is_never_let_go_of() {
    let Some(program) = compile("cc", "tree", &["-pthread"]) else { return };
    let Some(other) = compile("cc", "phases", &[]) else { return };
    let mut sites = sites_of(&program);
    sites.push(site(&other, "never", 50));
    let (log, traced) = check(sites, &[program.to_str().expect("text")]);
    assert_eq!((log.hits.len(), traced.end), (7, End::Exited));
    println!("{traced:?}");
}

#[test]
fn ptrace_children_that_are_not_followed_are_free() {
    let Some(program) = compile("cc", "tree", &["-pthread"]) else { return };
    let path = program.to_str().expect("text");
    let mut log = Log::default();
    let (ran, outcome) = launch(&breakpoints(sites_of(&program)).follow_children(false), &[path], &mut log);
    assert_eq!(ran, plainly(&[path]), "{outcome:?}");
    assert!(log.hits.iter().all(|hit| hit.id != 4), "in_program runs in children only: {:?}", log.hits);
    assert!(log.ids().contains(&6));
}

#[test]
fn ptrace_a_stop_at_every_hit_of_a_tree() {
    struct Stopping(Log, usize, probe::Stop);
    impl probe::Observer for Stopping {
        fn hit(&mut self, hit: probe::Hit) {
            self.0.hit(hit);
            if self.0.hits.len() == self.1 {
                self.2.request();
            }
        }
    }
    let Some(program) = compile("cc", "tree", &["-pthread"]) else { return };
    let path = program.to_str().expect("text");
    let expected = plainly(&[path]);
    for at in 1..=7 {
        let breakpoints = breakpoints(sites_of(&program));
        let mut observer = Stopping(Log::default(), at, breakpoints.stop());
        let mut file = tempfile::tempfile().expect("file");
        let program = probe::Program::new([path]).output(file.try_clone().expect("cloned"));
        let outcome = breakpoints.launch(&program, &mut observer).expect("started");
        let mut output = String::new();
        std::io::Seek::rewind(&mut file).expect("file");
        std::io::Read::read_to_string(&mut file, &mut output).expect("text");
        assert_eq!((&output, outcome.exit), (&expected.output, expected.exit), "stopped at {at}: {outcome:?}");
    }
}

#[test]
fn ptrace_shells_with_pipes() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let path = program.to_str().expect("text");
    let script = format!(
        "{path} again | sort -r | head -2; (echo b; {path}) | wc -l; x=$({path} | tail -1); echo $x; exec {path}"
    );
    let sites = vec![site(&program, "first", 1), site(&program, "never", 2), site(&program, "third", 3)];
    let (log, traced) = check(sites, &["/bin/sh", "-c", &script]);
    assert_eq!((log.ids(), traced.end), (vec![1, 3], End::Exited));
}

#[test]
fn ptrace_a_make_like_tree() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let Some(libc) = mapped_library(&program, "libc.so") else { return eprintln!("skipped: no ldd") };
    let path = program.to_str().expect("text");
    let lines: String =
        (0..12).map(|number| format!("( {path} > /dev/null; echo {number} > $T/{number} ) &\n")).collect();
    let script = format!("T=$(mktemp -d)\n{lines}wait; cat $T/* | sort -n | tr '\\n' ' '; rm -r $T");
    let sites = vec![site(&libc, "qsort", 5), site(&program, "third", 3), site(&program, "never", 2)];
    let (log, _) = check(sites, &["/bin/sh", "-c", &script]);
    let mut ids = log.ids();
    ids.sort();
    assert_eq!(ids, [3, 5]);
}

/// The python of this system, not a shim that finds one.
fn python() -> Option<PathBuf> {
    let output =
        std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    std::fs::canonicalize(path).ok()
}

#[test]
fn ptrace_python_with_imports() {
    let Some(python) = python() else { return eprintln!("skipped: no python3") };
    let path = python.to_str().expect("text");
    // Extension modules are libraries, loaded one by one.
    let script = "import json, hashlib, sqlite3, ssl, decimal, subprocess, threading, ctypes, _json; \
        t = [threading.Thread(target=lambda: hashlib.sha256(b'x' * 100000).hexdigest()) for _ in range(8)]; \
        [x.start() for x in t]; [x.join() for x in t]; \
        print(json.dumps([1, 2]), subprocess.run(['echo', 'hello'], capture_output=True).stdout, _json.__file__)";
    let ran = plainly(&[path, "-c", script]);
    let module = ran.output.split_whitespace().last().expect("a path");
    if !module.ends_with(".so") {
        return eprintln!("skipped: the modules of this python are built in: {module}");
    }
    // One that is hit and one that never is, so that all loads are followed.
    let never = Site { file: FileId { device: 1, inode: 1 }, offset: 0, executable: None, id: 0 };
    let (log, traced) = check(vec![site(module.as_ref(), "PyInit__json", 1), never], &[path, "-c", script]);
    assert_eq!(log.ids(), [1]);
    println!("{traced:?}");
}

/// Stops and CPU time of following any program to its end: `MEASURE='python3 -c 1' cargo test ...
/// measure -- --ignored`.
#[test]
#[ignore = "a measurement"]
fn measure() {
    let line = std::env::var("MEASURE").expect("a command in MEASURE");
    let never = Site { file: FileId { device: 1, inode: 1 }, offset: 0, executable: None, id: 0 };
    for sites in [vec![], vec![never]] {
        let mut log = Log::default();
        let start = std::time::Instant::now();
        let (ran, outcome) = launch(&breakpoints(sites), &["sh", "-c", &format!("exec {line}")], &mut log);
        let traced = outcome.traced.expect("traced");
        println!("{:?} {:?} total {} {traced:?}", start.elapsed(), ran.exit, traced.stops.total());
    }
}
