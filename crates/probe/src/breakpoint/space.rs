//! One address space: the breakpoints that stand in it, and those that did.
//!
//! Threads share a space, and so do a process and its vfork child. A forked child has a copy of its
//! own, breakpoints included. An exec makes a new, empty one. If the kernel cannot tell whether two
//! processes share their memory, each gets a `Space` of its own for it. This is harmless: a
//! breakpoint is only taken out where one stands, and every trap is looked up in all spaces.

use std::collections::{HashMap, HashSet};
use std::io;

use nix::unistd::Pid;

use crate::FileId;
use crate::breakpoint::table::{SiteIndex, Table};
use crate::libraries::{Libraries, News};
use crate::linker::Hook;
use crate::maps::{self, Mapping};
use crate::memory::{Code, Memory, breakpoint_code};
use crate::process;

/// What a breakpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Site(SiteIndex),
    Linker,
}

/// How a space knows the address of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// A breakpoint stands there.
    Planted(Purpose),
    /// One stood there in place of this instruction, which is back.
    Removed(Code),
}

#[derive(Clone, Copy, Debug)]
struct Planted {
    code: Code,
    purpose: Purpose,
    /// In a file that was loaded with the program and stays as long as it; others may be unloaded
    /// and loaded again.
    stays: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    memory: Memory,
    executable: Option<FileId>,
    planted: HashMap<u64, Planted>,
    /// Where breakpoints stood, and the instructions in their place.
    removed: HashMap<u64, Code>,
    libraries: Option<Libraries>,
    /// Whether breakpoints may be put in.
    is_followed: bool,
    /// Until the linker has loaded what the program needs.
    is_starting: bool,
    /// Open sites when the linker's hook was last thought about.
    left: usize,
}

impl Space {
    /// The space of a process that has just executed a program: plants all that is mapped already.
    pub(crate) fn after_exec(pid: Pid, table: &mut Table) -> io::Result<Space> {
        let (mut space, mappings) = Space::open(pid)?;
        // Only the program and its linker are mapped yet, the linker above; the program is one if
        // it was named as such.
        let hooks = mappings.iter().rev().filter_map(|mapping| Some((mapping, table.find_hook(pid, mapping)?)));
        space.libraries = hooks.filter_map(linker_at).next();
        space.is_starting = true;
        space.plant(pid, &mappings, table)?;
        Ok(space)
    }

    /// The space of a process that came by fork: takes over the breakpoints that it inherited, or
    /// takes them out if it is not followed.
    pub(crate) fn after_fork(pid: Pid, table: &mut Table, is_followed: bool) -> io::Result<Space> {
        let (mut space, mappings) = Space::open(pid)?;
        let hooks = mappings.iter().filter_map(|mapping| Some((mapping, table.known_hook(mapping)?)));
        space.libraries = hooks.filter_map(linker_at).next();
        space.is_followed = is_followed;
        space.plant(pid, &mappings, table)?;
        Ok(space)
    }

    fn open(pid: Pid) -> io::Result<(Space, Vec<Mapping>)> {
        let space = Space {
            memory: Memory::open(pid)?,
            executable: process::executable(pid).ok(),
            planted: HashMap::new(),
            removed: HashMap::new(),
            libraries: None,
            is_followed: true,
            is_starting: false,
            left: 0,
        };
        Ok((space, maps::read(pid)?))
    }

    /// Breakpoints that stand in this space.
    pub(crate) fn planted_count(&self) -> usize {
        self.planted.len()
    }

    /// How the address of a trap is known here.
    pub(crate) fn known(&self, address: u64) -> Option<Known> {
        let removed = || self.removed.get(&address).copied().map(Known::Removed);
        self.planted.get(&address).map(|planted| Known::Planted(planted.purpose)).or_else(removed)
    }

    /// The instruction at an address where a breakpoint stands or stood.
    pub(crate) fn code_before(&self, address: u64) -> Option<Code> {
        self.planted.get(&address).map(|planted| planted.code).or_else(|| self.removed.get(&address).copied())
    }

    /// Takes a breakpoint out that should not be there.
    pub(crate) fn restore(&self, address: u64, code: &Code) {
        self.memory.restore(address, code);
    }

    /// The address at which a thread goes on that hit the linker's breakpoint.
    pub(crate) fn after_linker_hook(&self) -> Option<u64> {
        self.libraries.as_ref().map(Libraries::after_hook)
    }

    /// At a stop in the linker's hook: plants the sites of newly mapped files.
    pub(crate) fn libraries_changed(&mut self, pid: Pid, table: &mut Table) -> io::Result<()> {
        let Space { libraries: Some(libraries), memory, .. } = self else { return Ok(()) };
        match libraries.news(memory, |path| table.has_sites(pid, path)) {
            News::Mapped => {
                let planted = maps::read(pid).and_then(|mappings| self.plant(pid, &mappings, table));
                self.is_starting = false;
                planted
            }
            News::Nothing if self.left != table.left() => self.plant_linker(table),
            News::Nothing => Ok(()),
        }
    }

    /// Plants every open site of these mappings that is not planted yet, and the linker's hook if
    /// more may follow.
    fn plant(&mut self, pid: Pid, mappings: &[Mapping], table: &mut Table) -> io::Result<()> {
        // A library that is gone took its breakpoints along. Should it only be writable for a
        // moment, they are still known.
        let mapped = |address: u64| mappings.iter().any(|mapping| (mapping.start..mapping.end).contains(&address));
        let removed = &mut self.removed;
        self.planted.retain(|address, planted| {
            let stays = mapped(*address);
            if !stays {
                removed.insert(*address, planted.code);
            }
            stays
        });
        for mapping in mappings {
            for (index, address) in table.in_mapping(pid, mapping) {
                self.plant_site(index, address, table)?;
            }
        }
        self.plant_linker(table)
    }

    fn plant_site(&mut self, index: SiteIndex, address: u64, table: &mut Table) -> io::Result<()> {
        if self.planted.contains_key(&address) {
            return Ok(());
        }
        let wanted = table.site(index).executable.is_none_or(|wanted| Some(wanted) == self.executable);
        let is_open = self.is_followed && wanted && !table.is_hit(index);
        // Unmapped since by another thread.
        let Ok(current) = self.memory.code(address) else { return Ok(()) };
        let is_breakpoint = current == breakpoint_code();
        let code = match (is_breakpoint, table.code(index)) {
            // One of the program itself, which no breakpoint of ours can stand for.
            (true, None) => return Ok(()),
            (true, Some(code)) => code,
            (false, _) => current,
        };
        table.set_code(index, code);
        if is_open {
            if !is_breakpoint {
                self.memory.set_code(address, &breakpoint_code())?;
            }
            self.removed.remove(&address);
            self.planted.insert(address, Planted { code, purpose: Purpose::Site(index), stays: self.is_starting });
        } else if is_breakpoint {
            // Inherited, and hit elsewhere since.
            self.memory.set_code(address, &code)?;
            self.removed.insert(address, code);
        }
        Ok(())
    }

    /// Sees to it that the linker's hook is there as long as sites are missing, or may come to be.
    fn plant_linker(&mut self, table: &Table) -> io::Result<()> {
        let Some(Libraries { address, hook, .. }) = self.libraries else { return Ok(()) };
        self.left = table.left();
        let staying = self.planted.values().filter(|planted| planted.stays);
        let staying: HashSet<SiteIndex> = staying.filter_map(|planted| planted.purpose.site()).collect();
        let is_missing = self.is_followed && table.open_in(self.executable).any(|index| !staying.contains(&index));
        let Ok(current) = self.memory.code(address) else { return Ok(()) };
        let stands = current == breakpoint_code();
        if is_missing && !self.planted.contains_key(&address) {
            if !stands {
                self.memory.set_code(address, &breakpoint_code())?;
            }
            self.removed.remove(&address);
            self.planted.insert(address, Planted { code: hook.code, purpose: Purpose::Linker, stays: true });
        } else if !is_missing && stands {
            self.memory.set_code(address, &hook.code)?;
            self.planted.remove(&address);
            self.removed.insert(address, hook.code);
        }
        Ok(())
    }

    /// Takes the breakpoints of one site out.
    pub(crate) fn remove_site(&mut self, index: SiteIndex) {
        self.remove(|planted| planted.purpose == Purpose::Site(index));
    }

    /// Takes all breakpoints out.
    pub(crate) fn remove_all(&mut self) {
        self.is_followed = false;
        self.remove(|_| true);
    }

    fn remove(&mut self, which: impl Fn(&Planted) -> bool) {
        let Space { memory, planted, removed, .. } = self;
        planted.retain(|address, breakpoint| {
            if !which(breakpoint) {
                return true;
            }
            memory.restore(*address, &breakpoint.code);
            removed.insert(*address, breakpoint.code);
            false
        });
    }
}

impl Purpose {
    fn site(self) -> Option<SiteIndex> {
        match self {
            Purpose::Site(index) => Some(index),
            Purpose::Linker => None,
        }
    }
}

fn linker_at((mapping, hook): (&Mapping, Hook)) -> Option<Libraries> {
    Some(Libraries::new(mapping.address_of(hook.offset)?, hook))
}
