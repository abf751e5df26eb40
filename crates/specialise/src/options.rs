//! Options: what the caller knows of the kernel and of the device.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::Device;

/// Which passes run. All of them are off in [`Passes::none`]: the object comes out with everything
/// it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Drop what no root reaches. The passes below only free what this one removes.
    pub unreachable: bool,
    /// Retarget system calls that are not in the list.
    pub syscalls: bool,
    /// Drop boot parameters that the command line does not use.
    pub parameters: bool,
    /// Drop quirks of PCI devices that are not in the inventory.
    pub quirks: bool,
    /// Drop the registration of PCI drivers none of whose devices are in the inventory.
    pub drivers: bool,
    /// Find branches that always go the same way; what they lead away from keeps nothing alive.
    pub constants: bool,
    /// Cut what is never executed out of functions; needs the pass for constants.
    pub blocks: bool,
    /// Drop the padding before functions, and the list of calls, which only a mitigation uses that
    /// the command line cannot turn on any more; needs the pass for parameters.
    pub padding: bool,
    /// Drop the names of functions that are freed after the start; needs the pass for parameters.
    pub names: bool,
    /// Keep one of equal functions.
    pub duplicates: bool,
    /// Also of such whose address is taken: pointers to different functions may then be equal. Not
    /// with control-flow integrity, whose checks read what lies before a function.
    pub duplicates_taken: bool,
    /// Move functions that only initialisation calls into memory that is freed.
    pub initialisation: bool,
}

impl Passes {
    /// Nothing is changed.
    pub fn none() -> Self {
        Self {
            unreachable: false,
            syscalls: false,
            parameters: false,
            quirks: false,
            drivers: false,
            constants: false,
            blocks: false,
            padding: false,
            names: false,
            duplicates: false,
            duplicates_taken: false,
            initialisation: false,
        }
    }

    /// All passes whose knowledge is given, without those that change what the kernel may do.
    pub fn all() -> Self {
        Self {
            unreachable: true,
            syscalls: true,
            parameters: true,
            quirks: true,
            drivers: true,
            constants: true,
            blocks: true,
            padding: true,
            names: true,
            duplicates: true,
            duplicates_taken: false,
            initialisation: true,
        }
    }
}

/// Arguments of system calls: entry point (`sys_…`), number of the argument from 0, numbers.
pub(crate) type Arguments = BTreeMap<String, BTreeMap<usize, BTreeSet<u64>>>;

/// What ran on the device, and what is wanted of it.
#[derive(Clone, Debug, Default)]
pub struct Freeze {
    /// Functions that ran in service, with their ranks by first run.
    pub service: BTreeMap<String, u32>,
    /// Functions that ran in the start only, with their ranks.
    pub start: BTreeMap<String, u32>,
    /// Keep the object's order of functions, which compresses better in the boot image, rather than
    /// that of runs.
    pub for_image: bool,
}

/// The kernel beside its object, and the device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Release of the kernel, such as `6.12.48`.
    pub release: String,
    /// The linker script, preprocessed (`arch/x86/kernel/vmlinux.lds` of the build).
    pub script: String,
    /// Which passes run.
    pub passes: Passes,
    /// Entry points (`sys_…`) of the system calls that are used; without it that pass does nothing.
    pub syscalls: Option<BTreeSet<String>>,
    /// The kernel's command line; without it no parameter is dropped.
    pub command_line: Option<String>,
    /// The PCI devices there are; without it no quirk and no driver is dropped.
    pub devices: Option<Vec<Device>>,
    /// Variables that hold these numbers from the start on and are never written.
    pub fixed: BTreeMap<String, u64>,
    /// Arguments of system calls that are always among few numbers, as whole registers: entry point
    /// (`sys_…`), number of the argument from 0, numbers.
    pub arguments: Arguments,
    /// Symbols that stay with all they need.
    pub roots: Vec<String>,
    /// Whether the kernel loads modules: all that is exported to them stays.
    pub modules: bool,
    /// Whether functions are padded for mitigations only: not for control-flow integrity, whose
    /// checks read what lies before.
    pub padding_is_spare: bool,
    /// What ran, so that the rest goes into pages that are kept compressed; without it code stays
    /// where it is.
    pub freeze: Option<Freeze>,
    /// Leave dead code in place, filled with instructions that trap, so that an unsound removal
    /// shows.
    pub trap: bool,
    /// Count which blocks of functions run, one byte each: the passes for constants and blocks stay
    /// off.
    pub instrument: bool,
}

/// Words of the command line that ask for the tracking of calls, which writes into the padding.
const TRACKING: [&str; 2] = ["retbleed=", "indirect_target_selection="];

/// Words of the command line that name initial functions.
const BY_NAME: &str = "initcall_";

impl Options {
    /// Whether branches are decided. Functions that are counted stay whole.
    pub(crate) fn decides_branches(&self) -> bool {
        self.passes.constants && !self.instrument
    }

    /// Whether dead code is cut out of functions, rather than left in place to trap.
    pub(crate) fn cuts_blocks(&self) -> bool {
        self.decides_branches() && self.passes.blocks && !self.trap
    }

    /// Whether names of initial functions are dropped: nothing asks for them.
    pub(crate) fn drops_names(&self) -> bool {
        let passes = self.passes;
        let asks = |word: &str| word.replace('-', "_").starts_with(BY_NAME);
        let fixed = self.command_line.as_ref().is_some_and(|line| !line.split_whitespace().any(asks));
        passes.unreachable && passes.parameters && passes.names && fixed && !self.trap
    }

    /// Whether padding is dropped: nothing can turn on what writes into it.
    pub(crate) fn drops_padding(&self) -> bool {
        let passes = self.passes;
        let asks = |word: &str| {
            let word = word.replace('-', "_");
            TRACKING.iter().any(|option| word.starts_with(option)) && word.contains("stuff")
        };
        let fixed = self.command_line.as_ref().is_some_and(|line| !line.split_whitespace().any(asks));
        passes.unreachable && passes.parameters && passes.padding && self.padding_is_spare && fixed
    }
}
