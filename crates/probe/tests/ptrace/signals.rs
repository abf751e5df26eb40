//! Signals, job control, sudden ends.

use std::fs;
use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe::{End, Exit, Hit, Observer, Program, Site, Stop, Untraced};

use crate::support::{Log, PROGRAMS, breakpoints, check, compile, launch, plainly, programs, site};

fn sites_of(program: &std::path::Path) -> Vec<Site> {
    (0..).zip(["before", "between", "after"]).map(|(id, name)| site(program, name, id)).collect()
}

#[test]
fn ptrace_a_program_with_its_own_traps_and_stops() {
    for flags in [&[][..], &["-static"]] {
        let Some(program) = compile("cc", "signals", flags) else { continue };
        let path = program.to_str().expect("text");
        let (log, _) = check(sites_of(&program), &[path]);
        assert_eq!(log.ids(), [0, 1, 2]);
        let mut sites = sites_of(&program);
        sites.push(Site { offset: 1 << 40, id: 9, ..sites[0] });
        let (log, traced) = check(sites.clone(), &[path]);
        assert_eq!((log.ids(), traced.end), (vec![0, 1, 2], End::Exited));
        let (_, traced) = check(sites, &[path, "die"]);
        assert_eq!(traced.end, End::Exited);
    }
}

/// Does something to the program at its first hit, or at its release.
struct At<F: FnMut(Pid) + Send> {
    log: Log,
    hit: bool,
    act: F,
}

impl<F: FnMut(Pid) + Send> Observer for At<F> {
    fn started(&mut self, pid: u32) {
        self.log.started(pid);
    }

    fn hit(&mut self, hit: Hit) {
        self.log.hit(hit);
        if self.hit {
            (self.act)(Pid::from_raw(self.log.pid as i32));
        }
    }

    fn released(&mut self, end: End) {
        self.log.released(end);
        if !self.hit {
            (self.act)(Pid::from_raw(self.log.pid as i32));
        }
    }
}

#[test]
fn ptrace_a_program_killed_in_a_breakpoint() {
    for name in ["signals", "threads", "tree"] {
        let Some(program) = compile("cc", name, &["-pthread"]) else { continue };
        let functions = [("signals", "between"), ("threads", "f10"), ("tree", "in_thread")];
        let function = functions.iter().find(|(of, _)| *of == name).expect("known").1;
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            let never = Site { offset: 1 << 40, ..site(&program, function, 9) };
            let sites = vec![site(&program, function, 1), never];
            let act = |pid: Pid| kill(pid, signal).expect("sent");
            let mut observer = At { log: Log::default(), hit: true, act };
            let null = fs::File::create("/dev/null").expect("there");
            let program = Program::new([&program]).output(null);
            let outcome = breakpoints(sites).launch(&program, &mut observer).expect("started");
            assert_eq!(outcome.exit, Exit::Signal(signal as i32), "{name}: {outcome:?}");
            assert_eq!(outcome.exit.code(), 128 + signal as i32);
        }
    }
}

fn state_of(pid: Pid) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("lives");
    stat.rsplit(") ").next().expect("fields").chars().next().expect("a state")
}

/// Waits until a process is in one of these states.
fn wait_for(pid: Pid, states: &[char]) {
    while !states.contains(&state_of(pid)) {
        std::thread::yield_now();
    }
}

/// Lets the program go while it is stopped by job control, sees that it is still stopped, and
/// continues it.
struct Stopper {
    log: Log,
    stop: Stop,
    input: Option<PipeWriter>,
    helper: Option<std::thread::JoinHandle<()>>,
}

impl Observer for Stopper {
    fn started(&mut self, pid: u32) {
        self.log.started(pid);
    }

    fn hit(&mut self, hit: Hit) {
        self.log.hit(hit);
        if hit.id == 2 && self.helper.is_none() {
            let (pid, stop) = (Pid::from_raw(self.log.pid as i32), self.stop.clone());
            self.helper = Some(std::thread::spawn(move || {
                // In its wait for input ('S'), not in some stop of the tracer.
                wait_for(pid, &['S']);
                kill(pid, Signal::SIGSTOP).expect("sent");
                // Stopped programs are 't' while a tracer listens.
                wait_for(pid, &['t', 'T']);
                stop.request();
            }));
        }
    }

    fn released(&mut self, end: End) {
        let pid = Pid::from_raw(self.log.pid as i32);
        wait_for(pid, &['T']);
        self.log.released(end);
        kill(pid, Signal::SIGCONT).expect("sent");
        self.input.take();
    }
}

#[test]
fn ptrace_a_stopped_program_stays_stopped_when_let_go_of() {
    let Some(program) = compile("cc", "signals", &[]) else { return };
    let mut sites = sites_of(&program);
    sites.push(Site { offset: 1 << 40, id: 9, ..sites[0] });
    let breakpoints = breakpoints(sites);
    let (reader, input) = std::io::pipe().expect("pipe");
    let mut observer = Stopper { log: Log::default(), stop: breakpoints.stop(), input: Some(input), helper: None };
    let arguments = [program.as_os_str(), "wait".as_ref()];
    let program = Program::new(arguments)
        .input(fs::File::from(OwnedFd::from(reader)))
        .output(fs::File::create("/dev/null").expect("there"));
    let outcome = breakpoints.launch(&program, &mut observer).expect("started");
    observer.helper.expect("hit").join().expect("no panic");
    assert_eq!((outcome.exit, observer.log.end), (Exit::Code(4), Some(End::Stopped)));
}

#[test]
fn ptrace_children_that_outlive_the_program_are_let_go_of() {
    let script = "(read x; echo child $x) <&3 & echo parent";
    let (reader, input) = std::io::pipe().expect("pipe");
    let (output, writer) = std::io::pipe().expect("pipe");
    let never = Site { file: probe::FileId { device: 1, inode: 1 }, offset: 0, executable: None, id: 1 };
    let program = Program::new(["sh", "-c", &format!("exec 3<&0; {script}")])
        .input(fs::File::from(OwnedFd::from(reader)))
        .output(fs::File::from(OwnedFd::from(writer)));
    let outcome = breakpoints(vec![never]).launch(&program, &mut Log::default()).expect("started");
    assert_eq!(outcome.exit, Exit::Code(0));
    assert_eq!(outcome.traced.expect("traced").end, End::Exited);
    drop(program);
    std::io::Write::write_all(&mut { input }, b"lives\n").expect("read");
    let text = std::io::read_to_string(output).expect("text");
    assert_eq!(text, "parent\nchild lives\n");
}

/// Ends the input when the program is free, and stops the tracing when a child of it has ended.
struct Waiter {
    log: Log,
    stop: Stop,
    input: Option<PipeWriter>,
    helper: Option<std::thread::JoinHandle<()>>,
}

impl Observer for Waiter {
    fn started(&mut self, pid: u32) {
        self.log.started(pid);
    }

    fn hit(&mut self, hit: Hit) {
        self.log.hit(hit);
        if hit.id == 1 {
            let (child, parent) = (Pid::from_raw(hit.pid as i32), Pid::from_raw(self.log.pid as i32));
            let stop = self.stop.clone();
            self.helper = Some(std::thread::spawn(move || {
                wait_for(child, &['Z']);
                wait_for(parent, &['S']);
                stop.request();
            }));
        }
    }

    fn released(&mut self, end: End) {
        self.log.released(end);
        wait_for(Pid::from_raw(self.log.pid as i32), &['S']);
        self.input.take();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn ptrace_waiting_calls_are_not_interrupted() {
    let Some(program) = compile("cc", "waiting", &[]) else { return };
    let mut sites: Vec<Site> = (0..).zip(["before", "again"]).map(|(id, name)| site(&program, name, id)).collect();
    sites.push(Site { offset: 1 << 40, id: 9, ..sites[0] });
    let breakpoints = breakpoints(sites);
    let (reader, input) = std::io::pipe().expect("pipe");
    let (output, writer) = std::io::pipe().expect("pipe");
    let mut observer = Waiter { log: Log::default(), stop: breakpoints.stop(), input: Some(input), helper: None };
    let program = Program::new([&program])
        .input(fs::File::from(OwnedFd::from(reader)))
        .output(fs::File::from(OwnedFd::from(writer)));
    let outcome = breakpoints.launch(&program, &mut observer).expect("started");
    drop(program);
    observer.helper.expect("hit").join().expect("no panic");
    let text = std::io::read_to_string(output).expect("text");
    assert_eq!(text, "before 4\nagain 7\nepoll_wait 1 \n");
    assert_eq!((outcome.exit, observer.log.ids(), observer.log.end), (Exit::Code(3), vec![0, 1], Some(End::Stopped)));
}

/// Runs one of the tests below as another process, with a tool before it.
fn as_role(tool: &[&str], role: &str) -> Option<std::process::Output> {
    let exe = std::env::current_exe().expect("known");
    let mut command = Command::new(tool[0]);
    let command = command.args(&tool[1..]).arg(exe).args(["--exact", role, "--ignored", "--nocapture"]);
    command.output().inspect_err(|error| eprintln!("skipped: {}: {error}", tool[0])).ok()
}

#[test]
fn ptrace_where_it_is_denied_programs_run_plainly() {
    // strace traces the children too, and a process has one tracer.
    let Some(output) = as_role(&["strace", "-f", "-o", "/dev/null"], "signals::role_denied") else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a part of ptrace_where_it_is_denied_programs_run_plainly"]
fn role_denied() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let path = program.to_str().expect("text");
    let mut log = Log::default();
    let (ran, outcome) = launch(&breakpoints(vec![site(&program, "first", 1)]), &[path], &mut log);
    assert_eq!(outcome.traced, Err(Untraced::Denied(libc::EPERM)));
    assert_eq!(ran, plainly(&[path]));
    assert!(log.pid != 0 && log.hits.is_empty());
}

#[test]
fn ptrace_an_observer_that_panics_leaves_the_program_alone() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let (output, writer) = std::io::pipe().expect("pipe");
    let mut sites: Vec<Site> = (0..).zip(["first", "second"]).map(|(id, name)| site(&program, name, id)).collect();
    sites.push(site(&program, "third", 9));
    let launched = Program::new([&program]).output(fs::File::from(OwnedFd::from(writer)));
    let mut observer = At { log: Log::default(), hit: true, act: |_| panic!("on purpose") };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        breakpoints(sites).launch(&launched, &mut observer).map(drop)
    }));
    assert!(result.is_err());
    drop(launched);
    assert_eq!(std::io::read_to_string(output).expect("text"), plainly(&[program.to_str().expect("text")]).output);
}

#[test]
fn ptrace_programs_with_privileges_keep_them() {
    let as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let tool = if nix::unistd::geteuid().is_root() { &as_nobody[..] } else { &["env"] };
    // Whoever it is must reach the test and its program, which may lie in a folder of root's.
    let open = fs::Permissions::from_mode(0o755);
    let place = tempfile::tempdir().expect("folder");
    fs::set_permissions(place.path(), open).expect("opened");
    let exe = place.path().join("test");
    fs::copy(std::env::current_exe().expect("known"), &exe).expect("copied");
    fs::copy(programs().join("phases.c"), place.path().join("phases.c")).expect("copied");
    let mut command = Command::new(tool[0]);
    command.args(&tool[1..]).arg(&exe).args(["--exact", "signals::role_unprivileged", "--ignored", "--nocapture"]);
    let output = match command.env(PROGRAMS, place.path()).current_dir(place.path()).output() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: {}: {error}", tool[0]),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("running 1 test"), "{text}");
}

#[test]
#[ignore = "a part of ptrace_programs_with_privileges_keep_them"]
fn role_unprivileged() {
    use std::os::unix::fs::MetadataExt;
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let sites = vec![site(&program, "first", 1)];
    // Without privileges in either, all is as for root.
    let (log, _) = check(sites.clone(), &[program.to_str().expect("text")]);
    assert_eq!(log.ids(), [1]);
    if !fs::metadata("/bin/su").is_ok_and(|metadata| metadata.mode() & 0o4000 != 0) {
        return eprintln!("skipped: no set-user-id su");
    }
    for arguments in [["/bin/su", "--help"], ["su", "--help"]] {
        let (ran, outcome) = launch(&breakpoints(sites.clone()), &arguments, &mut Log::default());
        assert_eq!((ran, outcome.traced), (plainly(&arguments), Err(Untraced::Privileged)));
    }
}
