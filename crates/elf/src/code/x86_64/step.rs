//! Decodes one instruction: where control goes, and which addresses it names.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code::{Action, Gate, Layout, Step, TargetSource, Use};

/// The longest instruction, in bytes.
const BYTES_MAX: usize = 15;

/// Decodes the instruction at `address`.
pub(super) fn decode(layout: &Layout<'_>, address: u64) -> Option<Instruction> {
    if !layout.space.region(address)?.executable {
        return None;
    }
    let bytes = layout.space.bytes_at(address);
    let mut decoder = Decoder::with_ip(64, &bytes[..bytes.len().min(BYTES_MAX)], address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    decoder.decode_out(&mut instruction);
    (!instruction.is_invalid()).then_some(instruction)
}

/// What the instruction at `address` does to control flow.
pub(super) fn step(layout: &Layout<'_>, address: u64) -> Option<Step> {
    let instruction = decode(layout, address)?;
    let action = action(layout, &instruction);
    let names = match action {
        Action::Jump(_) | Action::Branch(_) | Action::Call(_) => [None; 2],
        // The word of a call through it is in the action.
        Action::JumpTo(TargetSource::Word(_)) | Action::CallTo(TargetSource::Word(_)) => [None; 2],
        _ => names(layout, &instruction),
    };
    let pads = instruction.mnemonic() == Mnemonic::Nop;
    Some(Step { address, bytes: instruction.len() as u8, action, pads, names })
}

fn action(layout: &Layout<'_>, instruction: &Instruction) -> Action {
    match instruction.flow_control() {
        FlowControl::Next => match instruction.code() {
            Code::Sysenter => Action::System(Gate::Sysenter),
            // A program may not.
            Code::Hlt if !layout.traps_return => Action::Stop,
            _ => Action::Next,
        },
        FlowControl::UnconditionalBranch => Action::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch => Action::Branch(instruction.near_branch_target()),
        FlowControl::IndirectBranch => Action::JumpTo(place(instruction)),
        FlowControl::Return => Action::Return,
        FlowControl::Call => match instruction.mnemonic() {
            Mnemonic::Syscall => Action::System(Gate::Native),
            Mnemonic::Sysenter => Action::System(Gate::Sysenter),
            Mnemonic::Call => Action::Call(instruction.near_branch_target()),
            // Calls of hypervisors and the like.
            _ => Action::Next,
        },
        FlowControl::IndirectCall => Action::CallTo(place(instruction)),
        FlowControl::Interrupt => match instruction.code() {
            Code::Int_imm8 if instruction.immediate8() == 0x80 => Action::System(Gate::Interrupt),
            // `int3` is padding between functions; what it guards is not reached.
            _ => Action::Stop,
        },
        // XBEGIN: the next instruction, or the one for aborted transactions.
        FlowControl::XbeginXabortXend => match instruction.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Action::Branch(instruction.near_branch_target())
            }
            _ => Action::Next,
        },
        FlowControl::Exception if layout.traps_return => Action::Next,
        FlowControl::Exception => Action::Stop,
    }
}

fn place(instruction: &Instruction) -> TargetSource {
    match fixed(instruction) {
        Some(word) => TargetSource::Word(word),
        None => TargetSource::Computed,
    }
}

/// The address of a memory operand that no register changes.
pub(super) fn fixed(instruction: &Instruction) -> Option<u64> {
    let has_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let segment = matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    if !has_memory || segment {
        return None;
    }
    if instruction.is_ip_rel_memory_operand() {
        return Some(instruction.ip_rel_memory_address());
    }
    let plain = instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    plain.then(|| instruction.memory_displacement64())
}

fn names(layout: &Layout<'_>, instruction: &Instruction) -> [Option<(u64, Use)>; 2] {
    let mut found = [None; 2];
    for operand in 0..instruction.op_count().min(4) {
        let name = match instruction.op_kind(operand) {
            OpKind::Memory => memory(layout, instruction, operand),
            kind if layout.is_absolute => immediate(instruction, operand, kind)
                .filter(|address| layout.space.region(*address).is_some())
                .map(|address| (address, Use::Take)),
            _ => None,
        };
        if let Some(name) = name
            && let Some(free) = found.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(name);
        }
    }
    found
}

fn memory(layout: &Layout<'_>, instruction: &Instruction, operand: u32) -> Option<(u64, Use)> {
    if let Some(address) = fixed(instruction) {
        let usage = match instruction.mnemonic() {
            Mnemonic::Lea => Use::Take,
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp | Mnemonic::Bt => {
                Use::Read
            }
            Mnemonic::Nop | Mnemonic::Prefetcht0 | Mnemonic::Prefetchnta | Mnemonic::Prefetchw => return None,
            _ if operand == 0 => Use::Write,
            Mnemonic::Xchg | Mnemonic::Xadd => Use::Write,
            _ => Use::Read,
        };
        return Some((address, usage));
    }
    // An array at a fixed place: `[array+rax*8]`.
    let array = instruction.memory_displacement64();
    let is_array =
        layout.is_absolute && instruction.mnemonic() != Mnemonic::Nop && layout.space.region(array).is_some();
    is_array.then_some((array, Use::Take))
}

fn immediate(instruction: &Instruction, operand: u32, kind: OpKind) -> Option<u64> {
    match kind {
        OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => Some(instruction.immediate(operand)),
        _ => None,
    }
}
