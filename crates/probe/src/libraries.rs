//! The dynamic linker of one process: the address of its hook, and the libraries that it has loaded
//! since the last look.
//!
//! Reading all mappings of a large program costs about as much as a hundred stops. So the list of
//! libraries that ld.so keeps for debuggers (`_r_debug`, a chain of `link_map`, new ones at its
//! end) is followed instead: a look at the few new nodes shows whether one of them matters. The
//! chain is memory of a foreign program: if a step fails, or there are too many, the mappings are
//! read. Libraries in name spaces of their own (dlmopen) are only seen together with others.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::linker::Hook;
use crate::memory::Memory;

/// Libraries in one process that we follow. The largest office suite has about 500.
const LIBRARIES_MAX: usize = 20_000;

/// PATH_MAX of Linux.
const NAME_BYTES_MAX: usize = 4096;

/// Bytes of a name that are read at once: most names are shorter.
const NAME_STEP: u64 = 128;

/// `r_state` of link.h: libraries are about to be added, or taken away.
const ADD: u64 = 1;
const DELETE: u64 = 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libraries {
    /// The address of the hook's breakpoint.
    pub(crate) address: u64,
    pub(crate) hook: Hook,
    /// The last node of the chain when we last looked at all mappings; None if that must be done
    /// anew.
    last: Option<u64>,
}

/// What a stop in the hook means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing was mapped that matters.
    Nothing,
    /// The mappings must be read.
    Mapped,
}

impl Libraries {
    pub(crate) fn new(address: u64, hook: Hook) -> Libraries {
        Libraries { address, hook, last: None }
    }

    /// The address at which a thread goes on that hit the hook's breakpoint: another return
    /// instruction.
    pub(crate) fn after_hook(&self) -> u64 {
        self.address.wrapping_add(self.hook.to_other_return)
    }

    /// At a stop in the hook: whether a library came that `matters`, by its path.
    pub(crate) fn news(&mut self, memory: &Memory, matters: impl FnMut(&Path) -> bool) -> News {
        let Some(to_debug) = self.hook.to_debug else { return News::Mapped };
        let debug = self.address.wrapping_add(to_debug);
        let word = self.hook.word_bytes;
        // struct r_debug { int version; link_map *map; address brk; int state; ... }, each field at
        // a multiple of a word.
        let Ok([_, head, _, state]) = memory.four_words(debug, word) else { return News::Mapped };
        // An int, behind which there may be padding.
        let state = if cfg!(target_endian = "big") && word == 8 { state >> 32 } else { state & u64::from(u32::MAX) };
        match (state, self.last) {
            (ADD, _) => News::Nothing,
            (DELETE, _) => {
                self.last = None;
                News::Nothing
            }
            (_, None) => {
                self.last = self.follow(memory, head, |_| false).ok().map(|(last, _)| last);
                News::Mapped
            }
            (_, Some(last)) => {
                let found = self.follow(memory, last, matters);
                self.last = found.as_ref().ok().map(|(last, _)| *last);
                match found {
                    Ok((_, false)) => News::Nothing,
                    _ => News::Mapped,
                }
            }
        }
    }

    /// Goes from node `from` to the end of the chain: the last node, and whether one behind `from`
    /// matters.
    fn follow(&self, memory: &Memory, from: u64, mut matters: impl FnMut(&Path) -> bool) -> io::Result<(u64, bool)> {
        let word = self.hook.word_bytes;
        let mut is_found = false;
        // struct link_map { address addr; char *name; dynamic *ld; link_map *next, *prev; ... }
        let [_, _, _, mut next] = memory.four_words(from, word)?;
        let mut node = from;
        for _ in 0..LIBRARIES_MAX {
            if next == 0 {
                return Ok((node, is_found));
            }
            node = next;
            let name;
            [_, name, _, next] = memory.four_words(node, word)?;
            is_found = is_found || matters(Path::new(OsStr::from_bytes(&name_at(memory, name)?)));
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn name_at(memory: &Memory, address: u64) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    while name.len() < NAME_BYTES_MAX {
        let at = address.wrapping_add(name.len() as u64);
        // Never across the end of a block: the next page may not be there.
        let mut part = [0u8; NAME_STEP as usize];
        let part = &mut part[..(NAME_STEP - at % NAME_STEP) as usize];
        memory.read(at, part)?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            name.extend_from_slice(&part[..end]);
            return Ok(name);
        }
        name.extend_from_slice(part);
    }
    Err(io::ErrorKind::InvalidData.into())
}
