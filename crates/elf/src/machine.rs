//! Differences between processor architectures: directory names and the tokens of search paths.

/// Word size of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 32-bit.
    Elf32,
    /// 64-bit.
    Elf64,
}

/// Byte order of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Machine::I386 => "i386",
            Machine::PPC64 => "PowerPC",
            Machine::S390 => "IBM Z",
            Machine::ARM => "ARM",
            Machine::X86_64 => "x86-64",
            Machine::AARCH64 => "AArch64",
            Machine::RISCV => "RISC-V",
            Machine(number) => return write!(f, "foreign (ELF machine {number})"),
        })
    }
}

/// Processor architecture as the ELF header numbers it (`e_machine`); any value is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine(pub u16);

impl Machine {
    /// Intel 80386.
    pub const I386: Machine = Machine(3);
    /// 64-bit PowerPC.
    pub const PPC64: Machine = Machine(21);
    /// IBM Z.
    pub const S390: Machine = Machine(22);
    /// 32-bit ARM.
    pub const ARM: Machine = Machine(40);
    /// AMD and Intel 64-bit.
    pub const X86_64: Machine = Machine(62);
    /// 64-bit ARM.
    pub const AARCH64: Machine = Machine(183);
    /// RISC-V, both word sizes.
    pub const RISCV: Machine = Machine(243);

    /// Whether Linux on this architecture also starts programs of `other`, if its kernel was built
    /// so.
    pub fn starts(self, other: Machine) -> bool {
        self == other || [(Machine::X86_64, Machine::I386), (Machine::AARCH64, Machine::ARM)].contains(&(self, other))
    }

    /// Debian's multiarch directory names for this architecture, most usual first.
    pub(crate) fn multiarch(self, class: Class) -> &'static [&'static str] {
        match (self, class) {
            (Machine::X86_64, Class::Elf64) => &["x86_64-linux-gnu"],
            (Machine::X86_64, Class::Elf32) => &["x86_64-linux-gnux32"],
            (Machine::I386, _) => &["i386-linux-gnu"],
            (Machine::AARCH64, _) => &["aarch64-linux-gnu"],
            (Machine::ARM, _) => &["arm-linux-gnueabihf", "arm-linux-gnueabi"],
            (Machine::RISCV, Class::Elf64) => &["riscv64-linux-gnu"],
            (Machine::PPC64, _) => &["powerpc64le-linux-gnu"],
            (Machine::S390, Class::Elf64) => &["s390x-linux-gnu"],
            _ => &[],
        }
    }

    /// What `$PLATFORM` may stand for in a search path.
    pub(crate) fn platforms(self) -> &'static [&'static str] {
        match self {
            Machine::X86_64 => &["x86_64", "haswell", "xeon_phi"],
            Machine::I386 => &["i686", "i586", "i386"],
            Machine::AARCH64 => &["aarch64"],
            Machine::ARM => &["v7l", "v8l", "v6l"],
            Machine::RISCV => &["riscv64"],
            _ => &[],
        }
    }

    /// What `$LIB` may stand for in a search path: it is fixed when the C library is built, so all
    /// usual values count.
    pub(crate) fn library_directories(self, class: Class) -> Vec<String> {
        let mut names: Vec<String> = self.multiarch(class).iter().map(|name| format!("lib/{name}")).collect();
        if class == Class::Elf64 {
            names.push("lib64".into());
        }
        names.push("lib".into());
        names
    }

    /// Directories that `ld.so` of glibc searches without being told, over all the distributions we
    /// know.
    pub(crate) fn default_directories(self, class: Class) -> Vec<Vec<u8>> {
        let mut directories = Vec::new();
        for library in self.library_directories(class) {
            directories.push(format!("/{library}").into_bytes());
            directories.push(format!("/usr/{library}").into_bytes());
        }
        directories
    }
}
