//! Tests on small objects that the assembler makes: one idea each, read back from what was written.

mod constants;
mod damage;
mod freeze;
mod instrument;
mod passes;
mod refusals;
mod round_trip;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::atoms::Atoms;
use crate::divide::{self, Padding};
use crate::graph::Graph;
use crate::object::{Object, SymbolPlace};
use crate::reference::Target;
use crate::{Options, Outcome, Passes, arch, schema, specialise};

/// A linker script that bounds all tables, and names `entry`.
const SCRIPT: &str = "ENTRY(entry) __ex_table .altinstructions __bug_table __jump_table .orc_unwind_ip .orc_unwind \
                      .return_sites .call_sites .init.setup __param .pci_fixup_final .initcall6.init";

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Assembles each of `sources` and puts the objects together as the kernel's build does.
fn assemble_all(sources: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let mut link = Command::new("ld");
    let out = folder.path().join("all.o");
    link.arg("-r").arg("-o").arg(&out);
    for (index, source) in sources.iter().enumerate() {
        let (text, object) = (folder.path().join(format!("{index}.s")), folder.path().join(format!("{index}.o")));
        fs::write(&text, source).unwrap();
        run(Command::new("as").arg("--64").arg("-o").arg(&object).arg(&text));
        link.arg(object);
    }
    run(&mut link);
    fs::read(out).unwrap()
}

fn assemble(source: &str) -> Vec<u8> {
    assemble_all(&[source])
}

/// A function in a section of its own.
fn function(name: &str, body: &str) -> String {
    function_in(&format!(".text.{name}"), name, body)
}

fn function_in(section: &str, name: &str, body: &str) -> String {
    format!(
        ".section {section},\"ax\",@progbits\n.globl {name}\n.type {name},@function\n{name}:\n{body}\n.size {name},.-{name}\n"
    )
}

/// A variable in a section.
fn variable(section: &str, name: &str, body: &str) -> String {
    format!(
        ".section {section},\"aw\",@progbits\n.globl {name}\n.type {name},@object\n{name}:\n{body}\n.size {name},.-{name}\n"
    )
}

fn options(passes: Passes) -> Options {
    Options {
        release: "6.12.48".to_string(),
        script: SCRIPT.to_string(),
        passes,
        syscalls: None,
        command_line: None,
        devices: None,
        fixed: BTreeMap::new(),
        arguments: BTreeMap::new(),
        roots: Vec::new(),
        modules: false,
        padding_is_spare: true,
        freeze: None,
        trap: false,
        instrument: false,
    }
}

/// Only the walk.
fn reach() -> Passes {
    Passes { unreachable: true, ..Passes::none() }
}

fn reduce(object: &[u8], options: &Options) -> Outcome {
    specialise(object, options).unwrap_or_else(|error| panic!("{error}"))
}

/// What an object says, read anew: each named atom with its bytes outside references, and what it
/// refers to.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    symbols: BTreeSet<String>,
    references: BTreeMap<String, Vec<String>>,
    sections: BTreeMap<String, u64>,
}

impl Shape {
    fn of(bytes: &[u8]) -> Self {
        let object = Object::read(bytes).unwrap();
        let schema = schema::Schema::of("6.12", object.machine).unwrap();
        let arch = arch::of_machine(object.machine).unwrap();
        let atoms = divide::divide(&object, schema, arch, SCRIPT, Padding::OfFunction).unwrap();
        let names = Graph::new(&object, &atoms, SCRIPT).names();
        let mut references: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for id in 0..atoms.atoms.len() as u32 {
            let Some(name) = names[id as usize] else { continue };
            let name = String::from_utf8_lossy(object.symbols[name as usize].name).into_owned();
            let found = atoms.references_of(id).iter().map(|reference| {
                let offset = reference.offset - atoms.atoms[id as usize].start;
                let target = describe(&object, &atoms, &names, reference);
                format!("{offset:#x} {} {target}", reference.kind)
            });
            references.entry(name).or_default().extend(found);
        }
        let named = object.symbols.iter().filter(|symbol| !symbol.is_section() && symbol.kind != crate::abi::STT_FILE);
        let symbols = named.map(|symbol| String::from_utf8_lossy(symbol.name).into_owned()).collect();
        let mut sections = BTreeMap::new();
        for section in object.sections.iter().filter(|section| section.is_loaded() && section.size > 0) {
            let name = String::from_utf8_lossy(&crate::class::class(section)).into_owned();
            *sections.entry(name).or_insert(0) += section.size;
        }
        Self { symbols, references, sections }
    }

    fn has(&self, symbol: &str) -> bool {
        self.symbols.contains(symbol)
    }

    fn size(&self, section: &str) -> u64 {
        self.sections.get(section).copied().unwrap_or(0)
    }
}

/// A target in words that do not depend on where things lie: a symbol, or the text of a string.
fn describe(
    object: &Object<'_>,
    atoms: &Atoms,
    names: &[Option<u32>],
    reference: &crate::reference::Reference,
) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match reference.target {
        Target::Symbol(symbol) if object.symbols[symbol as usize].place == SymbolPlace::Undefined => {
            text(object.symbols[symbol as usize].name)
        }
        Target::Symbol(symbol) => format!("{} {:+}", text(object.symbols[symbol as usize].name), reference.addend),
        Target::Place { section, offset } => {
            let data = object.sections[section as usize].data;
            if object.sections[section as usize].is_strings() {
                let rest = &data[offset as usize..];
                return text(&rest[..rest.iter().position(|byte| *byte == 0).unwrap()]);
            }
            let id = atoms.at(section, offset).unwrap();
            let inside = offset - atoms.atoms[id as usize].start as i64;
            let name =
                names[id as usize].map_or_else(|| "?".to_string(), |name| text(object.symbols[name as usize].name));
            format!("{name} +{inside} {:+}", reference.addend)
        }
    }
}

/// Links an object at a fixed address; the bytes of its sections by name.
fn link(object: &[u8], script: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("in.o"), object).unwrap();
    fs::write(path("script"), script).unwrap();
    let out = path("out");
    run(Command::new("ld").arg("-T").arg(path("script")).arg("-o").arg(&out).arg(path("in.o")));
    contents(&out)
}

fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    use object::read::elf::{FileHeader, SectionHeader};
    let bytes = fs::read(path).unwrap();
    let header = object::elf::FileHeader64::<object::LittleEndian>::parse(&*bytes).unwrap();
    let sections = header.sections(object::LittleEndian, &*bytes).unwrap();
    let loaded =
        sections.iter().filter(|section| section.sh_flags(object::LittleEndian).contains(object::elf::SHF_ALLOC));
    let pair = |section: &object::elf::SectionHeader64<object::LittleEndian>| {
        let name = sections.section_name(object::LittleEndian, section).unwrap();
        let data = section.data(object::LittleEndian, &*bytes).unwrap();
        (String::from_utf8_lossy(name).into_owned(), data.to_vec())
    };
    loaded.map(pair).collect()
}
