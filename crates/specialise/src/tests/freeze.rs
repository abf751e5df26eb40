//! Which functions and strings are frozen, and in which order they lie.

use super::*;
use crate::Freeze;

fn freeze(service: &[&str], start: &[&str]) -> Freeze {
    let ranks = |names: &[&str]| names.iter().zip(0..).map(|(name, rank)| (name.to_string(), rank)).collect();
    Freeze { service: ranks(service), start: ranks(start), for_image: false }
}

fn frozen(source: &str, freeze: Freeze, passes: Passes) -> Outcome {
    reduce(&assemble(source), &Options { freeze: Some(freeze), ..options(passes) })
}

/// Names of functions in a section of the output, by address.
fn order(bytes: &[u8], section: &str) -> Vec<String> {
    let object = Object::read(bytes).unwrap();
    let mut found: Vec<(u64, String)> = Vec::new();
    for symbol in object.symbols.iter().filter(|symbol| symbol.kind == crate::abi::STT_FUNC) {
        if let SymbolPlace::Section(index) = symbol.place
            && object.sections[index as usize].name == section.as_bytes()
        {
            found.push((symbol.value, String::from_utf8_lossy(symbol.name).into_owned()));
        }
    }
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

fn functions(names: &[&str]) -> String {
    names.iter().map(|name| function(name, "ret")).collect()
}

#[test]
fn what_ran_comes_first_and_the_rest_is_frozen_by_when_it_ran() {
    let source = functions(&["entry", "never", "late", "boot_b", "soon", "boot_a", "never_too"]);
    let outcome = frozen(&source, freeze(&["entry", "soon", "late", "unknown"], &["boot_a", "boot_b"]), Passes::none());
    assert_eq!(order(&outcome.object, ".text.hot"), ["entry", "soon", "late"]);
    assert_eq!(order(&outcome.object, ".text..frozen"), ["boot_a", "boot_b", "never", "never_too"]);
    let report = outcome.report.frozen.unwrap();
    assert_eq!((report.functions, report.unknown), (4, 1));
    assert_eq!((report.text, report.ran_in_service, report.ran_in_start), (7, 3, 2));
    assert_eq!((report.never_ran, report.never_ran_frozen, report.frozen), (2, 2, 4));
    let object = assemble(&source);
    let for_image = Freeze { for_image: true, ..freeze(&["entry", "soon", "late"], &["boot_a", "boot_b"]) };
    let outcome = reduce(&object, &Options { freeze: Some(for_image), ..options(Passes::none()) });
    assert_eq!(order(&outcome.object, ".text.hot"), ["entry", "late", "soon"], "the order of the object");
    assert_eq!(order(&outcome.object, ".text..frozen"), ["never", "boot_b", "boot_a", "never_too"]);
}

#[test]
fn what_thaws_or_must_not_fault_is_not_frozen() {
    let source = [
        &function("entry", "ret")[..],
        &function("frozen_thaw", "call decoder\ncall panic\nret"),
        &function("decoder", "call copies\nret"),
        &functions(&["copies", "prints", "panics", "exc_nmi", "never"]),
        &function("panic", "call prints\nret"),
        &function("frozen_lock", "ret"),
        &function("takes_the_lock", "call frozen_lock\ncall later\nret"),
        &function("later", "ret"),
        &function("my_send_IPI_mask", "call sends\nret"),
        &function("sends", "ret"),
        &function_in(".noinstr.text", "entry_code", "ret"),
        &function_in(".text", "assembler", "ret"),
        &function_in(".text.hot.hot", "hot", "ret"),
    ]
    .concat();
    let outcome = frozen(&source, freeze(&["entry"], &[]), Passes::none());
    let expected = ["later", "never", "panic", "panics", "prints"];
    let mut found = order(&outcome.object, ".text..frozen");
    found.sort();
    assert_eq!(found, expected);
    let report = outcome.report.frozen.unwrap();
    assert!(report.never_ran > report.never_ran_frozen && report.kept.len() == 4, "{report:?}");
    assert_eq!(report.never_ran - report.never_ran_frozen, report.kept.values().sum::<u64>());
}

#[test]
fn strings_are_frozen_that_only_frozen_functions_use() {
    let uses = |name: &str, label: &str| function(name, &format!("lea {label}(%rip),%rax\nret"));
    let strings = |name: &str, texts: &[(&str, &str)]| {
        let lines: String = texts.iter().map(|(label, text)| format!("{label}: .string \"{text}\"\n")).collect();
        format!(".section .rodata.{name}.str1.1,\"aMS\",@progbits,1\n{lines}")
    };
    let source = [
        &function("entry", "lea .Lshared(%rip),%rax\nlea .Lhot(%rip),%rax\nret")[..],
        &uses("cold", ".Lcold"),
        &uses("colder", ".Lshared"),
        &uses("also", ".Lsame"),
        &strings("a", &[(".Lshared", "both use it"), (".Lcold", "only cold code"), (".Lhot", "only hot code")]),
        &strings("b", &[(".Lsame", "only cold code")]),
        &variable(".data.table", "table", ".quad .Ltable"),
        &strings("c", &[(".Ltable", "of a variable")]),
    ]
    .concat();
    let outcome = frozen(&source, freeze(&["entry"], &[]), Passes::none());
    let object = Object::read(&outcome.object).unwrap();
    let data = object.sections.iter().find(|section| section.name == b".text..frozen_data").unwrap();
    assert_eq!(data.data, b"only cold code\0", "once, though two are equal");
    assert!(!data.is_code() && !data.is_strings());
    assert_eq!(outcome.report.frozen.unwrap().strings, 15);
    let script = "SECTIONS { . = 0x1000; .text : { *(.text.hot) *(.text..frozen) *(.text..frozen_data) } .rodata : { *(.rodata*) } \
                  .data : { *(.data) } }";
    let linked = link(&outcome.object, script);
    let text = &linked[".text"];
    // Both refer to the one that is there.
    let frozen = order(&outcome.object, ".text..frozen");
    assert_eq!(frozen, ["cold", "colder", "also"]);
    let begins = |at: usize| {
        let distance = i32::from_le_bytes(text[at + 3..at + 7].try_into().unwrap());
        (at + 7).wrapping_add_signed(distance as isize)
    };
    let ends = text.len() - data.data.len();
    let (cold, also) = (ends - 24, ends - 8);
    assert_eq!((begins(cold), begins(also)), (ends, ends));
}

#[test]
fn a_function_for_which_an_equal_one_stands_is_pinned_and_hot_with_it() {
    let body = "mov $12345678,%eax\nret";
    let source = [
        &function("entry", "call first\ncall second\ncall frozen_thaw\ncall third\ncall fourth\nret")[..],
        &function("frozen_thaw", "call second\nret"),
        &function("first", body),
        &function("second", body),
        &function("third", "mov $87654321,%eax\nret"),
        &function("fourth", "mov $87654321,%eax\nret"),
    ]
    .concat();
    let passes = Passes { duplicates: true, ..reach() };
    let outcome = frozen(&source, freeze(&["entry", "fourth"], &[]), passes);
    let frozen = order(&outcome.object, ".text..frozen");
    assert!(frozen.is_empty(), "{frozen:?}");
    // Without the need of the one and the run of the other they are.
    let source = source.replace("call second\nret", "ret");
    let outcome = super::freeze::frozen(&source, freeze(&["entry"], &[]), passes);
    assert_eq!(order(&outcome.object, ".text..frozen").len(), 2);
}

#[test]
fn functions_of_a_table_move_with_those_that_call_through_it() {
    let source = |more: &str| {
        [
            &function("entry", &format!("call start\n{more}ret"))[..],
            &function_in(".init.text", "start", "call chooses\nret"),
            &function("chooses", "mov blockCompressor.0(%rip),%rax\ncall *%rax\nret"),
            &function("other", "mov blockCompressor.0(%rip),%rax\ncall *%rax\nret"),
            ".section .rodata.chooses,\"a\"\n.type blockCompressor.0,@object\nblockCompressor.0: .quad chosen\n.size blockCompressor.0,8\n",
            &function("chosen", "call helps\nret"),
            &function("helps", "ret"),
        ]
        .concat()
    };
    let passes = Passes { initialisation: true, ..reach() };
    let initial = |more: &str| order(&reduce(&assemble(&source(more)), &options(passes)).object, ".init.text");
    assert_eq!(initial(""), ["start", "chooses", "chosen", "helps"]);
    assert_eq!(initial("call other\n"), ["start", "chooses"], "somebody else calls through it later");
}
