//! Seccomp filters: a profile as a program for the kernel, in classic BPF over `struct
//! seccomp_data` (Documentation/userspace-api/seccomp_filter).
//!
//! A binary search over ranges of numbers with the same answer finds the number, with some eight
//! comparisons for a usual profile. Arguments have 64 bits and are compared in halves. On
//! little-endian machines only.

use std::collections::BTreeMap;

use crate::profile::{ENOSYS, action};
use crate::{Action, Arch, Argument, Operator, Profile, ProfileError, number};

/// Instructions that the kernel accepts (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: usize = 4096;

/// Numbers from here on are those of x32 on x86-64.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const AT_ARGUMENTS: u32 = 16;

/// Operations of classic BPF: load a word from a place, jumps by comparison with a constant, mask,
/// return.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// One instruction, as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Constant.
    pub k: u32,
}

/// A program for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    instructions: Vec<Instruction>,
}

/// What happens to one call: the first condition that holds decides, then the last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decision {
    conditions: Vec<(Vec<Argument>, Action)>,
    otherwise: Action,
}

impl Filter {
    /// What a profile means on an architecture. Names of calls that the architecture does not have
    /// are left out of rules that allow; so are, in others, those that only other architectures
    /// have.
    ///
    /// # Errors
    /// The profile is for other architectures, asks for what is not supported, or is too large.
    pub fn new(profile: &Profile, arch: Arch) -> Result<Filter, ProfileError> {
        let is_for = |name: &String| name == arch.profile_name();
        if !profile.architectures.is_empty() && !profile.architectures.iter().any(is_for) {
            let found = profile.architectures.join(", ");
            return Err(ProfileError::Architecture { wanted: arch.profile_name(), found });
        }
        let default = action(&profile.default_action, profile.default_errno_ret)?;
        let decisions = decisions(profile, arch, default)?;
        // Calls of other architectures have other numbers: rules do not hold for them, so they are
        // never allowed by default.
        let foreign = match default {
            Action::Allow | Action::Log => Action::Errno(ENOSYS as u16),
            other => other,
        };
        let mut code =
            vec![load(AT_ARCHITECTURE), test(JUMP_EQUAL, arch.audit(), 1, 0), finish(foreign), load(AT_NUMBER)];
        if arch == Arch::X86_64 {
            code.extend([test(JUMP_GREATER_EQUAL, X32, 0, 1), finish(foreign)]);
        }
        code.extend(search(&ranges(decisions, default)));
        if code.len() > INSTRUCTIONS_MAX {
            return Err(ProfileError::TooLarge { found: code.len(), limit: INSTRUCTIONS_MAX });
        }
        Ok(Filter { instructions: code })
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// What the filter answers to a call of `arch`: the kernel's SECCOMP_RET value. `None` if it
    /// runs out of its program, which no filter of this crate does.
    pub fn answer(&self, arch: Arch, number: u32, arguments: [u64; 6]) -> Option<u32> {
        let (mut at, mut value) = (0usize, 0u32);
        loop {
            let step = self.instructions.get(at)?;
            at += 1;
            let skip = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    value = match step.k {
                        AT_NUMBER => number,
                        AT_ARCHITECTURE => arch.audit(),
                        place => {
                            let place = place.checked_sub(AT_ARGUMENTS)?;
                            let argument = *arguments.get(place as usize / 8)?;
                            if place % 8 == 0 { argument as u32 } else { (argument >> 32) as u32 }
                        }
                    }
                }
                AND => value &= step.k,
                JUMP => at += step.k as usize,
                JUMP_EQUAL => at += skip(value == step.k),
                JUMP_GREATER => at += skip(value > step.k),
                JUMP_GREATER_EQUAL => at += skip(value >= step.k),
                RETURN => return Some(step.k),
                _ => return None,
            }
        }
    }

    /// Whether a call may be made, with some arguments at least.
    pub fn may_allow(&self, profile: &Profile, arch: Arch, name: &str) -> bool {
        let Some(call) = number(arch, name) else { return false };
        let is_allow = |action: &str| matches!(action, "SCMP_ACT_ALLOW" | "SCMP_ACT_LOG");
        let by_rule =
            profile.syscalls.iter().any(|rule| is_allow(&rule.action) && rule.names.iter().any(|other| other == name));
        by_rule
            || matches!(self.answer(arch, call, [0; 6]), Some(answer) if answer == returned(Action::Allow) || answer == returned(Action::Log))
    }
}

/// What rules say of one call: conditions with their actions, and the action without one.
type Rules = (Vec<(Vec<Argument>, Action)>, Option<Action>);

fn decisions(profile: &Profile, arch: Arch, default: Action) -> Result<BTreeMap<u32, Decision>, ProfileError> {
    let mut found: BTreeMap<u32, Rules> = BTreeMap::new();
    for rule in &profile.syscalls {
        let action = action(&rule.action, rule.errno_ret)?;
        for name in &rule.names {
            let Some(call) = number(arch, name) else {
                let is_elsewhere =
                    [Arch::X86_64, Arch::Aarch64, Arch::Arm].iter().any(|arch| number(*arch, name).is_some());
                if action == Action::Allow || is_elsewhere {
                    continue;
                }
                return Err(ProfileError::Unknown { field: "names", found: name.clone() });
            };
            let (conditions, otherwise) = found.entry(call).or_default();
            if rule.args.is_empty() {
                if otherwise.is_some_and(|other| other != action) {
                    return Err(ProfileError::Unknown {
                        field: "names, twice with different actions",
                        found: name.clone(),
                    });
                }
                *otherwise = Some(action);
            } else if is_repeated(&rule.args) {
                // Two conditions on one argument are alternatives, as container runtimes have it.
                conditions.extend(rule.args.iter().map(|argument| (vec![argument.clone()], action)));
            } else {
                conditions.push((rule.args.clone(), action));
            }
        }
    }
    let decided = found.into_iter().map(|(call, (conditions, otherwise))| {
        (call, Decision { conditions, otherwise: otherwise.unwrap_or(default) })
    });
    Ok(decided.collect())
}

fn is_repeated(arguments: &[Argument]) -> bool {
    arguments.iter().enumerate().any(|(at, one)| arguments[..at].iter().any(|other| other.index == one.index))
}

/// Ranges of numbers with one decision, by their first number; the first begins at 0.
fn ranges(decisions: BTreeMap<u32, Decision>, default: Action) -> Vec<(u32, Decision)> {
    let plain = Decision { conditions: Vec::new(), otherwise: default };
    let mut ranges: Vec<(u32, Decision)> = vec![(0, plain.clone())];
    let mut push = |from: u32, decision: &Decision| {
        if let Some(last) = ranges.last_mut()
            && last.0 == from
        {
            last.1 = decision.clone();
        } else if ranges.last().is_none_or(|last| last.1 != *decision) {
            ranges.push((from, decision.clone()));
        }
    };
    let mut next = 0;
    for (call, decision) in &decisions {
        if *call > next {
            push(next, &plain);
        }
        push(*call, decision);
        next = call + 1;
    }
    push(next, &plain);
    ranges
}

/// Finds the range that the number is in.
fn search(ranges: &[(u32, Decision)]) -> Vec<Instruction> {
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let (Some(first), false) = (above.first(), below.is_empty()) else {
        return ranges.first().map(|(_, decision)| decide(decision)).unwrap_or_default();
    };
    let (below, middle) = (search(below), first.0);
    let mut code = vec![test(JUMP_GREATER_EQUAL, middle, 0, 1), jump(below.len() as u32)];
    code.extend(below);
    code.extend(search(above));
    code
}

fn decide(decision: &Decision) -> Vec<Instruction> {
    let mut code = Vec::new();
    for (arguments, action) in &decision.conditions {
        let mut rule: Vec<Instruction> = vec![finish(*action)];
        for argument in arguments.iter().rev() {
            // What is not met skips the rest of the rule, which is at most six conditions of nine
            // instructions.
            rule = [condition(argument, rule.len() as u8), rule].concat();
        }
        code.extend(rule);
    }
    code.push(finish(decision.otherwise));
    code
}

/// Goes on behind itself if the condition holds, and `over` instructions further if not.
fn condition(argument: &Argument, over: u8) -> Vec<Instruction> {
    let low = AT_ARGUMENTS + argument.index * 8;
    let high = low + 4;
    let halves = |number: u64| (number as u32, (number >> 32) as u32);
    let (value_low, value_high) = halves(argument.value);
    match argument.op {
        Operator::Eq => {
            vec![load(high), test(JUMP_EQUAL, value_high, 0, over + 2), load(low), test(JUMP_EQUAL, value_low, 0, over)]
        }
        Operator::Ne => {
            vec![load(high), test(JUMP_EQUAL, value_high, 0, 2), load(low), test(JUMP_EQUAL, value_low, over, 0)]
        }
        Operator::MaskedEq => {
            let (wanted_low, wanted_high) = halves(argument.value_two);
            vec![
                load(high),
                mask(value_high),
                test(JUMP_EQUAL, wanted_high, 0, over + 3),
                load(low),
                mask(value_low),
                test(JUMP_EQUAL, wanted_low, 0, over),
            ]
        }
        // high > value: holds; high < value: does not; else the low halves decide.
        Operator::Gt | Operator::Ge => {
            let code = if argument.op == Operator::Gt { JUMP_GREATER } else { JUMP_GREATER_EQUAL };
            vec![
                load(high),
                test(JUMP_GREATER, value_high, 3, 0),
                test(JUMP_EQUAL, value_high, 0, over + 2),
                load(low),
                test(code, value_low, 0, over),
            ]
        }
        Operator::Lt | Operator::Le => {
            let code = if argument.op == Operator::Lt { JUMP_GREATER_EQUAL } else { JUMP_GREATER };
            vec![
                load(high),
                test(JUMP_GREATER, value_high, over + 3, 0),
                test(JUMP_EQUAL, value_high, 0, 2),
                load(low),
                test(code, value_low, over, 0),
            ]
        }
    }
}

/// The kernel's value for an action.
fn returned(action: Action) -> u32 {
    match action {
        Action::Allow => 0x7fff_0000,
        Action::Log => 0x7ffc_0000,
        Action::Errno(errno) => 0x0005_0000 | u32::from(errno),
        Action::Trap => 0x0003_0000,
        Action::KillThread => 0,
        Action::KillProcess => 0x8000_0000,
    }
}

fn load(place: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: place }
}

fn mask(bits: u32) -> Instruction {
    Instruction { code: AND, jt: 0, jf: 0, k: bits }
}

fn jump(over: u32) -> Instruction {
    Instruction { code: JUMP, jt: 0, jf: 0, k: over }
}

fn test(code: u16, value: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k: value }
}

fn finish(action: Action) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: returned(action) }
}

#[cfg(test)]
mod tests;
