//! Side tables: entries live exactly as long as the code that they describe.

use super::*;

/// Two functions of which one is used, each with an entry in tables of three forms.
fn with_tables() -> String {
    let one = |name: &str| {
        format!(
            "{}.section __ex_table,\"a\"\n.long 1f-., {name}_fixup-., 3\n\
             .section .orc_unwind_ip,\"a\"\n.long 1f-.\n.section .orc_unwind,\"a\"\n.short 1,2,{}\n\
             .section .return_sites,\"a\"\n.long {name}-.\n.section .text.{name}\n1: ret\n{}",
            function(name, "nop"),
            name.len(),
            function(&format!("{name}_fixup"), "ret"),
        )
    };
    // The key stands behind the symbol's size: it is in the section all the same.
    format!("{}{}{}", function("entry", "call used\nret"), one("used"), one("unused"))
}

#[test]
fn entries_live_with_their_code_and_what_they_name_with_them() {
    let object = assemble(&with_tables());
    let before = Shape::of(&object);
    assert_eq!((before.size("__ex_table"), before.size(".orc_unwind"), before.size(".orc_unwind_ip")), (24, 12, 8));
    let outcome = reduce(&object, &options(reach()));
    assert_eq!(outcome.report.warnings, [""; 0]);
    let shape = Shape::of(&outcome.object);
    assert!(shape.has("used_fixup") && !shape.has("unused_fixup") && !shape.has("unused"));
    assert_eq!((shape.size("__ex_table"), shape.size(".orc_unwind"), shape.size(".orc_unwind_ip")), (12, 6, 4));
    assert_eq!(shape.size(".return_sites"), 4);
    let written = Object::read(&outcome.object).unwrap();
    let orc = written.sections.iter().find(|section| section.name == b".orc_unwind").unwrap();
    assert_eq!(orc.data, [1, 0, 2, 0, 4, 0], "the entry of the same number as its address");
    let fixups = written.sections.iter().find(|section| section.name == b"__ex_table").unwrap();
    let names: Vec<_> =
        fixups.relocations.iter().map(|relocation| written.symbols[relocation.symbol as usize].name).collect();
    assert!(names.contains(&&b"used_fixup"[..]), "{names:?}");
}

#[test]
fn a_table_that_is_not_as_described_stays_whole() {
    let broken = [
        // An entry too short.
        ("__ex_table", ".section __ex_table,\"a\"\n.long unused-., unused-.\n"),
        // Without a key.
        ("__ex_table", ".section __ex_table,\"a\"\n.long 0, unused-., 0\n"),
        // Not in the linker script.
        ("__mcount_loc", ".section __mcount_loc,\"a\"\n.quad unused\n"),
        // Nobody knows it.
        ("__new_table", ".section __new_table,\"a\"\n.quad unused\n"),
        // One of a pair.
        (".orc_unwind_ip", ".section .orc_unwind_ip,\"a\"\n.long unused-.\n"),
    ];
    for (name, text) in broken {
        let object = assemble(&format!("{}{}{text}", function("entry", "ret"), function("unused", "ret")));
        let outcome = reduce(&object, &options(reach()));
        assert!(Shape::of(&outcome.object).has("unused"), "{name}");
        assert_eq!(outcome.report.warnings.len(), 1, "{name}: {:?}", outcome.report.warnings);
        assert!(outcome.report.warnings[0].starts_with(name), "{:?}", outcome.report.warnings);
    }
}

#[test]
fn replacements_of_instructions_live_with_what_they_replace() {
    let one = |name: &str| {
        format!(
            "{}.section .altinstructions,\"a\"\n.long {name}-., 8f-.\n.long 0\n.byte 5, 5\n\
             .section .altinstr_replacement,\"ax\"\n8: call {name}_fast\n{}",
            function(name, "nop\nnop\nnop\nnop\nnop\nret"),
            function(&format!("{name}_fast"), "ret"),
        )
    };
    let object = assemble(&format!("{}{}{}", function("entry", "call used\nret"), one("unused"), one("used")));
    let shape = Shape::of(&reduce(&object, &options(reach())).object);
    assert!(shape.has("used_fast") && !shape.has("unused_fast"), "{:?}", shape.symbols);
    assert_eq!((shape.size(".altinstructions"), shape.size(".altinstr_replacement")), (14, 5));
}

#[test]
fn a_replacement_is_whole_though_tables_name_places_in_it() {
    let source = [
        function("entry", "nop\nnop\nnop\nnop\nnop\nnop\nnop\nret"),
        ".section .altinstructions,\"a\"\n.long entry-., 8f-.\n.long 0\n.byte 7, 7\n".to_string(),
        ".section .altinstr_replacement,\"ax\"\n8: rep movsb\n9: jmp thunk\n.section .return_sites,\"a\"\n.long 9b-.\n"
            .to_string(),
        function("thunk", "ret"),
    ]
    .concat();
    let shape = Shape::of(&reduce(&assemble(&source), &options(reach())).object);
    assert!(shape.has("thunk"), "{:?}", shape.symbols);
    assert_eq!((shape.size(".altinstr_replacement"), shape.size(".return_sites")), (7, 4));
}

#[test]
fn entries_that_the_kernel_walks_are_roots() {
    let text = ".section .initcall6.init,\"a\"\n.long start_driver-.\n";
    let object = assemble(&format!("{}{}{text}", function("entry", "ret"), function("start_driver", "ret")));
    let outcome = reduce(&object, &options(reach()));
    assert!(Shape::of(&outcome.object).has("start_driver"));
    let chain = crate::why(&object, &options(reach()), "start_driver").unwrap();
    assert_eq!(chain.len(), 2, "{chain:?}");
    assert!(chain[0].starts_with("start_driver <- used by .initcall6.init") && chain[1].contains("root"), "{chain:?}");
}

#[test]
fn thrown_away_sections_keep_nothing_alive_unless_modules_use_them() {
    let text = ".section .export_symbol,\"a\"\n.quad exported\n";
    let object = assemble(&format!("{}{}{text}", function("entry", "ret"), function("exported", "ret")));
    assert!(!Shape::of(&reduce(&object, &options(reach())).object).has("exported"));
    let outcome = reduce(&object, &Options { modules: true, ..options(reach()) });
    assert!(Shape::of(&outcome.object).has("exported"));
    assert!(outcome.report.warnings[0].contains("modules"));
}
