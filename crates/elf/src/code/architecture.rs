//! The interface of a processor for following control and values.

use std::collections::BTreeSet;

use super::{Block, Flow, Layout, State, Step, Table, Value};

/// One processor architecture.
pub trait Architecture {
    /// The instruction at `address`; `None` where there is no code, or none that this processor
    /// has.
    fn step(&self, layout: &Layout<'_>, address: u64) -> Option<Step>;

    /// The table that the indirect jump at the end of `path` goes through. `path` holds the
    /// addresses of instructions that are executed before the jump, in their order, the jump last.
    /// A table whose size is not known ends before the next of `taken`: addresses that the function
    /// takes.
    fn table(&self, layout: &Layout<'_>, path: &[u64], taken: &BTreeSet<u64>) -> Option<Table>;

    /// Whether the address that the instruction at `at` takes is only compared with others, and so
    /// never called.
    fn is_compared(&self, layout: &Layout<'_>, flow: &Flow, at: u64) -> bool;

    /// Changes `state`, which holds before the instruction at `address`, to what holds behind it.
    fn transfer(&self, layout: &Layout<'_>, address: u64, state: &mut State);

    /// Narrows `state`, which holds behind `block`, to what holds where it goes on at `next`.
    fn decide(&self, layout: &Layout<'_>, block: &Block, next: u64, state: &mut State);

    /// What the instruction at `address` stores to memory; unknown if it does more than store.
    fn stored(&self, layout: &Layout<'_>, address: u64, state: &State) -> Value;

    /// The number of the stack pointer among the registers.
    fn stack_pointer(&self) -> usize;

    /// Where the stack pointer is at the entry of a function that is called from here (`is_tail`:
    /// jumped to).
    fn callee_stack(&self, state: &State, is_tail: bool) -> Value;

    /// The registers of a system call: its number, then its arguments.
    fn call_registers(&self) -> (usize, [usize; 6]);

    /// The registers in which functions get their first arguments.
    fn argument_registers(&self) -> [usize; 6];
}
