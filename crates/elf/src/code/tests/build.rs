//! Calls the compiler.

use std::path::Path;
use std::process::Command;

use crate::code::{Callee, Flow, Linked, Word, x86_64::X86_64};

/// Compiles or assembles `source` (`.S` or `.c` by `extension`) with gcc; `None`, and a line that
/// says so, where there is none.
pub(super) fn gcc(extension: &str, source: &str, options: &[&str]) -> Option<Vec<u8>> {
    if cfg!(not(target_arch = "x86_64")) {
        println!("skipped: gcc here makes no x86-64 code");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join(format!("input.{extension}")), folder.path().join("output"));
    std::fs::write(&input, source).unwrap();
    run(&input, &output, options)
}

fn run(input: &Path, output: &Path, options: &[&str]) -> Option<Vec<u8>> {
    let Ok(ran) = Command::new("gcc").args(options).arg("-o").arg(output).arg(input).output() else {
        println!("skipped: no gcc");
        return None;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(std::fs::read(output).unwrap())
}

/// The address of a function by its name.
pub(super) fn address(linked: &Linked<'_>, name: &str) -> u64 {
    let found = linked.layout.extents.all().iter().find(|extent| extent.name.as_deref() == Some(name.as_bytes()));
    found.unwrap_or_else(|| panic!("no function {name}")).start
}

/// The flow of a function.
pub(super) fn flow(linked: &Linked<'_>, name: &str) -> Flow {
    Flow::trace(&X86_64, &linked.layout, &[address(linked, name)])
}

/// Names of what a function calls, in the order of the calls; `*` is somebody.
pub(super) fn calls(linked: &Linked<'_>, flow: &Flow) -> Vec<String> {
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let list = flow.calls.iter().map(|call| match call.callee {
        Callee::Unknown => "*".to_string(),
        Callee::Word(word) => match linked.layout.words.get(&word) {
            Some(Word::Symbol(index, _)) => format!("@{}", name(&linked.imports[*index as usize])),
            other => format!("{other:?}"),
        },
        Callee::Code(address) => {
            let extent = linked.layout.extents.starting(address);
            extent.and_then(|extent| extent.name.as_ref()).map_or("?".to_string(), |text| name(text))
        }
    });
    list.collect()
}
