//! What is refused, and with which words.

use super::*;
use crate::SpecialiseError;

fn refusal(object: &[u8], options: &Options) -> SpecialiseError {
    match specialise(object, options) {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

fn small() -> Vec<u8> {
    assemble(&function("entry", "ret"))
}

#[test]
fn other_files_are_refused() {
    let own = fs::read("/proc/self/exe").unwrap();
    let error = refusal(&own, &options(reach()));
    assert!(matches!(error, SpecialiseError::NotRelocatable { .. }), "{error}");
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &small()[..40]] {
        assert!(matches!(refusal(bytes, &options(reach())), SpecialiseError::NotRelocatable { .. }));
    }
}

#[test]
fn a_stripped_object_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.o");
    fs::write(&path, assemble(".section .text.f,\"ax\"\nret\n")).unwrap();
    run(Command::new("objcopy")
        .args(["--remove-section=.symtab", "--remove-section=.strtab", "--strip-all"])
        .arg(&path));
    assert_eq!(refusal(&fs::read(&path).unwrap(), &options(reach())), SpecialiseError::Stripped);
}

#[test]
fn an_object_without_function_sections_is_refused() {
    let source: String = (0..100).map(|index| function_in(".text", &format!("f{index}"), "ret")).collect();
    let error = refusal(&assemble(&source), &options(reach()));
    assert_eq!(error, SpecialiseError::NoFunctionSections { functions: 100, sections: 1 });
    assert!(error.to_string().contains("CONFIG_LD_DEAD_CODE_DATA_ELIMINATION"));
}

#[test]
fn unknown_releases_and_machines_are_refused() {
    let error = refusal(&small(), &Options { release: "5.10.3".to_string(), ..options(reach()) });
    assert!(error.to_string().contains("5.10.3") && error.to_string().contains("6.12"), "{error}");
    let mut other = small();
    other[18] = 40;
    assert_eq!(refusal(&other, &options(reach())), SpecialiseError::Machine { found: 40 });
    // What another processor means is not what this one does.
    other[18] = 183;
    let counting = Options { instrument: true, ..options(reach()) };
    assert_eq!(refusal(&other, &counting), SpecialiseError::Uncounted);
}

#[test]
fn an_unknown_relocation_is_refused_with_its_place() {
    // A relocation of thread-local storage, which the kernel does not have.
    let object = assemble(&function("entry", "mov value@tpoff,%rax\nret"));
    match refusal(&object, &options(reach())) {
        SpecialiseError::Relocation { kind: 23, section, offset } => {
            assert_eq!((&section[..], offset), (".text.entry", 4));
        }
        error => panic!("{error}"),
    }
}
