//! Programs of this machine: what they call when they run is among what was found.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use super::build::{Machine, gcc};
use crate::analysis::{Options, Report, Subject, analyse};

fn report(path: &str) -> Option<Report> {
    if cfg!(not(target_arch = "x86_64")) || !std::path::Path::new(path).exists() {
        println!("skipped: no {path} for x86-64");
        return None;
    }
    let options = Options { with_arguments: true, ..Options::default() };
    Some(analyse(&Machine, &Subject::Programs(vec![path.into()]), &options).unwrap())
}

#[test]
fn programs_of_the_machine_are_resolved() {
    for path in ["/bin/ls", "/bin/cp", "/bin/sh", "/usr/bin/sort"] {
        let Some(report) = report(path) else { continue };
        assert!(report.resolved * 100 >= report.sites * 99, "{path}: {} of {}", report.resolved, report.sites);
        assert!(report.sites > 50, "{path}: {} places", report.sites);
        let names: BTreeSet<&str> = report.calls.values().filter_map(|call| call.name).collect();
        assert!(names.contains("write") && names.contains("exit_group") && names.contains("rt_sigreturn"), "{path}");
        assert!(report.calls.values().all(|call| call.name.is_some()), "{path}: numbers that are no calls");
        // What no such program can come to.
        assert!(!names.contains("kexec_load") && !names.contains("init_module"), "{path}");
    }
}

#[test]
fn ref_calls_and_arguments_that_strace_sees_were_found() {
    let cases: [(&str, &[&str]); 5] = [
        ("/bin/ls", &["-la", "/etc"]),
        ("/bin/cat", &["/etc/passwd"]),
        ("/bin/date", &[]),
        ("/usr/bin/sort", &["/etc/services"]),
        ("/bin/sh", &["-c", "trap : USR1; kill -USR1 $$; (exit 3); echo done | cat"]),
    ];
    let mut compared = 0;
    for (path, arguments) in cases {
        let Some(report) = report(path) else { continue };
        let Some(seen) = traced(path, arguments) else {
            println!("skipped: no strace");
            return;
        };
        assert!(report.is_complete() && seen.len() > 10, "{path}: {seen:?}");
        for (name, values) in seen {
            let Some(call) = report.calls.values().find(|call| call.name == Some(name.as_str())) else {
                panic!("{path}: {name} was made and not found");
            };
            for (number, value) in values.into_iter().enumerate() {
                let Some(known) = call.arguments.get(number).and_then(Option::as_ref) else { continue };
                // Of arguments of 32 bits the tracer shows no more.
                let found = known.iter().any(|known| *known == value || *known as u32 as u64 == value);
                assert!(found, "{path}: {name} with argument {number} {value:#x}, not one of {known:x?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 50 || !std::path::Path::new("/bin/ls").exists(), "{compared} arguments were compared");
}

/// Calls of one process from its exec on, with the numbers that they passed.
fn traced(path: &str, arguments: &[&str]) -> Option<Vec<(String, Vec<u64>)>> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-qq", "-e", "raw=all", "-o"]).arg(&output).arg(path).args(arguments);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    let text = std::fs::read_to_string(&output).ok().filter(|_| status.success())?;
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let calls = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once('(')?;
        let values = rest.split_once(')')?.0.split(", ").map_while(number).collect();
        name.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            .then(|| (name.into(), values))
    });
    Some(calls.collect())
}

#[test]
fn a_static_program_of_the_c_library_is_resolved() {
    let source =
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n#include <pthread.h>
        static void *run(void *x) { return x; }
        int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); pthread_join(t, 0); setuid(0); setgid(0);
            syscall(SYS_gettid); printf(\"%d\\n\", (int)getpid()); return 0; }";
    let Some(bytes) = gcc("c", source, &["-O1", "-static", "-pthread"]) else { return };
    let report = super::build::alone(&bytes);
    assert!(report.is_complete(), "{:?}", report.unresolved);
    let names = report.names();
    for name in ["clone3", "setuid", "setgid", "gettid", "getpid", "write", "exit_group", "futex", "rt_sigreturn"] {
        assert!(names.contains(name), "{name}");
    }
    assert!(!names.contains("mount") && !names.contains("ptrace"));
}
