//! Builds small ELF files and root directories.

use std::collections::BTreeMap;
use std::io;

use crate::{Class, Endian, Machine, Node, Root};

/// What the ELF file shall say.
#[derive(Clone)]
pub(crate) struct Elf {
    pub(crate) class: Class,
    pub(crate) endian: Endian,
    pub(crate) machine: Machine,
    pub(crate) interpreter: Option<&'static str>,
    pub(crate) needed: Vec<&'static str>,
    pub(crate) soname: Option<&'static str>,
    pub(crate) rpath: Option<&'static str>,
    pub(crate) runpath: Option<&'static str>,
}

impl Default for Elf {
    fn default() -> Elf {
        Elf {
            class: Class::Elf64,
            endian: Endian::Little,
            machine: Machine::X86_64,
            interpreter: None,
            needed: Vec::new(),
            soname: None,
            rpath: None,
            runpath: None,
        }
    }
}

/// Where the file is mapped, so that addresses and offsets differ.
const BASE: u64 = 0x40_0000;

struct Writer {
    bytes: Vec<u8>,
    wide: bool,
    little: bool,
}

impl Writer {
    fn put(&mut self, value: u64, bytes: usize) {
        let all = if self.little { value.to_le_bytes() } else { value.to_be_bytes() };
        self.bytes.extend_from_slice(if self.little { &all[..bytes] } else { &all[8 - bytes..] });
    }

    fn word(&mut self, value: u64) {
        self.put(value, if self.wide { 8 } else { 4 });
    }

    fn program_header(&mut self, kind: u64, offset: u64, bytes: u64) {
        self.put(kind, 4);
        if self.wide {
            self.put(4, 4);
        }
        for value in [offset, BASE + offset, BASE + offset, bytes, bytes] {
            self.word(value);
        }
        if !self.wide {
            self.put(4, 4);
        }
        self.word(8);
    }
}

impl Elf {
    pub(crate) fn program(needed: &[&'static str]) -> Elf {
        Elf { interpreter: Some("/lib64/ld-linux-x86-64.so.2"), needed: needed.to_vec(), ..Elf::default() }
    }

    pub(crate) fn library(soname: &'static str, needed: &[&'static str]) -> Elf {
        Elf { soname: Some(soname), needed: needed.to_vec(), ..Elf::default() }
    }

    /// The file: header, three program headers, interpreter, dynamic section, string table.
    pub(crate) fn build(&self) -> Vec<u8> {
        let wide = self.class == Class::Elf64;
        let (header, entry, tag) = if wide { (64u64, 56u64, 16u64) } else { (52, 32, 8) };
        let mut strings = vec![0u8];
        let mut tags = Vec::new();
        let mut add = |number: u64, text: &str| {
            tags.push((number, strings.len() as u64));
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
        };
        self.needed.iter().for_each(|name| add(1, name));
        self.soname.iter().for_each(|name| add(14, name));
        self.rpath.iter().for_each(|path| add(15, path));
        self.runpath.iter().for_each(|path| add(29, path));
        let interpreter_at = header + 3 * entry;
        let interpreter_bytes = self.interpreter.map_or(0, |path| path.len() as u64 + 1);
        let dynamic_at = (interpreter_at + interpreter_bytes).next_multiple_of(8);
        let dynamic_bytes = (tags.len() as u64 + 3) * tag;
        let strings_at = dynamic_at + dynamic_bytes;
        let file_bytes = strings_at + strings.len() as u64;

        let mut out = Writer { bytes: Vec::new(), wide, little: self.endian == Endian::Little };
        out.bytes.extend_from_slice(b"\x7fELF");
        out.bytes.extend_from_slice(&[if wide { 2 } else { 1 }, if out.little { 1 } else { 2 }, 1, 0]);
        out.bytes.resize(16, 0);
        out.put(3, 2);
        out.put(self.machine.0.into(), 2);
        out.put(1, 4);
        out.word(0);
        out.word(header);
        out.word(0);
        out.put(0, 4);
        for half in [header, entry, 3, 0, 0, 0] {
            out.put(half, 2);
        }
        out.program_header(1, 0, file_bytes);
        out.program_header(2, dynamic_at, dynamic_bytes);
        // A null header stands where there is no interpreter.
        out.program_header(if self.interpreter.is_some() { 3 } else { 0 }, interpreter_at, interpreter_bytes);
        if let Some(path) = self.interpreter {
            out.bytes.extend_from_slice(path.as_bytes());
            out.bytes.push(0);
        }
        out.bytes.resize(dynamic_at as usize, 0);
        for (number, value) in tags.into_iter().chain([(5, BASE + strings_at), (10, strings.len() as u64), (0, 0)]) {
            out.word(number);
            out.word(value);
        }
        out.bytes.extend_from_slice(&strings);
        assert_eq!(out.bytes.len() as u64, file_bytes);
        out.bytes
    }
}

/// A root directory in memory.
#[derive(Default)]
pub(crate) struct MemoryRoot {
    nodes: BTreeMap<Vec<u8>, Entry>,
}

enum Entry {
    File(Vec<u8>),
    Directory,
    Symlink(Vec<u8>),
}

impl MemoryRoot {
    fn add(&mut self, path: &str, entry: Entry) {
        let mut end = 1;
        while let Some(slash) = path[end..].find('/') {
            end += slash;
            self.nodes.entry(path[..end].into()).or_insert(Entry::Directory);
            end += 1;
        }
        self.nodes.insert(path.into(), entry);
    }

    pub(crate) fn file(mut self, path: &str, bytes: impl AsRef<[u8]>) -> MemoryRoot {
        self.add(path, Entry::File(bytes.as_ref().to_vec()));
        self
    }

    pub(crate) fn elf(self, path: &str, elf: &Elf) -> MemoryRoot {
        self.file(path, elf.build())
    }

    pub(crate) fn symlink(mut self, path: &str, target: &str) -> MemoryRoot {
        self.add(path, Entry::Symlink(target.into()));
        self
    }
}

impl Root for MemoryRoot {
    fn node(&self, path: &[u8]) -> io::Result<Option<Node>> {
        Ok(self.nodes.get(path).map(|entry| match entry {
            Entry::File(_) => Node::File,
            Entry::Directory => Node::Directory,
            Entry::Symlink(target) => Node::Symlink(target.clone()),
        }))
    }

    fn read_at(&self, path: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.nodes.get(path) {
            Some(Entry::File(bytes)) => crate::Bytes::read_at(bytes.as_slice(), offset, buffer),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let prefix = if path == b"/" { path.to_vec() } else { [path, b"/"].concat() };
        let inside = self.nodes.keys().filter_map(|key| key.strip_prefix(prefix.as_slice()));
        Ok(inside.filter(|rest| !rest.contains(&b'/')).map(<[u8]>::to_vec).collect())
    }
}
