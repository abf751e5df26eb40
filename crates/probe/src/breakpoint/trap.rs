//! A thread hit a breakpoint, or got a SIGTRAP of its own.

use nix::unistd::Pid;

use crate::arch::{Arch, Native};
use crate::breakpoint::engine::{Engine, Phase};
use crate::breakpoint::space::{Known, Purpose};
use crate::breakpoint::table::SiteIndex;
use crate::breakpoint::{End, Hit, Observer};
use crate::ptrace;

impl<O: Observer> Engine<'_, O> {
    /// A thread is about to get SIGTRAP.
    pub(super) fn trapped(&mut self, tid: Pid) {
        let Some((address, known)) = self.trap_of(tid) else {
            self.stops.signal += 1;
            return self.resume(tid, libc::SIGTRAP);
        };
        match known {
            Known::Planted(Purpose::Linker) => self.at_linker(tid, address),
            Known::Planted(Purpose::Site(index)) => self.at_site(tid, address, index),
            Known::Removed(code) => {
                self.stops.late += 1;
                self.tree.restore(tid, address, &code);
                let _ = Native::set_pc(tid, address);
            }
        }
        self.resume(tid, 0);
    }

    /// The breakpoint of ours that this SIGTRAP comes from: its address, and what we know of it.
    fn trap_of(&self, tid: Pid) -> Option<(u64, Known)> {
        if ptrace::signal_code(tid).ok()? != Native::TRAP_CODE {
            return None;
        }
        let address = Native::trap_address(tid).ok()?;
        Some((address, self.tree.known(tid, address)?))
    }

    fn at_linker(&mut self, tid: Pid, address: u64) {
        self.stops.linker += 1;
        let Some(space) = self.tree.space_mut(tid) else { return };
        let _ = Native::set_pc(tid, space.after_linker_hook().unwrap_or(address));
        let before = space.planted_count();
        let changed = space.libraries_changed(tid, &mut self.table);
        self.planted += space.planted_count().saturating_sub(before) as u32;
        self.writable(changed);
    }

    fn at_site(&mut self, tid: Pid, address: u64, index: SiteIndex) {
        self.tree.remove_site(index);
        let _ = Native::set_pc(tid, address);
        if !self.table.set_hit(index) {
            self.stops.late += 1;
            return;
        }
        self.stops.site += 1;
        let pid = self.tree.group(tid).unwrap_or(tid).as_raw() as u32;
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
