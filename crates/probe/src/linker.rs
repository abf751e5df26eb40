//! The hook of the dynamic linker. ld.so calls the empty function `_dl_debug_state` (the `r_brk` of
//! debuggers) before and after it changes the list of loaded libraries; glibc and musl export it. A
//! breakpoint on its return instruction sees every library load of a program without watching
//! system calls. A thread that hits it goes on at *another* return instruction of the linker's
//! code: there is no single step, no breakpoint to set again, no stack to touch, and shadow stacks
//! stay right.

use std::fs::File;
use std::io;
use std::path::Path;

use object::read::elf::{ElfFile, FileHeader};
use object::{Endianness, FileKind, Object, ObjectSegment, ObjectSymbol, ReadCache, SegmentFlags, elf};

use crate::arch::{Arch, BREAKPOINT, Native};
use crate::memory::Code;

/// Instructions that may precede the return in the empty function.
const PADDING_MAX: usize = 4;

/// The hook in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    /// Offset in the file of the return instruction of `_dl_debug_state`.
    pub(crate) offset: u64,
    /// What stands there.
    pub(crate) code: Code,
    /// Bytes from there to another return instruction in the same segment.
    pub(crate) to_other_return: u64,
    /// Bytes from there to `_r_debug`, may be negative. None if the file does not export it.
    pub(crate) to_debug: Option<u64>,
    /// Bytes of an address in the programs of this linker: 4 or 8.
    pub(crate) word_bytes: usize,
}

impl Hook {
    /// Finds the hook in a dynamic linker. `Ok(None)` for every file that has none, or whose
    /// function is not empty.
    pub(crate) fn find(path: &Path) -> io::Result<Option<Hook>> {
        let cache = ReadCache::new(File::open(path)?);
        Ok(match FileKind::parse(&cache) {
            Ok(FileKind::Elf64) => find::<elf::FileHeader64<Endianness>>(&cache, 8),
            Ok(FileKind::Elf32) => find::<elf::FileHeader32<Endianness>>(&cache, 4),
            _ => None,
        })
    }
}

fn find<Elf: FileHeader<Endian = Endianness>>(cache: &ReadCache<File>, word_bytes: usize) -> Option<Hook> {
    let file = ElfFile::<Elf, _>::parse(cache).ok()?;
    let (mut function, mut debug) = (None, None);
    for symbol in file.dynamic_symbols().filter(ObjectSymbol::is_definition) {
        match symbol.name_bytes() {
            Ok(b"_dl_debug_state") => function = Some(symbol.address()),
            Ok(b"_r_debug") => debug = Some(symbol.address()),
            _ => {}
        }
    }
    let function = function?;
    let segment = file.segments().find(|segment| {
        let executable = matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(elf::PF_X));
        executable && function.wrapping_sub(segment.address()) < segment.size()
    })?;
    let bytes = segment.data().ok()?;
    let mut at = usize::try_from(function - segment.address()).ok()?;
    for _ in 0..PADDING_MAX {
        let rest = bytes.get(at..)?;
        let Some(padding) = Native::PADDING.iter().find(|padding| rest.starts_with(padding)) else { break };
        at += padding.len();
    }
    if !bytes.get(at..)?.starts_with(Native::RETURN) {
        return None;
    }
    let behind = at + Native::RETURN.len().max(BREAKPOINT.len());
    let other =
        (behind..bytes.len()).step_by(Native::ALIGN).find(|place| bytes[*place..].starts_with(Native::RETURN))?;
    let mut code = Code::default();
    code[..BREAKPOINT.len()].copy_from_slice(bytes.get(at..at + BREAKPOINT.len())?);
    let address = segment.address() + at as u64;
    Some(Hook {
        offset: segment.file_range().0 + at as u64,
        code,
        to_other_return: (other - at) as u64,
        to_debug: debug.map(|debug| debug.wrapping_sub(address)),
        word_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::News;

    #[test]
    fn a_program_has_no_hook_and_a_text_is_no_error() {
        let exe = std::env::current_exe().expect("known");
        assert_eq!(Hook::find(&exe).expect("readable"), None);
        assert_eq!(Hook::find(Path::new("/proc/self/status")).expect("readable"), None);
    }

    #[test]
    fn the_linker_of_this_system_has_one() {
        let own = crate::maps::read(nix::unistd::Pid::this()).expect("readable");
        let Some(linker) = own.iter().find(|mapping| mapping.path.to_string_lossy().contains("/ld-")) else {
            eprintln!("skipped: this test is a static program");
            return;
        };
        let hook = Hook::find(&linker.path).expect("readable").expect("found");
        let memory = crate::memory::Memory::open(nix::unistd::Pid::this()).expect("open");
        let address = linker.address_of(hook.offset).expect("mapped");
        assert_eq!(memory.code(address).expect("readable"), hook.code);
        assert!(memory.code(address + hook.to_other_return).expect("readable").starts_with(Native::RETURN));
        let mut libraries = crate::libraries::Libraries::new(address, hook);
        assert!(hook.to_debug.is_some());
        assert_eq!(libraries.news(&memory, |_| unreachable!()), News::Mapped);
        assert_eq!(libraries.news(&memory, |_| unreachable!()), News::Nothing);
    }
}
