//! Addresses that are only compared: the bounds of a piece of code, with which a signal handler
//! compares the interrupted address.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::step::decode;
use crate::code::{Flow, Layout};

/// Instructions that are looked at, on all ways together.
const STEPS_MAX: usize = 64;

/// Whether the register that the `lea` at `at` fills is read by comparisons alone before it is
/// filled anew.
pub(super) fn is_compared(layout: &Layout<'_>, flow: &Flow, at: u64) -> bool {
    let Some(first) = decode(layout, at) else { return false };
    if first.mnemonic() != Mnemonic::Lea || first.op0_kind() != OpKind::Register {
        return false;
    }
    let register = first.op0_register().full_register();
    let mut open = vec![first.next_ip()];
    let mut seen: Vec<u64> = Vec::new();
    let mut steps = 0;
    while let Some(mut here) = open.pop() {
        let Some(block) = flow.block(here) else { return false };
        loop {
            steps += 1;
            let Some(this) = decode(layout, here) else { return false };
            if steps > STEPS_MAX {
                return false;
            }
            match fate(&this, register) {
                Fate::Used => return false,
                Fate::Filled => break,
                Fate::Kept if here == block.last => {
                    // A jump to another function takes registers along.
                    if block.next.is_empty() || flow.calls.iter().any(|call| call.at == here) {
                        return false;
                    }
                    let new: Vec<u64> = block.next.iter().copied().filter(|next| !seen.contains(next)).collect();
                    seen.extend(&new);
                    open.extend(new);
                    break;
                }
                Fate::Kept => here = this.next_ip(),
            }
        }
    }
    true
}

/// What becomes of a register.
enum Fate {
    Used,
    Filled,
    Kept,
}

fn fate(this: &Instruction, register: Register) -> Fate {
    match this.mnemonic() {
        // The caller may use what is returned or kept for it; others are its to lose.
        Mnemonic::Ret => {
            let lost =
                [Register::RCX, Register::RSI, Register::RDI, Register::R8, Register::R9, Register::R10, Register::R11];
            return if lost.contains(&register) { Fate::Filled } else { Fate::Used };
        }
        Mnemonic::Call | Mnemonic::Jmp if this.op0_kind() != OpKind::NearBranch64 => return Fate::Used,
        Mnemonic::Call => return Fate::Used,
        _ => {}
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(this).used_registers();
    let mine = || used.iter().filter(|used| used.register().full_register() == register);
    let reads =
        mine().any(|used| !matches!(used.access(), OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess));
    let is_compare =
        this.mnemonic() == Mnemonic::Cmp && this.op0_kind() == OpKind::Register && this.op1_kind() == OpKind::Register;
    if reads && !is_compare {
        return Fate::Used;
    }
    let fills = mine().any(|used| used.access() == OpAccess::Write && used.register().size() >= 4);
    if fills { Fate::Filled } else { Fate::Kept }
}
