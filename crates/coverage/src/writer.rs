//! Writes a coverage as a file: a line for each function, by name, so that people can compare two
//! of them.

use std::fmt::Write;

use crate::format::{
    BLOCKS_MAX, FIRST_LINE, FUNCTION_BYTES_MAX, FUNCTIONS_MAX, LABEL_BYTES_MAX, NAME_BYTES_MAX, SCENARIOS_MAX, VERSION,
};
use crate::{Coverage, CoverageError, Function, ORDER_UNKNOWN};

/// The file of `coverage`; equal ones give equal texts.
///
/// # Errors
/// It is not as [`Coverage`] says, or larger than a file may be.
pub fn write(coverage: &Coverage) -> Result<String, CoverageError> {
    check(coverage)?;
    let mut text = format!("{FIRST_LINE}{VERSION}\nrelease {}\n", coverage.release);
    // Writing to a string cannot fail.
    for scenario in &coverage.scenarios {
        let _ =
            writeln!(text, "scenario {} {} {} {}", scenario.how, scenario.functions, scenario.blocks, scenario.name);
    }
    for function in &coverage.functions {
        let _ = write!(text, "function {} {} ", function.name, function.bytes);
        let _ = match function.order {
            ORDER_UNKNOWN => write!(text, "- "),
            order => write!(text, "{order} "),
        };
        text.push_str(phases(function.boot, function.service));
        for block in &function.blocks {
            let _ = write!(text, " {}+{}{}", block.offset, block.bytes, phases(block.boot, block.service));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "end {}", coverage.functions.len());
    Ok(text)
}

/// Letters of phases: `b` for boot, `s` for service.
pub(crate) fn phases(boot: bool, service: bool) -> &'static str {
    match (boot, service) {
        (true, true) => "bs",
        (true, false) => "b",
        (false, true) => "s",
        (false, false) => "",
    }
}

/// Whether a label may be written at the end of a line.
pub(crate) fn is_label(text: &str) -> bool {
    (1..=LABEL_BYTES_MAX).contains(&text.len())
        && !text.starts_with(' ')
        && !text.ends_with(' ')
        && !text.chars().any(char::is_control)
}

/// Whether this may be the name of a function.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What is wrong with a function, if anything.
pub(crate) fn fault(function: &Function) -> Option<&'static str> {
    if !is_name(&function.name) {
        return Some("no name of a function");
    }
    if function.bytes > FUNCTION_BYTES_MAX {
        return Some("the function is too large");
    }
    if !function.boot && !function.service {
        return Some("the function did not run");
    }
    let mut end = 0;
    for block in &function.blocks {
        if u64::from(block.offset) < end || block.bytes == 0 || block.end() > function.bytes {
            return Some("blocks overlap, are not in order, or do not lie in their function");
        }
        if !block.boot && !block.service || block.boot && !function.boot || block.service && !function.service {
            return Some("a block and its function ran in different phases");
        }
        end = block.end();
    }
    None
}

/// Whether a coverage is what it should be.
pub(crate) fn check(coverage: &Coverage) -> Result<(), CoverageError> {
    let labels = coverage.scenarios.iter().map(|scenario| ("scenario", &scenario.name));
    for (what, text) in labels.chain([("release", &coverage.release)]) {
        if !is_label(text) {
            return Err(CoverageError::Label { what, text: text.chars().take(LABEL_BYTES_MAX).collect() });
        }
    }
    let blocks = coverage.functions.iter().map(|function| function.blocks.len()).sum();
    for (what, found, max) in [
        ("scenarios", coverage.scenarios.len(), SCENARIOS_MAX),
        ("functions", coverage.functions.len(), FUNCTIONS_MAX),
        ("blocks", blocks, BLOCKS_MAX),
    ] {
        if found > max {
            return Err(CoverageError::Limit { what, max: max as u64 });
        }
    }
    for (index, function) in coverage.functions.iter().enumerate() {
        let is_ordered = index == 0 || coverage.functions[index - 1].name < function.name;
        let fault = fault(function).or((!is_ordered).then_some("functions are not in the order of their names"));
        if let Some(reason) = fault {
            return Err(CoverageError::Line { line: index + 3 + coverage.scenarios.len(), reason: reason.to_string() });
        }
    }
    Ok(())
}
