//! Collects executed addresses into functions and their blocks.

use std::collections::HashMap;

use crate::blocks::{Group, groups};
use crate::format::FUNCTION_BYTES_MAX;
use crate::{Block, Coverage, CoverageError, Function, How, ORDER_UNKNOWN, Phase, Scenario, Symbols, writer};

const BOOT: u8 = 1;
const SERVICE: u8 = 2;

/// What a collector was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Blocks of the kernel's code.
    pub blocks: u64,
    /// Of these, blocks that lie in no function that has a name.
    pub outside: u64,
    /// Of these, blocks whose bytes are not those of the linked kernel: instructions that it
    /// replaced, or another kernel.
    pub different: u64,
}

struct Ran {
    /// Phases of each byte.
    phases: Vec<u8>,
    /// When it first ran in boot, and in service.
    first: [u32; 2],
}

/// Collects what ran. Takes memory for the functions that ran, however much it is given.
pub struct Collector<'a> {
    symbols: &'a Symbols,
    ran: HashMap<usize, Ran>,
    next: u32,
    /// Whether the kernel runs where it is linked for.
    is_linked: bool,
    seen: Seen,
}

impl<'a> Collector<'a> {
    /// Nothing ran yet.
    pub fn new(symbols: &'a Symbols) -> Self {
        Self { symbols, ran: HashMap::new(), next: 0, is_linked: false, seen: Seen::default() }
    }

    /// The instructions `bytes` at `address` ran. Blocks must come in the order in which they first
    /// ran. While the kernel starts, code where it is loaded counts too; later only programs have
    /// such addresses.
    pub fn block(&mut self, address: u64, bytes: &[u8], phase: Phase) {
        let is_high = self.symbols.holds(address, &[]).is_some();
        self.is_linked |= is_high;
        let address = if is_high {
            address
        } else {
            match self.symbols.linked(address) {
                Some(address) if !self.is_linked => address,
                _ => return,
            }
        };
        self.seen.blocks += 1;
        self.seen.different += u64::from(self.symbols.holds(address, bytes) == Some(false));
        self.seen.outside += u64::from(!self.mark(address, bytes.len() as u64, phase));
    }

    /// What it was given until now.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Marks bytes of all functions that they lie in; whether there is one.
    fn mark(&mut self, address: u64, bytes: u64, phase: Phase) -> bool {
        let symbols = self.symbols.functions();
        let end = address.saturating_add(bytes);
        let first = symbols.partition_point(|symbol| symbol.address <= address).saturating_sub(1);
        let mut is_known = false;
        for (index, symbol) in symbols.iter().enumerate().skip(first) {
            if symbol.address >= end {
                break;
            }
            let size = symbol.bytes.min(FUNCTION_BYTES_MAX);
            let (from, to) = (address.max(symbol.address) - symbol.address, (end - symbol.address).min(size));
            if from >= to {
                continue;
            }
            is_known = true;
            let ran = self.ran.entry(index);
            let ran = ran.or_insert_with(|| Ran { phases: vec![0; size as usize], first: [ORDER_UNKNOWN; 2] });
            for (is_in, first, flag) in [(phase.boot(), 0, BOOT), (phase.service(), 1, SERVICE)] {
                if is_in {
                    if ran.first[first] == ORDER_UNKNOWN {
                        ran.first[first] = self.next;
                        self.next = self.next.saturating_add(1);
                    }
                    ran.phases[from as usize..to as usize].iter_mut().for_each(|phases| *phases |= flag);
                }
            }
        }
        is_known
    }

    /// The coverage of what ran, as one scenario.
    ///
    /// # Errors
    /// `name` cannot be the name of a scenario, or there are more blocks than a file may have.
    pub fn finish(self, name: &str, how: How) -> Result<Coverage, CoverageError> {
        let symbols = self.symbols.functions();
        let functions = self.ran.into_iter().map(|(index, ran)| {
            let is_in = |flag: u8| ran.phases.iter().any(|phases| phases & flag != 0);
            let (boot, service) = (is_in(BOOT), is_in(SERVICE));
            let function = Function {
                name: symbols[index].name.clone(),
                bytes: symbols[index].bytes,
                order: 0,
                boot,
                service,
                blocks: blocks(&ran.phases),
            };
            (ran.first, function)
        });
        let mut functions: Vec<([u32; 2], Function)> = functions.collect();
        // By the first execution in service, and those that have none behind, by the first one in
        // boot.
        functions.sort_by_key(|(first, _)| (first[1], first[0]));
        let ranked = functions.into_iter().enumerate();
        let groups = groups(ranked.map(|(rank, (_, function))| Function { order: rank as u32, ..function }));
        let functions = groups.into_iter().map(|(name, mut group)| {
            if let Some(copies) = self.symbols.copies(&name).filter(|copies| copies.differ) {
                // The others did not run, but what has this name is not known better.
                group.differ(copies.bytes);
            }
            Group::finish(group)
        });
        coverage(self.symbols.release(), name, how, functions.collect())
    }
}

/// A coverage of one scenario.
pub(crate) fn coverage(
    release: &str,
    name: &str,
    how: How,
    functions: Vec<Function>,
) -> Result<Coverage, CoverageError> {
    let blocks = functions.iter().map(|function| function.blocks.len() as u32).sum();
    let scenario = Scenario { name: name.to_string(), how, functions: functions.len() as u32, blocks };
    let coverage = Coverage { release: release.to_string(), scenarios: vec![scenario], functions };
    writer::check(&coverage)?;
    Ok(coverage)
}

/// Runs of bytes with the same phases.
fn blocks(phases: &[u8]) -> Vec<Block> {
    let mut offset = 0;
    let mut blocks = Vec::new();
    for run in phases.chunk_by(|one, other| one == other) {
        let (boot, service) = (run[0] & BOOT != 0, run[0] & SERVICE != 0);
        if boot || service {
            blocks.push(Block { offset, bytes: run.len() as u32, boot, service });
        }
        offset += run.len() as u32;
    }
    blocks
}
