//! The facts of single files.

use super::build::Elf;
use crate::{Class, ElfError, Endian, Machine, Program};

fn parse(bytes: &[u8]) -> Result<Program, ElfError> {
    Program::parse(bytes)
}

#[test]
fn all_facts_are_read_in_both_classes_and_byte_orders() {
    for class in [Class::Elf32, Class::Elf64] {
        for endian in [Endian::Little, Endian::Big] {
            let elf = Elf {
                class,
                endian,
                machine: Machine(4711),
                interpreter: Some("/lib/ld.so.1"),
                needed: vec!["libb.so.2", "liba.so.1"],
                soname: Some("libc.so.3"),
                rpath: Some("$ORIGIN/../lib"),
                runpath: Some("/opt/a:/opt/b"),
            };
            let program = parse(&elf.build()).unwrap();
            let expected = Program {
                class,
                endian,
                machine: Machine(4711),
                interpreter: Some(b"/lib/ld.so.1".to_vec()),
                needed: vec![b"libb.so.2".to_vec(), b"liba.so.1".to_vec()],
                soname: Some(b"libc.so.3".to_vec()),
                rpath: Some(b"$ORIGIN/../lib".to_vec()),
                runpath: Some(b"/opt/a:/opt/b".to_vec()),
            };
            assert_eq!(program, expected, "{class:?} {endian:?}");
        }
    }
}

#[test]
fn a_file_without_dynamic_section_needs_nothing() {
    let mut bytes = Elf::default().build();
    bytes[56] = 0; // e_phnum: a relocatable object has no program headers
    let program = parse(&bytes).unwrap();
    assert_eq!((program.interpreter, program.needed.len()), (None, 0));
}

#[test]
fn other_files_are_told_apart_from_damaged_ones() {
    for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\n", &[0; 100], b"\x7fELF\x03\x01\x01aaaaaaaaaaaaaa"] {
        assert!(matches!(parse(bytes), Err(ElfError::NotElf)), "{bytes:?}");
    }
    let whole = Elf::program(&["liba.so"]).build();
    assert!(matches!(parse(&whole[..40]), Err(ElfError::Truncated { what: "file header", .. })));
    assert!(matches!(parse(&whole[..100]), Err(ElfError::Truncated { what: "program headers", .. })));
    let cut = whole.len() - 4;
    assert!(matches!(parse(&whole[..cut]), Err(ElfError::Unterminated { what: "dynamic string", .. })));
}

#[test]
fn counts_over_the_limits_are_refused_before_anything_is_read() {
    let mut bytes = Elf::default().build();
    bytes[56..58].copy_from_slice(&0xffff_u16.to_le_bytes());
    let error = parse(&bytes).unwrap_err();
    assert!(matches!(error, ElfError::TooLarge { what: "program headers", found: 0xffff, .. }), "{error}");

    let mut bytes = Elf::default().build();
    let dynamic_size = 64 + 56 + 32; // p_filesz of the second program header
    bytes[dynamic_size..dynamic_size + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = parse(&bytes).unwrap_err();
    assert!(matches!(error, ElfError::TooLarge { what: "bytes of the dynamic section", .. }), "{error}");
}

#[test]
fn a_string_table_outside_the_segments_is_named() {
    let mut bytes = Elf::program(&["liba.so"]).build();
    let load_size = 64 + 32;
    bytes[load_size..load_size + 8].copy_from_slice(&8u64.to_le_bytes());
    let error = parse(&bytes).unwrap_err();
    assert!(matches!(error, ElfError::Unmapped { what: "dynamic string table", .. }), "{error}");
}
