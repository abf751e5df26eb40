//! The effect of instructions on registers and stack. The result of an unknown instruction is
//! unknown.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::step::{decode, fixed};
use crate::code::{Atom, Block, Layout, State, Value, Width};

/// The number of a general register in [`State`]; `None` for others.
pub(super) fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    (Register::RAX..=Register::R15).contains(&full).then(|| full as usize - Register::RAX as usize)
}

pub(super) const RAX: usize = 0;
const RCX: usize = 1;
pub(super) const RSP: usize = 4;
const RBP: usize = 5;
const R11: usize = 11;

/// Registers that a callee may change: RAX, RCX, RDX, RSI, RDI, R8 to R11.
const CHANGED_BY_CALLS: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// Registers of arguments in calls of functions: RDI, RSI, RDX, RCX, R8, R9.
pub(super) const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

pub(super) fn transfer(layout: &Layout<'_>, address: u64, state: &mut State) {
    let Some(instruction) = decode(layout, address) else { return };
    let this = &instruction;
    match this.mnemonic() {
        Mnemonic::Mov => write(layout, this, state, read(layout, this, 1, state)),
        Mnemonic::Lea => {
            let value = effective(layout, this, state);
            write(layout, this, state, value);
        }
        Mnemonic::Movzx => write(layout, this, state, read(layout, this, 1, state)),
        Mnemonic::Movsx | Mnemonic::Movsxd => {
            let value = extend(&read(layout, this, 1, state), operand_bytes(this, 1));
            write(layout, this, state, value);
        }
        Mnemonic::Cdqe => {
            let value = state.register(RAX).narrow(Width::Sign32);
            state.set(RAX, value);
        }
        Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Pxor if is_same(this) => {
            write(layout, this, state, Value::constant(0))
        }
        Mnemonic::Sbb if is_same(this) => {
            write(layout, this, state, Value::any_of([Atom::Constant(0), Atom::Constant(u64::MAX)]));
        }
        Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Shl
        | Mnemonic::Shr => {
            let value = arithmetic(layout, this, state);
            write(layout, this, state, value);
        }
        Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Neg | Mnemonic::Not => {
            let value = unary(layout, this, state);
            write(layout, this, state, value);
        }
        Mnemonic::Imul if this.op_count() == 3 => {
            let factor = this.immediate(2);
            let value = on_constants(&read(layout, this, 1, state), |number| number.wrapping_mul(factor));
            write(layout, this, state, value);
        }
        Mnemonic::Push => push(layout, this, state),
        Mnemonic::Pop => pop(layout, this, state),
        Mnemonic::Leave => {
            let frame = state.register(RBP).clone();
            let saved = state.load(layout, &frame, 8);
            state.set(RSP, frame.plus(8));
            state.set(RBP, saved);
        }
        Mnemonic::Xchg if this.op0_kind() == OpKind::Register && this.op1_kind() == OpKind::Register => {
            let (one, other) = (read(layout, this, 0, state), read(layout, this, 1, state));
            set_register(state, this.op0_register(), other);
            set_register(state, this.op1_register(), one);
        }
        Mnemonic::Call => call(layout, state),
        Mnemonic::Syscall => {
            for register in [RAX, RCX, R11] {
                state.set(register, Value::UNKNOWN);
            }
            state.disturb();
        }
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Bt => {}
        _ if is_conditional_move(this) => {
            let value = read(layout, this, 0, state).join(&read(layout, this, 1, state));
            write(layout, this, state, value);
        }
        _ if is_set(this) => set_on_condition(this, state),
        _ => unknown(layout, this, state),
    }
}

/// Narrows the register that the branch at the end of a block depends on: `cmp reg, number; je
/// next`.
pub(super) fn decide(layout: &Layout<'_>, block: &Block, next: u64, state: &mut State) {
    let Some(branch) = decode(layout, block.last) else { return };
    let is_equal = match branch.mnemonic() {
        Mnemonic::Je => branch.near_branch_target() == next,
        Mnemonic::Jne => branch.near_branch_target() != next,
        _ => return,
    };
    if branch.near_branch_target() == branch.next_ip() {
        return;
    }
    // The comparison, if nothing lies between it and the branch.
    let Some(compare) = before(layout, block) else { return };
    let register = compare.op0_register();
    let number_compared = match (compare.mnemonic(), compare.op0_kind(), compare.op1_kind()) {
        (
            Mnemonic::Cmp,
            OpKind::Register,
            OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32 | OpKind::Immediate32to64,
        ) => compare.immediate(1),
        (Mnemonic::Test, OpKind::Register, OpKind::Register) if is_same(&compare) => 0,
        _ => return,
    };
    let (Some(register_number), bytes @ (4 | 8)) = (number(register), register.size()) else { return };
    let number_compared = if bytes == 4 { u64::from(number_compared as u32) } else { number_compared };
    let value = state.register(register_number).clone();
    // Half a register says nothing of a whole one whose other half is not known to be zero.
    let is_whole =
        bytes == 8 || value.constants().is_some_and(|all| all.iter().all(|number| *number <= u64::from(u32::MAX)));
    if !is_whole {
        return;
    }
    if !is_equal {
        state.set(register_number, value.without(number_compared));
    } else if value.constants().is_none_or(|all| all.contains(&number_compared)) {
        state.set(register_number, Value::constant(number_compared));
    }
}

/// The instruction before the last of a block.
fn before(layout: &Layout<'_>, block: &Block) -> Option<Instruction> {
    let mut at = block.start;
    let mut found = None;
    while at < block.last {
        let instruction = decode(layout, at)?;
        at = instruction.next_ip();
        found = Some(instruction);
    }
    found
}

/// The address that a memory operand means; segments other than the flat ones are unknown.
fn effective(layout: &Layout<'_>, this: &Instruction, state: &State) -> Value {
    let is_lea = this.mnemonic() == Mnemonic::Lea;
    if !is_lea && matches!(this.segment_prefix(), Register::FS | Register::GS) {
        return Value::UNKNOWN;
    }
    if let Some(address) = fixed(this) {
        return Value::address(address, layout.is_absolute || !this.is_ip_rel_memory_operand());
    }
    let part = |register: Register| match register {
        Register::None => Some(Value::constant(0)),
        register if register.size() == 8 => number(register).map(|number| state.register(number).clone()),
        _ => None,
    };
    let (Some(base), Some(index)) = (part(this.memory_base()), part(this.memory_index())) else {
        return Value::UNKNOWN;
    };
    let scale = u64::from(this.memory_index_scale());
    let index = index.map(|atom| match atom {
        Atom::Constant(number) => Some(Atom::Constant(number.wrapping_mul(scale))),
        other => (scale == 1).then_some(other),
    });
    let sum = sum(&base, &index).plus(this.memory_displacement64() as i64);
    if is_lea && layout.is_absolute && operand_bytes(this, 0) == 4 { sum.narrow(Width::Zero32) } else { sum }
}

fn sum(one: &Value, other: &Value) -> Value {
    one.with(other, |one, other| match (one, other) {
        (atom, Atom::Constant(number)) | (Atom::Constant(number), atom) => {
            Value::of(atom).plus(number as i64).atoms().and_then(|atoms| atoms.first().copied())
        }
        _ => None,
    })
}

fn operand_bytes(this: &Instruction, operand: u32) -> usize {
    match this.op_kind(operand) {
        OpKind::Register => this.op_register(operand).size(),
        OpKind::Memory => this.memory_size().size(),
        _ => 8,
    }
}

fn read(layout: &Layout<'_>, this: &Instruction, operand: u32, state: &State) -> Value {
    match this.op_kind(operand) {
        OpKind::Register => get_register(state, this.op_register(operand)),
        OpKind::Memory => match operand_bytes(this, operand) {
            bytes @ (1 | 2 | 4 | 8) => state.load(layout, &effective(layout, this, state), bytes as u8),
            _ => Value::UNKNOWN,
        },
        OpKind::NearBranch16
        | OpKind::NearBranch32
        | OpKind::NearBranch64
        | OpKind::FarBranch16
        | OpKind::FarBranch32 => Value::UNKNOWN,
        kind if is_immediate(kind) => Value::constant(this.immediate(operand)),
        _ => Value::UNKNOWN,
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

fn get_register(state: &State, register: Register) -> Value {
    let Some(number) = number(register) else { return Value::UNKNOWN };
    let value = state.register(number);
    let is_high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    match register.size() {
        8 => value.clone(),
        4 => value.narrow(Width::Zero32),
        bytes @ (1 | 2) if !is_high => value.map(|atom| match atom {
            Atom::Constant(number) => Some(Atom::Constant(number & ((1 << (bytes * 8)) - 1))),
            _ => None,
        }),
        _ => Value::UNKNOWN,
    }
}

fn set_register(state: &mut State, register: Register, value: Value) {
    let Some(number) = number(register) else { return };
    let is_high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let value = match register.size() {
        8 => value,
        4 => value.narrow(Width::Zero32),
        bytes @ (1 | 2) if !is_high => {
            let mask = (1u64 << (bytes * 8)) - 1;
            state.register(number).with(&value, |old, new| match (old, new) {
                (Atom::Constant(old), Atom::Constant(new)) => Some(Atom::Constant(old & !mask | new & mask)),
                _ => None,
            })
        }
        _ => Value::UNKNOWN,
    };
    state.set(number, value);
}

/// Writes the first operand.
fn write(layout: &Layout<'_>, this: &Instruction, state: &mut State, value: Value) {
    match this.op0_kind() {
        OpKind::Register => set_register(state, this.op0_register(), value),
        OpKind::Memory => {
            let address = effective(layout, this, state);
            let bytes = operand_bytes(this, 0) as u32;
            let value = if matches!(bytes, 4 | 8) { value } else { Value::UNKNOWN };
            state.store(&address, bytes, value);
        }
        _ => {}
    }
}

fn extend(value: &Value, bytes: usize) -> Value {
    match bytes {
        4 => value.narrow(Width::Sign32),
        1 | 2 => value.map(|atom| match atom {
            Atom::Constant(number) if bytes == 1 => Some(Atom::Constant(i64::from(number as u8 as i8) as u64)),
            Atom::Constant(number) => Some(Atom::Constant(i64::from(number as u16 as i16) as u64)),
            _ => None,
        }),
        _ => value.clone(),
    }
}

fn is_same(this: &Instruction) -> bool {
    this.op0_kind() == OpKind::Register
        && this.op1_kind() == OpKind::Register
        && this.op0_register() == this.op1_register()
}

fn add(value: &Value, number: i64, bytes: usize) -> Value {
    match bytes {
        8 => value.plus(number),
        // 32 bits: the sum of an input's low half is the low half of the sum.
        4 => value.map(|atom| match atom {
            Atom::Constant(constant) => Some(Atom::Constant(u64::from((constant as u32).wrapping_add(number as u32)))),
            _ => None,
        }),
        _ => value.map(|atom| match atom {
            Atom::Constant(constant) => Some(Atom::Constant(constant.wrapping_add_signed(number))),
            _ => None,
        }),
    }
}

fn arithmetic(layout: &Layout<'_>, this: &Instruction, state: &State) -> Value {
    let (one, other) = (read(layout, this, 0, state), read(layout, this, 1, state));
    let bytes = operand_bytes(this, 0);
    let mnemonic = this.mnemonic();
    if let (Mnemonic::Add | Mnemonic::Sub, Some(number)) = (mnemonic, other.number()) {
        let number = number as i64;
        return add(&one, if mnemonic == Mnemonic::Add { number } else { number.wrapping_neg() }, bytes);
    }
    // These give the same whatever the other operand is.
    let all_ones = if bytes == 4 { u64::from(u32::MAX) } else { u64::MAX };
    match (mnemonic, other.number()) {
        (Mnemonic::And, Some(0)) => return Value::constant(0),
        (Mnemonic::Or, Some(number)) if number & all_ones == all_ones => return Value::constant(all_ones),
        _ => {}
    }
    if mnemonic == Mnemonic::Add && bytes == 8 {
        return sum(&one, &other);
    }
    if mnemonic == Mnemonic::And
        && let Some(frame) = one.frame()
        && other.number().is_some_and(|mask| (mask as i64) < 0 && (mask as i64) >= -4096)
    {
        // The stack pointer is aligned: how much is lost is not known, and all that follows is
        // relative to the new one.
        let _ = frame;
        return Value::UNKNOWN;
    }
    let bits = bytes as u32 * 8;
    one.with(&other, |one, other| {
        let (Atom::Constant(one), Atom::Constant(other)) = (one, other) else { return None };
        let shift = (other & if bits == 64 { 63 } else { 31 }) as u32;
        Some(Atom::Constant(match mnemonic {
            Mnemonic::Add => one.wrapping_add(other),
            Mnemonic::Sub => one.wrapping_sub(other),
            Mnemonic::And => one & other,
            Mnemonic::Or => one | other,
            Mnemonic::Xor => one ^ other,
            Mnemonic::Shl => one.wrapping_shl(shift),
            Mnemonic::Shr => one.wrapping_shr(shift),
            _ => return None,
        }))
    })
}

/// What an instruction makes of its only operand.
fn unary(layout: &Layout<'_>, this: &Instruction, state: &State) -> Value {
    let value = read(layout, this, 0, state);
    match this.mnemonic() {
        Mnemonic::Inc => add(&value, 1, operand_bytes(this, 0)),
        Mnemonic::Dec => add(&value, -1, operand_bytes(this, 0)),
        Mnemonic::Neg => on_constants(&value, u64::wrapping_neg),
        _ => on_constants(&value, |number| !number),
    }
}

/// Applies `change` to a value if all it may be are constants.
fn on_constants(value: &Value, change: impl Fn(u64) -> u64) -> Value {
    value.map(|atom| match atom {
        Atom::Constant(number) => Some(Atom::Constant(change(number))),
        _ => None,
    })
}

fn push(layout: &Layout<'_>, this: &Instruction, state: &mut State) {
    let value = read(layout, this, 0, state);
    let top = state.register(RSP).plus(-8);
    // The immediate of a push is a number; that of a register may be an address of the stack, which
    // stays in the own frame.
    state.set(RSP, top.clone());
    state.store(&top, 8, value);
}

fn pop(layout: &Layout<'_>, this: &Instruction, state: &mut State) {
    let top = state.register(RSP).clone();
    let value = state.load(layout, &top, 8);
    state.set(RSP, top.plus(8));
    write(layout, this, state, value);
}

/// A call: what the callee gets an address of, it may change.
fn call(layout: &Layout<'_>, state: &mut State) {
    for register in ARGUMENTS {
        let value = state.register(register).clone();
        state.share(&value);
    }
    state.disturb();
    if let Some(top) = state.register(RSP).frame() {
        state.drop_below(top);
    }
    let all: Vec<usize> = (0..16).filter(|number| *number != RSP && *number != RBP).collect();
    let changed = if layout.keeps_no_registers { &all[..] } else { &CHANGED_BY_CALLS[..] };
    for register in changed {
        state.set(*register, Value::UNKNOWN);
    }
}

fn is_conditional_move(this: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        this.mnemonic(),
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

fn is_set(this: &Instruction) -> bool {
    use Mnemonic::*;
    let is_set = matches!(
        this.mnemonic(),
        Seta | Setae
            | Setb
            | Setbe
            | Sete
            | Setg
            | Setge
            | Setl
            | Setle
            | Setne
            | Setno
            | Setnp
            | Setns
            | Seto
            | Setp
            | Sets
    );
    is_set && this.op0_kind() == OpKind::Register
}

/// Zero or one in the low byte. What is above was cleared before or is cleared next, or the program
/// reads what it never wrote.
fn set_on_condition(this: &Instruction, state: &mut State) {
    let bits = Value::any_of([Atom::Constant(0), Atom::Constant(1)]);
    match number(this.op0_register()) {
        Some(number) if state.register(number).constants().is_none() => state.set(number, bits),
        _ => set_register(state, this.op0_register(), bits),
    }
}

/// Everything that an instruction writes becomes unknown.
fn unknown(layout: &Layout<'_>, this: &Instruction, state: &mut State) {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(this);
    let is_write = |access: OpAccess| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    let stores: Vec<usize> = info
        .used_memory()
        .iter()
        .filter(|memory| is_write(memory.access()))
        .map(|memory| memory.memory_size().size())
        .collect();
    let written: Vec<Register> =
        info.used_registers().iter().filter(|used| is_write(used.access())).map(|used| used.register()).collect();
    // String instructions store through RDI as often as RCX says; others where their operand is.
    let has_operand = (0..this.op_count()).any(|operand| this.op_kind(operand) == OpKind::Memory);
    for bytes in stores {
        let address =
            if has_operand && !this.is_string_instruction() { effective(layout, this, state) } else { Value::UNKNOWN };
        state.store(&address, bytes as u32, Value::UNKNOWN);
        if this.is_string_instruction() {
            let to = state.register(ARGUMENTS[0]).clone();
            state.share(&to);
            state.disturb();
        }
    }
    for register in written {
        if let Some(number) = number(register) {
            state.set(number, Value::UNKNOWN);
        }
    }
}

/// What an instruction stores to memory, if it is a plain store.
pub(super) fn stored(layout: &Layout<'_>, address: u64, state: &State) -> Value {
    let Some(this) = decode(layout, address) else { return Value::UNKNOWN };
    let is_plain = this.mnemonic() == Mnemonic::Mov && this.op0_kind() == OpKind::Memory;
    let bytes = operand_bytes(&this, 0);
    if is_plain && matches!(bytes, 4 | 8) { read(layout, &this, 1, state) } else { Value::UNKNOWN }
}
