//! One ELF file of the image, with what is known of its functions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use elf::code::x86_64::X86_64;
use elf::code::{Action, Architecture, Callee, Flow, Gate, Linked, State, Use, Word, add_starts, discover, propagate};

/// The only architecture whose code is understood so far.
pub(super) const ARCHITECTURE: X86_64 = X86_64;

/// Tail calls that are followed to find out whether a function returns.
const ENDS_DEPTH_MAX: usize = 4;

/// Functions of the C library that do not return.
const ENDINGS: [&[u8]; 18] = [
    b"abort",
    b"exit",
    b"_exit",
    b"_Exit",
    b"quick_exit",
    b"pthread_exit",
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"__assert_fail",
    b"__assert_perror_fail",
    b"__stack_chk_fail",
    b"__fortify_fail",
    b"__chk_fail",
    b"__libc_fatal",
    b"err",
    b"errx",
];

/// States before the instructions of a function that matter; `None` if it takes too much work.
type Values = Option<Rc<HashMap<u64, State>>>;

/// An ELF file of the image.
pub(super) struct Object<'a> {
    /// Its path in the image, without symlinks.
    pub(super) path: Vec<u8>,
    pub(super) linked: Linked<'a>,
    /// Its build id, in hexadecimal.
    pub(super) build_id: Option<String>,
    /// Functions that others can find, by name; several where a symbol has versions.
    pub(super) exports: HashMap<Vec<u8>, Vec<u64>>,
    /// Functions whose addresses lie in data.
    pub(super) pointed: Vec<u64>,
    /// Places inside functions whose addresses lie in data, by function.
    labels: BTreeMap<u64, Vec<u64>>,
    functions: RefCell<HashMap<u64, Rc<Function>>>,
    values: RefCell<HashMap<u64, Values>>,
    writes: RefCell<Option<Rc<Writes>>>,
    /// Instructions decoded so far.
    steps: Cell<usize>,
}

/// What following control through one function told.
pub(super) struct Function {
    /// Instruction, callee, whether it is a jump.
    pub(super) calls: Vec<(u64, Callee, bool)>,
    /// Code addresses that it takes.
    pub(super) takes: Vec<u64>,
    /// Words that it reads: entries of the global offset table.
    pub(super) reads: Vec<u64>,
    /// Places of memory that it writes, by instruction.
    pub(super) writes: Vec<(u64, u64)>,
    /// Places of memory whose address it takes.
    pub(super) data: Vec<u64>,
    pub(super) gates: Vec<(u64, Gate)>,
    /// Whether it is too large to be followed to its end.
    pub(super) is_cut: bool,
    /// Whether it may return, its tail calls aside.
    returns: bool,
}

/// Where writable memory of an object is written to, over all of its code.
#[derive(Default)]
pub(super) struct Writes {
    /// Instructions and their functions, by address.
    pub(super) stores: HashMap<u64, Vec<(u64, u64)>>,
    /// Addresses that are taken: what lies there may be written by anyone.
    pub(super) taken: BTreeSet<u64>,
}

impl<'a> Object<'a> {
    pub(super) fn new(path: Vec<u8>, bytes: &'a [u8]) -> Result<Object<'a>, elf::ElfError> {
        let mut linked = Linked::parse(bytes)?;
        let build_id = elf::build_id(bytes).unwrap_or(None);
        let pointers = linked.pointers();
        let mut seeds: Vec<u64> =
            linked.exports.iter().filter(|export| export.is_code).map(|export| export.address).collect();
        seeds.extend(linked.initialisers.iter().chain([&linked.entry]));
        // In a file that runs only where it was linked, such words may be entries of jump tables.
        if !linked.layout.is_absolute {
            seeds.extend(pointers.iter().map(|(_, target)| *target));
        }
        let guessed: BTreeSet<u64> = discover(&ARCHITECTURE, &mut linked.layout, &seeds).into_iter().collect();
        if linked.layout.is_absolute && !guessed.is_empty() {
            // Words that point into functions whose ends are guesses are functions of their own,
            // unless a jump table explains them.
            let guess = |target: &u64| {
                let extent = linked.layout.extents.holding(*target);
                extent.is_some_and(|extent| extent.start != *target && guessed.contains(&extent.start))
            };
            let inner: BTreeSet<u64> = pointers.iter().map(|(_, target)| *target).filter(guess).collect();
            let explained = table_targets(&linked, &inner);
            add_starts(&mut linked.layout, &inner.difference(&explained).copied().collect::<Vec<u64>>());
        }
        let mut exports: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
        for export in &linked.exports {
            let all = exports.entry(export.name.clone()).or_default();
            if export.is_code && !all.contains(&export.address) {
                all.push(export.address);
            }
        }
        let mut pointed = BTreeSet::new();
        let mut labels: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (_, target) in pointers {
            match linked.layout.extents.holding(target) {
                // Unwinders look one byte before a return address: so the frames of code that
                // signals return to begin there.
                Some(extent) if target > extent.start + 1 => labels.entry(extent.start).or_default().push(target),
                _ => {
                    pointed.insert(target);
                }
            }
        }
        let build_id = build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        Ok(Object {
            path,
            linked,
            build_id,
            exports,
            pointed: pointed.into_iter().collect(),
            labels,
            functions: RefCell::default(),
            values: RefCell::default(),
            writes: RefCell::default(),
            steps: Cell::new(0),
        })
    }

    /// The name of the function that holds an address, or of its start.
    pub(super) fn function_name(&self, address: u64) -> String {
        match self.linked.layout.extents.holding(address) {
            Some(extent) => match &extent.name {
                Some(name) => String::from_utf8_lossy(name).into_owned(),
                None => format!("{:#x}", extent.start),
            },
            None => format!("{address:#x}"),
        }
    }

    /// Instructions decoded so far.
    pub(super) fn steps(&self) -> usize {
        self.steps.get()
    }

    fn flow(&self, start: u64, ends: &dyn Fn(Callee) -> bool) -> Flow {
        let flow = self.traced(&[start], ends);
        let Some(labels) = self.labels.get(&start) else { return flow };
        // Labels in tables that were understood are no news.
        let known = |label: &u64| flow.tables.iter().any(|table| table.targets.contains(label));
        let strange: Vec<u64> = labels.iter().copied().filter(|label| !known(label)).collect();
        if strange.is_empty() {
            return flow;
        }
        self.traced(&[&[start], &strange[..]].concat(), ends)
    }

    fn traced(&self, entries: &[u64], ends: &dyn Fn(Callee) -> bool) -> Flow {
        let flow = Flow::trace_until(&ARCHITECTURE, &self.linked.layout, entries, ends);
        self.steps.set(self.steps.get() + flow.steps.len());
        flow
    }

    /// What the function at `start` does.
    pub(super) fn function(&self, start: u64) -> Rc<Function> {
        if let Some(known) = self.functions.borrow().get(&start) {
            return known.clone();
        }
        let layout = &self.linked.layout;
        let flow = self.flow(start, &|_| false);
        let is_own = |address: u64| flow.extents.iter().any(|(from, to)| (*from..*to).contains(&address));
        let (mut takes, mut data, mut reads, mut writes) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), Vec::new());
        for reference in &flow.references {
            let address = reference.address;
            match reference.usage {
                Use::Take if layout.space.is_code(address) => {
                    let is_start = layout.extents.starting(address).is_some();
                    let is_compared = || ARCHITECTURE.is_compared(layout, &flow, reference.at);
                    if (is_start || !is_own(address)) && !is_compared() {
                        takes.insert(address);
                    }
                }
                Use::Take => {
                    data.insert(address);
                }
                Use::Read if layout.words.contains_key(&address) => {
                    reads.insert(address);
                }
                Use::Read => {}
                Use::Write => writes.push((reference.at, address)),
            }
        }
        let function = Rc::new(Function {
            returns: flow.is_cut
                || !flow.unresolved.is_empty()
                || flow.steps.is_empty()
                || flow.steps.values().any(|step| step.action == Action::Return),
            calls: flow.calls.iter().map(|call| (call.at, call.callee, call.is_tail)).collect(),
            takes: takes.into_iter().collect(),
            reads: reads.into_iter().collect(),
            writes,
            data: data.into_iter().collect(),
            gates: flow.gates.clone(),
            is_cut: flow.is_cut,
        });
        self.functions.borrow_mut().insert(start, function.clone());
        function
    }

    /// What is known before the instructions of a function that matter: gates, calls, stores to
    /// fixed places.
    pub(super) fn values(&self, start: u64) -> Values {
        if let Some(known) = self.values.borrow().get(&start) {
            return known.clone();
        }
        let function = self.function(start);
        let points: BTreeSet<u64> = function
            .gates
            .iter()
            .map(|gate| gate.0)
            .chain(function.calls.iter().map(|call| call.0))
            .chain(function.writes.iter().map(|write| write.0))
            .collect();
        let flow = self.flow(start, &|callee| self.never_returns(callee, ENDS_DEPTH_MAX));
        let found = propagate(&ARCHITECTURE, &self.linked.layout, &flow, |entry| entry == start, &points).map(Rc::new);
        self.values.borrow_mut().insert(start, found.clone());
        found
    }

    /// Whether a call of `callee` never comes back; a guess on the safe side: if not sure, it does.
    fn never_returns(&self, callee: Callee, depth: usize) -> bool {
        let code = match callee {
            Callee::Code(address) => address,
            Callee::Unknown => return false,
            Callee::Word(at) => match self.linked.layout.words.get(&at) {
                Some(Word::Address(address)) => *address,
                Some(Word::Symbol(index, _)) => {
                    let name = self.linked.imports.get(*index as usize);
                    return name.is_some_and(|name| ENDINGS.contains(&name.as_slice()));
                }
                _ => return false,
            },
        };
        if depth == 0 || !self.linked.layout.space.is_code(code) {
            return false;
        }
        let function = self.function(code);
        let tails = || function.calls.iter().filter(|(_, _, is_tail)| *is_tail);
        !function.returns && tails().all(|(_, callee, _)| self.never_returns(*callee, depth - 1))
    }

    /// Stores to fixed places by any code of the object, reached or not.
    pub(super) fn writes(&self) -> Rc<Writes> {
        if let Some(known) = self.writes.borrow().as_ref() {
            return known.clone();
        }
        let mut writes = Writes::default();
        let starts: Vec<u64> = self.linked.layout.extents.all().iter().map(|extent| extent.start).collect();
        for start in starts {
            let function = self.function(start);
            for (at, address) in &function.writes {
                writes.stores.entry(*address).or_default().push((*at, start));
            }
            writes.taken.extend(&function.data);
        }
        for word in self.linked.layout.words.values() {
            if let Word::Address(address) = word {
                writes.taken.insert(*address);
            }
        }
        let writes = Rc::new(writes);
        *self.writes.borrow_mut() = Some(writes.clone());
        writes
    }
}

/// Where the jump tables of the functions lead that hold `inner`.
fn table_targets(linked: &Linked<'_>, inner: &BTreeSet<u64>) -> BTreeSet<u64> {
    let extents = &linked.layout.extents;
    let starts: BTreeSet<u64> = inner.iter().filter_map(|at| extents.holding(*at)).map(|extent| extent.start).collect();
    let tables = starts.into_iter().flat_map(|start| Flow::trace(&ARCHITECTURE, &linked.layout, &[start]).tables);
    tables.flat_map(|table| table.targets).collect()
}
