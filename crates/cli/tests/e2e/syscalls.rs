//! System calls of programs, and profiles made of them: a program runs under its own, and can do
//! nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{can_mount, fails, ok, run};

/// A program that says hello, and with INSIDE a number of a call asks the kernel for that as well.
const SOURCE: &str =
    "#define _GNU_SOURCE\n#include <errno.h>\n#include <stdio.h>\n#include <unistd.h>\n#include <sys/syscall.h>
    int main(void) {
        printf(\"hello %d\\n\", getppid() >= 0);
    #ifdef INSIDE
        long result = syscall(INSIDE, 0, 0, 0, 0, 0, 0);
        printf(\"%ld %s\\n\", result, result < 0 && errno == ENOSYS ? \"ENOSYS\" : \"else\");
    #endif
        return 7;
    }";

/// Compiles into `folder`; `None`, and a line that says so, where that cannot be.
fn compile(folder: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    if cfg!(not(target_arch = "x86_64")) {
        println!("skipped: machine code of this machine is not understood");
        return None;
    }
    let (source, output) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, SOURCE).unwrap();
    let Ok(ran) = Command::new("gcc").arg("-O1").args(options).arg("-o").arg(&output).arg(&source).output() else {
        println!("skipped: no gcc");
        return None;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(output)
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

#[test]
fn calls_are_printed_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), "program", &[]) else { return };
    let program = text(&program);
    let shown = ok(&["syscalls", &program]);
    assert!(shown.contains(" getppid") && shown.contains("libc.so"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&ok(&["syscalls", "--json", &program])).unwrap();
    assert_eq!(json["complete"], true, "{}", json["unresolved"]);
    assert_eq!(json["calls"]["110"]["name"], "getppid");
    assert!(json["names"].as_array().unwrap().len() < 200);
    let table = ok(&["syscalls", "--table", &program]);
    let line = table.lines().find(|line| line.contains(" getppid ")).unwrap();
    assert!(line.trim_start().starts_with("110 ") && line.contains("libc.so.6:getppid"), "{line}");
    let profile: serde_json::Value =
        serde_json::from_str(&ok(&["syscalls", "--seccomp", "--strict", &program])).unwrap();
    assert_eq!((&profile["defaultAction"], &profile["defaultErrnoRet"]), (&"SCMP_ACT_ERRNO".into(), &38.into()));
    assert_eq!(profile["architectures"], serde_json::json!(["SCMP_ARCH_X86_64"]));
    assert_eq!(profile["syscalls"][0]["action"], "SCMP_ACT_ALLOW");
}

#[test]
fn unknown_calls_have_an_exit_code_and_can_be_vouched_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), "program", &["-DINSIDE=getpid()", "-static"]) else { return };
    let (program, policy) = (text(&program), text(&folder.path().join("policy.toml")));
    fails(&["syscalls", "--strict", &program], 6, "any call may be made");
    assert!(ok(&["syscalls", "--seccomp", &program]).contains("\"kexec_load\""), "all calls");
    std::fs::write(&policy, "[[site]]\nobject = 'program'\nfunction = 'syscall'\ncalls = ['sync']\n").unwrap();
    let vouched = ok(&["syscalls", "--strict", "--seccomp", "--policy", &policy, &program]);
    assert!(vouched.contains("\"sync\"") && !vouched.contains("\"kexec_load\""), "{vouched}");
    let trace = text(&folder.path().join("trace"));
    std::fs::write(&trace, "getuid() = 0\n").unwrap();
    let vouched = ok(&["syscalls", "--strict", "--seccomp", "--trace", &trace, &program]);
    assert!(vouched.contains("\"getuid\"") && !vouched.contains("\"kexec_load\""), "{vouched}");
    std::fs::write(&policy, "also = ['dance']\n").unwrap();
    fails(&["syscalls", "--policy", &policy, &program], 2, "dance");
}

#[test]
fn what_is_no_program_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("text");
    std::fs::write(&place, "hello").unwrap();
    let said = fails(&["syscalls", &text(&place)], 2, "neither an ELF file nor a script");
    assert_eq!(said.matches(&*text(&place)).count(), 1, "{said}");
    fails(&["syscalls", &text(&folder.path().join("nothing"))], 4, "nothing");
    fails(&["syscalls", &text(folder.path())], 4, "no program");
    std::fs::write(&place, b"\x7fELF\x02\x01\x01 and nothing").unwrap();
    fails(&["syscalls", &text(&place)], 3, "");
}

#[test]
fn bad_profiles_are_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let place = text(&folder.path().join("profile.json"));
    let refused = |profile: &str, what: &str| {
        std::fs::write(&place, profile).unwrap();
        fails(&["run", "--seccomp", &place, "/nowhere/app.rnl", "--", "true"], 2, what);
        fails(&["enter", "/", "--seccomp", &place, "--", "true"], 2, what);
    };
    refused("{", "not a seccomp profile");
    refused(r#"{"defaultAction":"SCMP_ACT_TRACE"}"#, "SCMP_ACT_TRACE");
    refused(r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[]}"#, "does not allow execve");
    fails(&["enter", "/", "--seccomp", "/nowhere/profile.json", "--", "true"], 4, "profile.json");
}

#[test]
fn fuse_a_program_runs_under_its_own_profile_and_calls_outside_it_fail() {
    if !can_mount("fuse_a_program_runs_under_its_own_profile_and_calls_outside_it_fail") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(plain) = compile(folder.path(), "plain", &[]) else { return };
    // The same program, with a call that the first does not make.
    let Some(more) = compile(folder.path(), "more", &["-DINSIDE=SYS_personality"]) else { return };
    let (image, own) = (text(&folder.path().join("app.rnl")), text(&folder.path().join("profile.json")));
    ok(&["pack", "--closure", &text(&plain), "--closure", &text(&more), "-o", &image]);
    let profile = ok(&["syscalls", &image, "--program", &text(&plain), "--seccomp", "--strict"]);
    assert!(!profile.contains("\"personality\""), "{profile}");
    std::fs::write(&own, profile).unwrap();
    let start = |program: &Path, options: &[&str]| {
        let program = text(program);
        let output = run(&[&["run", &image], options, &["--", &program]].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let under: &[&str] = &["--seccomp", &own];
    assert_eq!(start(&plain, under), (Some(7), "hello 1\n".into()));
    assert_eq!(start(&more, under), (Some(7), "hello 1\n-1 ENOSYS\n".into()));
    let (code, shown) = start(&more, &[]);
    assert!(code == Some(7) && shown.ends_with("else\n"), "without a profile the call is made: {shown}");
    // With the calls of both, it is made as well.
    std::fs::write(&own, ok(&["syscalls", &image, "--seccomp", "--strict"])).unwrap();
    assert!(start(&more, under).1.ends_with("else\n"));
}

#[test]
fn a_kernel_is_not_reduced_by_a_list_with_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let source =
        "#define _GNU_SOURCE\n#include <unistd.h>\nint main(int count, char **words) { return syscall(count, words); }";
    let (file, program) = (folder.path().join("gap.c"), folder.path().join("gap"));
    std::fs::write(&file, source).unwrap();
    if cfg!(not(target_arch = "x86_64")) || Command::new("gcc").arg("-o").arg(&program).arg(&file).status().is_err() {
        println!("skipped: no gcc for x86-64");
        return;
    }
    let (program, output) = (text(&program), text(&folder.path().join("out")));
    let common = ["specialise", "--kernel-source", "/nowhere", "--config", "/nowhere", "-o", &output, "--image"];
    let refused = fails(&[&common[..], &[&program]].concat(), 6, "any system call may be made");
    for part in ["libc.so.6 syscall at 0x", "--policy", "--trace"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let policy = text(&folder.path().join("policy"));
    std::fs::write(&policy, "[[site]]\nobject = \"libc.so.6\"\nfunction = \"syscall\"\ncalls = []\n").unwrap();
    // With that vouched for, the next thing that is wrong is the source.
    let refused = fails(&[&common[..], &[&program, "--policy", &policy]].concat(), 4, "/nowhere");
    assert!(!refused.contains("may be made"), "{refused}");
}
