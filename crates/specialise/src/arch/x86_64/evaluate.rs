//! The effect of instructions on registers and flags, for numbers only. The result of an unknown
//! instruction is unknown.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use crate::arch::{Goal, Step, Surroundings, Transfer};
use crate::object::Section;
use crate::value::{Comparison, State, Value, mask};

/// Where a system call's arguments lie in the registers that were saved: RDI, RSI, RDX, R10, R8, R9
/// of `struct pt_regs`.
const SAVED_ARGUMENTS: [u64; 6] = [0x70, 0x68, 0x60, 0x38, 0x48, 0x40];

/// Registers that a callee may change: RAX, RCX, RDX, RSI, RDI, R8 to R11.
const CHANGED_BY_CALLS: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// Decodes a range; `None` if a part of it is no instruction.
pub(super) fn steps(section: &Section<'_>, range: std::ops::Range<u64>) -> Option<Vec<Step>> {
    let bytes = section.data.get(range.start as usize..range.end as usize)?;
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut steps = Vec::with_capacity(bytes.len() / 4);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let near = instruction.op0_kind() == OpKind::NearBranch64;
        let field = if near { offsets.immediate_offset() } else { offsets.displacement_offset() };
        let field = instruction.ip() + field as u64;
        let goal = || {
            let relocated = !section.relocations_in(field..field + 1).is_empty();
            let target = instruction.near_branch64();
            if !relocated && range.contains(&target) { Goal::Inside(target) } else { Goal::Reference(field) }
        };
        let (transfer, field_bytes) = match instruction.flow_control() {
            FlowControl::UnconditionalBranch if near => (Transfer::Jump(goal()), offsets.immediate_size()),
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend if near => {
                (Transfer::Branch(goal()), offsets.immediate_size())
            }
            FlowControl::Call if near => (Transfer::Call(goal()), offsets.immediate_size()),
            FlowControl::Call if is_foreign(&instruction) => (Transfer::Foreign, 0),
            FlowControl::IndirectCall => (Transfer::CallAny, 0),
            FlowControl::IndirectBranch => {
                let is_table = instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_base() == Register::None
                    && instruction.memory_index() != Register::None
                    && instruction.memory_index_scale() == 8
                    && offsets.has_displacement();
                let index = register_number(instruction.memory_index()).filter(|_| is_table);
                (index.map_or(Transfer::JumpAny, |index| Transfer::Table { field, index }), 0)
            }
            FlowControl::Return => (Transfer::Return, 0),
            FlowControl::Next => (Transfer::Next, 0),
            // A trap may come back behind the instruction.
            FlowControl::Exception => (Transfer::Next, 0),
            FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => (Transfer::Next, 0),
            _ => (Transfer::Foreign, 0),
        };
        let is_filling = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let (start, end) = (instruction.ip(), instruction.next_ip());
        steps.push(Step { start, end, field, field_bytes: field_bytes as u8, transfer, is_filling });
    }
    Some(steps)
}

/// Calls of hypervisors and other worlds.
fn is_foreign(instruction: &Instruction) -> bool {
    instruction.mnemonic() != Mnemonic::Call
}

fn register_number(register: Register) -> Option<u8> {
    let full = register.full_register();
    (Register::RAX..=Register::R15).contains(&full).then(|| (full as usize - Register::RAX as usize) as u8)
}

/// One instruction with where its constants lie.
struct This {
    instruction: Instruction,
    displacement: Option<u64>,
    immediate: Option<u64>,
}

fn decode(section: &Section<'_>, step: &Step) -> Option<This> {
    let bytes = section.data.get(step.start as usize..step.end as usize)?;
    let mut decoder = Decoder::with_ip(64, bytes, step.start, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    let displacement = offsets.has_displacement().then(|| step.start + offsets.displacement_offset() as u64);
    let immediate = offsets.has_immediate().then(|| step.start + offsets.immediate_offset() as u64);
    (!instruction.is_invalid()).then_some(This { instruction, displacement, immediate })
}

/// Changes `state`, which holds before a step, to what holds behind it.
pub(super) fn transfer(section: &Section<'_>, step: &Step, state: &mut State, around: &dyn Surroundings) {
    let Some(this) = decode(section, step) else {
        *state = State::unknown();
        return;
    };
    let instruction = &this.instruction;
    match step.transfer {
        Transfer::Foreign => {
            *state = State::unknown();
            return;
        }
        Transfer::Call(_) | Transfer::CallAny => {
            for register in CHANGED_BY_CALLS {
                state.registers[register] = Value::Any;
            }
            state.comparison = None;
            return;
        }
        _ => {}
    }
    let compared = comparison(&this, state, around);
    let value = result(&this, state, around, compared.as_ref());
    match value {
        Some(value) if instruction.op0_kind() == OpKind::Register => {
            set(state, instruction.op0_register(), value);
        }
        _ => forget_written(instruction, state),
    }
    if let Some(compared) = compared {
        state.comparison = Some(compared);
    } else if instruction.rflags_modified() != 0 {
        state.comparison = None;
    }
}

/// What the instruction makes the flags of; `None` if that is not known.
fn comparison(this: &This, state: &State, around: &dyn Surroundings) -> Option<Comparison> {
    let instruction = &this.instruction;
    let is_test = match instruction.mnemonic() {
        Mnemonic::Cmp | Mnemonic::Sub => false,
        Mnemonic::Test | Mnemonic::And => true,
        // Their flags are those of the result tested with itself.
        Mnemonic::Or | Mnemonic::Xor => {
            let bytes = operand_bytes(instruction, 0);
            let (left, right) = (read(this, 0, state, around), read(this, 1, state, around));
            let value = match instruction.mnemonic() {
                Mnemonic::Xor if is_same(instruction) => Value::One(0),
                Mnemonic::Xor => left.with(&right, |left, right| left ^ right),
                // All bits are set, whatever was there.
                _ if right.low(bytes) == Value::One(mask(bytes)) => Value::One(mask(bytes)),
                _ => left.with(&right, |left, right| left | right),
            };
            let right = Value::One(mask(bytes));
            return (bytes <= 8).then_some(Comparison { left: value, right, bytes, is_test: true, register: None });
        }
        _ => return None,
    };
    let bytes = operand_bytes(instruction, 0);
    if bytes > 8 {
        return None;
    }
    let left = read(this, 0, state, around);
    let is_itself = is_test && is_same(instruction);
    let right = if is_itself { Value::One(mask(bytes)) } else { read(this, 1, state, around) };
    let writes = matches!(instruction.mnemonic(), Mnemonic::Sub | Mnemonic::And);
    let register = match instruction.op0_kind() {
        OpKind::Register if !writes && !is_high(instruction.op0_register()) => {
            register_number(instruction.op0_register())
        }
        _ => None,
    };
    Some(Comparison { left, right, bytes, is_test, register })
}

/// What the instruction puts into its first operand; `None` if it puts nothing there, or what is
/// not known.
fn result(this: &This, state: &State, around: &dyn Surroundings, compared: Option<&Comparison>) -> Option<Value> {
    let instruction = &this.instruction;
    if instruction.op0_kind() != OpKind::Register || register_number(instruction.op0_register()).is_none() {
        return None;
    }
    let bytes = operand_bytes(instruction, 0);
    let source = || read(this, 1, state, around);
    let both = |change: fn(u64, u64) -> u64| Some(read(this, 0, state, around).with(&source(), change).low(bytes));
    let bits = (bytes * 8) as u32;
    match instruction.mnemonic() {
        Mnemonic::Mov => Some(source()),
        Mnemonic::Movzx => Some(source().low(operand_bytes(instruction, 1))),
        Mnemonic::Movsx | Mnemonic::Movsxd => {
            let from = (operand_bytes(instruction, 1) * 8) as u32;
            Some(source().map(|number| signed(number, from) as u64))
        }
        Mnemonic::Lea => Some(address(this, state, around)),
        Mnemonic::Xor | Mnemonic::Sub if is_same(instruction) => Some(Value::One(0)),
        Mnemonic::Xor | Mnemonic::Or => compared.map(|compared| compared.left.low(bytes)),
        Mnemonic::Add => both(u64::wrapping_add),
        Mnemonic::Sub => both(u64::wrapping_sub),
        Mnemonic::And if source() == Value::One(0) => Some(Value::One(0)),
        Mnemonic::And => both(|one, two| one & two),
        Mnemonic::Shl if bytes >= 4 => {
            Some(read(this, 0, state, around).with(&source(), |one, two| one << (two & u64::from(bits - 1))).low(bytes))
        }
        Mnemonic::Shr if bytes >= 4 => {
            Some(read(this, 0, state, around).low(bytes).with(&source(), |one, two| one >> (two & u64::from(bits - 1))))
        }
        Mnemonic::Inc => Some(read(this, 0, state, around).map(|number| number.wrapping_add(1)).low(bytes)),
        Mnemonic::Dec => Some(read(this, 0, state, around).map(|number| number.wrapping_sub(1)).low(bytes)),
        Mnemonic::Neg => Some(read(this, 0, state, around).map(u64::wrapping_neg).low(bytes)),
        Mnemonic::Not => Some(read(this, 0, state, around).map(|number| !number).low(bytes)),
        _ if instruction.condition_code() != ConditionCode::None && bytes == 1 => {
            let [fall, taken] = ways(instruction.condition_code(), state.comparison.as_ref());
            Some(match (fall.is_some(), taken.is_some()) {
                (true, false) => Value::One(0),
                (false, true) => Value::One(1),
                _ => Value::of(vec![0, 1]),
            })
        }
        _ if instruction.condition_code() != ConditionCode::None && instruction.op_count() == 2 => {
            let [fall, taken] = ways(instruction.condition_code(), state.comparison.as_ref());
            let old = read(this, 0, state, around);
            Some(match (fall.is_some(), taken.is_some()) {
                (true, false) => old,
                (false, true) => source(),
                _ => old.join(&source()),
            })
        }
        _ => None,
    }
}

/// The states with which a conditional branch goes on: at the next instruction, at its target.
/// `None` if it never does.
pub(super) fn decide(section: &Section<'_>, step: &Step, state: &State) -> [Option<State>; 2] {
    let condition = decode(section, step).map_or(ConditionCode::None, |this| this.instruction.condition_code());
    ways(condition, state.comparison.as_ref()).map(|left| {
        let left = left?;
        let mut state = state.clone();
        if let Some(comparison) = &mut state.comparison
            && let Some(register) = comparison.register
        {
            if left.numbers().is_some() {
                comparison.left = left.clone();
            }
            // The comparison saw so many bytes of the register.
            let known = &state.registers[usize::from(register)];
            let bytes = comparison.bytes;
            let narrowed = match (known.numbers(), left.numbers()) {
                (Some(known), Some(left)) => {
                    let fits = |number: &u64| left.contains(&(number & mask(bytes)));
                    Value::of(known.iter().copied().filter(fits).collect())
                }
                (None, Some(_)) if bytes == 8 && *known != Value::Saved => left,
                (None, _) if *known == Value::Any && left.is_nonzero() => Value::NonZero,
                _ => known.clone(),
            };
            state.registers[usize::from(register)] = narrowed;
        }
        Some(state)
    })
}

/// What the first operand of a comparison may be where the condition does not hold, and where it
/// does; `None`: it never does.
fn ways(condition: ConditionCode, comparison: Option<&Comparison>) -> [Option<Value>; 2] {
    let both = [Some(Value::Any), Some(Value::Any)];
    let Some(comparison) = comparison.filter(|_| condition != ConditionCode::None) else { return both };
    let Comparison { left, right, bytes, is_test, .. } = comparison;
    if let (Some(lefts), Some(rights)) = (left.numbers(), right.numbers()) {
        let mut found = [Vec::new(), Vec::new()];
        for left in lefts {
            for right in rights {
                match holds(condition, *left, *right, *bytes, *is_test) {
                    Some(holds) => found[usize::from(holds)].push(*left & mask(*bytes)),
                    None => return both,
                }
            }
        }
        return found.map(|numbers| (!numbers.is_empty()).then(|| Value::of(numbers)));
    }
    let against_zero = right.numbers() == Some(&[if *is_test { mask(*bytes) } else { 0 }]);
    // The other operand of a comparison for equality is then known.
    let equal = if *is_test && !against_zero {
        Value::Any
    } else if *is_test {
        Value::One(0)
    } else {
        right.clone()
    };
    let equal = if equal.numbers().is_some() { equal.low(*bytes) } else { Value::Any };
    let unequal = if against_zero { Value::NonZero } else { Value::Any };
    let never_equal = against_zero && *bytes == 8 && left.is_nonzero();
    match condition {
        ConditionCode::e if never_equal => [Some(unequal), None],
        ConditionCode::ne if never_equal => [None, Some(unequal)],
        ConditionCode::e => [Some(unequal), Some(equal)],
        ConditionCode::ne => [Some(equal), Some(unequal)],
        // Nothing is below zero.
        ConditionCode::b if against_zero && !*is_test => [Some(Value::Any), None],
        ConditionCode::ae if against_zero && !*is_test => [None, Some(Value::Any)],
        _ => both,
    }
}

/// Whether a condition holds; `None` for those that are not followed.
fn holds(condition: ConditionCode, left: u64, right: u64, bytes: usize, is_test: bool) -> Option<bool> {
    let bits = (bytes * 8) as u32;
    let (left, right) = (left & mask(bytes), right & mask(bytes));
    let (result, carry, overflow) = if is_test {
        (left & right, false, false)
    } else {
        let difference = left.wrapping_sub(right) & mask(bytes);
        let exact = i128::from(signed(left, bits)) - i128::from(signed(right, bits));
        (difference, left < right, exact != i128::from(signed(difference, bits)))
    };
    let zero = result == 0;
    let sign = signed(result, bits) < 0;
    Some(match condition {
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::b => carry,
        ConditionCode::ae => !carry,
        ConditionCode::be => carry || zero,
        ConditionCode::a => !carry && !zero,
        ConditionCode::s => sign,
        ConditionCode::ns => !sign,
        ConditionCode::l => sign != overflow,
        ConditionCode::ge => sign == overflow,
        ConditionCode::le => zero || sign != overflow,
        ConditionCode::g => !zero && sign == overflow,
        _ => return None,
    })
}

/// A number of so many bits with its sign.
fn signed(number: u64, bits: u32) -> i64 {
    let unused = 64 - bits.clamp(1, 64);
    ((number << unused) as i64) >> unused
}

fn is_same(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

fn operand_bytes(instruction: &Instruction, operand: u32) -> usize {
    match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).size(),
        OpKind::Memory => instruction.memory_size().size(),
        _ => 8,
    }
}

fn read(this: &This, operand: u32, state: &State, around: &dyn Surroundings) -> Value {
    let instruction = &this.instruction;
    match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            match register_number(register) {
                Some(number) if !is_high(register) => state.registers[usize::from(number)].low(register.size()),
                _ => Value::Any,
            }
        }
        OpKind::Memory => load(this, state, around),
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => match this.immediate.and_then(|field| around.address(field)) {
            // The address of something.
            Some(value) if operand_bytes(instruction, 0) == 8 => value,
            Some(_) => Value::Any,
            None => Value::One(instruction.immediate(operand)),
        },
        _ => Value::Any,
    }
}

/// What lies in memory: a constant variable, or an argument of a system call.
fn load(this: &This, state: &State, around: &dyn Surroundings) -> Value {
    let instruction = &this.instruction;
    let bytes = instruction.memory_size().size();
    if !matches!(bytes, 1 | 2 | 4 | 8) || matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
        return Value::Any;
    }
    let base = instruction.memory_base();
    if instruction.memory_index() != Register::None {
        return Value::Any;
    }
    if matches!(base, Register::None | Register::RIP) {
        return this.displacement.map_or(Value::Any, |field| around.load(field, bytes));
    }
    let is_saved = register_number(base)
        .is_some_and(|number| base.size() == 8 && state.registers[usize::from(number)] == Value::Saved);
    let argument = SAVED_ARGUMENTS.iter().position(|at| *at == instruction.memory_displacement64());
    match argument {
        Some(argument) if is_saved => around.argument(argument).low(bytes),
        _ => Value::Any,
    }
}

/// The address that `lea` makes.
fn address(this: &This, state: &State, around: &dyn Surroundings) -> Value {
    let instruction = &this.instruction;
    let bytes = operand_bytes(instruction, 0);
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if let Some(value) = this.displacement.and_then(|field| around.address(field)) {
        let is_plain = index == Register::None && matches!(base, Register::None | Register::RIP);
        return if is_plain && bytes == 8 { value } else { Value::Any };
    }
    let part = |register: Register| match register {
        Register::None => Value::One(0),
        register if register.size() == 8 => {
            register_number(register).map_or(Value::Any, |number| state.registers[usize::from(number)].clone())
        }
        _ => Value::Any,
    };
    let scale = u64::from(instruction.memory_index_scale());
    let displacement = instruction.memory_displacement64();
    if base == Register::RSP && bytes == 8 && index == Register::None {
        return Value::NonZero;
    }
    if base == Register::RIP {
        return Value::Any;
    }
    let sum = part(base).with(&part(index), |base, index| base.wrapping_add(index.wrapping_mul(scale)));
    sum.map(|number| number.wrapping_add(displacement)).low(bytes)
}

/// Puts a value into a register or a part of one.
fn set(state: &mut State, register: Register, value: Value) {
    let Some(number) = register_number(register) else { return };
    let old = state.registers[usize::from(number)].clone();
    let new = match register.size() {
        8 => value,
        4 => value.low(4),
        bytes @ (1 | 2) if !is_high(register) => old.with(&value, |old, new| old & !mask(bytes) | new & mask(bytes)),
        _ => Value::Any,
    };
    state.registers[usize::from(number)] = new;
    forget_compared(state, number);
}

/// The register does not hold any more what was compared.
fn forget_compared(state: &mut State, number: u8) {
    if let Some(comparison) = &mut state.comparison
        && comparison.register == Some(number)
    {
        comparison.register = None;
    }
}

/// Every register that an instruction writes becomes unknown.
fn forget_written(instruction: &Instruction, state: &mut State) {
    let mut factory = InstructionInfoFactory::new();
    for used in factory.info(instruction).used_registers() {
        let is_write = matches!(
            used.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        if is_write && let Some(number) = register_number(used.register()) {
            state.registers[usize::from(number)] = Value::Any;
            forget_compared(state, number);
        }
    }
}
