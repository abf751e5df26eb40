//! With all passes off everything is as before, and what cannot be divided stays together.

use super::*;

/// Code and data of every form that the kernel has.
fn varied() -> Vec<u8> {
    let strings = ".section .rodata.entry.str1.1,\"aMS\",@progbits,1\n.LC0: .string \"first\"\n.LC1: .string \"\"\n.LC2: .string \"second\"\n";
    let constants = ".section .rodata.cst16,\"aM\",@progbits,16\n.LC3: .quad 1, 2\n.LC4: .quad 3, 4\n";
    let entry = function(
        "entry",
        "call helper\nmov $.LC0,%rdi\nmov $.LC2,%rsi\nmov $.LC1,%rdx\nmovups .LC4(%rip),%xmm0\n\
                                   movl $7,value(%rip)\ncmpb $1,table+4(%rip)\ncall external\njmp second_init",
    );
    let helper = function("helper", "lea entry(%rip),%rax\nret");
    let shared = [
        function_in(".init.text", "first_init", "jmp second_init\n.byte 0xcc,0xcc,0xcc"),
        function_in(".init.text", "second_init", "call local_init\nret"),
        ".section .init.text,\"ax\"\n.type local_init,@function\nlocal_init: ret\n.size local_init,.-local_init\n.balign 16,0x90\n".to_string(),
    ]
    .concat();
    let data = [
        variable(".data.value", "value", ".long 1"),
        variable(".data..read_mostly", "table", ".quad entry, 5"),
        variable(".data..read_mostly", "other", ".quad table+8"),
        ".section .bss.zeros,\"aw\",@nobits\n.type zeros,@object\n.globl zeros\n.balign 32\nzeros: .zero 100\n.size zeros,100\n".to_string(),
    ]
    .concat();
    assemble(&[strings, constants, &entry, &helper, &shared, &data].concat())
}

#[test]
fn without_passes_the_object_says_the_same() {
    let object = varied();
    let outcome = reduce(&object, &options(Passes::none()));
    assert_eq!(Shape::of(&object), Shape::of(&outcome.object));
    assert_eq!(outcome.report.before, outcome.report.after);
    assert_eq!(outcome.report.atoms, outcome.report.atoms_left);
    // And once more, on what we wrote ourselves.
    let again = reduce(&outcome.object, &options(Passes::none()));
    assert_eq!(outcome.object, again.object);
}

#[test]
fn without_passes_the_linker_makes_the_same_program() {
    let script = "external = 0x1234; SECTIONS { . = 0x400000; .text : { *(.text .text.*) } =0xcccccccc .init.text : { *(.init.text) } \
                  .rodata : { *(.rodata.cst16*) *(.rodata .rodata.*) } .data : { *(.data .data.[a-z]*) *(.data..read_mostly) } .bss : { *(.bss .bss.*) } }";
    let object = varied();
    let outcome = reduce(&object, &options(Passes::none()));
    let (before, after) = (link(&object, script), link(&outcome.object, script));
    for (name, bytes) in &before {
        assert_eq!(Some(bytes), after.get(name), "{name}");
    }
    assert!(before[".text"].len() > 20 && before[".init.text"].len() > 8);
}

#[test]
fn more_sections_than_a_header_counts_are_read() {
    let count = 66_000;
    let many = format!(
        ".macro f n\n.section .text.f\\n,\"ax\",@progbits\n.globl f\\n\n.type f\\n,@function\nf\\n: ret\n.size f\\n,1\n.endm\n\
         .altmacro\n.set i,0\n.rept {count}\nf %i\n.set i,i+1\n.endr\n{}",
        function("entry", "jmp f65999")
    );
    let object = assemble(&many);
    let outcome = reduce(&object, &options(reach()));
    assert!(outcome.report.sections > 65_536, "{}", outcome.report.sections);
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("f65999") && !shape.has("f65998") && !shape.has("f0"));
    assert_eq!(shape.size(".text"), 1 + 5);
}

#[test]
fn functions_of_one_name_are_told_apart() {
    let inline =
        ".section .text.inline,\"ax\",@progbits\n.type inline,@function\ninline: nop\nret\n.size inline,.-inline\n";
    let used = format!("{inline}{}", function("entry", "call inline\nret"));
    let unused = format!("{inline}{}", function("unused", "call inline\nret"));
    for sources in [[&used[..], &unused[..]], [&unused[..], &used[..]]] {
        let object = assemble_all(&sources);
        let merged = Object::read(&object).unwrap();
        let sections = merged.sections.iter().filter(|section| section.name == b".text.inline");
        assert_eq!(sections.map(|section| section.size).collect::<Vec<_>>(), [4], "the linker put both together");
        let shape = Shape::of(&reduce(&object, &options(reach())).object);
        assert_eq!(shape.size(".text"), 2 + 6);
        assert!(shape.references["entry"][0].contains("inline"), "{:?}", shape.references);
    }
}

#[test]
fn strings_live_one_by_one() {
    let strings = ".section .rodata.str1.1,\"aMS\",@progbits,1\n.LC0: .string \"dead\"\n.LC1: .string \"live\"\n.LC2: .string \"dead too\"\n";
    let object = assemble(&format!(
        "{strings}{}{}",
        function("entry", "mov $.LC1,%rdi\nret"),
        function("unused", "mov $.LC0,%rdi\nret")
    ));
    let shape = Shape::of(&reduce(&object, &options(reach())).object);
    assert_eq!(shape.size(".rodata.str1.1"), 5);
    assert!(shape.references["entry"][0].ends_with("live"), "{:?}", shape.references);
}

#[test]
fn code_that_runs_into_the_next_function_keeps_it() {
    let source = [
        function_in(".noinstr.text", "entry", "test %eax,%eax\nje 1f\nret\n1: nop"),
        function_in(".noinstr.text", "continued", "ret"),
        function_in(".noinstr.text", "unused", "ret"),
    ]
    .concat();
    let shape = Shape::of(&reduce(&assemble(&source), &options(reach())).object);
    assert!(shape.has("continued") && !shape.has("unused"), "{:?}", shape.symbols);
}

#[test]
fn a_branch_without_relocation_is_followed_and_moved() {
    // `target` moves to the front when `unused` goes: the distance changes.
    let source = ".section .init.text,\"ax\"\n.type local,@function\nlocal: mov $5,%eax\nret\n.size local,.-local\n\
                  .type unused,@function\nunused: .zero 300,0x90\nret\n.size unused,.-unused\n\
                  .globl entry\n.type entry,@function\nentry: call local\nret\n.size entry,.-entry\n";
    let outcome = reduce(&assemble(source), &options(reach()));
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("local") && !shape.has("unused"), "{:?}", shape.symbols);
    let linked = link(&outcome.object, "SECTIONS { . = 0x400000; .init.text : { *(.init.text) } }");
    // mov, ret, call back over 11 bytes, ret.
    assert_eq!(linked[".init.text"], [0xb8, 5, 0, 0, 0, 0xc3, 0xe8, 0xf5, 0xff, 0xff, 0xff, 0xc3]);
}

#[test]
fn padding_that_is_called_stays_with_its_function() {
    let padded = |name: &str| {
        format!(
            ".section .text.{name},\"ax\",@progbits\n.type __pfx_{name},@function\n__pfx_{name}: .zero 16,0x90\n.size __pfx_{name},16\n\
             .globl {name}\n.type {name},@function\n{name}: ret\n.size {name},1\n"
        )
    };
    let object = assemble(&format!("{}{}", padded("entry"), padded("unused")));
    let shape = Shape::of(&reduce(&object, &options(reach())).object);
    assert!(shape.has("__pfx_entry") && !shape.has("__pfx_unused"));
    assert_eq!(shape.size(".text"), 17);
}

#[test]
fn neighbours_that_may_be_reached_from_each_other_stay_together() {
    let data = ".section .data..read_mostly,\"aw\"\n.type before,@object\nbefore: .quad 1,2,3,4\n.size before,32\n\
                .type array,@object\narray: .quad unused_but_kept\n.size array,8\n.type far,@object\nfar: .quad 7\n.size far,8\n";
    // An index is added to an address that lies in another object: which one is meant is not known.
    let entry = function("entry", "mov array-8(,%rax,8),%rbx\nret");
    let source = format!("{data}{entry}{}", function("unused_but_kept", "ret"));
    let shape = Shape::of(&reduce(&assemble(&source), &options(reach())).object);
    assert!(shape.has("array") && shape.has("before") && shape.has("unused_but_kept"), "{:?}", shape.symbols);
}
