//! The functions that a device with frozen code had to thaw. The next kernel for the device should
//! not freeze them.

use crate::blocks::{Group, groups, unordered, whole};
use crate::collector::coverage;
use crate::format::FUNCTION_BYTES_MAX;
use crate::writer::is_name;
use crate::{Coverage, CoverageError, Function, How, Symbols};

/// Data that is frozen with code: names of symbols, and strings.
const DATA: [&str; 10] = [
    "kallsyms_addresses",
    "kallsyms_markers",
    "kallsyms_names",
    "kallsyms_num_syms",
    "kallsyms_offsets",
    "kallsyms_relative_base",
    "kallsyms_seqs_of_names",
    "kallsyms_token_index",
    "kallsyms_token_table",
    "__frozen_text_data",
];

/// The coverage of a list of thawed functions: in each line the last word counts, `symbol`,
/// `symbol+0xoffset` or `symbol+0xoffset/0xsize`, as the kernel prints addresses. Empty lines,
/// lines that begin with `#`, and names of data do not count. Each function ran in service, as a
/// whole; its size is that of `symbols`, or what the line says, or not known.
///
/// # Errors
/// The last word of a line is no name, or `scenario` cannot be the name of one.
pub fn from_thawed(
    text: &str,
    release: &str,
    symbols: Option<&Symbols>,
    scenario: &str,
) -> Result<Coverage, CoverageError> {
    let mut functions: Vec<Function> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(word) = line.split_whitespace().next_back().filter(|_| !line.trim_start().starts_with('#')) else {
            continue;
        };
        let (name, size) = match word.split_once('+') {
            Some((name, rest)) => {
                (name, rest.split_once("/0x").and_then(|(_, size)| u64::from_str_radix(size, 16).ok()))
            }
            None => (word, None),
        };
        if DATA.contains(&name) {
            continue;
        }
        if !is_name(name) || name.starts_with("0x") || name.starts_with('[') {
            return Err(CoverageError::Line {
                line: index + 1,
                reason: "expected a symbol as its last word".to_string(),
            });
        }
        let known = symbols.and_then(|symbols| symbols.copies(name)).map(|copies| copies.bytes);
        let bytes = known.or(size).unwrap_or(0).min(FUNCTION_BYTES_MAX);
        functions.push(Function { service: true, ..unordered(name, bytes, whole(bytes, false, true)) });
    }
    let functions = groups(functions).into_values().map(Group::finish).collect();
    coverage(release, scenario, How::Thawed, functions)
}
