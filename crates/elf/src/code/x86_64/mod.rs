//! x86-64. Peculiar about it: instructions of 1 to 15 bytes, so that a wrong start decodes to other
//! instructions; addresses relative to the instruction; jump tables of addresses (`jmp
//! [table+index*8]`), or of distances from the table (`movsxd rax, [table+index*4]; add rax, table;
//! jmp rax`), and `notrack` before jumps through them; a write of half a register clears its other
//! half.

mod compared;
mod step;
mod table;
mod transfer;

use std::collections::BTreeSet;

use super::{Architecture, Block, Flow, Layout, State, Step, Table, Value};

/// The x86-64 architecture, with the calling convention of its System V psABI.
#[derive(Clone, Copy, Debug, Default)]
pub struct X86_64;

impl Architecture for X86_64 {
    fn step(&self, layout: &Layout<'_>, address: u64) -> Option<Step> {
        step::step(layout, address)
    }

    fn table(&self, layout: &Layout<'_>, path: &[u64], taken: &BTreeSet<u64>) -> Option<Table> {
        table::table(layout, path, taken)
    }

    fn is_compared(&self, layout: &Layout<'_>, flow: &Flow, at: u64) -> bool {
        compared::is_compared(layout, flow, at)
    }

    fn transfer(&self, layout: &Layout<'_>, address: u64, state: &mut State) {
        transfer::transfer(layout, address, state);
    }

    fn decide(&self, layout: &Layout<'_>, block: &Block, next: u64, state: &mut State) {
        transfer::decide(layout, block, next, state);
    }

    fn stored(&self, layout: &Layout<'_>, address: u64, state: &State) -> Value {
        transfer::stored(layout, address, state)
    }

    fn stack_pointer(&self) -> usize {
        transfer::RSP
    }

    fn callee_stack(&self, state: &State, is_tail: bool) -> Value {
        let top = state.register(transfer::RSP);
        // A call pushes where to return to.
        if is_tail { top.clone() } else { top.plus(-8) }
    }

    fn call_registers(&self) -> (usize, [usize; 6]) {
        // RAX; RDI, RSI, RDX, R10, R8, R9
        (transfer::RAX, [7, 6, 2, 10, 8, 9])
    }

    fn argument_registers(&self) -> [usize; 6] {
        transfer::ARGUMENTS
    }
}
