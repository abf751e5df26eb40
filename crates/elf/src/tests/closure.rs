//! Closures in made-up root directories.

use super::build::{Elf, MemoryRoot};
use crate::{Class, Closure, ClosureError, Finder, Machine};

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

fn system() -> MemoryRoot {
    MemoryRoot::default().elf(LOADER, &Elf::library("ld-linux-x86-64.so.2", &[]))
}

fn close(root: &MemoryRoot, program: &str) -> Closure {
    let mut finder = Finder::new(root);
    finder.program(program.as_bytes()).unwrap();
    finder.finish()
}

fn has(closure: &Closure, path: &str) -> bool {
    closure.paths.contains(path.as_bytes())
}

#[track_caller]
fn check(root: &MemoryRoot, program: &str, present: &[&str], absent: &[&str]) {
    let closure = close(root, program);
    let all: Vec<_> = closure.paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
    for path in present {
        assert!(has(&closure, path), "{path} is missing in {all:?}");
    }
    for path in absent {
        assert!(!has(&closure, path), "{path} should not be in {all:?}");
    }
    assert!(closure.missing.is_empty(), "{:?}", closure.missing);
}

#[test]
fn libraries_of_libraries_come_with_symlinks_and_directories() {
    let root = system()
        .elf("/usr/bin/app", &Elf::program(&["liba.so.1", "ld-linux-x86-64.so.2"]))
        .symlink("/lib", "usr/lib")
        .symlink("/usr/lib/x86_64-linux-gnu/liba.so.1", "liba.so.1.2.3")
        .elf("/usr/lib/x86_64-linux-gnu/liba.so.1.2.3", &Elf::library("liba.so.1", &["libb.so.2"]))
        .elf("/usr/lib/x86_64-linux-gnu/libb.so.2", &Elf::library("libb.so.2", &["liba.so.1"]))
        .elf("/usr/lib/x86_64-linux-gnu/libunused.so", &Elf::library("libunused.so", &[]));
    check(
        &root,
        "app",
        &[
            "/",
            "/usr",
            "/usr/bin",
            "/usr/bin/app",
            LOADER,
            "/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu/liba.so.1",
            "/usr/lib/x86_64-linux-gnu/liba.so.1.2.3",
            "/usr/lib/x86_64-linux-gnu/libb.so.2",
        ],
        &["/usr/lib/x86_64-linux-gnu/libunused.so", "/etc"],
    );
}

#[test]
fn rpath_serves_the_chain_and_runpath_only_its_own_file() {
    let rpath = Elf { rpath: Some("$ORIGIN/../lib"), ..Elf::program(&["liba.so"]) };
    let runpath = Elf { rpath: None, runpath: Some("$ORIGIN/../lib"), ..rpath.clone() };
    let root = |program: &Elf| {
        system()
            .elf("/opt/app/bin/x", program)
            .elf("/opt/app/lib/liba.so", &Elf::library("liba.so", &["libb.so"]))
            .elf("/opt/app/lib/libb.so", &Elf::library("libb.so", &[]))
    };
    check(&root(&rpath), "/opt/app/bin/x", &["/opt/app/lib/liba.so", "/opt/app/lib/libb.so"], &[]);
    let closure = close(&root(&runpath), "/opt/app/bin/x");
    assert!(has(&closure, "/opt/app/lib/liba.so"));
    assert!(!has(&closure, "/opt/app/lib/libb.so"));
    assert_eq!(closure.missing.len(), 1);
    assert_eq!(closure.missing[0].name, b"libb.so");
    assert_eq!(closure.missing[0].needed_by, b"/opt/app/bin/../lib/liba.so");
}

#[test]
fn a_runpath_hides_the_rpath_of_its_own_file() {
    let both = Elf { rpath: Some("/opt/r"), runpath: Some("/opt/s"), ..Elf::program(&["liba.so"]) };
    let root = system()
        .elf("/bin/x", &both)
        .elf("/opt/r/liba.so", &Elf::library("liba.so", &[]))
        .elf("/opt/s/liba.so", &Elf::library("liba.so", &[]));
    check(&root, "/bin/x", &["/opt/s/liba.so"], &["/opt/r/liba.so"]);
}

#[test]
fn a_name_loaded_once_is_not_searched_again() {
    // The program finds libb by its own RUNPATH; liba, which could not, uses the one that is there.
    let program = Elf { runpath: Some("/opt/lib"), ..Elf::program(&["libb.so", "liba.so"]) };
    let root = system()
        .elf("/bin/x", &program)
        .elf("/opt/lib/liba.so", &Elf::library("liba.so", &["libb.so"]))
        .elf("/opt/lib/libb.so", &Elf::library("libb.so", &[]));
    check(&root, "/bin/x", &["/opt/lib/libb.so"], &[]);
}

#[test]
fn files_of_another_architecture_are_passed_over() {
    let foreign = Elf { machine: Machine::AARCH64, ..Elf::library("liba.so", &[]) };
    let narrow = Elf { class: Class::Elf32, ..Elf::library("liba.so", &[]) };
    let root = system()
        .elf("/bin/x", &Elf { rpath: Some("/1:/2:/3:/4"), ..Elf::program(&["liba.so"]) })
        .elf("/1/liba.so", &foreign)
        .elf("/2/liba.so", &narrow)
        .file("/3/liba.so", "GROUP ( a linker script )")
        .elf("/4/liba.so", &Elf::library("liba.so", &[]));
    check(&root, "/bin/x", &["/4/liba.so"], &["/1/liba.so", "/2/liba.so", "/3/liba.so"]);
}

#[test]
fn configured_directories_bring_the_cache_they_need() {
    let root = system()
        .elf("/bin/x", &Elf::program(&["liba.so"]))
        .file("/etc/ld.so.conf", "/opt/special\n/lib/x86_64-linux-gnu\n")
        .file("/etc/ld.so.cache", "cache")
        .elf("/opt/special/liba.so", &Elf::library("liba.so", &[]));
    check(&root, "/bin/x", &["/opt/special/liba.so", "/etc/ld.so.cache"], &["/etc/ld.so.conf"]);

    let usual = system()
        .elf("/bin/x", &Elf::program(&["liba.so"]))
        .file("/etc/ld.so.conf", "/lib/x86_64-linux-gnu\n")
        .file("/etc/ld.so.cache", "cache")
        .elf("/lib/x86_64-linux-gnu/liba.so", &Elf::library("liba.so", &[]));
    check(&usual, "/bin/x", &["/lib/x86_64-linux-gnu/liba.so"], &["/etc/ld.so.cache"]);
}

#[test]
fn variants_for_newer_processors_come_along() {
    let root = system()
        .elf("/bin/x", &Elf::program(&["liba.so"]))
        .elf("/usr/lib/x86_64-linux-gnu/liba.so", &Elf::library("liba.so", &[]))
        .elf("/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/liba.so", &Elf::library("liba.so", &["libm2.so"]))
        .elf("/usr/lib/x86_64-linux-gnu/libm2.so", &Elf::library("libm2.so", &[]));
    check(
        &root,
        "/bin/x",
        &["/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/liba.so", "/usr/lib/x86_64-linux-gnu/libm2.so"],
        &[],
    );
}

#[test]
fn scripts_bring_their_interpreter_and_what_env_starts() {
    let root = system()
        .file("/usr/bin/tool", "#!/usr/bin/env python3\n")
        .elf("/usr/bin/env", &Elf::program(&[]))
        .elf("/usr/bin/python3", &Elf::program(&["libz.so.1"]))
        .elf("/usr/lib/libz.so.1", &Elf::library("libz.so.1", &[]));
    check(&root, "tool", &["/usr/bin/env", "/usr/bin/python3", "/usr/lib/libz.so.1", LOADER], &[]);
}

#[test]
fn scripts_that_interpret_each_other_end() {
    let root = MemoryRoot::default().file("/a", "#!/b\n").file("/b", "#!/a\n");
    let error = Finder::new(&root).program(b"/a").unwrap_err();
    assert!(matches!(error, ClosureError::TooMany { what: "interpreters that are scripts", .. }), "{error}");
}

#[test]
fn musl_programs_follow_the_rules_of_musl() {
    let program = Elf { interpreter: Some("/lib/ld-musl-x86_64.so.1"), ..Elf::program(&["libc.so", "liba.so"]) };
    let root = MemoryRoot::default()
        .elf("/lib/ld-musl-x86_64.so.1", &Elf::library("libc.so", &[]))
        .elf("/bin/x", &Elf { runpath: Some("/opt/a"), ..program })
        .file("/etc/ld-musl-x86_64.path", "/opt/c\n/opt/d:/opt/e\n")
        .elf("/opt/a/liba.so", &Elf::library("liba.so", &["libb.so", "libe.so"]))
        .elf("/opt/a/libb.so", &Elf::library("libb.so", &[]))
        .elf("/opt/e/libe.so", &Elf::library("libe.so", &[]));
    check(&root, "/bin/x", &["/lib/ld-musl-x86_64.so.1", "/opt/a/libb.so", "/opt/e/libe.so"], &[]);
}

#[test]
fn what_is_not_there_is_named() {
    let root = MemoryRoot::default()
        .elf("/bin/x", &Elf::program(&["libnone.so"]))
        .file("/bin/text", "hello")
        .file("/bin/cut", &Elf::program(&["liba.so"]).build()[..90]);
    let closure = close(&root, "/bin/x");
    let names: Vec<_> = closure.missing.iter().map(|one| String::from_utf8_lossy(&one.name).into_owned()).collect();
    assert_eq!(names, [LOADER, "libnone.so"]);
    let error = |name: &[u8]| Finder::new(&root).program(name).unwrap_err();
    assert!(matches!(error(b"/bin/none"), ClosureError::NotFound { .. }));
    assert!(matches!(error(b"none"), ClosureError::NotFound { .. }));
    assert!(matches!(error(b"/bin/text"), ClosureError::NotAProgram { .. }));
    assert!(matches!(error(b"/bin/cut"), ClosureError::Elf { .. }));
}
