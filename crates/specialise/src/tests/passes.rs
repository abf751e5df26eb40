//! The passes: what each takes, and what it must leave.

use super::*;
use crate::Device;

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| name.to_string()).collect()
}

#[test]
fn unused_system_calls_go_to_the_one_that_does_nothing() {
    let calls = ["read", "write", "restart_syscall", "ni_syscall"];
    let cases: String = calls.iter().map(|name| format!("jmp __x64_sys_{name}\n")).collect();
    let handlers: String = calls.iter().map(|name| function(&format!("__x64_sys_{name}"), "ret")).collect();
    let table = variable(".rodata.sys_call_table", "sys_call_table", ".quad __x64_sys_write");
    let entry = function("entry", "call x64_sys_call\nmov sys_call_table(%rip),%rax\nret");
    let object = assemble(&[&entry[..], &function("x64_sys_call", &cases), &handlers, &table].concat());
    let passes = Passes { syscalls: true, ..reach() };
    let outcome = reduce(&object, &Options { syscalls: Some(names(&["sys_read"])), ..options(passes) });
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("__x64_sys_read") && !shape.has("__x64_sys_write") && shape.has("__x64_sys_restart_syscall"));
    let targets: Vec<&str> =
        shape.references["x64_sys_call"].iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    let expected = ["__x64_sys_read", "__x64_sys_ni_syscall", "__x64_sys_restart_syscall", "__x64_sys_ni_syscall"];
    assert_eq!(targets, expected);
    assert!(shape.references["sys_call_table"][0].contains("__x64_sys_ni_syscall"));
    assert_eq!(outcome.report.device.syscalls_removed, ["sys_write"]);
    assert_eq!(outcome.report.device.syscalls_kept, ["sys_read", "sys_restart_syscall"]);
    let logs = function("__x64_sys_specialise_removed", "ret");
    let object = assemble(&[&entry[..], &function("x64_sys_call", &cases), &handlers, &table, &logs].concat());
    let outcome = reduce(&object, &Options { syscalls: Some(names(&["sys_read"])), ..options(passes) });
    let shape = Shape::of(&outcome.object);
    assert!(
        shape.references["x64_sys_call"][1].contains("__x64_sys_specialise_removed"),
        "a handler that logs is taken"
    );
    assert!(
        shape.references["x64_sys_call"][3].contains("__x64_sys_ni_syscall"),
        "calls that never were are not logged"
    );
    let all = Some(names(&["sys_read", "sys_write"]));
    let whole = Shape::of(&reduce(&object, &Options { syscalls: all, ..options(passes) }).object);
    assert!(!whole.has("__x64_sys_specialise_removed"), "it is only there if it is needed");
    let error =
        specialise(&assemble(&function("entry", "ret")), &Options { syscalls: Some(names(&[])), ..options(passes) });
    assert!(matches!(error, Err(crate::SpecialiseError::NotFound { .. })), "no dispatcher");
}

#[test]
fn parameters_that_the_command_line_does_not_use_go() {
    let setup = |name: &str, text: &str| {
        format!(
            "{}.section .init.rodata,\"a\"\n.type {name}_name,@object\n{name}_name: .asciz \"{text}\"\n.balign 4\n.size {name}_name,.-{name}_name\n\
             .section .init.setup,\"aw\"\n.quad {name}_name, {name}, 0\n",
            function_in(".init.text", name, "ret")
        )
    };
    let param = ".section .rodata.str1.1,\"aMS\",@progbits,1\n.Lp: .string \"core.debug-level\"\n.Lq: .string \"core.other\"\n\
                 .section __param,\"a\"\n.quad .Lp, 0, 0, 0, level\n.quad .Lq, 0, 0, 0, other\n";
    let source = [
        &function("entry", "ret")[..],
        &setup("set_console", "console="),
        &setup("set_quiet", "quiet"),
        &setup("set_nothing", "nothing="),
        param,
        &variable(".data.level", "level", ".quad 0"),
        &variable(".data.other", "other", ".quad 0"),
    ]
    .concat();
    let passes = Passes { parameters: true, ..reach() };
    let command_line = Some("console=ttyS0 quiet core.debug_level=3".to_string());
    let outcome = reduce(&assemble(&source), &Options { command_line, ..options(passes) });
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("set_console") && shape.has("set_quiet") && !shape.has("set_nothing"), "{:?}", shape.symbols);
    assert!(shape.has("level") && !shape.has("other"), "{:?}", shape.symbols);
    assert_eq!(outcome.report.device.parameters_removed, ["core.other", "nothing="]);
    assert_eq!((shape.size(".init.setup"), shape.size("__param")), (48, 40));
}

#[test]
fn quirks_of_absent_devices_go() {
    let quirk = |name: &str, vendor: u32, device: u32, class: u32, shift: u32| {
        format!(
            "{}.section .pci_fixup_final,\"a\"\n.short {vendor},{device}\n.long {class},{shift},{name}-.\n",
            function(name, "ret")
        )
    };
    let source = [
        function("entry", "ret"),
        quirk("present", 0x1af4, 0x1000, u32::MAX, 0),
        quirk("absent", 0x8086, 0x1234, u32::MAX, 0),
        quirk("of_class", 0xffff, 0xffff, 2, 16),
        quirk("of_other_class", 0xffff, 0xffff, 3, 16),
    ]
    .concat();
    let devices = Some(Device::read_all("1af4:1000 020000").unwrap());
    let passes = Passes { quirks: true, ..reach() };
    let outcome = reduce(&assemble(&source), &Options { devices, ..options(passes) });
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("present") && shape.has("of_class") && !shape.has("absent") && !shape.has("of_other_class"));
    assert_eq!((outcome.report.device.quirks_removed, shape.size(".pci_fixup_final")), (2, 32));
}

#[test]
fn drivers_of_absent_devices_are_not_registered() {
    let driver = |name: &str, ids: &str, more: &str| {
        [
            function_in(".init.text", &format!("{name}_init"), &format!("mov $.Lname,%rdx\nxor %esi,%esi\nmov ${name},%rdi\n{more}jmp __pci_register_driver")),
            variable(&format!(".data.{name}"), name, &format!(".quad .Lname, {name}_ids, {name}_probe")),
            format!(".section .rodata.{name}_ids,\"a\"\n.type {name}_ids,@object\n{name}_ids:\n{ids}.zero 40\n.size {name}_ids,.-{name}_ids\n"),
            function(&format!("{name}_probe"), "ret"),
            format!(".section .initcall6.init,\"a\"\n.long {name}_init-.\n"),
        ]
        .concat()
    };
    let any = u32::MAX;
    let source = [
        ".section .rodata.str1.1,\"aMS\",@progbits,1\n.Lname: .string \"name\"\n".to_string(),
        function("entry", "ret"),
        function("__pci_register_driver", "ret"),
        function("also", "ret"),
        driver(
            "present",
            &format!(".long 0x8086,1,{any},{any},0,0,0,0,0,0\n.long 0x1af4,{any},{any},{any},0,0,0,0,0,0\n"),
            "",
        ),
        driver("absent", &format!(".long 0x8086,1,{any},{any},0,0,0,0,0,0\n"), ""),
        driver("of_class", &format!(".long {any},{any},{any},{any},0x020000,0xff0000,0,0,0,0\n"), ""),
        driver("of_other_class", &format!(".long {any},{any},{any},{any},0x030000,0xff0000,0,0,0,0\n"), ""),
        driver("does_more", &format!(".long 0x8086,1,{any},{any},0,0,0,0,0,0\n"), "call also\n"),
    ]
    .concat();
    let devices = Some(Device::read_all("1af4:1000 020000").unwrap());
    let outcome = reduce(&assemble(&source), &Options { devices, ..options(Passes { drivers: true, ..reach() }) });
    let shape = Shape::of(&outcome.object);
    assert_eq!(outcome.report.device.drivers_removed, ["absent_init", "of_other_class_init"]);
    for (name, stays) in
        [("present", true), ("absent", false), ("of_class", true), ("of_other_class", false), ("does_more", true)]
    {
        assert_eq!(shape.has(&format!("{name}_probe")), stays, "{name}");
    }
    assert_eq!(shape.size(".initcall6.init"), 12);
}

#[test]
fn equal_functions_are_kept_once_unless_their_address_counts() {
    let body = "mov $3,%eax\ncall callee\nret";
    let source = [
        function("entry", "call one\ncall two\ncall three\ncall four\nlea three(%rip),%rax\nret"),
        function("one", body),
        function("two", body),
        function("three", body),
        function("four", "mov $3,%eax\ncall other_callee\nret"),
        function("callee", "ret"),
        function("other_callee", "nop\nret"),
        ".section .return_sites,\"a\"\n.long one+10-.\n.long two+10-.\n".to_string(),
    ]
    .concat();
    let object = assemble(&source);
    let outcome = reduce(&object, &options(Passes { duplicates: true, ..reach() }));
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("one") && !shape.has("two") && shape.has("three") && shape.has("four"), "{:?}", shape.symbols);
    let calls = &shape.references["entry"];
    assert!(calls[0].contains("one") && calls[1].contains("one"), "{calls:?}");
    assert_eq!(shape.size(".return_sites"), 4, "the entry of the copy goes with it");
    let chain = crate::why(&object, &options(Passes { duplicates: true, ..reach() }), "two").unwrap();
    assert_eq!(chain, ["two: removed, one is the same function"]);
}

#[test]
fn equal_functions_whose_address_is_taken_are_folded_on_request_only() {
    let body = "mov $3,%eax\nret";
    let source = [
        function("entry", "mov table(%rip),%rax\nmov table+8(%rip),%rcx\ncall called\nret"),
        function("called", body),
        function("one", body),
        function("two", body),
        variable(".data.table", "table", ".quad one, two"),
    ]
    .concat();
    let object = assemble(&source);
    let passes = Passes { duplicates: true, duplicates_taken: true, ..reach() };
    let shape = Shape::of(&reduce(&object, &options(passes)).object);
    assert!(shape.has("one") && !shape.has("two") && shape.has("called"), "{:?}", shape.symbols);
    assert!(shape.references["table"].iter().all(|line| line.contains("one")), "{:?}", shape.references);
    for kept in [
        Options { padding_is_spare: false, ..options(passes) },
        options(Passes { duplicates_taken: false, ..passes }),
        Options { roots: vec!["one".to_string(), "two".to_string()], ..options(passes) },
    ] {
        assert!(Shape::of(&reduce(&object, &kept).object).has("two"));
    }
}

#[test]
fn functions_of_initialisation_move_unless_they_may_run_later() {
    let source = [
        function_in(
            ".init.text",
            "entry",
            "call only_init\ncall both\ncall endless\nlea taken(%rip),%rax\ncall rest_init\nret",
        ),
        function("only_init", "call deeper\nret"),
        function("deeper", "ret"),
        function("both", "ret"),
        function("taken", "ret"),
        function("endless", "1: hlt\njmp 1b"),
        function_in(".ref.text", "rest_init", "call both\ncall idle\nud2"),
        function("idle", "ret"),
    ]
    .concat();
    let outcome = reduce(&assemble(&source), &options(Passes { initialisation: true, ..reach() }));
    let written = Object::read(&outcome.object).unwrap();
    let section_of = |name: &str| {
        let symbol = written.symbols.iter().find(|symbol| symbol.name == name.as_bytes()).unwrap();
        match symbol.place {
            SymbolPlace::Section(section) => written.sections[section as usize].shown(),
            _ => String::new(),
        }
    };
    for name in ["only_init", "deeper"] {
        assert_eq!(section_of(name), ".init.text", "{name}");
    }
    for name in ["both", "taken", "endless", "idle"] {
        assert_eq!(section_of(name), ".text", "{name}");
    }
    assert_eq!(section_of("rest_init"), ".ref.text");
}

#[test]
fn messages_of_initialisation_move_unless_somebody_keeps_them() {
    let text = |name: &str| format!(".section .rodata.str1.1,\"aMS\",@progbits,1\n.L{name}: .string \"{name}\"\n");
    let texts = ["printed", "second", "stored", "shared", "copied", "branched"].map(text).concat();
    let source = [
        texts,
        function_in(
            ".init.text",
            "entry",
            "mov $.Lprinted,%rdi\nmov $.Lsecond,%rsi\nxor %eax,%eax\ncall _printk\nmov $.Lstored,%rdi\ncall keep\n\
             mov $.Lshared,%rdi\ncall _printk\nmov $.Lcopied,%rdi\nmov %rdi,kept(%rip)\ncall _printk\n\
             mov $.Lbranched,%rdi\ntest %eax,%eax\nje 1f\ncall _printk\n1: call keep\ncall later\ncall again\nret",
        ),
        function("again", "lea again(%rip),%rdi\njmp keep\nret"),
        function("_printk", "ret"),
        function("keep", "mov %rdi,kept(%rip)\nret"),
        function("later", "mov $.Lshared,%rdi\ncall _printk\nlea later(%rip),%rax\nret"),
        variable(".data.kept", "kept", ".quad 0"),
    ]
    .concat();
    let outcome = reduce(&assemble(&source), &options(Passes { initialisation: true, ..reach() }));
    let shape = Shape::of(&outcome.object);
    assert_eq!(shape.size(".init.rodata"), ("printed".len() + 1 + "second".len() + 1) as u64, "{:?}", shape.sections);
    let init = shape.size(".init.text");
    assert_eq!(
        init,
        Shape::of(&reduce(&assemble(&source), &options(reach())).object).size(".init.text"),
        "again may run again"
    );
    assert_eq!(shape.size(".rodata.str1.1"), (7 + 7 + 7 + 9) as u64, "{:?}", shape.sections);
    let texts: Vec<&str> = shape.references["entry"].iter().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!((texts[0], texts[1]), ("printed", "second"), "{texts:?}");
}

#[test]
fn the_trap_build_leaves_live_code_where_it_is() {
    let source = [
        function("entry", "call used\nmov value(%rip),%eax\nret"),
        function("unused", "nop\nnop\nmov %eax,%ebx\nret"),
        function("used", "ret"),
        variable(".data.value", "value", ".long 5"),
        variable(".data.unused_value", "unused_value", ".long 6"),
    ]
    .concat();
    let object = assemble(&source);
    let outcome = reduce(&object, &Options { trap: true, ..options(reach()) });
    let whole = reduce(&object, &options(Passes::none()));
    let (trap, whole) = (Object::read(&outcome.object).unwrap(), Object::read(&whole.object).unwrap());
    let text =
        |object: &Object<'_>| object.sections.iter().find(|section| section.name == b".text").unwrap().data.to_vec();
    let (trapped, before) = (text(&trap), text(&whole));
    assert_eq!(trapped.len(), before.len());
    assert_eq!(trapped[12..17], [0x0f, 0x0b, 0x0f, 0x0b, 0xcc], "unused is filled");
    assert_eq!((&trapped[..12], &trapped[17..]), (&before[..12], &before[17..]));
    assert!(trap.symbols.iter().any(|symbol| symbol.name == b"unused"), "so that a trap has a name");
    assert!(trap.symbols.iter().any(|symbol| symbol.name == b"unused_value"));
}

#[test]
fn in_the_trap_build_callers_of_a_copy_call_the_original() {
    let source = [
        function("entry", "call one\ncall two\nret"),
        function("one", "mov $3,%eax\nret"),
        function("two", "mov $3,%eax\nret"),
    ]
    .concat();
    let passes = Passes { duplicates: true, ..reach() };
    let shape = Shape::of(&reduce(&assemble(&source), &Options { trap: true, ..options(passes) }).object);
    let calls = &shape.references["entry"];
    assert!(calls[0].contains("one") && calls[1].contains("one"), "{calls:?}");
}

#[test]
fn padding_goes_where_nothing_can_write_into_it() {
    let padded = |name: &str, body: &str| {
        format!(
            ".section .text.{name},\"ax\",@progbits\n.type __pfx_{name},@function\n__pfx_{name}: .zero 16,0x90\n.size __pfx_{name},16\n\
             .globl {name}\n.type {name},@function\n{name}: {body}\n.size {name},.-{name}\n\
             .section .orc_unwind_ip,\"a\"\n.long __pfx_{name}-.\n.long {name}-.\n.section .orc_unwind,\"a\"\n.short 1,1,1,2,2,2\n\
             .section .call_sites,\"a\"\n.long {name}-.\n"
        )
    };
    let object =
        assemble(&[padded("entry", "call used\nret"), padded("used", "ret"), padded("unused", "ret")].concat());
    let passes = Passes { parameters: true, padding: true, ..reach() };
    let with = |line: Option<&str>, spare| Options {
        command_line: line.map(str::to_string),
        padding_is_spare: spare,
        ..options(passes)
    };
    let outcome = reduce(&object, &with(Some("quiet retbleed=auto"), true));
    let shape = Shape::of(&outcome.object);
    assert!(!shape.has("__pfx_entry") && shape.has("used") && !shape.has("unused"), "{:?}", shape.symbols);
    assert_eq!((shape.size(".text"), shape.size(".orc_unwind"), shape.size(".call_sites")), (6 + 1, 12, 0));
    let line = outcome.report.passes.iter().find(|pass| pass.name == "padding").unwrap();
    assert_eq!((line.on, line.bytes.text, line.atoms), (true, 32, 2 + 4 + 2));
    let kept = [
        (None, true),
        (Some("quiet"), false),
        (Some("retbleed=auto,stuff"), true),
        (Some("indirect-target-selection=stuff"), true),
    ];
    for (line, spare) in kept {
        let shape = Shape::of(&reduce(&object, &with(line, spare)).object);
        assert!(shape.has("__pfx_entry") && !shape.has("__pfx_unused"), "{line:?} {spare}");
        assert_eq!((shape.size(".text"), shape.size(".call_sites")), (6 + 1 + 32, 8), "{line:?} {spare}");
    }
}

#[test]
fn a_policy_names_roots() {
    let object = assemble(&format!("{}{}", function("entry", "ret"), function("by_hand", "ret")));
    let with =
        |roots: &[&str]| Options { roots: roots.iter().map(|name| name.to_string()).collect(), ..options(reach()) };
    assert!(Shape::of(&reduce(&object, &with(&["by_hand"])).object).has("by_hand"));
    assert!(!Shape::of(&reduce(&object, &with(&[])).object).has("by_hand"));
    assert!(specialise(&object, &with(&["nobody"])).is_err());
}

#[test]
fn functions_of_initialisation_move_with_their_tables_and_replacements() {
    let switch = |name: &str| {
        let cases = (0..3).map(|case| format!("{name}{case}: mov ${case},%eax\nret\n")).collect::<String>();
        let table = format!(".section .rodata.{name},\"a\"\n.balign 8\n.quad {name}0,{name}1,{name}2\n");
        format!("{table}{}", function(name, &format!("cmp $2,%edi\nja {name}0\njmp *.rodata.{name}(,%rdi,8)\n{cases}")))
    };
    let replaced = |name: &str, callee: &str| {
        format!(
            "{}{}.section .altinstructions,\"a\"\n.long {name}-., 8f-.\n.long 0\n.byte 5, 5\n\
             .section .altinstr_replacement,\"ax\"\n8: call {callee}\n",
            function(name, "nop\nnop\nnop\nnop\nnop\nret"),
            function(callee, "ret"),
        )
    };
    let source = [
        function_in(".init.text", "entry", "call first\ncall second\ncall third\ncall fourth\ncall later\nret"),
        function("later", "call second\ncall fourth\nlea later(%rip),%rax\nret"),
        switch("first"),
        switch("second"),
        replaced("third", "third_fast"),
        replaced("fourth", "fourth_fast"),
    ]
    .concat()
    .replace(".rodata.first(", "first_table(")
    .replace(".rodata.second(", "second_table(")
    .replace(".balign 8\n.quad first0", ".balign 8\nfirst_table: .quad first0")
    .replace(".balign 8\n.quad second0", ".balign 8\nsecond_table: .quad second0");
    let outcome = reduce(&assemble(&source), &options(Passes { initialisation: true, ..reach() }));
    let written = Object::read(&outcome.object).unwrap();
    let section_of = |name: &str| {
        let symbol = written.symbols.iter().find(|symbol| symbol.name == name.as_bytes()).unwrap();
        match symbol.place {
            SymbolPlace::Section(section) => written.sections[section as usize].shown(),
            _ => String::new(),
        }
    };
    for (name, section) in [
        ("first", ".init.text"),
        ("first_table", ".init.rodata"),
        ("second", ".text"),
        ("second_table", ".rodata"),
        ("third", ".init.text"),
        ("third_fast", ".init.text"),
        ("fourth", ".text"),
        ("fourth_fast", ".text"),
    ] {
        assert_eq!(section_of(name), section, "{name}");
    }
}

#[test]
fn names_of_what_is_freed_go_unless_the_command_line_speaks_of_them() {
    let source = [
        function_in(".init.text", "entry", "call first\nret"),
        function_in(".init.text", "first", "call later\nret"),
        function("later", "lea later(%rip),%rax\nret"),
        ".section .initcall6.init,\"a\"\n.long first-.\n".to_string(),
    ]
    .concat();
    let object = assemble(&source);
    let passes = Passes { parameters: true, names: true, ..reach() };
    let with = |line: Option<&str>| Options { command_line: line.map(str::to_string), ..options(passes) };
    let outcome = reduce(&object, &with(Some("quiet")));
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("entry") && shape.has("later") && !shape.has("first"), "{:?}", shape.symbols);
    let script = "SECTIONS { . = 0x400000; .init.text : { *(.init.text) } .initcall6.init : { *(.initcall6.init) } .text : { *(.text) } }";
    let whole = reduce(&object, &options(reach()));
    assert_eq!(link(&outcome.object, script), link(&whole.object, script));
    for line in [None, Some("initcall_debug"), Some("quiet initcall_blacklist=first")] {
        assert!(Shape::of(&reduce(&object, &with(line)).object).has("first"), "{line:?}");
    }
    assert!(Shape::of(&reduce(&object, &Options { trap: true, ..with(Some("quiet")) }).object).has("first"));
}
