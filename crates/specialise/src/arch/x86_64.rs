//! x86-64. Relative fields count from the end of their instruction, and instructions have no
//! alignment.
//!
//! A relocation of a relative field names a section and a distance from the field. The addend
//! contains the length of the rest of the instruction, so only decoding tells which object is
//! meant.

use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::{Architecture, Code, Encoded, Field, LocalReference, Operand, Step, Surroundings, Use};
use crate::object::Section;
use crate::value::State;

mod evaluate;

/// `EM_X86_64`.
pub(crate) const MACHINE: u16 = 62;

const R_PC32: u32 = 2;

/// Codes of jumps: with four bytes of distance, with one, and conditional with one (the condition
/// in the low bits).
const JUMP_NEAR: u8 = 0xe9;
const JUMP_SHORT: u8 = 0xeb;
const BRANCH_SHORT: u8 = 0x70;

/// What the kernel writes where it takes a jump out, short and near: it compares with these.
const NOTHING_SHORT: [u8; 2] = [0x66, 0x90];
const NOTHING_NEAR: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// Registers in which functions get their first arguments.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// The processor.
pub(super) struct X86_64;

impl Architecture for X86_64 {
    fn field(&self, kind: u32) -> Option<Field> {
        let (bytes, relative) = match kind {
            0 => (0, false),          // NONE
            1 => (8, false),          // 64
            R_PC32 | 4 => (4, true),  // PC32, PLT32
            9 | 41 | 42 => (4, true), // GOTPCREL, GOTPCRELX, REX_GOTPCRELX
            10 | 11 => (4, false),    // 32, 32S
            12 => (2, false),         // 16
            13 => (2, true),          // PC16
            14 => (1, false),         // 8
            15 => (1, true),          // PC8
            24 => (8, true),          // PC64
            _ => return None,
        };
        Some(Field { bytes, relative, kept: 0 })
    }

    fn relative_kind(&self) -> u32 {
        R_PC32
    }

    fn follows_control(&self) -> bool {
        true
    }

    fn decode(&self, section: &Section<'_>, ranges: &[Range<u64>]) -> Code {
        let unmatched = Operand { to_end: 4, how: Use::Unmatched };
        let mut code = Code { operands: vec![unmatched; section.relocations.len()], ..Code::default() };
        let mut next = 0;
        for range in ranges {
            next = decode_range(section, range, next, &mut code);
        }
        code
    }

    fn is_padding(&self, bytes: &[u8]) -> bool {
        if bytes.iter().all(|byte| matches!(byte, 0x90 | 0xcc)) {
            return true;
        }
        let decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
        decoder.into_iter().all(|instruction| matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
    }

    fn returns(&self, bytes: &[u8]) -> bool {
        let decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
        decoder.into_iter().any(|instruction| instruction.flow_control() == FlowControl::Return)
    }

    fn arguments(&self, section: &Section<'_>, range: Range<u64>) -> Vec<(u64, u64)> {
        let Some(bytes) = section.data.get(range.start as usize..range.end as usize) else { return Vec::new() };
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let mut information = InstructionInfoFactory::new();
        let mut waiting: Vec<(Register, u64)> = Vec::new();
        let mut found = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                waiting.clear();
                continue;
            }
            let offsets = decoder.get_constant_offsets(&instruction);
            let field = instruction.ip() + offsets.immediate_offset() as u64;
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
                    found.extend(waiting.drain(..).map(|(_, operand)| (operand, field)));
                    continue;
                }
                _ => {
                    waiting.clear();
                    continue;
                }
            }
            // Whatever else touches the register may copy it, or puts another value there.
            let touched = information.info(&instruction).used_registers();
            waiting.retain(|(register, _)| touched.iter().all(|used| used.register().full_register() != *register));
            let register = instruction.op0_register().full_register();
            let is_load = instruction.mnemonic() == Mnemonic::Mov && offsets.has_immediate();
            if is_load && ARGUMENTS.contains(&register) && !section.relocations_in(field..field + 1).is_empty() {
                waiting.push((register, field));
            }
        }
        found
    }

    fn steps(&self, section: &Section<'_>, range: Range<u64>) -> Option<Vec<Step>> {
        evaluate::steps(section, range)
    }

    fn transfer(&self, section: &Section<'_>, step: &Step, state: &mut State, around: &dyn Surroundings) {
        evaluate::transfer(section, step, state, around);
    }

    fn decide(&self, section: &Section<'_>, step: &Step, state: &State) -> [Option<State>; 2] {
        evaluate::decide(section, step, state)
    }

    fn encode(&self, section: &Section<'_>, step: &Step, is_always: bool, is_short: bool) -> Option<Encoded> {
        let (start, end) = (step.start, step.end);
        let bytes = section.data.get(start as usize..end as usize)?;
        let mut encoded =
            Encoded { cut: Vec::new(), patches: Vec::new(), field: step.field, field_bytes: step.field_bytes };
        match *bytes {
            // Conditional, near: two bytes and four of distance.
            [0x0f, second @ 0x80..=0x8f, _, _, _, _] => {
                if is_always || is_short {
                    encoded.cut.push(start..start + 1);
                    let condition = second & 0xf;
                    let code = match (is_always, is_short) {
                        (true, true) => JUMP_SHORT,
                        (true, false) => JUMP_NEAR,
                        (false, _) => BRANCH_SHORT | condition,
                    };
                    encoded.patches.push((start + 1, code));
                }
            }
            [0x70..=0x7f, _] if is_always => encoded.patches.push((start, JUMP_SHORT)),
            [0x70..=0x7f, _] => {}
            [JUMP_NEAR, _, _, _, _] if is_short => encoded.patches.push((start, JUMP_SHORT)),
            _ => return None,
        }
        if is_short && step.field_bytes == 4 {
            encoded.field_bytes = 1;
            encoded.cut.push(step.field + 1..end);
        }
        Some(encoded)
    }

    fn trace_marker(&self) -> &'static [u8] {
        b"__fentry__"
    }

    fn landing(&self) -> &'static [u8] {
        // endbr64
        &[0xf3, 0x0f, 0x1e, 0xfa]
    }

    fn counting(&self) -> (&'static [u8], u64) {
        // movb $1, 0(%rip): no flags, no registers.
        (&[0xc6, 0x05, 0, 0, 0, 0, 1], 2)
    }

    fn widen(&self, bytes: &[u8], distance: i32) -> Option<Vec<u8>> {
        let mut wide = match *bytes {
            [short @ BRANCH_SHORT..=0x7f, _] => vec![0x0f, 0x80 | short & 0xf],
            [JUMP_SHORT, _] => vec![JUMP_NEAR],
            _ if *bytes == NOTHING_SHORT => return Some(NOTHING_NEAR.to_vec()),
            _ => return None,
        };
        wide.extend(distance.to_le_bytes());
        Some(wide)
    }

    fn argument_registers(&self) -> [usize; 6] {
        // RDI, RSI, RDX, RCX, R8, R9
        [7, 6, 2, 1, 8, 9]
    }

    fn result_register(&self) -> usize {
        0
    }

    fn return_thunk(&self) -> &'static [u8] {
        b"__x86_return_thunk"
    }

    fn nothing(&self) -> u8 {
        0x90
    }

    fn filler(&self) -> u8 {
        0xcc
    }

    fn fill_trap(&self, bytes: &mut [u8]) {
        // From the start of a function every second byte begins `ud2`; nothing live knows a place
        // inside.
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = if index % 2 == 0 { 0x0f } else { 0x0b };
        }
        // An odd byte at the end would swallow what follows.
        if let [.., last] = bytes
            && *last == 0x0f
        {
            *last = 0xcc;
        }
    }
}

/// Decodes one range; relocations before index `next` lie before it. Returns the first one behind
/// it.
fn decode_range(section: &Section<'_>, range: &Range<u64>, mut next: usize, code: &mut Code) -> usize {
    let Some(bytes) = section.data.get(range.start as usize..range.end as usize) else { return next };
    let relocations = &section.relocations;
    while relocations.get(next).is_some_and(|relocation| relocation.offset < range.start) {
        next += 1;
    }
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut last = FlowControl::Return;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let (start, end) = (instruction.ip(), instruction.next_ip());
        last = if instruction.is_invalid() { FlowControl::Next } else { instruction.flow_control() };
        let mut relocated = false;
        while let Some(relocation) = relocations.get(next).filter(|relocation| relocation.offset < end) {
            relocated = true;
            if !instruction.is_invalid() {
                code.operands[next] =
                    operand(&decoder, &instruction, relocation.offset - start, end - relocation.offset);
            }
            next += 1;
        }
        if !relocated && !instruction.is_invalid() {
            code.locals
                .extend(local(&decoder, &instruction, start, end).filter(|local| !range.contains(&local.target)));
        }
    }
    // A call at the very end is one that does not return: compilers leave nothing behind it.
    if matches!(last, FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend) {
        code.falls.push(range.end);
    }
    next
}

fn operand(decoder: &Decoder<'_>, instruction: &Instruction, inside: u64, to_end: u64) -> Operand {
    let offsets = decoder.get_constant_offsets(instruction);
    let to_end = to_end as u8;
    let is_branch =
        matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16);
    if offsets.has_displacement() && offsets.displacement_offset() as u64 == inside {
        let base = instruction.memory_base();
        let plain = instruction.memory_index() == Register::None && matches!(base, Register::None | Register::RIP);
        let how = match read_bytes(instruction) {
            _ if !plain => Use::Indexed,
            Some(bytes) => Use::Read(bytes),
            None => Use::Address,
        };
        return Operand { to_end, how };
    }
    if offsets.has_immediate() && offsets.immediate_offset() as u64 == inside {
        return Operand { to_end, how: if is_branch { Use::Branch } else { Use::Address } };
    }
    if offsets.has_immediate2() && offsets.immediate_offset2() as u64 == inside {
        return Operand { to_end, how: Use::Address };
    }
    Operand { to_end, how: Use::Unmatched }
}

/// The bytes of an instruction's memory operand, if it only reads them.
fn read_bytes(instruction: &Instruction) -> Option<u8> {
    let mut factory = InstructionInfoFactory::new();
    let information = factory.info(instruction);
    let operand = (0..instruction.op_count()).find(|operand| instruction.op_kind(*operand) == OpKind::Memory)?;
    let is_read = matches!(information.op_access(operand), OpAccess::Read | OpAccess::CondRead);
    let bytes = u8::try_from(instruction.memory_size().size()).ok().filter(|bytes| *bytes > 0)?;
    is_read.then_some(bytes)
}

/// The reference of an instruction without a relocation, if it has one.
fn local(decoder: &Decoder<'_>, instruction: &Instruction, start: u64, end: u64) -> Option<LocalReference> {
    if matches!(instruction.op0_kind(), OpKind::NearBranch64) {
        let offsets = decoder.get_constant_offsets(instruction);
        let (offset, bytes) = (start + offsets.immediate_offset() as u64, offsets.immediate_size() as u8);
        return Some(LocalReference { offset, bytes, end, target: instruction.near_branch64(), branch: true });
    }
    if instruction.is_ip_rel_memory_operand() {
        let offsets = decoder.get_constant_offsets(instruction);
        let (offset, bytes) = (start + offsets.displacement_offset() as u64, offsets.displacement_size() as u8);
        let target = instruction.ip_rel_memory_address();
        return Some(LocalReference { offset, bytes, end, target, branch: false });
    }
    None
}
