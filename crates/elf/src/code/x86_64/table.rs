//! Jump tables of `switch`. The registers of an indirect jump are followed back along one way to
//! it.

use std::collections::BTreeSet;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::step::{decode, fixed};
use crate::code::{Layout, TABLE_ENTRIES_MAX, Table};

/// Instructions between a comparison and the branch that uses it.
const FLAGS_STEPS_MAX: usize = 8;

/// Entries that a mask stands for; larger masks only say how wide an index is.
const MASKED_ENTRIES_MAX: u64 = 64;

/// Copies of an index that are followed.
const COPIES_MAX: usize = 16;

/// The table of the jump that ends `path`.
pub(super) fn table(layout: &Layout<'_>, path: &[u64], taken: &BTreeSet<u64>) -> Option<Table> {
    let code: Vec<Instruction> = path.iter().map(|address| decode(layout, *address)).collect::<Option<_>>()?;
    let way = Way { code };
    let form = way.form()?;
    let bound = way.bound(form.at, &form.index);
    let targets = read(layout, &form, *path.last()?, bound, taken)?;
    let (jump, address) = (*path.last()?, form.table);
    Some(Table {
        jump,
        address,
        entry_bytes: form.entry_bytes,
        anchor: form.anchor,
        targets,
        is_bounded: matches!(bound, Bound::Exact(_)),
    })
}

/// What an indirect jump goes through.
struct Form {
    /// Position in the path of the instruction that reads the table.
    at: usize,
    table: u64,
    index: Register,
    entry_bytes: u8,
    anchor: Option<u64>,
}

/// Instructions on one way to a jump, in their order, the jump last.
struct Way {
    code: Vec<Instruction>,
}

/// What is known of the number of entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// A comparison or a mask says it.
    Exact(u64),
    /// The index has no more values than this.
    AtMost(u64),
}

/// Something that is compared: a register as a whole, or a place in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thing {
    Register(Register),
    Memory(Register, Register, u32, u64),
}

impl Way {
    fn form(&self) -> Option<Form> {
        let at = self.code.len().checked_sub(1)?;
        let jump = &self.code[at];
        match jump.op0_kind() {
            OpKind::Memory => self.array(at, jump, 8, None),
            OpKind::Register => self.through_register(at, jump.op0_register()),
            _ => None,
        }
    }

    fn through_register(&self, at: usize, register: Register) -> Option<Form> {
        let (from, source) = self.definition(at, register)?;
        match source.mnemonic() {
            Mnemonic::Mov if source.op1_kind() == OpKind::Memory => {
                let bytes = source.memory_size().size() as u8;
                self.array(from, source, bytes, None)
            }
            Mnemonic::Mov if source.op1_kind() == OpKind::Register => {
                self.through_register(from, source.op1_register())
            }
            Mnemonic::Add if source.op1_kind() == OpKind::Register => {
                self.sum(from, source.op0_register(), source.op1_register())
            }
            Mnemonic::Lea if source.memory_index_scale() == 1 && source.memory_displacement64() == 0 => {
                self.sum(from, source.memory_base(), source.memory_index())
            }
            _ => None,
        }
    }

    /// `one + other`, of which one was read from a table of distances and the other is what they
    /// are relative to.
    fn sum(&self, at: usize, one: Register, other: Register) -> Option<Form> {
        for (distance, anchor) in [(one, other), (other, one)] {
            let Some((from, source)) = self.definition(at, distance) else { continue };
            let is_distance = matches!(source.mnemonic(), Mnemonic::Movsxd | Mnemonic::Movsx)
                && source.op1_kind() == OpKind::Memory
                && source.memory_size().size() == 4;
            if is_distance && let Some(anchor) = self.constant(at, anchor) {
                return self.array(from, source, 4, Some(anchor));
            }
        }
        None
    }

    /// The array that the memory operand of `instruction` is an element of.
    fn array(&self, at: usize, instruction: &Instruction, entry_bytes: u8, anchor: Option<u64>) -> Option<Form> {
        if fixed(instruction).is_some() || instruction.memory_index_scale() != u32::from(entry_bytes) {
            return None;
        }
        let index = instruction.memory_index();
        let base = match instruction.memory_base() {
            Register::None => 0,
            base => self.constant(at, base)?,
        };
        let table = base.wrapping_add(instruction.memory_displacement64());
        (index != Register::None).then_some(Form { at, table, index, entry_bytes, anchor })
    }

    /// The last instruction before position `at` that writes `register`.
    fn definition(&self, at: usize, register: Register) -> Option<(usize, &Instruction)> {
        let position = (0..at).rev().find(|position| writes(&self.code[*position], register))?;
        Some((position, &self.code[position]))
    }

    /// The constant in `register` before the instruction at position `at`.
    fn constant(&self, at: usize, register: Register) -> Option<u64> {
        let (mut at, mut register) = (at, register);
        for _ in 0..COPIES_MAX {
            let (from, source) = self.definition(at, register)?;
            match (source.mnemonic(), source.op1_kind()) {
                (Mnemonic::Lea, OpKind::Memory) => return fixed(source),
                (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64) => {
                    return Some(source.immediate(1));
                }
                (Mnemonic::Mov, OpKind::Register) => (at, register) = (from, source.op1_register()),
                _ => return None,
            }
        }
        None
    }

    /// How many values the index has that the instruction at position `at` uses.
    fn bound(&self, at: usize, index: &Register) -> Bound {
        let mut widest = TABLE_ENTRIES_MAX as u64;
        match self.compared_bound(at, index, &mut widest) {
            Some(count) => Bound::Exact(count),
            None => Bound::AtMost(widest),
        }
    }

    /// The number that a comparison or a mask tells; `widest` becomes what the width of the index
    /// allows.
    fn compared_bound(&self, at: usize, index: &Register, widest: &mut u64) -> Option<u64> {
        let mut thing = Thing::Register(index.full_register());
        let mut position = at;
        for _ in 0..COPIES_MAX {
            let (from, found) = self.compared(position, at, thing);
            if found.is_some() {
                return found;
            }
            let source = &self.code[from?];
            let narrow = |bytes: usize| (bytes < 4).then(|| 1u64 << (bytes * 8));
            let (next, count) = match (source.mnemonic(), source.op1_kind()) {
                (Mnemonic::Mov | Mnemonic::Movsxd, kind) => (self.operand(source, 1, kind)?, None),
                (Mnemonic::Movzx, OpKind::Register) => {
                    (self.operand(source, 1, OpKind::Register)?, narrow(source.op1_register().size()))
                }
                (Mnemonic::Movzx, OpKind::Memory) => {
                    (self.operand(source, 1, OpKind::Memory)?, narrow(source.memory_size().size()))
                }
                (
                    Mnemonic::And,
                    OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32,
                ) => {
                    let count = source.immediate(1).checked_add(1)?;
                    *widest = count.min(*widest);
                    return (count <= MASKED_ENTRIES_MAX).then_some(count);
                }
                (Mnemonic::Cdqe, _) => (Thing::Register(Register::RAX), None),
                _ => return None,
            };
            *widest = count.unwrap_or(*widest).min(*widest);
            (thing, position) = (next, from?);
        }
        None
    }

    fn operand(&self, instruction: &Instruction, operand: u32, kind: OpKind) -> Option<Thing> {
        match kind {
            OpKind::Register => Some(Thing::Register(instruction.op_register(operand).full_register())),
            OpKind::Memory => Some(Thing::Memory(
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_index_scale(),
                instruction.memory_displacement64(),
            )),
            _ => None,
        }
    }

    /// Looks back from `at`, and ahead as far as `last`, for a comparison of `thing` with a number
    /// that decides whether the way is taken. Also gives the position at which `thing` was written.
    fn compared(&self, at: usize, last: usize, thing: Thing) -> (Option<usize>, Option<u64>) {
        let changes = |position: usize| match thing {
            Thing::Register(register) => writes(&self.code[position], register),
            // Between comparison and use of a place in memory there is only the load.
            Thing::Memory(..) => self.code[position].op0_kind() == OpKind::Memory && is_store(&self.code[position]),
        };
        for position in at + 1..last {
            if let Some(count) = self.comparison(position, thing) {
                return (None, Some(count));
            }
            if changes(position) {
                break;
            }
        }
        for position in (0..at).rev() {
            if let Some(count) = self.comparison(position, thing) {
                return (None, Some(count));
            }
            if changes(position) {
                return (Some(position), None);
            }
        }
        (None, None)
    }

    /// How many values `thing` may have, if the instruction at `position` compares it and the way
    /// goes on where it is small.
    fn comparison(&self, position: usize, thing: Thing) -> Option<u64> {
        let compare = &self.code[position];
        let is_number = matches!(
            compare.op1_kind(),
            OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        );
        if compare.mnemonic() != Mnemonic::Cmp || !is_number {
            return None;
        }
        if self.operand(compare, 0, compare.op0_kind())? != thing {
            return None;
        }
        let limit = compare.immediate(1);
        let after = (position + 1)..self.code.len().min(position + 1 + FLAGS_STEPS_MAX);
        let branch = after.clone().find(|at| self.code[*at].is_jcc_short_or_near())?;
        let next = self.code.get(branch + 1)?.ip();
        let is_taken = next == self.code[branch].near_branch_target();
        let is_inclusive = match (self.code[branch].mnemonic(), is_taken) {
            (Mnemonic::Ja | Mnemonic::Jg, false) | (Mnemonic::Jbe | Mnemonic::Jle, true) => true,
            (Mnemonic::Jae | Mnemonic::Jge, false) | (Mnemonic::Jb | Mnemonic::Jl, true) => false,
            _ => return None,
        };
        let count = limit.checked_add(u64::from(is_inclusive))?;
        (1..=TABLE_ENTRIES_MAX as u64).contains(&count).then_some(count)
    }
}

/// Whether an instruction stores to its first operand.
fn is_store(instruction: &Instruction) -> bool {
    !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop | Mnemonic::Jmp)
}

/// Whether an instruction writes any part of a register. A call writes what callees need not keep.
fn writes(instruction: &Instruction, register: Register) -> bool {
    let register = register.full_register();
    if matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Syscall) {
        use Register::{R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI};
        return [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11].contains(&register);
    }
    let mut factory = InstructionInfoFactory::new();
    factory.info(instruction).used_registers().iter().any(|used| {
        let is_write = matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        is_write && used.register().full_register() == register
    })
}

/// The targets of a table; `None` if an entry of a table of known size leads nowhere. One of
/// unknown size ends before the next of `taken`, and where an entry leads out of the function.
fn read(layout: &Layout<'_>, form: &Form, jump: u64, bound: Bound, taken: &BTreeSet<u64>) -> Option<Vec<u64>> {
    let (start, end) = layout.extent(jump);
    let (limit, is_exact) = match bound {
        Bound::Exact(count) => (count, true),
        Bound::AtMost(count) => (count, false),
    };
    let stop = taken.range(form.table.checked_add(1)?..).next().copied().unwrap_or(u64::MAX);
    let mut targets = Vec::new();
    for number in 0..limit {
        let at = form.table.checked_add(number * u64::from(form.entry_bytes))?;
        let target = match (form.entry_bytes, form.anchor) {
            (8, None) => layout.pointer(at),
            (4, None) => layout.space.number(at, 4),
            (4, Some(anchor)) => {
                layout.space.number(at, 4).map(|distance| anchor.wrapping_add_signed(i64::from(distance as u32 as i32)))
            }
            _ => return None,
        };
        let target = target.filter(|target| layout.space.is_code(*target));
        match target {
            Some(target) if is_exact => targets.push(target),
            None if is_exact => return None,
            Some(target) if at < stop && (start..end).contains(&target) => targets.push(target),
            _ => break,
        }
    }
    (!targets.is_empty()).then_some(targets)
}
