//! The files of an image: which are programs and libraries, and what each program loads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use elf::{ElfError, Finder, Machine, Node, Program, Resolver, Root, Shebang};

use super::{ALL_BYTES_MAX, AnalysisError, FILE_BYTES_MAX, FILES_MAX};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// One program, and the files that its start needs.
pub(super) struct Start {
    /// Its path without symlinks.
    pub(super) path: Vec<u8>,
    /// Names under which files can be needed, with the files (paths without symlinks).
    pub(super) names: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
}

/// Files and programs found so far.
pub(super) struct Files<'a> {
    root: &'a dyn Root,
    resolver: Resolver<'a>,
    /// Content of ELF files by path without symlinks, in the order of paths.
    pub(super) content: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) starts: Vec<Start>,
    /// What could not be taken in, in words.
    pub(super) notes: BTreeSet<String>,
    /// Whether something in the tree may run and was not looked at.
    pub(super) is_partial: bool,
    bytes: u64,
    /// Interpreters that are not there, with the number of scripts that need them.
    interpreters: BTreeMap<Vec<u8>, usize>,
}

impl<'a> Files<'a> {
    pub(super) fn new(root: &'a dyn Root) -> Files<'a> {
        Files {
            root,
            resolver: Resolver::new(root),
            content: BTreeMap::new(),
            starts: Vec::new(),
            notes: BTreeSet::new(),
            is_partial: false,
            bytes: 0,
            interpreters: BTreeMap::new(),
        }
    }

    /// Takes in a program, ELF file or script, with all that its start needs.
    pub(super) fn program(&mut self, path: &[u8]) -> Result<(), AnalysisError> {
        let mut finder = Finder::new(self.root);
        finder.program(path)?;
        let closure = finder.finish();
        if let Some(missing) = closure.missing.first() {
            return Err(AnalysisError::Missing { name: missing.name.clone(), needed_by: missing.needed_by.clone() });
        }
        let mut names: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
        let mut programs = Vec::new();
        for step in &closure.paths {
            let Some(resolved) = self.resolver.resolve(step)? else { continue };
            if resolved.node != Node::File || !self.take(&resolved.path)? {
                continue;
            }
            names.entry(base(step).to_vec()).or_default().insert(resolved.path.clone());
            let facts = self.facts(&resolved.path)?;
            if let Some(name) = &facts.soname {
                names.entry(name.clone()).or_default().insert(resolved.path.clone());
            }
            if let Some(interpreter) = &facts.interpreter
                && let Some(interpreter) = self.resolver.resolve(interpreter)?
                && facts.soname.is_none()
            {
                names.entry(facts.interpreter.clone().unwrap_or_default()).or_default().insert(interpreter.path);
            }
            programs.push(resolved.path);
        }
        programs.sort();
        programs.dedup();
        for path in programs {
            let facts = self.facts(&path)?;
            let content = self.content.get(&path).map(Vec::as_slice).unwrap_or_default();
            if is_program(&facts, content) && !self.starts.iter().any(|start| start.path == path) {
                self.starts.push(Start { path, names: names.clone() });
            }
        }
        Ok(())
    }

    /// Takes in a library that programs may open, with all that it needs; true if it is one.
    pub(super) fn library(&mut self, path: &[u8]) -> Result<bool, AnalysisError> {
        let mut finder = Finder::new(self.root);
        finder.object(path)?;
        for step in &finder.finish().paths {
            if let Some(resolved) = self.resolver.resolve(step)?
                && resolved.node == Node::File
            {
                self.take(&resolved.path)?;
            }
        }
        let resolved = self.resolver.resolve(path)?;
        Ok(resolved.is_some_and(|resolved| self.content.contains_key(&resolved.path)))
    }

    /// Takes in all programs and libraries of the tree. A file that cannot be taken in is noted.
    pub(super) fn tree(&mut self) -> Result<Vec<Vec<u8>>, AnalysisError> {
        let mut libraries = Vec::new();
        let mut open = vec![b"/".to_vec()];
        let mut seen = 0usize;
        while let Some(directory) = open.pop() {
            let read = |source| AnalysisError::Read { path: directory.clone(), source };
            let mut names = self.root.names(&directory).map_err(read)?;
            names.sort();
            for name in names {
                let separator: &[u8] = if directory == b"/" { b"" } else { b"/" };
                let path = [&directory, separator, &name].concat();
                seen += 1;
                if seen > 16 * FILES_MAX {
                    return Err(AnalysisError::TooMany { what: "files", limit: 16 * FILES_MAX as u64 });
                }
                match self.resolver.node(&path)? {
                    Some(Node::Directory) => open.push(path),
                    Some(Node::File) => self.file(path, &mut libraries)?,
                    _ => {}
                }
            }
        }
        for (name, count) in &self.interpreters {
            let name = String::from_utf8_lossy(name);
            self.notes.insert(format!("{name} is not there, and cannot run {count} scripts"));
        }
        libraries.sort();
        Ok(libraries)
    }

    fn file(&mut self, path: Vec<u8>, libraries: &mut Vec<Vec<u8>>) -> Result<(), AnalysisError> {
        let start = self.start_of(&path)?;
        let shown = String::from_utf8_lossy(&path).into_owned();
        if start.starts_with(b"\x7fELF") {
            // Relocatable objects and the like are not run; neither is a file that only looks like
            // one.
            let Ok(true) = self.take(&path) else {
                self.notes.insert(format!("{shown}: not analysed: for another processor, or damaged"));
                self.is_partial = true;
                return Ok(());
            };
            let facts = self.facts(&path)?;
            if !is_program(&facts, &self.content[&path]) {
                libraries.push(path);
                return Ok(());
            }
        } else if Shebang::parse(&start).is_none() {
            return Ok(());
        }
        let is_script = !start.starts_with(b"\x7fELF");
        match self.program(&path) {
            Ok(()) => Ok(()),
            // Trees are full of scripts for other machines.
            Err(AnalysisError::Missing { name, .. }) if is_script => {
                *self.interpreters.entry(name).or_default() += 1;
                Ok(())
            }
            Err(AnalysisError::TooMany { what, limit }) => Err(AnalysisError::TooMany { what, limit }),
            Err(error) => {
                self.notes.insert(format!("{shown}: cannot be started: {error}"));
                Ok(())
            }
        }
    }

    fn start_of(&self, path: &[u8]) -> Result<Vec<u8>, AnalysisError> {
        let mut start = vec![0u8; 256];
        let read = self.root.read_at(path, 0, &mut start);
        let found = read.map_err(|source| AnalysisError::Read { path: path.to_vec(), source })?;
        start.truncate(found);
        Ok(start)
    }

    /// Reads a file if it is ELF; true if it is.
    fn take(&mut self, path: &[u8]) -> Result<bool, AnalysisError> {
        if self.content.contains_key(path) {
            return Ok(true);
        }
        if !self.start_of(path)?.starts_with(b"\x7fELF") {
            return Ok(false);
        }
        if self.content.len() >= FILES_MAX {
            return Err(AnalysisError::TooMany { what: "programs and libraries", limit: FILES_MAX as u64 });
        }
        let mut content = Vec::new();
        loop {
            let mut piece = vec![0u8; READ_BYTES];
            let read = self.root.read_at(path, content.len() as u64, &mut piece);
            let found = read.map_err(|source| AnalysisError::Read { path: path.to_vec(), source })?;
            content.extend_from_slice(&piece[..found]);
            if found == 0 {
                break;
            }
            if content.len() as u64 > FILE_BYTES_MAX || self.bytes + content.len() as u64 > ALL_BYTES_MAX {
                return Err(AnalysisError::TooMany { what: "bytes of programs and libraries", limit: ALL_BYTES_MAX });
            }
        }
        let elf = |source: ElfError| AnalysisError::Elf { path: path.to_vec(), source };
        let facts = Program::parse(content.as_slice()).map_err(elf)?;
        if facts.machine != Machine::X86_64 || facts.class != elf::Class::Elf64 {
            return Err(AnalysisError::Machine { path: path.to_vec(), machine: facts.machine.0 });
        }
        self.bytes += content.len() as u64;
        self.content.insert(path.to_vec(), content);
        Ok(true)
    }

    fn facts(&self, path: &[u8]) -> Result<Program, AnalysisError> {
        let content = self.content.get(path).map(Vec::as_slice).unwrap_or_default();
        Program::parse(content).map_err(|source| AnalysisError::Elf { path: path.to_vec(), source })
    }
}

/// Whether `execve` of a file makes sense: linked to run at one place, or with an interpreter and
/// no name as a library, or static and movable with an entry and nothing needed.
fn is_program(facts: &Program, content: &[u8]) -> bool {
    const TYPE_EXECUTABLE: u8 = 2;
    if content.get(16) == Some(&TYPE_EXECUTABLE) {
        return true;
    }
    match &facts.interpreter {
        Some(_) => facts.soname.is_none(),
        None => elf::code::Linked::parse(content).is_ok_and(|linked| linked.kind == elf::code::Kind::Program),
    }
}

pub(super) fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

impl Start {
    /// Indices of what the program loads, in the order in which symbols are sought: breadth first,
    /// the program first, its interpreter last.
    pub(super) fn loaded(&self, index: &HashMap<Vec<u8>, usize>, needed: &dyn Fn(usize) -> Program) -> Vec<usize> {
        let mut found: Vec<usize> = index.get(&self.path).copied().into_iter().collect();
        let mut next = 0;
        while let Some(object) = found.get(next).copied() {
            next += 1;
            for name in &needed(object).needed {
                self.add(base(name), index, &mut found);
            }
        }
        if let Some(program) = found.first()
            && let Some(interpreter) = needed(*program).interpreter
        {
            self.add(&interpreter, index, &mut found);
            self.add(base(&interpreter), index, &mut found);
        }
        found
    }

    fn add(&self, name: &[u8], index: &HashMap<Vec<u8>, usize>, found: &mut Vec<usize>) {
        for path in self.names.get(name).into_iter().flatten() {
            if let Some(object) = index.get(path)
                && !found.contains(object)
            {
                found.push(*object);
            }
        }
    }
}
