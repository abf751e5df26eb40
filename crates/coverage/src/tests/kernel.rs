//! Addresses of a linked kernel: a small ELF file with two sections of code.

use super::*;
use crate::{Collector, CoverageError, Phase, Seen, Symbols, from_thawed};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const LOADED: u64 = 0x100_0000;

const CODE: usize = 0x100;

/// Name, offset in the code, size, kind and binding (`st_info`).
type Symbol = (&'static str, u64, u64, u8);

const GLOBAL: u8 = 0x12;
const LOCAL: u8 = 0x02;

const SYMBOLS: [Symbol; 9] = [
    ("start", 0, 0x20, GLOBAL),
    ("vfs_read", 0x20, 0x30, GLOBAL),
    ("alias_of_read", 0x20, 0x30, LOCAL),
    ("inner", 0x28, 4, LOCAL),
    ("show", 0x60, 0x10, LOCAL),
    ("show", 0x70, 0x18, LOCAL),
    ("same", 0x90, 8, LOCAL),
    ("same", 0x98, 8, LOCAL),
    ("a variable", 0xa0, 8, 0x11),
];

/// Each byte of code is its offset.
fn code() -> Vec<u8> {
    (0..CODE).map(|offset| offset as u8).collect()
}

fn vmlinux(banner: &str) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut table = vec![0u8; 24];
    for (name, offset, size, info) in SYMBOLS {
        table.extend((names.len() as u32).to_le_bytes());
        table.extend([info, 0, 1, 0]);
        table.extend((TEXT + offset).to_le_bytes());
        table.extend(size.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
    }
    let (banner_at, table_at) = (0x200, 0x280);
    let names_at = table_at + table.len();
    let sections_at = (names_at + names.len()).next_multiple_of(8);
    let mut file = vec![0u8; sections_at + 4 * 64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    for (at, value) in [(16, 2u16), (18, 62), (52, 64), (54, 56), (56, 1), (58, 64), (60, 4), (62, 3)] {
        put(at, &value.to_le_bytes());
    }
    put(20, &1u32.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(40, &(sections_at as u64).to_le_bytes());
    // The segment: kind and flags, file offset, where it is linked for and loaded, sizes.
    put(64, &1u32.to_le_bytes());
    put(68, &5u32.to_le_bytes());
    for (index, value) in [0x100, TEXT, LOADED, CODE as u64, CODE as u64].into_iter().enumerate() {
        put(72 + 8 * index, &value.to_le_bytes());
    }
    put(0x100, &code());
    put(banner_at, banner.as_bytes());
    put(table_at, &table);
    put(names_at, &names);
    // Kind, flags, address, file offset, size, link, size of an entry; the first one is none.
    for (index, (kind, flags, address, at, size, link, entry)) in [
        (1u32, 6u64, TEXT, 0x100, CODE, 0u32, 0u64),
        (2, 0, 0, table_at, table.len(), 3, 24),
        (3, 0, 0, names_at, names.len(), 0, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let section = sections_at + 64 * (index + 1);
        put(section + 4, &kind.to_le_bytes());
        for (at, value) in [(8, flags), (16, address), (24, at as u64), (32, size as u64), (56, entry)] {
            put(section + at, &value.to_le_bytes());
        }
        put(section + 40, &link.to_le_bytes());
    }
    file
}

fn symbols() -> Symbols {
    Symbols::read(&vmlinux("Linux version %s, Linux version 6.12.117 (gcc)")).unwrap()
}

/// What ran: offset and bytes of each block.
fn collect<'a>(symbols: &'a Symbols, ran: &[(u64, u64, Phase)]) -> Collector<'a> {
    let mut collector = Collector::new(symbols);
    for (offset, bytes, phase) in ran {
        let range = *offset as usize..(offset + bytes) as usize;
        collector.block(TEXT + offset, &code()[range], *phase);
    }
    collector
}

#[test]
fn functions_are_those_of_the_code_without_aliases() {
    let symbols = symbols();
    assert_eq!(symbols.release(), "6.12.117");
    assert_eq!(symbols.totals(), (6, 0x20 + 0x30 + 0x10 + 0x18 + 8 + 8));
    assert_eq!(symbols.ranges(), [TEXT..TEXT + 0x100, LOADED..LOADED + 0x100]);
}

#[test]
fn blocks_belong_to_the_functions_that_they_lie_in() {
    let symbols = symbols();
    let ran = [(0, 8, Phase::Boot), (0x1c, 0xc, Phase::Boot), (0x50, 0x14, Phase::Service), (0x22, 2, Phase::Service)];
    let collector = collect(&symbols, &ran);
    assert_eq!(collector.seen(), Seen { blocks: 4, outside: 0, different: 0 });
    let found = collector.finish("web", How::Qemu).unwrap();
    // In service `show` ran first; functions that ran only in boot come behind. A name of two sizes
    // counts as a whole.
    let read = [block(0, 2, "b"), block(2, 2, "bs"), block(4, 4, "b")];
    let expected = [
        function("show", 0x18, 0, &[block(0, 0x18, "s")]),
        function("start", 0x20, 2, &[block(0, 8, "b"), block(0x1c, 4, "b")]),
        function("vfs_read", 0x30, 1, &read),
    ];
    assert_eq!(found.functions, expected);
    assert_eq!(found.scenarios, [Scenario { name: "web".to_string(), how: How::Qemu, functions: 3, blocks: 6 }]);
}

#[test]
fn names_of_functions_of_one_size_have_all_their_blocks() {
    let symbols = symbols();
    let collector = collect(&symbols, &[(0x90, 2, Phase::Whole), (0x9c, 4, Phase::Service)]);
    let found = collector.finish("web", How::Qemu).unwrap();
    assert_eq!(found.functions, [function("same", 8, 0, &[block(0, 2, "bs"), block(4, 4, "s")])]);
}

#[test]
fn what_lies_outside_or_differs_is_counted() {
    let symbols = symbols();
    let mut collector = collect(&symbols, &[(0x58, 4, Phase::Boot)]);
    collector.block(TEXT + 0x20, &[0xcc], Phase::Boot);
    collector.block(TEXT + 0x1000, &[1], Phase::Boot);
    collector.block(u64::MAX, &[1; 8], Phase::Boot);
    assert_eq!(collector.seen(), Seen { blocks: 2, outside: 1, different: 1 });
}

#[test]
fn the_first_code_runs_where_it_is_loaded() {
    let symbols = symbols();
    let mut collector = Collector::new(&symbols);
    collector.block(LOADED + 4, &[4, 5], Phase::Boot);
    collector.block(TEXT + 0x20, &[0x20], Phase::Boot);
    // A program of the device.
    collector.block(LOADED + 0x60, &[0x60], Phase::Boot);
    assert_eq!(collector.seen().blocks, 2);
    let found = collector.finish("web", How::Qemu).unwrap();
    assert_eq!(found.function("start").unwrap().blocks, [block(4, 2, "b")]);
    assert!(found.function("show").is_none());
}

#[test]
fn thawed_functions_have_the_sizes_of_the_kernel() {
    let symbols = symbols();
    let found = from_thawed("vfs_read+0x1/0x40\nshow\ngone\n", "6.12.117", Some(&symbols), "device").unwrap();
    let sizes: Vec<u64> = found.functions.iter().map(|function| function.bytes).collect();
    assert_eq!(sizes, [0, 0x18, 0x30]);
}

#[test]
fn sections_of_the_same_bytes_are_refused() {
    let mut file = vmlinux("Linux version 6.12.117 (gcc)");
    assert!(!Symbols::read(&file).unwrap().is_aarch64());
    let (bytes, sections) = (file.len() as u64, file.len() - 4 * 64);
    // Code and the table of symbols: both all of the file, and code.
    for section in [sections + 64, sections + 128] {
        for (at, value) in [(8, 6), (24, 0), (32, bytes)] {
            file[section + at..section + at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let error = Symbols::read(&file).err().unwrap();
    assert!(matches!(error, CoverageError::Kernel { reason: "more code than bytes" }), "{error}");
}

#[test]
fn other_files_and_damaged_ones_are_refused_without_harm() {
    let good = vmlinux("Linux version 6.12.117 (gcc)");
    let read = |bytes: &[u8]| Symbols::read(bytes).map(|symbols| symbols.totals());
    assert!(matches!(read(b"\x7fELF"), Err(CoverageError::Kernel { .. })));
    assert!(matches!(read(&vmlinux("Linux version x")), Err(CoverageError::Kernel { .. })), "no release");
    let mut other = good.clone();
    other[18] = 40;
    assert_eq!(read(&other), Err(CoverageError::Kernel { reason: "another processor" }));
    for length in 0..good.len() {
        let _ = read(&good[..length]);
    }
    for at in 0..good.len() {
        for byte in [0, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            if let Ok(symbols) = Symbols::read(&bad) {
                let collector = collect(&symbols, &[(0, 0x100, Phase::Boot)]);
                let _ = collector.finish("web", How::Qemu);
            }
        }
    }
}
