//! What the sections of a kernel release are: ordinary code and data, and side tables whose entries speak of other code.
//!
//! A linker that collects garbage must treat every side table as a root, and a mainstream kernel has so many of them that
//! hardly anything is left to collect. An entry here lives exactly as long as the code it speaks of. The price is
//! knowledge: how long an entry is, where in it the code is named, which other table goes with it. It is checked on every
//! object, and a table that does not look as described stays whole, with a warning.

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
    /// Code without symbols, divided where references from the section of this name go, or from any code.
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

/// Tables whose keys name functions, or places from which on something holds; those of all others name instructions.
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
    /// Constant tables of functions that nothing but those that refer to the table calls, and only while they run: names without the number
    /// that compilers add.
    pub call_tables: &'static [&'static str],
    /// Where `struct pci_driver` names its table of devices.
    pub driver_table_at: i64,
    /// Beginnings of the names of handlers, and the handlers that stand for all unused ones: the first that is there.
    pub handlers: &'static [(&'static str, &'static [&'static str])],
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

/// Linux 6.12 on x86-64, from include/asm-generic/vmlinux.lds.h, arch/x86/kernel/vmlinux.lds.S and the structures of each
/// table.
const LINUX_6_12: Schema = Schema {
    releases: &["6.12"],
    tables: &[
        keyed("__ex_table", &[12], 0),
        // With and without the source line of the bug.
        keyed("__bug_table", &[12, 8], 0),
        keyed("__jump_table", &[16], 0),
        keyed(".static_call_sites", &[8], 0),
        keyed(".static_call_tramp_key", &[8], 0),
        keyed(".smp_locks", &[4], 0),
        keyed(".retpoline_sites", &[4], 0),
        keyed(".return_sites", &[4], 0),
        keyed(".call_sites", &[4], 0),
        keyed(".ibt_endbr_seal", &[4], 0),
        keyed(".orc_unwind_ip", &[4], 0),
        Table { name: ".orc_unwind", entry_sizes: &[6], rule: Rule::Paired(".orc_unwind_ip") },
        keyed("__mcount_loc", &[8], 0),
        keyed("runtime_ptr_*", &[4], 0),
        keyed("runtime_shift_*", &[4], 0),
        keyed("_kprobe_blacklist", &[8], 0),
        keyed("_error_injection_whitelist", &[16], 0),
        keyed("__tracepoints_ptrs", &[4], 0),
        keyed("__bpf_raw_tp_map", &[32], 0),
        entries(QUIRKS, &[16]),
        entries(SETUP, &[24]),
        entries(PARAM, &[40]),
        entries(".initcall*", &[4]),
        entries(".con_initcall.init", &[4]),
        entries("_ftrace_events", &[8]),
    ],
    own: &[keyed(".altinstructions", &[14], 0)],
    parts: &[
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
    ],
    // A replacement has no end of its own, only the length that its entry names: nothing else may cut it.
    pieces: &[(".altinstr_replacement", Some(".altinstructions")), (".altinstr_aux", None)],
    whole: &[
        ".head.text",
        ".entry.text",
        ".bss..brk",
        ".text..__x86.*",
        ".init.ramfs*",
        ".note*",
        "__stop_sched_class",
        "__dl_sched_class",
        "__rt_sched_class",
        "__fair_sched_class",
        "__ext_sched_class",
        "__idle_sched_class",
        ".vvar_*",
        ".x86_cpu_dev.init",
        ".apicdrivers",
        ".orc_header",
        ".data..nosave",
        ".init.scratch",
        ".data..init_task",
        "__earlycon_table",
        "__syscalls_metadata",
        "_ftrace_eval_map",
        "__lsm_info*",
        ".lsm_info.init",
        ".early_lsm_info.init",
        ".builtin_fw",
        "___ksymtab*",
        "__ksymtab_strings",
        "__start_cpuidle*",
        "__modver",
        "__governor_thermal_table",
        ".data..percpu..first",
        "___kentry*",
        "__tracepoint_str",
    ],
    discarded: &[
        ".discard*",
        ".modinfo",
        ".export_symbol",
        ".exitcall.exit",
        "__patchable_function_entries",
        ".eh_frame",
        ".note.GNU-stack",
        ".note.gnu.property",
    ],
    dispatchers: &["x64_sys_call", "sys_call_table", "ia32_sys_call", "ia32_sys_call_table", "x32_sys_call"],
    readers: &[
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
    ],
    // Of the Zstandard encoder, which compresses frozen code.
    call_tables: &["blockCompressor", "rowBasedBlockCompressors", "getAllMatchesFns"],
    driver_table_at: 8,
    // The first is ours, compiled with the kernel (crates/kernel): it logs the call.
    handlers: &[
        ("__x64_sys_", &["__x64_sys_specialise_removed", "__x64_sys_ni_syscall"]),
        ("__ia32_sys_", &["__ia32_sys_ni_syscall"]),
    ],
};

/// Linux 6.1 on x86-64: calls of hypervisors have a table of their own, and drivers are in a list.
const LINUX_6_1: Schema = Schema {
    releases: &["6.1"],
    own: &[keyed(".altinstructions", &[12], 0), keyed(".parainstructions", &[16], 0)],
    driver_table_at: 24,
    ..LINUX_6_12
};

static SCHEMAS: [Schema; 2] = [LINUX_6_1, LINUX_6_12];

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
    Schema::of_release(release).map(drop)
}

impl Schema {
    /// The schema of a release as the kernel names it, such as `6.12.48`.
    ///
    /// # Errors
    /// None is known.
    pub fn of_release(release: &str) -> Result<&'static Self, SpecialiseError> {
        let mut numbers = release.split(['.', '-', '+']);
        let version = format!("{}.{}", numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let found = SCHEMAS.iter().find(|schema| schema.releases.contains(&version.as_str()));
        let error = || SpecialiseError::Release { release: release.to_string(), known: "6.1 and 6.12" };
        found.ok_or_else(error)
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

    #[test]
    fn a_release_is_known_by_its_first_two_numbers() {
        assert!(Schema::of_release("6.12.48+deb12-amd64").is_ok());
        assert!(Schema::of_release("6.12").is_ok());
        assert_eq!(Schema::of_release("6.1.192").unwrap().table(b".altinstructions").unwrap().entry_sizes, [12]);
        for unknown in ["6.10.90", "6.13.0", "5.10", ""] {
            let error = Schema::of_release(unknown).unwrap_err();
            assert!(matches!(error, SpecialiseError::Release { .. }), "{unknown}");
        }
    }

    #[test]
    fn sections_have_roles() -> Result<(), SpecialiseError> {
        let schema = Schema::of_release("6.12.1")?;
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
