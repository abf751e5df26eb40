//! Trees of programs and libraries.

use super::build::{BARE, Memory, gcc, numbers};
use crate::analysis::{AnalysisError, Options, Report, Subject, analyse};

const ENTER: &str = "__attribute__((noipa)) static long enter(long number) { long result;
    __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number) : \"rcx\", \"r11\", \"memory\"); return result; }\n";

const SHARED: &[&str] = &["-shared", "-fPIC", "-O1", "-nostdlib", "-fno-stack-protector"];

fn tree(root: &Memory, options: &Options) -> Report {
    analyse(root, &Subject::Tree, options).unwrap()
}

/// A library with two functions that call, one that is pointed to by data, one that starts, and a
/// program that uses one of them.
fn build(program: &str, more: &[&str]) -> Option<Memory> {
    let library = format!(
        "{ENTER} void used(void) {{ enter(39); }} void unused(void) {{ enter(160); }}
        static void method(void) {{ enter(102); }} void (*table[])(void) = {{ method }};
        __attribute__((constructor)) static void begin(void) {{ enter(104); }}
        void *dlopen(const char *name, int how) {{ enter(257); return 0; }}
        long syscall(long number) {{ return enter(number); }}"
    );
    let library = gcc("c", &library, &[SHARED, &["-Wl,-soname,libx.so.1"]].concat())?;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("libx.so.1");
    std::fs::write(&place, &library).unwrap();
    let place = place.to_str().unwrap();
    let options =
        [&["-nostdlib", "-O1", "-fno-stack-protector", place, "-Wl,-dynamic-linker,/lib/ld.so"], more].concat();
    let program = gcc("c", &format!("{ENTER}{program}"), &options)?;
    let linker =
        gcc("c", &format!("{ENTER} void _start(void) {{ enter(9); }}"), &[SHARED, &["-Wl,-e,_start"]].concat())?;
    Some(Memory::default().with("/lib/libx.so.1", library).with("/bin/program", program).with("/lib/ld.so", linker))
}

#[test]
fn only_what_a_program_can_come_to_in_its_libraries_counts() {
    let source =
        "void used(void); long syscall(long); void _start(void) { used(); syscall(63); enter(60); for (;;) { } }";
    for more in [&[][..], &["-fno-plt"], &["-no-pie"]] {
        let Some(root) = build(source, more) else { return };
        let report = tree(&root, &Options::default());
        assert_eq!(numbers(&report), [9, 39, 60, 63, 102, 104], "{more:?}");
        assert!(report.is_complete(), "{:?}", report.unresolved);
        assert_eq!(report.programs.len(), 1);
        let paths: Vec<&str> = report.objects.iter().map(|object| object.path.as_str()).collect();
        assert_eq!(paths, ["/bin/program", "/lib/ld.so", "/lib/libx.so.1"]);
    }
}

#[test]
fn a_wrapper_that_is_called_through_a_pointer_is_not_resolved() {
    let source =
        "long syscall(long); long (*volatile kept)(long) = syscall; void _start(void) { kept(63); for (;;) { } }";
    let Some(root) = build(source, &[]) else { return };
    let report = tree(&root, &Options::default());
    assert_eq!(report.unresolved.len(), 1);
    assert_eq!(
        (report.unresolved[0].object.as_str(), report.unresolved[0].function.as_str()),
        ("/lib/libx.so.1", "enter")
    );
}

#[test]
fn libraries_that_a_program_may_open_count_with_all_they_export() {
    let opens =
        "void *dlopen(const char *, int); void _start(void) { dlopen(\"/lib/plugins/libp.so\", 0); for (;;) { } }";
    let opens_not = "void used(void); void _start(void) { used(); for (;;) { } }";
    for (source, is_opened) in [(opens, true), (opens_not, false)] {
        let Some(root) = build(source, &[]) else { return };
        let plugin = gcc("c", &format!("{ENTER} void asked(void) {{ enter(165); }}"), SHARED).unwrap();
        let root = root.with("/lib/plugins/libp.so", plugin);
        assert_eq!(numbers(&tree(&root, &Options::default())).contains(&165), is_opened, "all of the tree");
        let one = |options: &Options| {
            numbers(&analyse(&root, &Subject::Programs(vec![b"/bin/program".to_vec()]), options).unwrap())
                .contains(&165)
        };
        assert!(!one(&Options::default()), "a library elsewhere");
        let plugins = vec![b"/lib/plugins/libp.so".to_vec()];
        assert_eq!(one(&Options { plugins, ..Options::default() }), is_opened, "one that is told");
    }
}

#[test]
fn scripts_are_their_interpreters() {
    let Some(bytes) = gcc("c", &format!("{ENTER} void _start(void) {{ enter(60); for (;;) {{ }} }}"), BARE) else {
        return;
    };
    let root = Memory::default().with("/bin/sh", &bytes).with("/usr/bin/script", "#!/bin/sh\necho\n");
    let report = tree(&root, &Options::default());
    assert_eq!((report.programs.len(), numbers(&report)), (1, vec![60]));
    let only = analyse(&root, &Subject::Programs(vec![b"/usr/bin/script".to_vec()]), &Options::default()).unwrap();
    assert_eq!(only.programs[0].path, "/bin/sh");
}

#[test]
fn what_cannot_be_analysed_is_refused_or_makes_the_answer_partial() {
    let Some(bytes) = gcc("c", &format!("{ENTER} void _start(void) {{ enter(60); for (;;) {{ }} }}"), BARE) else {
        return;
    };
    let mut foreign = bytes.clone();
    foreign[18] = 183; // AArch64
    let root = Memory::default().with("/bin/one", &bytes).with("/bin/other", &foreign).with("/etc/text", "hello");
    let report = tree(&root, &Options::default());
    assert!(report.is_partial && !report.is_complete());
    assert!(report.notes.iter().any(|note| note.contains("/bin/other")), "{:?}", report.notes);
    let one = |path: &[u8]| analyse(&root, &Subject::Programs(vec![path.to_vec()]), &Options::default());
    assert!(one(b"/bin/one").unwrap().is_complete());
    assert!(matches!(one(b"/bin/other"), Err(AnalysisError::Machine { machine: 183, .. })));
    assert!(matches!(one(b"/etc/text"), Err(AnalysisError::Closure(_))));
    assert!(matches!(one(b"/bin/nothing"), Err(AnalysisError::Closure(_))));
    let empty = Memory::default().with("/etc/text", "hello");
    assert!(matches!(analyse(&empty, &Subject::Tree, &Options::default()), Err(AnalysisError::Nothing)));
}
