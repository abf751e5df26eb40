//! Jump tables, assembled and compiled.

use super::build::{calls, flow, gcc};
use crate::code::Linked;

/// A `switch` of which every case calls another function.
fn source(cases: usize) -> String {
    let declarations: String = (0..cases).map(|case| format!("void f{case}(void);")).collect();
    let bodies: String =
        (0..cases).map(|case| format!("case {}: f{case}(); *out = {}; break;\n", case + 3, case * case)).collect();
    let definitions: String = (0..cases)
        .map(|case| format!("__attribute__((noinline)) void f{case}(void) {{ __asm__ volatile(\"# {case}\"); }}\n"))
        .collect();
    format!(
        "{declarations} void pick(unsigned number, int *out) {{ switch (number) {{\n{bodies}default: *out = -1; }} }}
        {definitions}"
    )
}

#[test]
fn compiled_switches_lead_to_each_of_their_cases() {
    let shared = ["-shared", "-fPIC", "-nostdlib", "-Wl,-Bsymbolic"];
    let plain = ["-nostdlib", "-static", "-no-pie", "-fno-pic", "-Wl,-e,pick"];
    for mode in [&shared[..], &plain] {
        for level in ["-O1", "-O2", "-Os"] {
            for extra in ["-fcf-protection=none", "-fcf-protection=full"] {
                let options = [mode, &[level, extra, "-fno-tree-switch-conversion"]].concat();
                let Some(bytes) = gcc("c", &source(12), &options) else { return };
                let linked = Linked::parse(&bytes).unwrap();
                let flow = flow(&linked, "pick");
                assert_eq!(flow.tables.len(), 1, "{options:?}");
                let table = &flow.tables[0];
                assert!(table.is_bounded && flow.unresolved.is_empty(), "{options:?}: {table:?}");
                let mut found = calls(&linked, &flow);
                found.sort();
                found.dedup();
                assert_eq!(found.len(), 12, "{options:?}: {found:?}");
                assert!((12..=15).contains(&table.targets.len()), "{options:?}: {}", table.targets.len());
            }
        }
    }
}

#[test]
fn an_unknown_number_of_entries_ends_where_they_make_no_sense() {
    let source = "
        .globl pick
        .type pick, @function
    pick: lea table(%rip), %rdx
        movslq (%rdx,%rdi,4), %rax
        add %rdx, %rax
        jmp *%rax
    1:  mov $1, %eax
        ret
    2:  mov $2, %eax
        ret
        .size pick, .-pick
        .section .rodata
    table: .long 1b-table, 2b-table, 0x7fffffff
    ";
    let Some(bytes) = gcc("S", source, &["-shared", "-nostdlib"]) else { return };
    let linked = Linked::parse(&bytes).unwrap();
    let flow = flow(&linked, "pick");
    assert_eq!((flow.tables[0].targets.len(), flow.tables[0].is_bounded), (2, false));
    assert_eq!(flow.blocks.len(), 3);
}

#[test]
fn a_jump_that_is_not_understood_reaches_the_rest_of_its_function() {
    let source = "
        .globl pick
        .type pick, @function
    pick: imul $77, %rdi
        add %rsi, %rdi
        jmp *%rdi
        mov $39, %eax
        syscall
        ret
        .size pick, .-pick
    ";
    let Some(bytes) = gcc("S", source, &["-shared", "-nostdlib"]) else { return };
    let linked = Linked::parse(&bytes).unwrap();
    let flow = flow(&linked, "pick");
    assert_eq!((flow.unresolved.len(), flow.strays.len(), flow.gates.len()), (1, 1, 1));
    assert_eq!(flow.blocks[0].next, flow.strays);
}
