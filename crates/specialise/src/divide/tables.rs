//! Checks that side tables look as the schema describes them.

use crate::object::{Object, Section};
use crate::schema::{Rule, Table};

/// The size of the entries of a table; `None` if no known one fits.
pub(super) fn entry_size(section: &Section<'_>, table: &Table) -> Option<u64> {
    let has_keys = |size: u64| match table.rule {
        Rule::Keyed(at) => {
            let mut keys = section.relocations.iter().filter(|relocation| relocation.offset % size == at);
            let mut expected = 0;
            keys.all(|key| {
                expected += 1;
                key.offset / size + 1 == expected
            }) && expected == section.size / size
        }
        Rule::Paired(_) => true,
        Rule::Entry => section.relocations.iter().any(|relocation| relocation.offset < size),
    };
    table.entry_sizes.iter().copied().find(|size| section.size.is_multiple_of(*size) && has_keys(*size))
}

/// Why a table cannot be taken as described.
pub(super) fn table_fault(object: &Object<'_>, section: &Section<'_>, table: &Table, script: &str) -> Option<String> {
    if section.size == 0 {
        return None;
    }
    if entry_size(section, table).is_none() {
        return Some(format!(
            "{} bytes are not entries of {:?} bytes with their keys",
            section.size, table.entry_sizes
        ));
    }
    let name = String::from_utf8_lossy(section.name);
    if !script.contains(name.as_ref()) {
        return Some("the linker script does not bound it".to_string());
    }
    let count = |name: &[u8], size: u64| {
        let mut named = object.sections.iter().filter(|section| section.name == name);
        let first = named.next().map(|section| section.size / size);
        if named.next().is_some() { None } else { first }
    };
    // Both of a pair, or none: the other one is counted from here and from there.
    let pairs = [(".orc_unwind_ip", 4, ".orc_unwind", 6)];
    for (keys, key_size, values, value_size) in pairs {
        if section.name == keys.as_bytes() || section.name == values.as_bytes() {
            let (keys, values) = (count(keys.as_bytes(), key_size), count(values.as_bytes(), value_size));
            if keys.is_none() || keys != values {
                return Some(format!("its pair has another number of entries: {keys:?} and {values:?}"));
            }
        }
    }
    None
}
