//! Interpreter lines, patterns, and search-path tokens.

use super::build::{Elf, MemoryRoot};
use crate::resolve::Resolver;
use crate::search::{Loaded, expand};
use crate::{ClosureError, Node, Program, Shebang, ldconf};

#[test]
fn interpreter_lines_are_read_as_the_kernel_does() {
    type Line = Option<(&'static str, Option<&'static str>)>;
    let cases: &[(&[u8], Line)] = &[
        (b"#!/bin/sh\n", Some(("/bin/sh", None))),
        (b"#! \t/bin/sh  -e x \nrest", Some(("/bin/sh", Some("-e x")))),
        (b"#!/bin/sh", Some(("/bin/sh", None))),
        (b"#!/usr/bin/env -S python3 -u\n", Some(("/usr/bin/env", Some("-S python3 -u")))),
        (b"#!\n", None),
        (b"#!   \n", None),
        (b"# !/bin/sh\n", None),
        (b"", None),
        (b"#!/bin/\0sh\n", None),
    ];
    for (text, expected) in cases {
        let found = Shebang::parse(text);
        let expected = expected.map(|(interpreter, argument)| Shebang {
            interpreter: interpreter.into(),
            argument: argument.map(Into::into),
        });
        assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn an_interpreter_path_longer_than_the_kernel_reads_is_none() {
    let long = [b"#!/".as_slice(), &[b'a'; 300], b"\n"].concat();
    assert_eq!(Shebang::parse(&long), None);
    let long_argument = [b"#!/bin/sh ".as_slice(), &[b'a'; 300], b"\n"].concat();
    assert_eq!(Shebang::parse(&long_argument).unwrap().interpreter, b"/bin/sh");
}

#[test]
fn env_starts_the_first_word_that_is_no_option_and_no_setting() {
    let program = |text: &[u8]| Shebang::parse(text).and_then(|line| line.env_program().map(<[u8]>::to_vec));
    assert_eq!(program(b"#!/usr/bin/env python3\n").as_deref(), Some(&b"python3"[..]));
    assert_eq!(program(b"#!/usr/bin/env -S A=1 perl -w\n").as_deref(), Some(&b"perl"[..]));
    assert_eq!(program(b"#!/usr/bin/env\n"), None);
    assert_eq!(program(b"#!/bin/sh -e\n"), None);
}

#[test]
fn patterns_match_as_in_a_shell() {
    for (pattern, name, expected) in [
        ("*.conf", "a.conf", true),
        ("*.conf", "a.config", false),
        ("*.conf", ".a.conf", false),
        (".*", ".a", true),
        ("a*b*c", "aXbYbZc", true),
        ("a*b*c", "aXbYbZ", false),
        ("?", "", false),
        ("[a-c]x", "bx", true),
        ("[!a-c]x", "bx", false),
        ("[]x]y", "]y", true),
        ("[x", "[x", true),
        ("*", "", true),
    ] {
        assert_eq!(ldconf::matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
    }
    // Quadratic at worst: this would not end with a backtracking matcher.
    let pattern = "a*".repeat(50) + "b";
    assert!(!ldconf::matches(pattern.as_bytes(), "a".repeat(2000).as_bytes()));
}

#[test]
fn configuration_files_include_each_other_in_order() {
    let root = MemoryRoot::default()
        .file("/etc/ld.so.conf", "# comment\ninclude ld.so.conf.d/*.conf\n/last # why\n")
        .file("/etc/ld.so.conf.d/b.conf", "/opt/b=libc6, /opt/b2:/opt/b3\nhwcap 1 x\n")
        .file("/etc/ld.so.conf.d/a.conf", "/opt/a\n/opt/a\nrelative\n")
        .file("/etc/ld.so.conf.d/c.txt", "/opt/c\n");
    let found = ldconf::directories(&Resolver::new(&root), b"/etc/ld.so.conf").unwrap();
    let found: Vec<_> = found.iter().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(found, ["/opt/a", "/opt/b", "/opt/b2", "/opt/b3", "/last"]);
}

#[test]
fn a_configuration_file_that_includes_itself_is_an_error() {
    let root = MemoryRoot::default().file("/etc/ld.so.conf", "include /etc/ld.so.conf\n");
    let error = ldconf::directories(&Resolver::new(&root), b"/etc/ld.so.conf").unwrap_err();
    assert!(matches!(error, ClosureError::TooMany { what: "nested includes", .. }), "{error}");
}

#[test]
fn tokens_expand_to_all_they_may_stand_for() {
    let program = Program::parse(Elf::default().build().as_slice()).unwrap();
    let file = Loaded { path: b"/opt/app/bin/x".to_vec(), program, loader: None };
    let all = |text: &str| -> Vec<String> {
        expand(text.as_bytes(), &file).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    };
    assert_eq!(all("$ORIGIN/../lib"), ["/opt/app/bin/../lib"]);
    assert_eq!(all("${ORIGIN}x"), ["/opt/app/binx"]);
    assert_eq!(all("$ORIGINAL/$"), ["$ORIGINAL/$"]);
    assert_eq!(all("/usr/$LIB"), ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]);
    assert!(all("/p/$PLATFORM").contains(&"/p/x86_64".to_string()));
}

#[test]
fn paths_resolve_within_the_root() {
    let root = MemoryRoot::default()
        .file("/usr/bin/python3.11", "")
        .symlink("/usr/bin/python3", "python3.11")
        .symlink("/bin", "usr/bin")
        .symlink("/out", "../../../usr/./bin/../bin/python3")
        .symlink("/loop", "/loop");
    let resolver = Resolver::new(&root);
    let found = resolver.resolve(b"/bin/python3").unwrap().unwrap();
    assert_eq!((found.path.as_slice(), &found.node), (&b"/usr/bin/python3.11"[..], &Node::File));
    let steps: Vec<_> = found.steps.iter().map(|step| String::from_utf8_lossy(step)).collect();
    assert_eq!(steps, ["/", "/bin", "/usr", "/usr/bin", "/usr/bin/python3", "/usr/bin/python3.11"]);
    assert_eq!(resolver.resolve(b"out").unwrap().unwrap().path, b"/usr/bin/python3.11");
    assert_eq!(resolver.resolve(b"/../..").unwrap().unwrap().path, b"/");
    assert_eq!(resolver.resolve(b"/usr/bin/python3/x").unwrap(), None);
    assert!(matches!(resolver.resolve(b"/loop"), Err(ClosureError::SymlinkLoop { .. })));
}
