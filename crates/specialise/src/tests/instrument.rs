//! Counters: programs that do the same with them, and references that mean the same.

use std::process::ExitStatus;

use super::*;
use crate::CountedBlock;

fn counting() -> Options {
    Options { instrument: true, ..options(Passes::none()) }
}

/// The blocks of a function: offset and bytes of each.
fn blocks(outcome: &Outcome, name: &str) -> Vec<(u32, u32)> {
    let function = outcome.counters.iter().find(|function| function.name == name).unwrap();
    function.blocks.iter().map(|CountedBlock { offset, bytes }| (*offset, *bytes)).collect()
}

/// A program whose exit status is what `work` returns, and which writes the counters before.
fn program(more: &str) -> String {
    let entry = "call work\nmov %rax,%rbx\nmov $1,%eax\nmov $1,%edi\nmov $specialise_coverage,%rsi\n\
                 mov $specialise_coverage_end,%rdx\nsub %rsi,%rdx\nsyscall\nmov %rbx,%rdi\nmov $60,%eax\nsyscall";
    [".weak specialise_coverage,specialise_coverage_end\n", &function_in(".noinstr.text", "entry", entry), more]
        .concat()
}

/// Links a program and runs it: its exit status, and what it wrote.
fn execute(object: &[u8]) -> (ExitStatus, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in.o"), folder.path().join("out"));
    fs::write(&input, object).unwrap();
    run(Command::new("ld").args(["-e", "entry", "-o"]).arg(&out).arg(&input));
    let output = Command::new(&out).output().unwrap();
    (output.status, output.stdout)
}

/// Bytes of a section of an object, by its class.
fn code(bytes: &[u8], name: &str) -> Vec<u8> {
    let object = Object::read(bytes).unwrap();
    object.sections.iter().find(|section| section.name == name.as_bytes()).unwrap().data.to_vec()
}

/// Where the references of a section go: the bytes there.
fn targets(bytes: &[u8], name: &str) -> Vec<Vec<u8>> {
    let object = Object::read(bytes).unwrap();
    let section = object.sections.iter().find(|section| section.name == name.as_bytes()).unwrap();
    let found = section.relocations.iter().map(|relocation| {
        let symbol = &object.symbols[relocation.symbol as usize];
        let SymbolPlace::Section(target) = symbol.place else { panic!("{relocation:?}") };
        let rest = &object.sections[target as usize].data[(symbol.value as i64 + relocation.addend) as usize..];
        rest[..rest.len().min(2)].to_vec()
    });
    found.collect()
}

const STORE: [u8; 2] = [0xc6, 0x05];

#[test]
fn a_program_does_the_same_and_says_what_ran() {
    // All branches are short, until those of the first cases go too far for a byte, and so does the
    // way back.
    let cases: String = (0..13).map(|case| format!("cmp ${case},%edi\nje 2f\nadd $1,%eax\n")).collect();
    let body = format!(
        "mov $7,%edi\nxor %eax,%eax\n1: {cases}2: add $100,%eax\ncmp $107,%eax\nje 3f\njmp 4f\n3: xor %edi,%edi\njmp 1b\n4: call other\nret"
    );
    let other = function("other", "test %eax,%eax\njs 1f\nadd $1,%eax\nret\n1: ud2");
    let object = assemble(&program(&[function("work", &body), other, function("unused", "ret")].concat()));
    let is_near = |bytes: &[u8]| bytes.windows(2).any(|pair| pair == [0x0f, 0x84]);
    assert!(!is_near(&code(&object, ".text.work")));
    let outcome = reduce(&object, &counting());
    assert!(is_near(&code(&outcome.object, ".text")));
    let (status, counters) = execute(&outcome.object);
    assert_eq!(status.code(), Some(208));
    let all: usize = outcome.counters.iter().map(|function| function.blocks.len()).sum();
    assert_eq!(counters.len(), all);
    let names: Vec<(&str, usize)> =
        outcome.counters.iter().map(|function| (&function.name[..], function.blocks.len())).collect();
    assert_eq!(names, [("entry", 0), ("work", 19), ("other", 3), ("unused", 1)]);
    // The start, the first comparison and what follows eight of them; the eighth leads away.
    let mut expected = vec![1; 9];
    expected.resize(15, 0);
    expected.extend([1, 1, 1, 1]);
    expected.extend([1, 1, 0, 0]);
    assert_eq!(counters, expected);
    let of_work = blocks(&outcome, "work");
    let ends: Vec<u32> = of_work.iter().map(|(offset, bytes)| offset + bytes).collect();
    let starts: Vec<u32> = of_work.iter().skip(1).map(|(offset, _)| *offset).collect();
    assert_eq!(ends[..18], starts[..], "blocks follow each other");
    let object = Object::read(&object).unwrap();
    let work = object.symbols.iter().find(|symbol| symbol.name == b"work").unwrap();
    assert_eq!((of_work[0].0, u64::from(ends[18])), (0, work.size));
}

#[test]
fn the_symbols_are_there_if_nobody_asks_for_them() {
    let outcome = reduce(&assemble(&function("entry", "ret")), &counting());
    let object = Object::read(&outcome.object).unwrap();
    let found = |name: &str| object.symbols.iter().find(|symbol| symbol.name == name.as_bytes()).unwrap();
    let (start, end) = (found("specialise_coverage"), found("specialise_coverage_end"));
    assert_eq!((start.size, end.value - start.value, start.is_global()), (1, 1, true));
    let SymbolPlace::Section(section) = start.place else { panic!("{start:?}") };
    assert_eq!(object.sections[section as usize].name, b".bss");
    assert_eq!(outcome.report.after.bss, 1);
    let outcome = reduce(&assemble(&function("entry", "ret")), &options(Passes::none()));
    assert!(outcome.counters.is_empty() && !Shape::of(&outcome.object).has("specialise_coverage"));
}

#[test]
fn what_cannot_be_widened_is_counted_as_a_whole() {
    let cases: String = (0..15).map(|case| format!("cmp ${case},%edi\nje 2f\nadd $1,%eax\n2:")).collect();
    let body = |cases: &str| format!("mov $3,%ecx\nxor %eax,%eax\nmov $5,%edi\n1: {cases}\nloop 1b\nret");
    let near = reduce(&assemble(&program(&function("work", &body("inc %eax")))), &counting());
    assert_eq!(blocks(&near, "work").len(), 3);
    assert_eq!(execute(&near.object).0.code(), Some(3));
    let far = reduce(&assemble(&program(&function("work", &body(&cases)))), &counting());
    let [(0, bytes)] = blocks(&far, "work")[..] else { panic!("{:?}", far.counters) };
    assert!(bytes > 100);
    let (status, counters) = execute(&far.object);
    assert_eq!((status.code(), &counters[..]), (Some(3 * 14), &[1][..]));
    // Control may come to the second instruction from elsewhere.
    let entered = variable(".data.entered", "entered", ".quad work+5");
    let twice = reduce(&assemble(&program(&[function("work", &body(&cases)), entered].concat())), &counting());
    assert_eq!(blocks(&twice, "work"), []);
}

#[test]
fn tables_name_the_instruction_and_control_comes_to_the_store() {
    let body = "cmp $1,%edi\nja 3f\nje 4f\njs 2f\n1: mov (%rdi),%eax\nret\n2: ud2\n3: xor %eax,%eax\nret\n\
                4: jmp *5f(,%rdi,8)\n6: dec %eax\nret";
    let tables = ".section __ex_table,\"a\"\n.long 1b-., 3b-., 3\n.section __bug_table,\"a\"\n.long 2b-., 0, 0\n\
                  .section .orc_unwind_ip,\"a\"\n.long 1b-.\n.section .orc_unwind,\"a\"\n.short 1,2,3\n\
                  .section .rodata.table,\"a\"\n5: .quad 6b, 3b\n.section .smp_locks,\"a\"\n.long 7b-.\n";
    let object = assemble(&[&function("entry", "7: lock incl (%rdi)\nret"), &function("work", body), tables].concat());
    let outcome = reduce(&object, &Options { script: format!("{SCRIPT} .smp_locks"), ..counting() });
    assert_eq!(blocks(&outcome, "work").len(), 8, "{:?}", outcome.counters);
    assert_eq!(targets(&outcome.object, "__ex_table"), [[0x8b, 0x07], STORE]);
    assert_eq!(targets(&outcome.object, "__bug_table"), [[0x0f, 0x0b]]);
    assert_eq!(targets(&outcome.object, ".orc_unwind_ip"), [STORE]);
    assert_eq!(targets(&outcome.object, ".rodata"), [STORE, STORE]);
    assert_eq!(targets(&outcome.object, ".smp_locks"), [[0xf0, 0xff]]);
}

#[test]
fn landings_and_calls_of_tracing_stay_first() {
    let traced = function("entry", "endbr64\n1: call __fentry__\nret");
    let taken_out = function("work", "2: .byte 0x0f,0x1f,0x44,0,0\nxor %eax,%eax\nret");
    let tables = [
        ".section __mcount_loc,\"a\"\n.quad 1b, 2b\n.section .ibt_endbr_seal,\"a\"\n.long entry-.\n",
        &variable(".data.taken", "taken", ".quad entry"),
    ]
    .concat();
    let script = format!("{SCRIPT} __mcount_loc .ibt_endbr_seal");
    let object = assemble(&[&traced, &taken_out, &tables[..]].concat());
    let outcome = reduce(&object, &Options { script, ..counting() });
    assert_eq!(outcome.report.warnings, [""; 0]);
    let text = code(&outcome.object, ".text");
    assert_eq!((&text[..5], &text[9..11]), (&[0xf3, 0x0f, 0x1e, 0xfa, 0xe8][..], &STORE[..]));
    assert_eq!((&text[16..19], &text[22..24]), (&[0xc3, 0x0f, 0x1f][..], &STORE[..]));
    assert_eq!(targets(&outcome.object, "__mcount_loc"), [[0xe8, 0], [0x0f, 0x1f]]);
    assert_eq!(targets(&outcome.object, ".ibt_endbr_seal"), [[0xf3, 0x0f]]);
    assert_eq!((blocks(&outcome, "entry"), blocks(&outcome, "work")), (vec![(0, 10)], vec![(0, 8)]));
}

#[test]
fn jumps_that_are_taken_out_are_widened_with_others() {
    let cases: String = (0..20).map(|case| format!("cmp ${case},%edi\nje 3f\n")).collect();
    let label = |name: &str, site: &str| {
        [
            function(name, &format!("1: {site}\n{cases}3: xor %eax,%eax\n2: ret")),
            ".section __jump_table,\"aw\"\n.long 1b-., 2b-.\n.quad 0\n".to_string(),
        ]
        .concat()
    };
    let source = [label("entry", ".byte 0x66,0x90"), label("work", "jmp 2f")].concat();
    let outcome = reduce(&assemble(&source), &counting());
    assert_eq!((blocks(&outcome, "entry").len(), blocks(&outcome, "work").len()), (23, 23));
    let first: Vec<u8> = targets(&outcome.object, "__jump_table").iter().map(|bytes| bytes[0]).collect();
    assert_eq!(first, [0x0f, STORE[0], 0xe9, STORE[0]]);
    assert_eq!(code(&outcome.object, ".text")[7..12], [0x0f, 0x1f, 0x44, 0, 0]);
}

#[test]
fn replaced_instructions_stay_together() {
    let alternative = |name: &str, replaced: &str| {
        [
            function(name, &format!("1: {replaced}\n2: test %eax,%eax\nje 3f\nnop\n3: ret")),
            format!(".section .altinstructions,\"a\"\n.long 1b-., 8f-.\n.long 0\n.byte 5, 5\n.section .altinstr_replacement,\"ax\"\n8: call {name}\n"),
        ]
        .concat()
    };
    let source = [
        alternative("entry", "nop\nnop\nnop\nnop\nnop"),
        alternative("jumps", "jmp 2f\nnop\nnop\nnop"),
        alternative("inside", "jmp 4f\nnop\nnop\n4: nop"),
    ]
    .concat();
    let outcome = reduce(&assemble(&source), &counting());
    let counted = |name| blocks(&outcome, name).into_iter().map(|(offset, _)| offset).collect::<Vec<_>>();
    assert_eq!(
        (counted("entry"), counted("jumps"), counted("inside")),
        (vec![0, 5, 9, 10], vec![0, 5, 9, 10], vec![0])
    );
    assert_eq!(targets(&outcome.object, ".altinstructions")[0], [0x90, 0x90]);
}

#[test]
fn what_must_not_be_touched_counts_nothing() {
    let indirect = "jmp *%rax\nmov $1,%eax\nret";
    let source = [
        function("entry", "ret"),
        function_in(".text", "by_hand", "ret"),
        function_in(".noinstr.text", "not_traced", "ret"),
        function_in(".entry.text", "entered", "ret"),
        function_in(".init.text", "start", "ret"),
        function_in(".head.text", "head", "call early\nret"),
        function("early", "ret"),
        function("hidden", indirect),
        function("addresses", "lea 1f(%rip),%rax\nret\n1: .byte 0x90,0xc3"),
    ]
    .concat();
    let outcome = reduce(&assemble(&source), &counting());
    let mut names: Vec<(&str, usize)> =
        outcome.counters.iter().map(|function| (&function.name[..], function.blocks.len())).collect();
    names.sort_unstable();
    let expected = [
        ("addresses", 0),
        ("by_hand", 0),
        ("early", 0),
        ("entered", 0),
        ("entry", 1),
        ("hidden", 0),
        ("not_traced", 0),
    ];
    assert_eq!(names, expected);
}

#[test]
fn other_passes_may_run_too() {
    let source = program(
        &[function("work", "mov $5,%eax\nret"), function("same", "mov $5,%eax\nret"), function("dead", "ret")].concat(),
    );
    let object = assemble(&source.replace("call work\n", "call same\ncall work\n"));
    let outcome =
        reduce(&object, &Options { instrument: true, command_line: Some(String::new()), ..options(Passes::all()) });
    let (status, counters) = execute(&outcome.object);
    assert_eq!(
        (status.code(), &counters[..]),
        (Some(5), &[1][..]),
        "one of equal functions is left: {:?}",
        outcome.counters
    );
}
