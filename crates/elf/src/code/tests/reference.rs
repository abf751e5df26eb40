//! What is followed, compared with what `objdump` disassembles.

use std::collections::BTreeSet;
use std::process::Command;

use crate::code::{Flow, Linked, x86_64::X86_64};

/// Addresses at which `objdump` sees an instruction.
fn objdump(path: &str) -> Option<BTreeSet<u64>> {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn", "-w", path]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: BTreeSet<u64> = text
        .lines()
        .filter_map(|line| u64::from_str_radix(line.strip_prefix(' ')?.trim_start().split_once(":\t")?.0, 16).ok())
        .collect();
    (!found.is_empty()).then_some(found)
}

#[test]
fn ref_instructions_of_a_real_program_are_those_of_objdump() {
    let path = "/bin/ls";
    let (Some(expected), Ok(bytes)) = (objdump(path), std::fs::read(path)) else {
        println!("skipped: no objdump or no {path}");
        return;
    };
    let linked = Linked::parse(&bytes).unwrap();
    if linked.machine != crate::Machine::X86_64 {
        println!("skipped: not an x86-64 machine");
        return;
    }
    let mut found = BTreeSet::new();
    for extent in linked.layout.extents.all() {
        found.extend(Flow::trace(&X86_64, &linked.layout, &[extent.start]).steps.into_keys());
    }
    let wrong: Vec<&u64> = found.difference(&expected).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} are not instructions: {:x?}",
        wrong.len(),
        found.len(),
        &wrong[..wrong.len().min(9)]
    );
    // What is left are stubs and padding.
    assert!(found.len() * 10 > expected.len() * 8, "{} of {}", found.len(), expected.len());
}
