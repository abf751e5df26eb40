//! Classes of sections: the linker script places all sections of a class alike.

use crate::abi;
use crate::object::Section;

/// Names of classes that the linker script places by themselves though they look like a function's
/// section.
const OWN_CLASSES: [&str; 9] = [
    ".text.unlikely",
    ".text.hot",
    ".text.startup",
    ".text.exit",
    ".text.unknown",
    ".text.fixup",
    ".data.rel.ro",
    ".data.once",
    ".data.unlikely",
];

/// Name of the class that a section of the input belongs to.
pub(crate) fn class(section: &Section<'_>) -> Vec<u8> {
    let name = section.name;
    if section.flags & abi::SHF_MERGE != 0 && name.starts_with(b".rodata") {
        let kind = if section.is_strings() { "str" } else { "cst" };
        return format!(".rodata.{kind}{}.{}", section.entry_size, section.align).into_bytes();
    }
    for own in OWN_CLASSES {
        if let Some(rest) = name.strip_prefix(own.as_bytes())
            && (rest.is_empty() || rest.starts_with(b"."))
        {
            return own.as_bytes().to_vec();
        }
    }
    for base in [&b".text"[..], b".rodata", b".data", b".bss", b".init.text", b".init.data", b".init.rodata"] {
        let of_symbol = |rest: &[u8]| {
            rest.strip_prefix(b".")
                .is_some_and(|rest| rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_'))
        };
        if name.strip_prefix(base).is_some_and(of_symbol) {
            return base.to_vec();
        }
    }
    name.to_vec()
}
