//! Reachability: the functions that a program can execute, over all objects that it loads.
//!
//! Roots are entry points, initialisers, and every function whose address is in data of a loaded
//! object: methods of classes, tables of callbacks. A reachable function reaches those that it
//! calls, through the linkage tables by the search order of the dynamic linker, and every function
//! whose address it takes.

use std::collections::{BTreeSet, HashMap, HashSet};

use elf::code::{Callee, Word};

use super::object::Object;

/// A function: the index of its object, and its address.
pub(super) type FunctionId = (usize, u64);

/// A call of a function: from which, at which instruction, and whether by a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Caller {
    pub(super) from: FunctionId,
    pub(super) at: u64,
    pub(super) is_tail: bool,
}

/// What one process loads, in the order in which symbols are sought.
pub(super) struct Scope<'a> {
    pub(super) objects: &'a [Object<'a>],
    /// Indices into `objects`.
    pub(super) loaded: Vec<usize>,
    /// Objects that the program opens itself, perhaps: whatever they export may be asked for.
    pub(super) opened: Vec<usize>,
    /// Functions that the program looks up by name, perhaps.
    pub(super) asked: Vec<FunctionId>,
}

/// What is reached.
#[derive(Default)]
pub(super) struct Reach {
    /// Functions.
    pub(super) functions: BTreeSet<FunctionId>,
    /// Who calls each of them.
    pub(super) callers: HashMap<FunctionId, BTreeSet<Caller>>,
    /// Functions that may be called through pointers, by anyone.
    pub(super) taken: HashSet<FunctionId>,
    /// Names that were asked for: imports of reached functions.
    pub(super) imported: BTreeSet<Vec<u8>>,
    /// Whether the work was more than is allowed.
    pub(super) is_cut: bool,
}

/// Instructions decoded for one image.
const STEPS_MAX: usize = 400_000_000;

impl<'a> Scope<'a> {
    /// The functions that a name means: those of the first object that has it.
    pub(super) fn find(&self, name: &[u8]) -> Vec<FunctionId> {
        let found = self.loaded.iter().chain(&self.opened).find_map(|index| {
            self.objects[*index].exports.get(name).map(|all| all.iter().map(|address| (*index, *address)).collect())
        });
        found.unwrap_or_default()
    }

    /// What a word that a relocation fills leads to.
    pub(super) fn word(&self, object: usize, word: Word) -> Vec<FunctionId> {
        match word {
            Word::Address(address) | Word::Resolver(address) => vec![(object, address)],
            Word::Symbol(index, _) => match self.objects[object].linked.imports.get(index as usize) {
                Some(name) => self.find(name),
                None => Vec::new(),
            },
        }
    }

    /// The code that a callee is; empty if it is somebody.
    pub(super) fn callee(&self, object: usize, callee: Callee) -> Vec<FunctionId> {
        match callee {
            Callee::Code(address) => vec![(object, address)],
            Callee::Word(at) => match self.objects[object].linked.layout.words.get(&at) {
                Some(word) => self.word(object, *word),
                None => Vec::new(),
            },
            Callee::Unknown => Vec::new(),
        }
    }

    fn is_code(&self, place: FunctionId) -> bool {
        self.objects[place.0].linked.layout.space.is_code(place.1)
    }

    /// Follows everything from the roots.
    pub(super) fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        let mut open: Vec<FunctionId> = Vec::new();
        for index in self.loaded.iter().chain(&self.opened) {
            self.load(*index, &mut reach, &mut open);
        }
        for index in &self.opened {
            for place in self.objects[*index].exports.values().flatten().map(|address| (*index, *address)) {
                take(&mut reach, &mut open, place);
            }
        }
        for place in &self.asked {
            take(&mut reach, &mut open, *place);
        }
        while let Some(place) = open.pop() {
            if !self.is_code(place) || !reach.functions.insert(place) {
                continue;
            }
            if self.objects.iter().map(Object::steps).sum::<usize>() > STEPS_MAX {
                reach.is_cut = true;
                return reach;
            }
            self.follow(place, &mut reach, &mut open);
        }
        reach
    }

    fn load(&self, index: usize, reach: &mut Reach, open: &mut Vec<FunctionId>) {
        let object = &self.objects[index];
        // Whoever is entered from outside is entered with anything.
        let is_started = self.loaded.first() == Some(&index) || object.linked.program.interpreter.is_none();
        if is_started && object.linked.entry != 0 {
            take(reach, open, (index, object.linked.entry));
        }
        for address in object.linked.initialisers.iter().chain(&object.pointed) {
            take(reach, open, (index, *address));
        }
        for (at, word) in &object.linked.layout.words {
            if let Word::Symbol(..) = word
                && !object.linked.slots.contains(at)
            {
                for place in self.word(index, *word) {
                    take(reach, open, place);
                }
            }
        }
    }

    fn follow(&self, place: FunctionId, reach: &mut Reach, open: &mut Vec<FunctionId>) {
        let (index, start) = place;
        let object = &self.objects[index];
        let function = object.function(start);
        reach.is_cut |= function.is_cut;
        for (at, callee, is_tail) in &function.calls {
            if let Callee::Word(word) = callee {
                self.note_import(index, *word, reach);
            }
            for called in self.callee(index, *callee) {
                let caller = Caller { from: place, at: *at, is_tail: *is_tail };
                reach.callers.entry(called).or_default().insert(caller);
                open.push(called);
            }
        }
        for address in &function.takes {
            take(reach, open, (index, *address));
        }
        for at in &function.reads {
            self.note_import(index, *at, reach);
            if let Some(word) = object.linked.layout.words.get(at) {
                for taken in self.word(index, *word) {
                    take(reach, open, taken);
                }
            }
        }
    }

    fn note_import(&self, index: usize, at: u64, reach: &mut Reach) {
        let linked = &self.objects[index].linked;
        if let Some(Word::Symbol(number, _)) = linked.layout.words.get(&at)
            && let Some(name) = linked.imports.get(*number as usize)
            && !reach.imported.contains(name)
        {
            reach.imported.insert(name.clone());
        }
    }
}

fn take(reach: &mut Reach, open: &mut Vec<FunctionId>, place: FunctionId) {
    if reach.taken.insert(place) {
        open.push(place);
    }
}
