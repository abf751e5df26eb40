//! A thread ran into a breakpoint, or into a SIGTRAP of its own.

use nix::unistd::Pid;

use crate::arch::{Arch, Native};
use crate::breakpoint::engine::{Engine, Phase};
use crate::breakpoint::space::{Known, Purpose};
use crate::breakpoint::table::SiteIndex;
use crate::breakpoint::{End, Hit, Observer};
use crate::memory::{Code, Memory};
use crate::ptrace;

impl<O: Observer> Engine<'_, O> {
    /// A thread is about to get SIGTRAP.
    pub(super) fn trapped(&mut self, tid: Pid) {
        let Some((address, known)) = self.trap_of(tid) else {
            self.stops.signal += 1;
            return self.go_on(tid, libc::SIGTRAP);
        };
        match known {
            Known::Planted(Purpose::Linker) => self.at_linker(tid, address),
            Known::Planted(Purpose::Site(index)) => self.at_site(tid, address, index),
            Known::Retired(code) => {
                self.stops.late += 1;
                self.restore(tid, address, &code);
                let _ = Native::set_pc(tid, address);
            }
        }
        self.go_on(tid, 0);
    }

    /// The breakpoint of ours that this SIGTRAP comes from: its address, and what we know of it.
    fn trap_of(&self, tid: Pid) -> Option<(u64, Known)> {
        if ptrace::signal_code(tid).ok()? != Native::TRAP_CODE {
            return None;
        }
        let address = Native::trap_address(tid).ok()?;
        Some((address, self.known(tid, address)?))
    }

    /// What is known of an address in a thread's memory; if nothing, in any memory: see `space`.
    pub(super) fn known(&self, tid: Pid, address: u64) -> Option<Known> {
        let own = self.threads.get(&tid).and_then(|thread| self.spaces.get(&thread.space?));
        let known = own.and_then(|space| space.known(address));
        known.or_else(|| self.spaces.values().find_map(|space| space.code_before(address)).map(Known::Retired))
    }

    /// Sees to it that no breakpoint stands where one should not: a thread would run into it again and again.
    fn restore(&self, tid: Pid, address: u64, code: &Code) {
        let own = self.threads.get(&tid).and_then(|thread| self.spaces.get(&thread.space?));
        match own {
            Some(space) => space.restore(address, code),
            None => {
                let _ = Memory::open(tid).map(|memory| memory.restore(address, code));
            }
        }
    }

    fn at_linker(&mut self, tid: Pid, address: u64) {
        self.stops.linker += 1;
        let Some(space) = self.threads.get(&tid).and_then(|thread| thread.space) else { return };
        let Some(space) = self.spaces.get_mut(&space) else { return };
        let _ = Native::set_pc(tid, space.after_linker_hook().unwrap_or(address));
        let before = space.planted_count();
        let changed = space.libraries_changed(tid, &mut self.table);
        self.planted += space.planted_count().saturating_sub(before) as u32;
        self.writable(changed);
    }

    fn at_site(&mut self, tid: Pid, address: u64, index: SiteIndex) {
        for space in self.spaces.values_mut() {
            space.retire_site(index);
        }
        let _ = Native::set_pc(tid, address);
        if !self.table.set_hit(index) {
            self.stops.late += 1;
            return;
        }
        self.stops.site += 1;
        let pid = self.threads.get(&tid).map_or(tid, |thread| thread.group).as_raw() as u32;
        let moment = self.now();
        let mut hit = vec![index];
        hit.extend(self.table.hit_twins(index));
        for index in hit {
            self.hits += 1;
            self.observer.hit(Hit { id: self.table.site(index).id, pid, moment });
        }
        if self.table.left() == 0 && self.phase == Phase::Tracing {
            self.release(End::AllHit);
        }
    }
}
