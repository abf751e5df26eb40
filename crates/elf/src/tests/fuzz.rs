//! No bytes make the parsers panic, hang or allocate without bound.

use units::{Rng, SplitMix64};

use super::build::{Elf, MemoryRoot};
use crate::{Class, ElfError, Endian, Finder, NEEDED_MAX, Program, STRING_BYTES_MAX, Shebang};

/// What must hold of whatever was parsed.
fn bounded(program: &Program) {
    assert!(program.needed.len() <= NEEDED_MAX);
    let strings = program.needed.iter().chain(&program.interpreter).chain(&program.soname).chain(&program.rpath);
    for text in strings.chain(&program.runpath) {
        assert!(text.len() <= STRING_BYTES_MAX && !text.contains(&0));
    }
}

/// Parses `rounds` mutations of real and made-up files, and as many random strings; returns how
/// many were accepted and how many refused.
fn fuzz_program(seed: u64, rounds: u32) -> (u32, u32) {
    let mut rng = SplitMix64(seed);
    let mut seeds = Vec::new();
    for class in [Class::Elf32, Class::Elf64] {
        for endian in [Endian::Little, Endian::Big] {
            let elf = Elf { class, endian, runpath: Some("$ORIGIN:/x"), ..Elf::program(&["liba.so", "libb.so"]) };
            seeds.push(elf.build());
        }
    }
    // The test binary itself: a real file with everything a linker writes. Its first part is
    // enough.
    if let Ok(own) = std::env::current_exe().and_then(std::fs::read) {
        seeds.push(own[..own.len().min(1 << 20)].to_vec());
    }
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        // Headers are where damage matters.
        let reach = bytes.len().min(1024) as u64;
        for _ in 0..=rng.below(4) {
            let at = rng.below(reach) as usize;
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.next_u64() as u8,
                2 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.len() < reach as usize {
                break;
            }
        }
        match Program::parse(bytes.as_slice()) {
            Ok(program) => {
                bounded(&program);
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
        let random: Vec<u8> =
            b"\x7fELF\x02\x01\x01".iter().copied().chain((0..200).map(|_| rng.next_u64() as u8)).collect();
        if let Ok(program) = Program::parse(random.as_slice()) {
            bounded(&program);
        }
        if let Some(line) = Shebang::parse(&random[rng.below(64) as usize..]) {
            assert!(!line.interpreter.is_empty());
        }
    }
    (accepted, refused)
}

#[test]
fn fuzz_program_survives_anything() {
    let (accepted, refused) = fuzz_program(1, 20_000);
    // The canary: mutations that always or never hurt would test nothing.
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn fuzz_canary_a_mutation_that_must_be_noticed_is() {
    let mut bytes = Elf::program(&["liba.so"]).build();
    bytes[32] = 0xff; // e_phoff
    assert!(matches!(Program::parse(bytes.as_slice()), Err(ElfError::Truncated { .. })));
}

#[test]
fn fuzz_closure_of_damaged_libraries_ends() {
    let mut rng = SplitMix64(2);
    for _ in 0..300 {
        let mut library =
            Elf { rpath: Some("/lib:$ORIGIN"), ..Elf::library("liba.so", &["libb.so", "liba.so"]) }.build();
        for _ in 0..rng.below(6) {
            let at = rng.below(library.len() as u64) as usize;
            library[at] = rng.next_u64() as u8;
        }
        let root = MemoryRoot::default()
            .elf("/bin/x", &Elf::program(&["liba.so", "libb.so"]))
            .file("/lib/liba.so", &library)
            .symlink("/lib/libb.so", "liba.so");
        let mut finder = Finder::new(&root);
        finder.program(b"/bin/x").unwrap();
        assert!(finder.finish().paths.contains(&b"/bin/x"[..]));
    }
}
