//! Differences between the processors that kernels are built for.

use std::io::Read;
use std::path::Path;

use crate::KernelError;
use crate::build::open;
use crate::error::io_at;

/// A processor with 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processor {
    /// As PCs have.
    #[default]
    X86_64,
    /// As most devices have.
    Aarch64,
}

/// Where the header of a boot image for x86 has its mark.
const X86_MARK: (usize, &[u8]) = (0x202, b"HdrS");
/// The same for AArch64.
const AARCH64_MARK: (usize, &[u8]) = (0x38, b"ARM\x64");
/// How a compressed one begins: gzip. Only AArch64's are compressed as a whole.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Bytes of an image that are looked at.
const HEAD_BYTES: u64 = 0x300;

impl Processor {
    /// The processor of a configuration, whole or a fragment: AArch64 where it has
    /// `CONFIG_ARM64=y`.
    pub fn of_config(text: &str) -> Self {
        if crate::config::is_set(text, "ARM64") { Self::Aarch64 } else { Self::X86_64 }
    }

    /// The processor of a boot image.
    ///
    /// # Errors
    /// It cannot be read, or is no boot image.
    pub fn of_image(path: &Path) -> Result<Self, KernelError> {
        let mut head = Vec::new();
        let file = open(path)?;
        file.take(HEAD_BYTES).read_to_end(&mut head).map_err(io_at(path))?;
        let has = |(at, mark): (usize, &[u8])| head.get(at..at + mark.len()) == Some(mark);
        match () {
            () if has(X86_MARK) => Ok(Self::X86_64),
            () if has(AARCH64_MARK) || head.starts_with(GZIP) => Ok(Self::Aarch64),
            () => {
                let reason = "it is no boot image: a bzImage of x86-64, or an Image or Image.gz of AArch64".to_string();
                Err(KernelError::Input { path: path.to_path_buf(), reason })
            }
        }
    }

    /// Its folder under `arch` in the kernel's source.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::X86_64 => "x86",
            Self::Aarch64 => "arm64",
        }
    }

    /// The option that is set in its configurations.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::X86_64 => "X86_64",
            Self::Aarch64 => "ARM64",
        }
    }

    /// The boot image, in `arch/…/boot`, and the goal of make for it.
    pub(crate) fn image(self) -> &'static str {
        match self {
            Self::X86_64 => "bzImage",
            Self::Aarch64 => "Image.gz",
        }
    }

    /// Variables that make is given.
    pub(crate) fn make(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &[],
            Self::Aarch64 if cfg!(target_arch = "aarch64") => &["ARCH=arm64"],
            Self::Aarch64 => &["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"],
        }
    }

    /// The compiler and linker of a build, and the packages of Debian that have them.
    pub(crate) fn tools(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Aarch64 if cfg!(not(target_arch = "aarch64")) => {
                (&["aarch64-linux-gnu-gcc", "aarch64-linux-gnu-ld"], "gcc-aarch64-linux-gnu")
            }
            _ => (&[], ""),
        }
    }

    /// The table of system calls in the source, and which of its lines are for programs of 64 bits.
    pub fn calls(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::X86_64 => ("arch/x86/entry/syscalls/syscall_64.tbl", &["common", "64"]),
            Self::Aarch64 => ("scripts/syscall.tbl", &["common", "64", "renameat", "rlimit", "memfd_secret"]),
        }
    }

    /// What names of handlers of system calls begin with.
    pub(crate) fn call_prefix(self) -> &'static str {
        match self {
            Self::X86_64 => "__x64_sys_",
            Self::Aarch64 => "__arm64_sys_",
        }
    }

    /// The processor that it is not.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::X86_64 => Self::Aarch64,
            Self::Aarch64 => Self::X86_64,
        }
    }

    /// The handler of removed system calls: what its name begins with, and where it finds the
    /// number.
    pub(crate) fn removed_call(self, text: &str) -> String {
        match self {
            Self::X86_64 => text.to_string(),
            Self::Aarch64 => {
                text.replace(Self::X86_64.call_prefix(), self.call_prefix()).replace("regs->orig_ax", "regs->syscallno")
            }
        }
    }

    /// A command line for the machine that the emulator is: its console, and no restart after a
    /// panic.
    pub fn command_line(self) -> &'static str {
        match self {
            Self::X86_64 => "console=ttyS0 panic=-1",
            Self::Aarch64 => "console=ttyAMA0 panic=-1",
        }
    }

    /// The emulator, and the package of Debian that has it.
    pub fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// The machine that the emulator is; `counted` without instructions that count as one however
    /// long they are.
    pub(crate) fn machine(self, counted: bool) -> [&'static str; 4] {
        match (self, counted) {
            (Self::X86_64, false) => ["-M", "q35", "-cpu", "max"],
            (Self::X86_64, true) => ["-M", "q35", "-cpu", "max,-erms,-fsrm"],
            (Self::Aarch64, _) => ["-M", "virt", "-cpu", "cortex-a72"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_its_processor() {
        assert_eq!(Processor::of_config("CONFIG_64BIT=y\nCONFIG_ARM64=y\n"), Processor::Aarch64);
        for text in ["", "CONFIG_64BIT=y\n", "# CONFIG_ARM64 is not set\n", "CONFIG_ARM64_4K_PAGES=y\n"] {
            assert_eq!(Processor::of_config(text), Processor::X86_64, "{text}");
        }
    }

    #[test]
    fn a_boot_image_says_its_processor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Processor::of_image(&path)
        };
        let marked = |(at, mark): (usize, &[u8])| [&vec![0; at][..], mark, &[0; 64]].concat();
        assert_eq!(of(&marked(X86_MARK)).unwrap(), Processor::X86_64);
        assert_eq!(of(&marked(AARCH64_MARK)).unwrap(), Processor::Aarch64);
        assert_eq!(of(&[0x1f, 0x8b, 8, 0]).unwrap(), Processor::Aarch64);
        for bytes in [&b""[..], b"\x7fELF", &marked(X86_MARK)[..0x203]] {
            assert!(matches!(of(bytes), Err(KernelError::Input { .. })));
        }
        assert!(matches!(Processor::of_image(&folder.path().join("absent")), Err(KernelError::Io { .. })));
    }

    #[test]
    fn the_handler_of_removed_calls_is_the_processor_s() {
        let text = include_str!("removed_call.c");
        assert_eq!(Processor::X86_64.removed_call(text), text);
        let other = Processor::Aarch64.removed_call(text);
        assert!(other.contains("long __arm64_sys_specialise_removed(const struct pt_regs *regs)\n{"));
        assert!(other.contains("regs->syscallno") && !other.contains("x64") && !other.contains("orig_ax"));
    }
}
