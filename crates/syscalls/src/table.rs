//! Names and numbers of system calls.

mod aarch64;
mod arm;
mod x86_64;

/// A processor architecture, with its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// x86-64, without the x32 interface.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
    /// 32-bit ARM, EABI.
    Arm,
}

impl Arch {
    /// The architecture that this program runs on, if its calls are known.
    pub const HERE: Option<Arch> = if cfg!(target_arch = "x86_64") {
        Some(Arch::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Aarch64)
    } else if cfg!(target_arch = "arm") {
        Some(Arch::Arm)
    } else {
        None
    };

    /// The name in seccomp profiles.
    pub fn profile_name(self) -> &'static str {
        match self {
            Arch::X86_64 => "SCMP_ARCH_X86_64",
            Arch::Aarch64 => "SCMP_ARCH_AARCH64",
            Arch::Arm => "SCMP_ARCH_ARM",
        }
    }

    /// What the kernel calls it in `struct seccomp_data` (AUDIT_ARCH).
    pub(crate) fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
            Arch::Arm => 0x4000_0028,
        }
    }

    fn calls(self) -> &'static [(u32, &'static str)] {
        match self {
            Arch::X86_64 => x86_64::CALLS,
            Arch::Aarch64 => aarch64::CALLS,
            Arch::Arm => arm::CALLS,
        }
    }
}

/// The name of a call; `None` if there is none of that number.
pub fn name(arch: Arch, number: u32) -> Option<&'static str> {
    let calls = arch.calls();
    calls.binary_search_by_key(&number, |call| call.0).ok().map(|at| calls[at].1)
}

/// The number of a call; `None` if the architecture has none of that name.
pub fn number(arch: Arch, name: &str) -> Option<u32> {
    arch.calls().iter().find(|call| call.1 == name).map(|call| call.0)
}

/// All calls, by number.
pub fn names(arch: Arch) -> impl Iterator<Item = (u32, &'static str)> {
    arch.calls().iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_name_each_call_once() {
        for arch in [Arch::X86_64, Arch::Aarch64, Arch::Arm] {
            assert!(arch.calls().windows(2).all(|two| two[0].0 < two[1].0), "{arch:?}");
            for (call, text) in names(arch) {
                assert_eq!((name(arch, call), number(arch, text)), (Some(text), Some(call)), "{arch:?}");
            }
        }
        assert_eq!(number(Arch::X86_64, "execve"), Some(59));
        assert_eq!(number(Arch::Aarch64, "execve"), Some(221));
        assert_eq!(number(Arch::Arm, "execve"), Some(11));
        assert_eq!((name(Arch::X86_64, 400), number(Arch::Aarch64, "open")), (None, None));
    }
}
