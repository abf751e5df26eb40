//! Branches that always go the same way: what decides them, what must not, and what is left of
//! functions.

use super::*;

fn decide() -> Passes {
    Passes { constants: true, ..reach() }
}

fn cut() -> Passes {
    Passes { blocks: true, ..decide() }
}

/// A function that calls `rare` only if `value` is not zero.
fn guarded(more: &str) -> String {
    [
        function("entry", &format!("{more}cmpl $0,value(%rip)\nje 1f\ncall rare\n1: call common\nret")),
        function("rare", "nop\nret"),
        function("common", "mov seen(%rip),%eax\ninc %eax\nmov %eax,seen(%rip)\nret"),
        variable(".data.seen", "seen", ".long 0"),
    ]
    .concat()
}

fn value(number: u32) -> String {
    variable(".data.value", "value", &format!(".long {number}"))
}

fn has_rare(source: &str, options: &Options) -> bool {
    let shape = Shape::of(&reduce(&assemble(source), options).object);
    assert!(shape.has("common"), "{:?}", shape.symbols);
    shape.has("rare")
}

#[test]
fn a_variable_that_nobody_writes_decides() {
    assert!(!has_rare(&[guarded(""), value(0)].concat(), &options(decide())));
    assert!(has_rare(&[guarded(""), value(1)].concat(), &options(decide())));
    assert!(has_rare(&[guarded(""), value(0)].concat(), &options(reach())), "without the pass");
    let zero = ".section .bss.value,\"aw\",@nobits\n.globl value\n.type value,@object\nvalue: .zero 4\n.size value,4\n";
    assert!(!has_rare(&[&guarded(""), zero].concat(), &options(decide())));
    // Read into a register first, in half, and compared otherwise.
    for body in [
        "mov value(%rip),%ecx\ntest %ecx,%ecx\nje 1f\ncall rare\n1: call common\nret",
        "movzbl value(%rip),%ecx\nadd $3,%ecx\ncmp $3,%ecx\njle 1f\ncall rare\n1: call common\nret",
        "testb $1,value(%rip)\njne rare\ncall common\nret",
    ] {
        let source = guarded("").replace(
            &function("entry", "cmpl $0,value(%rip)\nje 1f\ncall rare\n1: call common\nret"),
            &function("entry", body),
        );
        assert!(!has_rare(&[source, value(0)].concat(), &options(decide())), "{body}");
    }
}

#[test]
fn a_variable_that_may_change_decides_nothing() {
    let cases = [
        ("written", function("entry2", "movl $1,value(%rip)\nret")),
        ("incremented", function("entry2", "incl value(%rip)\nret")),
        ("written as a whole", function("entry2", "movq $1,value(%rip)\nret")),
        ("taken", function("entry2", "lea value(%rip),%rdi\nret")),
        ("taken as a number", function("entry2", "mov $value,%rdi\nret")),
        ("indexed", function("entry2", "mov %eax,value(,%rcx,4)\nret")),
        (
            "in data",
            [function("entry2", "mov pointer(%rip),%rdi\nret"), variable(".data.pointer", "pointer", ".quad value")]
                .concat(),
        ),
        ("read beyond its end", function("entry2", "mov value(%rip),%rax\nret")),
    ];
    for (name, user) in cases {
        let source = [guarded("call entry2\n"), value(0), user].concat();
        assert!(has_rare(&source, &options(decide())), "{name}");
    }
    let source = [guarded(""), value(0), function("entry2", "movl $1,value(%rip)\nret")].concat();
    assert!(!has_rare(&source, &options(decide())), "who writes it is dead");
    let percpu = variable(".data..percpu", "value", ".long 0");
    assert!(has_rare(&[guarded(""), percpu].concat(), &options(decide())), "every processor has its own");
}

#[test]
fn fixed_variables_begin_with_their_number() {
    let with = |source: &str, name: &str, number: u64| {
        let options = Options { fixed: [(name.to_string(), number)].into(), ..options(decide()) };
        specialise(&assemble(source), &options)
    };
    let source = [guarded(""), value(7)].concat();
    assert!(Shape::of(&with(&source, "value", 7).unwrap().object).has("rare"));
    let outcome = with(&source, "value", 0).unwrap();
    assert!(!Shape::of(&outcome.object).has("rare"));
    let written = Object::read(&outcome.object).unwrap();
    let data = written.sections.iter().find(|section| section.name == b".data").unwrap();
    assert_eq!(data.data, [0; 8]);
    // One that began as zero gets a place among those that do not.
    let zero = ".section .bss.value,\"aw\",@nobits\n.globl value\n.type value,@object\nvalue: .zero 4\n.size value,4\n";
    let outcome = with(&[&guarded(""), zero].concat(), "value", u64::from(u32::MAX - 1)).unwrap();
    let written = Object::read(&outcome.object).unwrap();
    let data = written.sections.iter().find(|section| section.name == b".data").unwrap();
    assert_eq!(data.data, [0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);

    let writer = function("entry2", "movl $1,value(%rip)\nret");
    let taken = function("entry2", "lea value(%rip),%rdi\nret");
    let long = variable(".data.long", "long", ".quad 1,2");
    let pointer = variable(".data.pointer", "pointer", ".quad entry");
    for (source, name, number, reason) in [
        ([guarded("call entry2\n"), value(0), writer].concat(), "value", 0, "entry2 writes it"),
        ([guarded("call entry2\n"), value(0), taken].concat(), "value", 0, "entry2 writes it or takes its address"),
        ([guarded("mov long(%rip),%rax\n"), value(0), long].concat(), "long", 0, "16 bytes"),
        ([guarded("mov pointer(%rip),%rax\n"), value(0), pointer].concat(), "pointer", 0, "holds a number"),
        ([guarded(""), value(0)].concat(), "value", 1 << 32, "does not fit"),
        ([guarded(""), value(0)].concat(), "nobody", 0, "'nobody' is not in the object"),
        ([guarded(""), value(0)].concat(), "rare", 0, "'rare' is not in the object"),
    ] {
        let error = with(&source, name, number).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn arguments_and_results_of_functions_decide_if_all_calls_are_seen() {
    let callee = function("callee", "test $4,%esi\njne 1f\nmov $7,%eax\nret\n1: call rare\nmov $7,%eax\nret");
    let after = "cmp $7,%eax\njne rare\n";
    let entry = |calls: &str| function("entry", &format!("{calls}call common\nret"));
    let rest = [function("rare", "nop\nret"), function("common", "ret")].concat();
    let one = format!("mov $1,%esi\ncall callee\n{after}");
    let two = format!("{one}mov $3,%esi\ncall callee\n{after}");
    for (calls, expected) in [
        (&one[..], false),
        (&two, false),
        (&format!("{two}mov $6,%esi\ncall callee\n"), true),
        (&format!("{two}call callee\n"), true),
        (&format!("{two}lea callee(%rip),%rdi\n"), true),
        (&format!("{two}mov pointer(%rip),%rdi\n"), true),
    ] {
        let pointer = variable(".data.pointer", "pointer", ".quad callee");
        let source = [&entry(calls)[..], &callee, &rest, &pointer].concat();
        assert_eq!(has_rare(&source, &options(decide())), expected, "{calls}");
    }
    // An address is not zero.
    let checked = function("checked", "test %rdi,%rdi\nje 1f\nret\n1: jmp rare");
    let calls = "mov $value,%rdi\ncall checked\nlea 8(%rsp),%rdi\ncall checked\n";
    assert!(!has_rare(&[&entry(calls)[..], &checked, &rest, &value(0)].concat(), &options(decide())));
    let calls = "mov $value,%rdi\ncall checked\nmov value(%rip),%rdi\ncall checked\n";
    assert!(has_rare(&[&entry(calls)[..], &checked, &rest, &value(0)].concat(), &options(decide())));
}

#[test]
fn arguments_of_system_calls_decide_in_their_handlers() {
    let handler = function(
        "__x64_sys_control",
        "mov 0x68(%rdi),%esi\ncmp $2,%esi\nja 9f\njmp *table(,%rsi,8)\n1: call common\nret\n2: call rare\nret\n3: call rare\nret\n9: ret",
    )
    .replace("1: ", "case1: ")
    .replace("2: ", "case2: ")
    .replace("3: ", "case3: ");
    let table = ".section .rodata.__x64_sys_control,\"a\"\n.balign 8\ntable: .quad case1,case2,case3\n";
    let source = [
        &function("entry", "call x64_sys_call\nret")[..],
        &function("x64_sys_call", "jmp __x64_sys_control"),
        &handler,
        table,
        &function("rare", "nop\nret"),
        &function("common", "ret"),
    ]
    .concat();
    let with = |numbers: &[u64]| {
        let arguments = [("sys_control".to_string(), [(1, numbers.iter().copied().collect())].into())].into();
        Options { arguments, ..options(decide()) }
    };
    assert!(!has_rare(&source, &with(&[0])));
    assert!(!has_rare(&source, &with(&[0, 7])));
    assert!(has_rare(&source, &with(&[0, 1])));
    assert!(has_rare(&source, &options(decide())));
}

#[test]
fn entries_from_elsewhere_are_seen() {
    let body = "cmpl $0,value(%rip)\nje 1f\n2: call rare\n1: call common\nret";
    let entry = function("entry", body).replace("2: ", "inside: ");
    let rest = [function("rare", "nop\nret"), function("common", "ret"), value(0)].concat();
    for (name, more) in [
        ("a fixup", ".section __ex_table,\"a\"\n.long entry-., inside-., 3\n".to_string()),
        ("a jump label", ".section __jump_table,\"aw\"\n.long entry-., inside-.\n.quad rare-.\n".to_string()),
        ("data", ".section .init.setup,\"aw\"\n.quad inside, inside, 0\n".to_string()),
        (
            "replaced instructions",
            ".section .altinstructions,\"a\"\n.long entry-., 8f-.\n.long 0\n.byte 7, 5\n\
             .section .altinstr_replacement,\"ax\"\n8: jmp inside\n.byte 0x90,0x90\n"
                .to_string(),
        ),
    ] {
        assert!(has_rare(&[&entry[..], &rest, &more].concat(), &options(decide())), "{name}");
    }
    assert!(!has_rare(&[&entry[..], &rest].concat(), &options(decide())));
    // What is rewritten when the kernel starts is not what it looks like.
    let constant = function("entry", "movabs $0x1234,%rax\ncmp $0x1234,%rax\nje 1f\ncall rare\n1: call common\nret");
    let patched = ".section runtime_ptr_x,\"a\"\n.long entry+2-.\n";
    let script = format!("{SCRIPT} runtime_ptr_x");
    assert!(!has_rare(&[&constant[..], &rest].concat(), &options(decide())));
    assert!(has_rare(&[&constant[..], &rest, patched].concat(), &Options { script, ..options(decide()) }));
}

#[test]
fn dead_blocks_are_cut_and_the_rest_moves() {
    let body = "push %rbx\ncmpl $0,value(%rip)\njne 3f\n2: call common\ndec %ebx\njne 2b\njmp 4f\n3: .fill 200,1,0x90\ncall rare\njmp 2b\n4: pop %rbx\n5: ret";
    let tables = ".section __ex_table,\"a\"\n.long 5b-., 4b-., 3\n.section .orc_unwind_ip,\"a\"\n.long entry-.,entry+1-.,3b-.,4b-.,5b-.\n\
                  .section .orc_unwind,\"a\"\n.short 1,1,1,2,2,2,3,3,3,4,4,4,5,5,5\n";
    let source =
        [&function("entry", body)[..], tables, &function("rare", "nop\nret"), &function("common", "ret"), &value(0)]
            .concat();
    let outcome = reduce(&assemble(&source), &options(cut()));
    let linked = link(
        &outcome.object,
        "SECTIONS { . = 0x400000; .text : { *(.text) } .data : { *(.data) } __ex_table : { *(__ex_table) } .orc_unwind_ip : { *(.orc_unwind_ip) } .orc_unwind : { *(.orc_unwind) } }",
    );
    // push; cmpl; call; dec; jne back; pop; ret, then what is called.
    let text = &linked[".text"];
    assert_eq!((text[0], text[1], text[8], text[13..15].to_vec()), (0x53, 0x83, 0xe8, vec![0xff, 0xcb]));
    assert_eq!(text[15..], [0x75, 0xf7, 0x5b, 0xc3, 0xc3], "{text:x?}");
    let distance = |table: &str, at: usize| i32::from_le_bytes(linked[table][at..at + 4].try_into().unwrap()) as i64;
    assert_eq!(linked["__ex_table"].len(), 12);
    assert_eq!(linked[".orc_unwind_ip"].len(), 16, "the entry of what is gone is gone");
    assert_eq!(linked[".orc_unwind"][12..14], [4, 0]);
    assert_eq!(distance(".orc_unwind_ip", 12) + 12 - distance(".orc_unwind_ip", 8) - 8, 1);
    let report = outcome.report.passes.iter().find(|pass| pass.name == "blocks").unwrap();
    assert_eq!((report.on, report.atoms), (true, 1 + 2), "the function, and two entries for what is gone");
    assert!(report.bytes.text > 200, "{report:?}");
    let shape = Shape::of(&outcome.object);
    assert!(!shape.has("rare") && shape.size(".text") == 20, "{:?}", shape.sections);
    // And left in place as traps.
    let trapped = reduce(&assemble(&source), &Options { trap: true, ..options(cut()) });
    let text = Object::read(&trapped.object).unwrap();
    let text = text.sections.iter().find(|section| section.name == b".text").unwrap().data.to_vec();
    assert!(text.windows(16).any(|window| window.iter().all(|byte| *byte == 0xcc)), "{text:x?}");
    assert!(Shape::of(&trapped.object).references["entry"].iter().all(|line| !line.contains("rare")));
}

#[test]
fn a_branch_that_is_always_taken_becomes_a_jump() {
    let far = ".fill 200,1,0x90\n";
    let body = format!(
        "cmpl $0,value(%rip)\nje 1f\ncall rare\n2: {far}call common\nret\n1: {far}mov seen(%rip),%eax\ntest %eax,%eax\nje 2b\nret"
    );
    let source = [
        &function("entry", &body)[..],
        &function("rare", "nop\nret"),
        &function("common", "movl $1,seen(%rip)\nret"),
        &value(0),
        &variable(".data.seen", "seen", ".long 0"),
    ]
    .concat();
    let outcome = reduce(&assemble(&source), &options(cut()));
    let linked = link(&outcome.object, "SECTIONS { . = 0x400000; .text : { *(.text) } .data : { *(.data) } }");
    // The jump over what is still needed is near, and one byte shorter than the branch was.
    assert_eq!(linked[".text"][7..12], [0xe9, 206, 0, 0, 0], "{:x?}", &linked[".text"][..16]);
    // A tail call that is never made goes with its reference.
    let source = [guarded("cmpl $3,value(%rip)\nje rare\n"), value(0)].concat();
    assert!(!has_rare(&source, &options(cut())));
    assert!(!has_rare(&source, &options(decide())));
}
