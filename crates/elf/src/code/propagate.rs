//! Constant propagation through one function (Kildall 1973): the state before every block is the
//! join of the states behind those that lead to it, until nothing changes.

use std::collections::{BTreeSet, HashMap};

use super::{Architecture, Flow, Layout, State};

/// Rounds through one block in which values may grow; after that what changes is unknown.
const ROUNDS_MAX: u32 = 8;

/// Instructions interpreted for one function, all rounds together.
const WORK_MAX: usize = 4_000_000;

/// States before each of `points`, which are instructions of `flow`. A point that is missing is
/// never reached. `None` if the function takes more work than is allowed.
///
/// Entries that are in `called` are reached by calls, all others from anywhere.
pub fn propagate(
    architecture: &dyn Architecture,
    layout: &Layout<'_>,
    flow: &Flow,
    called: impl Fn(u64) -> bool,
    points: &BTreeSet<u64>,
) -> Option<HashMap<u64, State>> {
    let index: HashMap<u64, usize> = flow.blocks.iter().enumerate().map(|(at, block)| (block.start, at)).collect();
    let mut before: Vec<Option<State>> = vec![None; flow.blocks.len()];
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let entries = flow.entries.iter().map(|entry| (*entry, called(*entry)));
    for (start, is_called) in entries.chain(flow.strays.iter().map(|stray| (*stray, false))) {
        if let Some(at) = index.get(&start) {
            let state = if is_called { State::entry(architecture.stack_pointer()) } else { State::unknown() };
            merge(&mut before[*at], &state, false);
            open.insert(*at);
        }
    }
    let mut work = 0;
    let mut rounds = vec![0u32; flow.blocks.len()];
    let mut found: HashMap<u64, State> = HashMap::new();
    while let Some(at) = open.pop_first() {
        let Some(mut state) = before[at].clone() else { continue };
        let block = &flow.blocks[at];
        rounds[at] += 1;
        let mut address = block.start;
        while address < block.end {
            let step = flow.steps.get(&address)?;
            if points.contains(&address) {
                // Every state before a block holds those of earlier rounds, so the last is the
                // widest.
                found.insert(address, state.clone());
            }
            architecture.transfer(layout, address, &mut state);
            address = step.next();
            work += 1;
            if work > WORK_MAX {
                return None;
            }
        }
        for next in &block.next {
            let Some(to) = index.get(next) else { continue };
            let mut along = state.clone();
            architecture.decide(layout, block, *next, &mut along);
            if merge(&mut before[*to], &along, rounds[*to] > ROUNDS_MAX) {
                open.insert(*to);
            }
        }
    }
    Some(found)
}

fn merge(into: &mut Option<State>, state: &State, widens: bool) -> bool {
    match into {
        Some(known) => known.join(state, widens),
        None => {
            *into = Some(state.clone());
            true
        }
    }
}
