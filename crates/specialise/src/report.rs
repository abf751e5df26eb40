//! The report: what was removed, by which pass, and why.

use std::collections::BTreeMap;

use serde::Serialize;

/// Bytes by what they are used for, without filling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Code that stays after the start.
    pub text: u64,
    /// Constants and strings.
    pub rodata: u64,
    /// Variables with a value.
    pub data: u64,
    /// Variables that begin as zero.
    pub bss: u64,
    /// Code and data that are freed after the start.
    pub init: u64,
    /// Side tables.
    pub tables: u64,
}

impl Sizes {
    /// All together.
    pub fn total(&self) -> u64 {
        self.text + self.rodata + self.data + self.bss + self.init + self.tables
    }

    /// What remains in memory after the start.
    pub fn resident(&self) -> u64 {
        self.text + self.rodata + self.data + self.bss
    }
}

/// What one pass did.
#[derive(Clone, Debug, Serialize)]
pub struct PassReport {
    /// Name of the pass.
    pub name: &'static str,
    /// Whether it ran.
    pub on: bool,
    /// Atoms that it removed (moved, for initialisation).
    pub atoms: u64,
    /// Their bytes, without what they leave of tables of names.
    pub bytes: Sizes,
}

/// A side table: entries that describe code, or that the kernel walks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// Its section, or what the names of its sections begin with.
    pub name: &'static str,
    /// Entries before.
    pub entries: u64,
    /// Entries that are left.
    pub entries_left: u64,
    /// Bytes before.
    pub bytes: u64,
    /// Bytes that are left.
    pub bytes_left: u64,
}

/// An atom that was removed.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// Its symbol, or its section and offset.
    pub name: String,
    /// Its section.
    pub section: String,
    /// Its bytes.
    pub bytes: u64,
    /// The pass that removed it.
    pub pass: &'static str,
    /// Something that referred to it and is gone too; `None` if nothing ever did.
    pub used_by: Option<String>,
}

/// What was frozen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FreezeReport {
    /// Bytes of code that stay after the start.
    pub text: u64,
    /// Of these, bytes of functions that ran in service.
    pub ran_in_service: u64,
    /// Bytes of functions that ran in the start only; frozen, beside each other.
    pub ran_in_start: u64,
    /// Bytes of functions that never ran.
    pub never_ran: u64,
    /// Of these, bytes that are frozen.
    pub never_ran_frozen: u64,
    /// Bytes that are frozen, without filling.
    pub frozen: u64,
    /// Functions that are frozen.
    pub functions: u64,
    /// Bytes of strings that only frozen functions use, frozen too; equal ones once.
    pub strings: u64,
    /// Functions of the coverage that the kernel does not have.
    pub unknown: u64,
    /// What never ran and is not frozen: why, with bytes.
    pub kept: BTreeMap<&'static str, u64>,
}

/// What the device does not use, by name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceReport {
    /// System calls that stay.
    pub syscalls_kept: Vec<String>,
    /// System calls that answer ENOSYS now.
    pub syscalls_removed: Vec<String>,
    /// Boot parameters that were dropped.
    pub parameters_removed: Vec<String>,
    /// Quirks that were dropped.
    pub quirks_removed: u64,
    /// Functions that registered drivers which were dropped.
    pub drivers_removed: Vec<String>,
}

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Release of the kernel.
    pub release: String,
    /// Sections of the object.
    pub sections: u64,
    /// Atoms in it.
    pub atoms: u64,
    /// Atoms that are left.
    pub atoms_left: u64,
    /// Bytes of the object.
    pub before: Sizes,
    /// Bytes that are left.
    pub after: Sizes,
    /// One for each pass, in their order.
    pub passes: Vec<PassReport>,
    /// One for each side table that is not empty, by name.
    pub tables: Vec<TableReport>,
    /// What the device does not use.
    #[serde(flatten)]
    pub device: DeviceReport,
    /// What is kept compressed.
    pub frozen: Option<FreezeReport>,
    /// The largest removals.
    pub largest: Vec<Removal>,
    /// What stayed because it was not understood, and other doubts.
    pub warnings: Vec<String>,
}
