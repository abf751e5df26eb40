//! The sections of a kernel release: ordinary code and data, and side tables whose entries describe
//! other code.
//!
//! A linker that collects garbage must treat every side table as a root. A mainstream kernel has so
//! many of them that hardly anything is left to collect. Here an entry lives exactly as long as the
//! code that it describes. For this the schema must know how long an entry is, where the entry
//! names the code, and which other table belongs to it. This is checked on every object. A table
//! that does not match stays whole, with a warning.

mod aarch64;
mod x86_64;

use crate::SpecialiseError;

/// When an entry of a side table lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// As long as what the relocation at this offset of the entry refers to.
    Keyed(u64),
    /// As long as the entry of the same number in the table of this name.
    Paired(&'static str),
    /// Always, each entry for itself, unless a pass drops it.
    Entry,
}

/// A side table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// Name of the section; with `*` at the end, what it begins with.
    pub name: &'static str,
    /// Bytes of an entry: the first that fits.
    pub entry_sizes: &'static [u64],
    /// When an entry lives.
    pub rule: Rule,
}

/// What a section is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Ordinary code or data, divided at symbols.
    Parts,
    /// Code without symbols, divided where references from the section of this name go, or from any
    /// code.
    Pieces(Option<&'static str>),
    /// A side table.
    Table(&'static Table),
    /// Stays whole, and is a root: its place or order means something.
    Whole,
    /// The kernel's own link throws it away.
    Discarded,
    /// Not described: stays whole as a root, and is reported.
    Unknown,
}

/// Tables whose keys name functions, or places from which on something holds; those of all others
/// name instructions.
const OF_PLACES: [&str; 4] = [".orc_unwind_ip", ".ibt_endbr_seal", "_kprobe_blacklist", "_error_injection_whitelist"];

impl Role {
    /// Whether it is divided at symbols.
    pub fn is_parts(self) -> bool {
        matches!(self, Role::Parts)
    }

    /// Where in an entry its key is; `None` if it has none.
    pub fn key(&self) -> Option<u64> {
        match self {
            Role::Table(Table { rule: Rule::Keyed(at), .. }) => Some(*at),
            _ => None,
        }
    }

    /// Whether the keys name instructions, and not what control comes to.
    pub fn names_instructions(&self) -> bool {
        matches!(self, Role::Table(table) if !OF_PLACES.contains(&table.name))
    }
}

/// The sections of a range of releases.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Releases as `MAJOR.MINOR`.
    pub releases: &'static [&'static str],
    /// `EM_…` of the processor.
    pub machine: u16,
    tables: &'static [Table],
    /// Tables that other releases have in another shape, or not at all.
    own: &'static [Table],
    parts: &'static [&'static str],
    pieces: &'static [(&'static str, Option<&'static str>)],
    whole: &'static [&'static str],
    discarded: &'static [&'static str],
    /// Functions that dispatch system calls and tables of their handlers.
    pub dispatchers: &'static [&'static str],
    /// Functions that read the strings they are given and keep none.
    pub readers: &'static [&'static str],
    /// Constant tables of functions that nothing but those that refer to the table calls, and only
    /// while they run: names without the number that compilers add.
    pub call_tables: &'static [&'static str],
    /// Where `struct pci_driver` names its table of devices.
    pub driver_table_at: i64,
    /// Beginnings of the names of handlers, and the handlers that stand for all unused ones: the
    /// first that is there.
    pub handlers: &'static [(&'static str, &'static [&'static str])],
    /// Functions on the way of a fault to the handler that thaws, of interrupts that cannot be put
    /// off, and where the processor has no table of interrupts yet or no more. They are never
    /// frozen, and what they call directly neither.
    pub on_the_way: &'static [&'static str],
    /// Parts of the names of functions that send interrupts to processors that must forget a page
    /// at once: they are called through a table of the interrupt controller. Empty where the
    /// hardware tells processors.
    pub sending: &'static [&'static str],
}

const fn keyed(name: &'static str, entry_sizes: &'static [u64], at: u64) -> Table {
    Table { name, entry_sizes, rule: Rule::Keyed(at) }
}

const fn entries(name: &'static str, entry_sizes: &'static [u64]) -> Table {
    Table { name, entry_sizes, rule: Rule::Entry }
}

/// `.init.setup`: name, function, whether early.
pub(crate) const SETUP: &str = ".init.setup";
/// `__param`: name, module, operations, permissions, level, flags, variable.
pub(crate) const PARAM: &str = "__param";
/// `.pci_fixup_*`: vendor, device, class, class shift, function.
pub(crate) const QUIRKS: &str = ".pci_fixup*";

/// Sections of ordinary code and data, with all whose names go on with a dot.
const PARTS: &[&str] = &[
    ".text",
    ".text..frozen",
    ".text..frozen_data",
    ".init.text",
    ".exit.text",
    ".ref.text",
    ".sched.text",
    ".spinlock.text",
    ".cpuidle.text",
    ".kprobes.text",
    ".noinstr.text",
    ".irqentry.text",
    ".softirqentry.text",
    ".static_call.text",
    ".rodata",
    ".init.rodata",
    ".ref.rodata",
    ".ref.data",
    ".data",
    ".init.data",
    ".meminit.text",
    ".meminit.rodata",
    ".meminit.data",
    ".exit.data",
    ".bss",
    "__tracepoints",
    "__tracepoints_strings",
];

/// Functions that read the strings they are given and keep none.
const READERS: &[&str] = &[
    "_printk",
    "panic",
    "early_printk",
    "_dev_printk",
    "_dev_emerg",
    "_dev_alert",
    "_dev_crit",
    "_dev_err",
    "_dev_warn",
    "_dev_notice",
    "_dev_info",
    "__warn_printk",
    "snprintf",
    "scnprintf",
    "sprintf",
    "strcmp",
    "strncmp",
    "strcasecmp",
    "strlen",
    "memcmp",
    "memcpy",
];

static SCHEMAS: [Schema; 3] = [x86_64::LINUX_6_1, x86_64::LINUX_6_12, aarch64::LINUX_6_12];

/// Whether `pattern` describes `name`: equal, or a beginning if the pattern ends with `*`.
fn is_described(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

/// Whether kernels of this release, such as `6.12.48`, are known.
///
/// # Errors
/// They are not.
pub fn check_release(release: &str) -> Result<(), SpecialiseError> {
    let known = SCHEMAS.iter().any(|schema| schema.is_of(release));
    if known { Ok(()) } else { Err(unknown(release)) }
}

fn unknown(release: &str) -> SpecialiseError {
    SpecialiseError::Release { release: release.to_string(), known: "6.1 and 6.12" }
}

impl Schema {
    /// The schema of a release as the kernel names it, such as `6.12.48`, for the processor with
    /// this machine number.
    ///
    /// # Errors
    /// None is known.
    pub fn of(release: &str, machine: u16) -> Result<&'static Self, SpecialiseError> {
        let found = SCHEMAS.iter().find(|schema| schema.machine == machine && schema.is_of(release));
        found.ok_or_else(|| unknown(release))
    }

    fn is_of(&self, release: &str) -> bool {
        let mut numbers = release.split(['.', '-', '+']);
        let version = format!("{}.{}", numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        self.releases.contains(&version.as_str())
    }

    /// What the section `name` is.
    pub fn role(&self, name: &[u8]) -> Role {
        let is_in = |patterns: &[&str]| patterns.iter().any(|pattern| is_described(pattern, name));
        if is_in(self.discarded) {
            return Role::Discarded;
        }
        if let Some(table) = self.table(name) {
            return Role::Table(table);
        }
        if is_in(self.whole) {
            return Role::Whole;
        }
        if let Some((_, by)) = self.pieces.iter().find(|(piece, _)| name == piece.as_bytes()) {
            return Role::Pieces(*by);
        }
        let is_part = |part: &&str| {
            name.strip_prefix(part.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
        };
        if self.parts.iter().any(is_part) { Role::Parts } else { Role::Unknown }
    }

    /// The side table that the section `name` holds.
    pub fn table(&self, name: &[u8]) -> Option<&'static Table> {
        let (tables, own): (&'static [Table], &'static [Table]) = (self.tables, self.own);
        own.iter().chain(tables).find(|table| is_described(table.name, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{AARCH64, X86_64};

    #[test]
    fn a_release_is_known_by_its_first_two_numbers() {
        assert!(Schema::of("6.12.48+deb12-amd64", X86_64).is_ok() && check_release("6.12.48").is_ok());
        assert!(Schema::of("6.12", X86_64).is_ok() && Schema::of("6.12", AARCH64).is_ok());
        for unknown in ["6.10.90", "6.13.0", "5.10", ""] {
            assert!(check_release(unknown).is_err());
            let error = Schema::of(unknown, X86_64).unwrap_err();
            assert!(matches!(error, SpecialiseError::Release { .. }), "{unknown}");
        }
    }

    #[test]
    fn sections_have_roles() -> Result<(), SpecialiseError> {
        let schema = Schema::of("6.12.1", X86_64)?;
        let role = |name: &str| format!("{:?}", schema.role(name.as_bytes()));
        for (name, expected) in [
            (".text.foo", "Parts"),
            (".text", "Parts"),
            (".textual", "Unknown"),
            (".init.text", "Parts"),
            (".data..percpu", "Parts"),
            (".data..percpu..first", "Whole"),
            (".altinstr_aux", "Pieces(None)"),
            (".discard.addressable", "Discarded"),
            ("__something_new", "Unknown"),
        ] {
            assert_eq!(role(name), expected, "{name}");
        }
        assert!(matches!(schema.role(b".initcall6s.init"), Role::Table(table) if table.rule == Rule::Entry));
        assert!(matches!(schema.role(b".orc_unwind_ip"), Role::Table(table) if table.rule == Rule::Keyed(0)));
        assert!(matches!(schema.role(b".orc_unwind"), Role::Table(table) if matches!(table.rule, Rule::Paired(_))));
        Ok(())
    }
}
