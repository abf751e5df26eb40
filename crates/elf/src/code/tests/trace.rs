//! Functions, blocks, calls, references.

use super::build::{address, calls, flow, gcc};
use crate::code::x86_64::X86_64;
use crate::code::{Action, Architecture, Extent, Extents, Flow, Kind, Layout, Linked, Region, Space, Word, discover};

const PLAIN: &[&str] = &["-nostdlib", "-static", "-no-pie"];

#[test]
fn calls_and_tail_calls_of_assembled_code_are_found() {
    let source = "
        .globl _start
        .type _start, @function
    _start: call one
        test %eax, %eax
        je 1f
        call *%rbx
        jmp two
    1:  call *slot(%rip)
        hlt
        .size _start, .-_start
        .type one, @function
    one: mov $7, %eax
        ret
        .size one, .-one
        .type two, @function
    two: syscall
        ret
        .size two, .-two
        .data
    slot: .quad one
    ";
    let Some(bytes) = gcc("S", source, PLAIN) else { return };
    let linked = Linked::parse(&bytes).unwrap();
    assert_eq!((linked.kind, linked.entry), (Kind::Program, address(&linked, "_start")));
    let flow = flow(&linked, "_start");
    assert_eq!(calls(&linked, &flow).len(), 4);
    assert_eq!(calls(&linked, &flow)[..3], ["one", "*", "two"]);
    let tails: Vec<bool> = flow.calls.iter().map(|call| call.is_tail).collect();
    assert_eq!(tails, [false, false, true, false]);
    assert_eq!(flow.blocks.len(), 3, "{:?}", flow.blocks);
    assert_eq!(flow.blocks[0].next, [flow.blocks[1].start, flow.blocks[2].start]);
    assert!(flow.blocks[1].next.is_empty() && flow.blocks[2].next.is_empty());
    assert!(flow.gates.is_empty());
    assert_eq!(super::build::flow(&linked, "two").gates.len(), 1);
    let one = address(&linked, "one");
    assert!(linked.pointers().iter().any(|(_, target)| *target == one), "the word in .data");
}

#[test]
fn calls_of_libraries_are_resolved_through_both_kinds_of_tables() {
    let source = "int getpid(void); int getppid(void); int table(void) { return getpid() + getppid(); }
        static int own(void) { return 3; } int (*pointers[])(void) = { own, getpid };";
    for options in [&["-shared", "-fPIC", "-O1"][..], &["-shared", "-fPIC", "-O1", "-fno-plt"]] {
        let Some(bytes) = gcc("c", source, options) else { return };
        let linked = Linked::parse(&bytes).unwrap();
        assert_eq!(linked.kind, Kind::Library);
        let found = calls(&linked, &flow(&linked, "table"));
        assert_eq!(found, ["@getpid", "@getppid"], "{options:?}");
        assert!(linked.exports.iter().any(|export| export.name == b"table" && export.is_code));
        let own = address(&linked, "own");
        let words: Vec<&Word> = linked.layout.words.values().collect();
        assert!(words.contains(&&Word::Address(own)));
        let getpid = linked.imports.iter().position(|name| name == b"getpid").unwrap() as u32;
        let data = linked.layout.words.iter().filter(|(_, word)| **word == Word::Symbol(getpid, 0));
        assert!(data.clone().any(|(at, _)| !linked.slots.contains(at)), "the pointer in the table of data");
        assert!(data.clone().any(|(at, _)| linked.slots.contains(at)), "the slot of the call");
    }
}

#[test]
fn resolvers_of_indirect_functions_are_told() {
    let source = "int real(void) { return 1; } static void *choose(void) { return real; }
        int fast(void) __attribute__((ifunc(\"choose\"), visibility(\"hidden\"))); int use(void) { return fast(); }";
    let Some(bytes) = gcc("c", source, &["-shared", "-fPIC", "-O1"]) else { return };
    let linked = Linked::parse(&bytes).unwrap();
    // The symbol of the function has the address of its resolver, and the shorter name.
    let choose = address(&linked, "fast");
    assert!(linked.layout.words.values().any(|word| *word == Word::Resolver(choose)), "{:?}", linked.layout.words);
}

#[test]
fn a_stripped_program_without_unwind_tables_still_has_functions() {
    let source = "__attribute__((noipa)) static int one(int x) { return x * 3; }
        __attribute__((noipa)) static int two(int x) { return one(x) + 1; }
        void _start(void) { volatile int x = two(4); for (;;) { x++; } }";
    let options = ["-nostdlib", "-static", "-no-pie", "-O1", "-fno-asynchronous-unwind-tables", "-s", "-fno-ipa-cp"];
    let Some(bytes) = gcc("c", source, &options) else { return };
    let mut linked = Linked::parse(&bytes).unwrap();
    assert_eq!(linked.layout.extents.all().len(), 0);
    let entry = linked.entry;
    discover(&X86_64, &mut linked.layout, &[entry]);
    assert_eq!(linked.layout.extents.all().len(), 3, "{:?}", linked.layout.extents);
}

#[test]
fn unwind_tables_say_where_functions_are() {
    let source = "int one(int x) { return x * 3; } int two(int x) { return one(x) + 1; }";
    let options = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden"];
    let Some(full) = gcc("c", source, &options) else { return };
    let stripped = gcc("c", source, &[&options[..], &["-s"]].concat()).unwrap();
    let full = Linked::parse(&full).unwrap();
    let stripped = Linked::parse(&stripped).unwrap();
    for name in ["one", "two"] {
        let known = full.layout.extents.starting(address(&full, name)).unwrap();
        let found = stripped.layout.extents.starting(known.start).unwrap();
        assert_eq!((found.end, &found.name), (known.end, &None));
    }
}

#[test]
fn code_without_a_file_is_followed_as_well() {
    // test %edi,%edi; je +2; int3; nop; call 0x2000; ud2; and there ret
    let here = [0x85, 0xff, 0x74, 0x02, 0xcc, 0x90, 0xe8, 0xf5, 0x0f, 0x00, 0x00, 0x0f, 0x0b];
    let region = |address: u64, bytes: &'static [u8]| Region {
        address,
        bytes: bytes.into(),
        zeros: 0,
        executable: true,
        writable: false,
    };
    let there: &'static [u8] = &[0xc3];
    let space = Space::new(vec![region(0x2000, there), region(0x1000, Box::leak(Box::new(here)))]);
    let extent = |start, end| Extent { start, end, name: None, has_pads: false };
    let extents = Extents::new(vec![extent(0x2000, 0x2001), extent(0x1000, 0x100d)], |start| start);
    let mut layout = Layout { space, extents, ..Layout::default() };
    let flow = Flow::trace(&X86_64, &layout, &[0x1000]);
    let starts: Vec<u64> = flow.blocks.iter().map(|block| block.start).collect();
    assert_eq!(starts, [0x1000, 0x1004, 0x1006]);
    assert_eq!(flow.calls[0].callee.code(&layout), Some(0x2000));
    assert_eq!(flow.steps[&0x100b].action, Action::Stop);
    // In a kernel that makes warnings of ud2, what follows is reached.
    layout.traps_return = true;
    assert_eq!(X86_64.step(&layout, 0x100b).unwrap().action, Action::Next);
}

#[test]
fn landing_pads_are_reached() {
    let source = "
        .globl thrower
        .type thrower, @function
    thrower: .cfi_startproc
        .cfi_personality 0x9b, personality
        .cfi_lsda 0x1b, area
        call other
        ret
    pad: mov $60, %eax
        syscall
        hlt
        .cfi_endproc
        .size thrower, .-thrower
        .globl other
        .type other, @function
    other: .cfi_startproc
        ret
        .cfi_endproc
        .size other, .-other
        .data
        .hidden personality
        .globl personality
    personality: .quad other
        .section .gcc_except_table, \"a\"
    area: .byte 0xff, 0xff, 1, 0
    ";
    let Some(bytes) = gcc("S", source, &["-shared", "-nostdlib"]) else { return };
    let linked = Linked::parse(&bytes).unwrap();
    let flow = flow(&linked, "thrower");
    assert_eq!((flow.strays.len(), flow.gates.len()), (1, 1));
    assert!(super::build::flow(&linked, "other").strays.is_empty());
}
