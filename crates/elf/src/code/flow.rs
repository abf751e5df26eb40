//! The control flow of one function.
//!
//! Recursive descent from the entries of a function, within its extent. A conditional branch that
//! leaves the extent is followed, since compilers put rarely executed parts of a function
//! elsewhere. An unconditional jump to the start of another function is a tail call.
//!
//! Three cases are not followed exactly: an indirect jump that cannot be resolved, a table of
//! unknown size, and landing pads of the unwinder. Then everything in the extent that was not
//! reached is decoded from its start to its end, and counts as reached from an unknown place
//! ([`Flow::strays`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Action, Architecture, FUNCTION_STEPS_MAX, Gate, Layout, Step, TargetSource, Use, Word};

/// Instructions before an indirect jump that are searched for its table.
const PATH_STEPS_MAX: usize = 96;

/// Other extents that one function may go on in.
const EXTENTS_MAX: usize = 256;

/// A run of instructions that are executed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction.
    pub start: u64,
    /// Address of the last instruction.
    pub last: u64,
    /// The address behind it.
    pub end: u64,
    /// Starts of the blocks that may come next, sorted.
    pub next: Vec<u64>,
}

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Callee {
    /// The code at this address.
    Code(u64),
    /// What the word at this address points to; relocations fill it ([`Word`]).
    Word(u64),
    /// Somebody whose address was taken somewhere.
    Unknown,
}

/// A call, or a jump that does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address of the instruction.
    pub at: u64,
    /// Who is called.
    pub callee: Callee,
    /// Whether the callee returns to the caller of this function.
    pub is_tail: bool,
}

/// An address that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Address of the instruction.
    pub at: u64,
    /// The address that it names.
    pub address: u64,
    /// What for.
    pub usage: Use,
}

/// The table of an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Address of the jump.
    pub jump: u64,
    /// Address of the table.
    pub address: u64,
    /// Bytes of an entry: 8 for addresses, 4 for distances from `anchor`, 4 for addresses where
    /// `anchor` is `None`.
    pub entry_bytes: u8,
    /// What entries are relative to.
    pub anchor: Option<u64>,
    /// Targets in the order of the entries.
    pub targets: Vec<u64>,
    /// Whether the number of entries was known from a comparison; else the table was read as long
    /// as its entries made sense.
    pub is_bounded: bool,
}

/// The control flow of one function.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Where it was entered, sorted.
    pub entries: Vec<u64>,
    /// Instructions, by address.
    pub steps: BTreeMap<u64, Step>,
    /// Blocks, by address.
    pub blocks: Vec<Block>,
    /// Calls and tail calls.
    pub calls: Vec<Call>,
    /// Addresses that instructions name.
    pub references: Vec<Reference>,
    /// Where the kernel is entered.
    pub gates: Vec<(u64, Gate)>,
    /// Tables of indirect jumps.
    pub tables: Vec<Table>,
    /// Indirect jumps that may go anywhere in the function, or are tail calls of who knows whom.
    pub unresolved: Vec<u64>,
    /// Starts of blocks that are reached in ways that were not seen.
    pub strays: Vec<u64>,
    /// Calls that do not return, as the caller of [`Flow::trace_until`] said.
    pub dead_ends: Vec<u64>,
    /// Whether a limit was passed: there is more.
    pub is_cut: bool,
    /// Extents that the function lies in.
    pub extents: Vec<(u64, u64)>,
}

impl Flow {
    /// Follows control from `entries`, the first of which says which function is meant.
    pub fn trace(architecture: &dyn Architecture, layout: &Layout<'_>, entries: &[u64]) -> Flow {
        Flow::trace_until(architecture, layout, entries, &|_| false)
    }

    /// The same, where `ends` knows callees that do not return.
    pub fn trace_until(
        architecture: &dyn Architecture,
        layout: &Layout<'_>,
        entries: &[u64],
        ends: &dyn Fn(Callee) -> bool,
    ) -> Flow {
        let mut tracer = Tracer {
            architecture,
            layout,
            ends,
            flow: Flow::default(),
            leaders: BTreeSet::new(),
            open: Vec::new(),
            came: HashMap::new(),
            pending: Vec::new(),
        };
        let mut sorted = entries.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for entry in &sorted {
            if tracer.is_inside(*entry) || tracer.adopt(*entry) {
                tracer.lead(*entry, None);
            }
        }
        tracer.flow.entries = sorted;
        tracer.run();
        let has_pads = |(start, _): &(u64, u64)| layout.extents.starting(*start).is_some_and(|extent| extent.has_pads);
        let has_vague = tracer.flow.tables.iter().any(|table| !table.is_bounded);
        if has_vague || !tracer.flow.unresolved.is_empty() || tracer.flow.extents.iter().any(has_pads) {
            tracer.sweep();
        }
        tracer.finish()
    }

    /// The block that holds the instruction at `address`.
    pub fn block(&self, address: u64) -> Option<&Block> {
        let after = self.blocks.partition_point(|block| block.start <= address);
        self.blocks[..after].last().filter(|block| address < block.end)
    }

    /// Whether `address` is one of the function's instructions.
    pub fn holds(&self, address: u64) -> bool {
        self.steps.contains_key(&address)
    }
}

struct Tracer<'a> {
    architecture: &'a dyn Architecture,
    layout: &'a Layout<'a>,
    ends: &'a dyn Fn(Callee) -> bool,
    flow: Flow,
    leaders: BTreeSet<u64>,
    /// Leaders from which nothing was decoded yet.
    open: Vec<u64>,
    /// The instruction from which a leader was first reached.
    came: HashMap<u64, u64>,
    /// Jumps through tables whose size is not known.
    pending: Vec<(u64, TargetSource)>,
}

impl Tracer<'_> {
    fn is_inside(&self, address: u64) -> bool {
        self.flow.extents.iter().any(|(start, end)| (*start..*end).contains(&address))
    }

    /// Takes the extent that holds `address` as a part of this function; false if it has too many.
    fn adopt(&mut self, address: u64) -> bool {
        let fits = self.flow.extents.len() < EXTENTS_MAX && self.layout.space.is_code(address);
        if fits {
            self.flow.extents.push(self.layout.extent(address));
        }
        fits
    }

    fn lead(&mut self, address: u64, from: Option<u64>) {
        if self.leaders.insert(address) {
            self.open.push(address);
            if let Some(from) = from {
                self.came.insert(address, from);
            }
        }
    }

    fn run(&mut self) {
        loop {
            while let Some(leader) = self.open.pop() {
                self.decode(leader);
            }
            let Some((at, place)) = self.pending.pop() else { return };
            self.indirect(at, place, true);
        }
    }

    /// Addresses that the function takes, as far as it is known.
    fn taken(&self) -> BTreeSet<u64> {
        let taken = self.flow.references.iter().filter(|reference| reference.usage == Use::Take);
        taken.map(|reference| reference.address).collect()
    }

    fn decode(&mut self, leader: u64) {
        let mut at = leader;
        let mut after_call = false;
        while !self.flow.steps.contains_key(&at) {
            if !self.is_inside(at) {
                // What follows a call at the very end of a function is not executed: the callee
                // does not return. Else the function goes on, as those that change their unwind
                // tables on the way do.
                if after_call {
                    return;
                }
                if !self.adopt(at) {
                    self.flow.is_cut |= self.layout.space.is_code(at);
                    return;
                }
            }
            if self.flow.steps.len() >= FUNCTION_STEPS_MAX {
                self.flow.is_cut = true;
                return;
            }
            let Some(step) = self.architecture.step(self.layout, at) else { return };
            self.flow.steps.insert(at, step);
            for (address, usage) in step.names.into_iter().flatten() {
                self.flow.references.push(Reference { at, address, usage });
            }
            after_call &= step.pads;
            match step.action {
                Action::Next => {}
                Action::System(gate) => self.flow.gates.push((at, gate)),
                Action::Call(target) => {
                    // A call of the next instruction only asks where it is.
                    after_call = target != step.next();
                    if self.call(at, Callee::Code(target), false) {
                        return;
                    }
                }
                Action::CallTo(place) => {
                    after_call = true;
                    if self.call(at, callee(place), false) {
                        return;
                    }
                }
                Action::Branch(target) => {
                    self.target(at, target, true);
                    self.lead(step.next(), Some(at));
                    return;
                }
                Action::Jump(target) => return self.target(at, target, false),
                Action::JumpTo(place) => return self.indirect(at, place, false),
                Action::Return | Action::Stop => return,
            }
            at = step.next();
        }
    }

    /// Notes a call; true if it does not return.
    fn call(&mut self, at: u64, callee: Callee, is_tail: bool) -> bool {
        let callee = match callee {
            Callee::Code(target) => self.stub(target).map_or(callee, Callee::Word),
            _ => callee,
        };
        self.flow.calls.push(Call { at, callee, is_tail });
        let ends = !is_tail && (self.ends)(callee);
        if ends {
            self.flow.dead_ends.push(at);
        }
        ends
    }

    /// The word that the stub of a procedure linkage table at `address` jumps through; `None` if
    /// there is no stub.
    fn stub(&self, address: u64) -> Option<u64> {
        let mut step = self.architecture.step(self.layout, address)?;
        // A marker of landing places may come first.
        if step.action == Action::Next && step.names == [None; 2] {
            step = self.architecture.step(self.layout, step.next())?;
        }
        match step.action {
            Action::JumpTo(TargetSource::Word(word)) => self.layout.words.contains_key(&word).then_some(word),
            _ => None,
        }
    }

    fn target(&mut self, at: u64, target: u64, is_conditional: bool) {
        if self.is_inside(target) {
            return self.lead(target, Some(at));
        }
        if !self.layout.space.is_code(target) {
            return;
        }
        let known = self.layout.extents.holding(target);
        let is_part = known.is_some_and(|extent| {
            extent.start != target || extent.name.as_ref().is_some_and(|name| is_part_name(name))
        });
        if (is_conditional || is_part) && self.adopt(target) {
            self.lead(target, Some(at));
        } else {
            self.call(at, Callee::Code(target), true);
        }
    }

    /// An indirect jump; `is_last` if all that can be reached without it was.
    fn indirect(&mut self, at: u64, place: TargetSource, is_last: bool) {
        if let TargetSource::Word(word) = place
            && self.layout.words.contains_key(&word)
        {
            self.call(at, Callee::Word(word), true);
            return;
        }
        let path = self.path(at);
        let taken = self.taken();
        if let Some(table) = self.architecture.table(self.layout, &path, &taken) {
            // What lies behind one of unknown size may be the next one, which is not known yet.
            if !table.is_bounded && !is_last {
                self.pending.push((at, place));
                return;
            }
            let targets: BTreeSet<u64> = table.targets.iter().copied().collect();
            for target in targets {
                if self.is_inside(target) || self.adopt(target) {
                    self.lead(target, Some(at));
                } else {
                    self.call(at, Callee::Code(target), true);
                }
            }
            self.flow.tables.push(table);
            return;
        }
        self.call(at, callee(place), true);
        // A jump through one fixed word is a tail call; any other may be a switch that was not
        // understood.
        if place == TargetSource::Computed {
            self.flow.unresolved.push(at);
        }
    }

    /// Instructions on one way to `at`, in their order.
    fn path(&self, at: u64) -> Vec<u64> {
        let mut path = vec![at];
        let mut here = at;
        while path.len() < PATH_STEPS_MAX {
            let before = self.flow.steps.range(..here).next_back().map(|(_, step)| *step);
            let flows = before.filter(|step| {
                step.next() == here
                    && !matches!(step.action, Action::Jump(_) | Action::JumpTo(_) | Action::Return | Action::Stop)
            });
            let Some(next) = flows.map(|step| step.address).or_else(|| self.came.get(&here).copied()) else { break };
            path.push(next);
            here = next;
        }
        path.reverse();
        path
    }

    /// Decodes what nothing led to.
    fn sweep(&mut self) {
        let mut done = 0;
        while done < self.flow.extents.len() {
            let (mut at, end) = self.flow.extents[done];
            while at < end && !self.flow.is_cut {
                if let Some(step) = self.flow.steps.get(&at) {
                    at = step.next();
                } else if let Some(step) = self.architecture.step(self.layout, at).filter(|step| step.pads) {
                    // Nobody jumps to what does nothing.
                    at = step.next();
                } else if self.architecture.step(self.layout, at).is_some() {
                    self.flow.strays.push(at);
                    self.lead(at, None);
                    self.run();
                    // A leader already known was not decodable from where it is.
                    if !self.flow.steps.contains_key(&at) {
                        at += 1;
                    }
                } else {
                    at += 1;
                }
            }
            done += 1;
        }
    }

    fn finish(mut self) -> Flow {
        let mut flow = std::mem::take(&mut self.flow);
        flow.tables.sort_by_key(|table| table.jump);
        flow.dead_ends.sort_unstable();
        let mut blocks: Vec<Block> = Vec::new();
        let mut ended = true;
        for (at, step) in &flow.steps {
            let joins = !ended && !self.leaders.contains(at) && blocks.last().is_some_and(|block| block.end == *at);
            if joins && let Some(block) = blocks.last_mut() {
                (block.last, block.end) = (*at, step.next());
            } else {
                blocks.push(Block { start: *at, last: *at, end: step.next(), next: Vec::new() });
            }
            ended = ends_block(step.action) || flow.dead_ends.binary_search(at).is_ok();
        }
        let starts: BTreeSet<u64> = blocks.iter().map(|block| block.start).collect();
        for block in &mut blocks {
            let Some(last) = flow.steps.get(&block.last) else { continue };
            let mut next = match last.action {
                Action::Branch(target) => vec![target, last.next()],
                Action::Jump(target) => vec![target],
                Action::JumpTo(_) => match flow.tables.binary_search_by_key(&block.last, |table| table.jump) {
                    Ok(found) => flow.tables[found].targets.clone(),
                    Err(_) if flow.unresolved.contains(&block.last) => flow.strays.clone(),
                    Err(_) => Vec::new(),
                },
                Action::Return | Action::Stop => Vec::new(),
                _ if flow.dead_ends.binary_search(&block.last).is_ok() => Vec::new(),
                _ => vec![last.next()],
            };
            next.sort_unstable();
            next.dedup();
            next.retain(|start| starts.contains(start));
            block.next = next;
        }
        flow.blocks = blocks;
        flow.calls.sort_by_key(|call| (call.at, call.callee));
        flow.gates.sort_unstable();
        flow
    }
}

fn callee(place: TargetSource) -> Callee {
    match place {
        TargetSource::Word(word) => Callee::Word(word),
        TargetSource::Computed => Callee::Unknown,
    }
}

fn ends_block(action: Action) -> bool {
    matches!(action, Action::Jump(_) | Action::Branch(_) | Action::JumpTo(_) | Action::Return | Action::Stop)
}

/// Whether a name says that this is a part of another function, put aside by the compiler:
/// `read.cold`, `main.part.0.cold`.
fn is_part_name(name: &[u8]) -> bool {
    name.windows(5).any(|window| window == b".cold")
}

/// How a call leads on: the word's relocation decides.
impl Callee {
    /// The code of the same object that is called, if that is known.
    pub fn code(self, layout: &Layout<'_>) -> Option<u64> {
        match self {
            Callee::Code(address) => Some(address),
            Callee::Word(word) => match layout.words.get(&word) {
                Some(Word::Address(address)) => Some(*address),
                _ => None,
            },
            Callee::Unknown => None,
        }
    }
}
