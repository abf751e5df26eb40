//! System calls: the dispatcher's references to handlers that the device does not use go to one
//! that answers ENOSYS.
//!
//! That handler is one that logs the call, if it was compiled with the kernel, or else the kernel's
//! own for numbers that never existed. A handler dies when its reference goes, unless something
//! else in the kernel uses it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, Pass};
use crate::SpecialiseError;
use crate::analysis::Analysis;
use crate::object::SymbolPlace;
use crate::reference::Target;

pub(super) const PASS: Pass =
    Pass { name: "syscalls", is_on: |options| options.passes.syscalls && options.syscalls.is_some(), run };

/// The kernel's table of system calls: name to the entry point without prefix.
///
/// `text` has lines such as those of `arch/x86/entry/syscalls/syscall_64.tbl`: number, ABI, name,
/// entry point. `kinds`: the ABIs that count.
pub fn entry_points(text: &str, kinds: &[&str]) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let entries = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let _number: u32 = words.next()?.parse().ok()?;
        let abi = words.next()?;
        let (name, entry) = (words.next()?, words.next()?);
        kinds.contains(&abi).then(|| (name.to_string(), entry.to_string()))
    });
    entries.collect()
}

/// Entry points that programs reach without naming them: the kernel itself puts the number of the
/// first into a register, and returns from signal handlers go through the second.
const ALWAYS: [&str; 2] = ["sys_restart_syscall", "sys_rt_sigreturn"];

/// Retargets every handler whose entry point is neither in the list nor always needed.
///
/// # Errors
/// The object has no dispatcher or no `sys_ni_syscall`.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let (graph, schema) = (context.graph, context.schema);
    let Some(wanted) = &context.options.syscalls else { return Ok(()) };
    let not_found = |what, name: &str| SpecialiseError::NotFound { what, name: name.to_string() };
    let (mut kept, mut removed) = (BTreeSet::new(), BTreeSet::new());
    let symbols = &graph.object.symbols;
    let mut found = false;
    for (prefix, fallbacks) in schema.handlers {
        let index_of = |name: &&str| symbols.iter().position(|symbol| symbol.name == name.as_bytes());
        let fallback_index = fallbacks.iter().find_map(index_of);
        for dispatcher in
            symbols.iter().filter(|symbol| schema.dispatchers.iter().any(|name| name.as_bytes() == symbol.name))
        {
            let SymbolPlace::Section(section) = dispatcher.place else { continue };
            let Some(id) = graph.atoms.at(section, dispatcher.value as i64) else { continue };
            for reference in graph.atoms.references_of(id) {
                let Target::Symbol(symbol) = reference.target else { continue };
                let name = String::from_utf8_lossy(symbols[symbol as usize].name);
                let Some(entry) = name.strip_prefix(prefix) else { continue };
                let entry = format!("sys_{entry}");
                found = true;
                if wanted.contains(&entry) || ALWAYS.contains(&entry.as_str()) || fallbacks.contains(&&*name) {
                    kept.insert(entry);
                    continue;
                }
                let fallback_index = fallback_index.ok_or_else(|| not_found("function", &fallbacks.join(" or ")))?;
                analysis.changes.retargeted.insert((section, reference.offset), fallback_index as u32);
                removed.insert(entry);
            }
        }
    }
    if !found {
        return Err(not_found("dispatcher of system calls", &schema.dispatchers.join(" or ")));
    }
    kept.remove("sys_ni_syscall");
    analysis.device.syscalls_kept = kept.into_iter().collect();
    analysis.device.syscalls_removed = removed.into_iter().collect();
    analysis.walk(graph);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_table_names_entry_points() {
        let text = "# comment\n0\tcommon\tread\t\t\tsys_read\n63 common uname sys_newuname\n\
                    512 x32 rt_sigaction compat_sys_rt_sigaction\n177 64 get_kernel_syms\n";
        let entries = entry_points(text, &["common", "64"]);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries["uname"], "sys_newuname");
    }
}
