//! The closure of a program: every file that it needs to start. These are the program, its
//! interpreter, its shared libraries, their libraries, and all directories and symlinks on the way.
//!
//! Each program is followed as `ld.so` would load it: breadth first, with one search per needed
//! name. A name that is loaded already (by requested name or DT_SONAME) is not searched again. A
//! candidate of another architecture is skipped. Variants under `glibc-hwcaps` are added too,
//! because the processor that runs the program is not known here. No header names the libraries
//! that a program opens itself (dlopen, name service, locale converters): the caller adds them with
//! [`Finder::object`] or [`Finder::path`].

use std::collections::{BTreeSet, HashMap};

use crate::program::FileBytes;
use crate::resolve::{Resolved, Resolver, join};
use crate::search::{self, Flavour, Loaded};
use crate::{ClosureError, ElfError, Node, OBJECTS_MAX, Program, Root, SCRIPT_DEPTH_MAX, Shebang};

/// Directories in which a program named without a slash is sought, those of a login shell of root.
const PROGRAM_DIRECTORIES: [&[u8]; 6] =
    [b"/usr/local/sbin", b"/usr/local/bin", b"/usr/sbin", b"/usr/bin", b"/sbin", b"/bin"];

/// Names that musl's loader answers itself, whatever file would match.
const MUSL_OWN: [&[u8]; 7] = [b"libc.", b"libpthread.", b"librt.", b"libm.", b"libdl.", b"libutil.", b"libxnet."];

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Closure {
    /// Absolute paths within the root directory of files, symlinks and directories, parents always
    /// included. Byte order, so a directory comes before what lies in it.
    pub paths: BTreeSet<Vec<u8>>,
    /// Libraries and interpreters that were needed and found nowhere.
    pub missing: Vec<Missing>,
}

/// A name that leads to no file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// The library or interpreter as the file names it.
    pub name: Vec<u8>,
    /// The file that needs it.
    pub needed_by: Vec<u8>,
}

/// A library that was found: the path it was found by, and its facts.
type Found = (Vec<u8>, Program);

/// Collects the closure of any number of programs, libraries and paths in one root directory.
pub struct Finder<'a> {
    resolver: Resolver<'a>,
    closure: Closure,
    /// Facts of every file looked at, by path without symlinks; `None` for files that are not ELF.
    programs: HashMap<Vec<u8>, Option<Program>>,
    /// Directories named by configuration files, by file.
    configured: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Files whose closure is complete.
    done: BTreeSet<Vec<u8>>,
}

impl<'a> Finder<'a> {
    /// A finder that has found nothing yet.
    pub fn new(root: &'a dyn Root) -> Finder<'a> {
        Finder {
            resolver: Resolver::new(root),
            closure: Closure::default(),
            programs: HashMap::new(),
            configured: HashMap::new(),
            done: BTreeSet::new(),
        }
    }

    /// Adds a program: an ELF file or a script, by path or by a name sought in the usual
    /// directories of programs.
    ///
    /// # Errors
    /// [`ClosureError::NotFound`], a file that cannot be read or understood, or more than the
    /// limits.
    pub fn program(&mut self, name: &[u8]) -> Result<(), ClosureError> {
        let not_found = || ClosureError::NotFound { path: name.to_vec() };
        let path =
            if name.contains(&b'/') { name.to_vec() } else { self.search_program(name)?.ok_or_else(not_found)? };
        self.start(&path, 0)
    }

    /// Adds a file that may be loaded, or is just there: if it is ELF, so are its needs; if not, it
    /// is added alone.
    ///
    /// # Errors
    /// As [`Finder::program`].
    pub fn object(&mut self, path: &[u8]) -> Result<(), ClosureError> {
        let resolved = self.existing(path)?;
        self.add(&resolved);
        match self.facts(&resolved)? {
            Some(program) => self.load(path, &resolved, program),
            None => Ok(()),
        }
    }

    /// Adds a path alone: where it leads, with the symlinks and directories on the way.
    ///
    /// # Errors
    /// As [`Finder::program`].
    pub fn path(&mut self, path: &[u8]) -> Result<Resolved, ClosureError> {
        let resolved = self.existing(path)?;
        self.add(&resolved);
        Ok(resolved)
    }

    /// What was needed and found nowhere so far; may hold repetitions.
    pub fn missing(&self) -> &[Missing] {
        &self.closure.missing
    }

    /// What was found.
    pub fn finish(self) -> Closure {
        let mut closure = self.closure;
        closure.missing.sort();
        closure.missing.dedup();
        closure
    }

    fn search_program(&self, name: &[u8]) -> Result<Option<Vec<u8>>, ClosureError> {
        for directory in PROGRAM_DIRECTORIES {
            let path = join(directory, name);
            if self.resolver.resolve(&path)?.is_some_and(|resolved| resolved.node == Node::File) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn existing(&self, path: &[u8]) -> Result<Resolved, ClosureError> {
        self.resolver.resolve(path)?.ok_or_else(|| ClosureError::NotFound { path: path.to_vec() })
    }

    fn add(&mut self, resolved: &Resolved) {
        for step in &resolved.steps {
            if !self.closure.paths.contains(step) {
                self.closure.paths.insert(step.clone());
            }
        }
    }

    /// Adds what `execve` of `path` would start.
    fn start(&mut self, path: &[u8], depth: usize) -> Result<(), ClosureError> {
        if depth > SCRIPT_DEPTH_MAX {
            let what = "interpreters that are scripts";
            return Err(ClosureError::TooMany { path: path.to_vec(), what, limit: SCRIPT_DEPTH_MAX });
        }
        let resolved = self.existing(path)?;
        self.add(&resolved);
        if let Some(program) = self.facts(&resolved)? {
            return self.load(path, &resolved, program);
        }
        let mut start = [0u8; crate::shebang::LINE_BYTES_MAX];
        let read = self.resolver.root().read_at(&resolved.path, 0, &mut start);
        let found = read.map_err(|source| ClosureError::Read { path: resolved.path.clone(), source })?;
        let Some(script) = Shebang::parse(&start[..found.min(start.len())]) else {
            return Err(ClosureError::NotAProgram { path: resolved.path });
        };
        if let Some(name) = script.env_program() {
            match self.search_program(name)? {
                Some(program) => self.start(&program, depth + 1)?,
                None => self.miss(name, &resolved.path),
            }
        }
        match self.resolver.resolve(&script.interpreter)? {
            Some(_) => self.start(&script.interpreter, depth + 1),
            None => {
                self.miss(&script.interpreter, &resolved.path);
                Ok(())
            }
        }
    }

    /// The facts of an ELF file; `None` if it is something else.
    fn facts(&mut self, resolved: &Resolved) -> Result<Option<Program>, ClosureError> {
        if resolved.node != Node::File {
            return Ok(None);
        }
        if let Some(known) = self.programs.get(&resolved.path) {
            return Ok(known.clone());
        }
        let bytes = FileBytes { root: self.resolver.root(), path: &resolved.path };
        let program = match Program::parse(&bytes) {
            Ok(program) => Some(program),
            Err(ElfError::NotElf) => None,
            Err(ElfError::Read { source, .. }) => {
                return Err(ClosureError::Read { path: resolved.path.clone(), source });
            }
            Err(source) => return Err(ClosureError::Elf { path: resolved.path.clone(), source }),
        };
        if self.programs.len() >= OBJECTS_MAX {
            return Err(ClosureError::TooMany { path: resolved.path.clone(), what: "files", limit: OBJECTS_MAX });
        }
        self.programs.insert(resolved.path.clone(), program.clone());
        Ok(program)
    }

    /// Follows one process: `program` and all it loads at start.
    fn load(&mut self, path: &[u8], resolved: &Resolved, program: Program) -> Result<(), ClosureError> {
        if !self.done.insert(resolved.path.clone()) {
            return Ok(());
        }
        // The kernel tells a program its own path without symlinks; a library's is the one it was
        // found by.
        let own = if program.interpreter.is_some() { resolved.path.clone() } else { absolute(path) };
        let interpreter = program.interpreter.clone();
        let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
        if let Some(interpreter) = &interpreter {
            self.add_interpreter(interpreter, &own, &mut names)?;
        }
        let mut loaded = vec![Loaded { path: own, program, loader: None }];
        let mut next = 0;
        while next < loaded.len() {
            for name in loaded[next].program.needed.clone() {
                if names.contains(&name) || is_answered_by_musl(interpreter.as_deref(), &name) {
                    continue;
                }
                names.insert(name.clone());
                match self.find(&loaded, next, &name, interpreter.as_deref())? {
                    None => {
                        let needed_by = loaded[next].path.clone();
                        self.miss(&name, &needed_by);
                    }
                    Some(found) => {
                        for (path, program) in found {
                            names.extend(program.soname.clone());
                            loaded.push(Loaded { path, program, loader: Some(next) });
                        }
                    }
                }
                if loaded.len() > OBJECTS_MAX {
                    let path = loaded[0].path.clone();
                    return Err(ClosureError::TooMany { path, what: "libraries", limit: OBJECTS_MAX });
                }
            }
            next += 1;
        }
        Ok(())
    }

    fn add_interpreter(
        &mut self,
        interpreter: &[u8],
        needed_by: &[u8],
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), ClosureError> {
        let Some(resolved) = self.resolver.resolve(interpreter)? else {
            self.miss(interpreter, needed_by);
            return Ok(());
        };
        self.add(&resolved);
        // The loader is in the process already: nothing that needs it by name makes a search.
        let name = interpreter.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        names.insert(name.to_vec());
        names.extend(self.facts(&resolved)?.and_then(|program| program.soname));
        Ok(())
    }

    /// Finds the library `name` for `loaded[needer]`: the file that would be loaded, then its
    /// variants.
    fn find(
        &mut self,
        loaded: &[Loaded],
        needer: usize,
        name: &[u8],
        interpreter: Option<&[u8]>,
    ) -> Result<Option<Vec<Found>>, ClosureError> {
        let needing = &loaded[needer];
        if name.contains(&b'/') {
            for path in search::expand(name, needing) {
                if let Some(program) = self.candidate(&path, &needing.program)? {
                    return Ok(Some(vec![(path, program)]));
                }
            }
            return Ok(None);
        }
        let directories = search::directories(&self.resolver, &mut self.configured, loaded, needer, interpreter)?;
        for (directory, cache) in directories {
            let path = join(&directory, name);
            let base = self.candidate(&path, &needing.program)?.map(|program| (path, program));
            let mut found = Vec::from_iter(base);
            found.extend(self.variants(&directory, name, &needing.program, interpreter)?);
            if found.is_empty() {
                continue;
            }
            // A directory that only the cache knows of is searched at run time through the cache
            // alone.
            if let Some(cache) = cache
                && let Some(resolved) = self.resolver.resolve(cache.as_bytes())?
            {
                self.add(&resolved);
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Adds and returns the file at `path` if it is ELF of the right architecture. A damaged file
    /// there is passed over like a foreign one: `ld.so` would go on as well.
    fn candidate(&mut self, path: &[u8], needing: &Program) -> Result<Option<Program>, ClosureError> {
        let Some(resolved) = self.resolver.resolve(path)? else { return Ok(None) };
        let program = match self.facts(&resolved) {
            Err(ClosureError::Elf { .. }) => None,
            other => other?,
        };
        let fitting = program.filter(|program| needing.fits(program));
        if fitting.is_some() {
            self.add(&resolved);
        }
        Ok(fitting)
    }

    /// The same library built for newer processors, in the subdirectories of `glibc-hwcaps`.
    fn variants(
        &mut self,
        directory: &[u8],
        name: &[u8],
        needing: &Program,
        interpreter: Option<&[u8]>,
    ) -> Result<Vec<Found>, ClosureError> {
        let base = join(directory, b"glibc-hwcaps");
        let mut found = Vec::new();
        if Flavour::of(interpreter) == Flavour::Musl {
            return Ok(found);
        }
        let Some(resolved) = self.resolver.resolve(&base)? else { return Ok(found) };
        if resolved.node != Node::Directory {
            return Ok(found);
        }
        let names = self.resolver.root().names(&resolved.path);
        let mut names = names.map_err(|source| ClosureError::Read { path: resolved.path.clone(), source })?;
        names.sort();
        for level in names {
            let path = join(&join(&base, &level), name);
            if let Some(program) = self.candidate(&path, needing)? {
                found.push((path, program));
            }
        }
        Ok(found)
    }

    fn miss(&mut self, name: &[u8], needed_by: &[u8]) {
        self.closure.missing.push(Missing { name: name.to_vec(), needed_by: needed_by.to_vec() });
    }
}

fn is_answered_by_musl(interpreter: Option<&[u8]>, name: &[u8]) -> bool {
    Flavour::of(interpreter) == Flavour::Musl && MUSL_OWN.iter().any(|own| name.starts_with(own))
}

fn absolute(path: &[u8]) -> Vec<u8> {
    if path.first() == Some(&b'/') { path.to_vec() } else { join(b"/", path) }
}
