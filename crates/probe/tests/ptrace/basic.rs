//! One process, one thread: dynamic and static programs, libraries, ends.

use probe::{Breakpoints, End, Exit, Program, StartError};

use crate::support::{self, Log, check, compile, launch, mapped_library, site};

#[test]
fn ptrace_a_dynamic_program_hits_its_sites_once_and_is_free() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let sites = vec![site(&program, "third", 3), site(&program, "first", 1), site(&program, "second", 2)];
    // `tracer` makes it print its TracerPid, which must be that of a plain start: 0.
    let (log, traced) = check(sites.clone(), &[program.to_str().expect("text"), "tracer"]);
    assert_eq!(log.ids(), [1, 2, 3]);
    assert_eq!(traced.end, End::AllHit);
    let (log, traced) = check(sites, &[program.to_str().expect("text"), "again"]);
    assert_eq!(log.ids(), [1, 2, 3]);
    assert_eq!((traced.stops.site, traced.stops.late, traced.stops.exec), (3, 0, 1));
    assert!(log.hits.iter().all(|hit| hit.pid == log.pid));
    println!("{traced:?}");
}

#[test]
fn ptrace_static_programs_hit_their_sites() {
    for (compiler, flags) in [("cc", &["-static"][..]), ("cc", &["-static-pie"]), ("musl-gcc", &["-static"])] {
        let Some(program) = compile(compiler, "phases", flags) else { continue };
        let sites = vec![site(&program, "first", 1), site(&program, "third", 3)];
        let (log, traced) = check(sites, &[program.to_str().expect("text"), "again"]);
        assert_eq!(log.ids(), [1, 3], "{compiler} {flags:?}");
        assert_eq!((traced.end, traced.stops.linker), (End::AllHit, 0));
    }
}

#[test]
fn ptrace_plugins_come_and_go() {
    for (compiler, flags) in [("cc", &["-ldl"][..]), ("musl-gcc", &[])] {
        let Some(host) = compile(compiler, "host", flags) else { continue };
        let plugin = |number| compile(compiler, "plugin", &["-shared", "-fPIC", &format!("-DPLUGIN={number}")]);
        let (Some(one), Some(two)) = (plugin(1), plugin(2)) else { continue };
        let arguments = [&host, &one, &two].map(|path| path.to_str().expect("text"));
        let sites = vec![site(&one, "late", 3), site(&one, "plug", 1), site(&two, "late", 4), site(&two, "plug", 2)];
        let (log, traced) = check(sites.clone(), &arguments);
        assert_eq!((log.ids(), traced.end), (vec![1, 2, 3, 4], End::AllHit), "{compiler}");
        // And when only one of them matters.
        let (log, _) = check(vec![sites[2]], &arguments);
        assert_eq!(log.ids(), [4], "{compiler}");
    }
}

#[test]
fn ptrace_sites_in_libraries_are_planted_when_they_are_loaded() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let Some(libc) = mapped_library(&program, "libc.so") else { return eprintln!("skipped: no ldd") };
    let sites = vec![site(&libc, "qsort", 9), site(&program, "third", 3)];
    let (log, traced) = check(sites, &[program.to_str().expect("text")]);
    assert_eq!(log.ids(), [9, 3]);
    assert!(traced.stops.linker > 0, "{traced:?}");
}

#[test]
fn ptrace_two_sites_at_one_place_are_both_told() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let sites = vec![site(&program, "first", 1), site(&program, "second", 2), site(&program, "first", 3)];
    let (log, traced) = check(sites, &[program.to_str().expect("text")]);
    assert_eq!((log.hits.len(), traced.stops.site, traced.end), (3, 2, End::AllHit));
}

#[test]
fn ptrace_a_site_that_is_not_reached_changes_nothing() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let (log, traced) = check(vec![site(&program, "never", 1)], &[program.to_str().expect("text")]);
    assert_eq!((log.ids(), traced.end), (vec![], End::Exited));
}

#[test]
fn ptrace_without_sites_a_program_is_free_at_once() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let (log, traced) = check(Vec::new(), &[program.to_str().expect("text"), "tracer"]);
    assert_eq!((log.ids(), traced.end, traced.stops.total()), (vec![], End::AllHit, 1));
}

#[test]
fn ptrace_sites_of_another_executable_are_not_planted() {
    let Some(program) = compile("cc", "phases", &[]) else { return };
    let mut own = site(&program, "first", 1);
    own.executable = Some(own.file);
    let mut foreign = site(&program, "second", 2);
    foreign.executable = Some(probe::FileId { inode: own.file.inode + 1, ..own.file });
    let (log, traced) = check(vec![own, foreign], &[program.to_str().expect("text")]);
    assert_eq!((log.ids(), traced.end), (vec![1], End::Exited));
}

#[test]
fn ptrace_a_program_that_is_not_there_is_an_error() {
    for sites in [vec![], vec![site(&std::env::current_exe().expect("known"), "main", 1)]] {
        let error = Breakpoints::new(sites).launch(&Program::new(["/no/such/program"]), &mut Log::default());
        let Err(StartError::Execute { source, .. }) = error else { panic!("{error:?}") };
        assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    }
}

#[test]
fn ptrace_stop_lets_go_of_a_program_that_waits() {
    // `read` blocks until the pipe is closed, which happens after the release.
    struct Closing(Log, Option<std::io::PipeWriter>, probe::Stop);
    impl probe::Observer for Closing {
        fn started(&mut self, pid: u32) {
            self.0.started(pid);
            self.2.request();
        }
        fn hit(&mut self, hit: probe::Hit) {
            self.0.hit(hit);
        }
        fn released(&mut self, end: End) {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid)).expect("lives");
            assert!(status.contains("TracerPid:\t0\n"), "{status}");
            self.0.released(end);
            self.1.take();
        }
    }
    let (reader, writer) = std::io::pipe().expect("pipe");
    let breakpoints = support::breakpoints(vec![site(&std::env::current_exe().expect("known"), "main", 1)]);
    let mut observer = Closing(Log::default(), Some(writer), breakpoints.stop());
    let input = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    let outcome = breakpoints.launch(&Program::new(["cat"]).input(input), &mut observer).expect("started");
    assert_eq!((outcome.exit, observer.0.end), (Exit::Code(0), Some(End::Stopped)));
}

#[test]
fn ptrace_a_script_without_a_first_line_goes_to_the_shell() {
    let path = support::folder().join("script");
    std::fs::write(&path, "echo hello $1; exit 3\n").expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    let (ran, _) = launch(&support::breakpoints(vec![]), &[path.to_str().expect("text"), "you"], &mut Log::default());
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(3), "hello you\n"));
}
