//! Configurations: whole ones, and fragments that extend the smallest one.

use std::collections::BTreeSet;

/// What every build of ours needs.
const REQUIRED: &str = "CONFIG_LD_DEAD_CODE_DATA_ELIMINATION=y\n";

/// Whether `text` is a whole configuration, as `make` wrote it, and not a fragment.
pub(crate) fn is_whole(text: &str) -> bool {
    text.lines().take(8).any(|line| line.contains("Automatically generated file"))
}

/// The option that a line sets or unsets.
fn option(line: &str) -> Option<&str> {
    let set = line.strip_prefix("CONFIG_").and_then(|rest| rest.split_once('=')).map(|(name, _)| name);
    let unset = || line.strip_prefix("# CONFIG_")?.strip_suffix(" is not set");
    set.or_else(unset).map(str::trim)
}

/// `base` with the lines of `fragment` instead of its own, and what we need.
pub(crate) fn merge(base: &str, fragment: &str) -> String {
    lay(base, &format!("{}\n{REQUIRED}", fragment.trim_end()))
}

/// `base` with the lines of `fragment` instead of its own.
pub(crate) fn lay(base: &str, fragment: &str) -> String {
    let over: Vec<&str> = fragment.lines().collect();
    let replaced: BTreeSet<&str> = over.iter().filter_map(|line| option(line.trim())).collect();
    let kept = base.lines().filter(|line| option(line).is_none_or(|name| !replaced.contains(name)));
    // Of several lines of a fragment for one option the last one counts.
    let mut seen = BTreeSet::new();
    let mut last: Vec<&str> =
        over.iter().rev().filter(|line| option(line.trim()).is_none_or(|name| seen.insert(name))).copied().collect();
    last.reverse();
    kept.chain(last).map(|line| format!("{line}\n")).collect()
}

/// Lines of `wanted` that the finished configuration does not have.
pub(crate) fn unmet(wanted: &str, finished: &str) -> Vec<String> {
    let has: BTreeSet<&str> = finished.lines().collect();
    let merged = merge("", wanted);
    let lines = merged.lines().map(str::trim).filter(|line| option(line).is_some());
    // An option that does not exist is not set either.
    let absent = |line: &str| {
        line.starts_with('#') && option(line).is_some_and(|name| !finished.contains(&format!("CONFIG_{name}=")))
    };
    lines.filter(|line| !has.contains(line) && !absent(line)).map(str::to_string).collect()
}

/// Whether `finished` sets an option to `y`.
pub(crate) fn is_set(finished: &str, name: &str) -> bool {
    finished.lines().any(|line| line.strip_prefix("CONFIG_").and_then(|rest| rest.strip_suffix("=y")) == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_replaces_lines_and_its_last_one_counts() {
        let base = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=3\n";
        let merged = merge(base, "CONFIG_B=y\n# CONFIG_A is not set\nCONFIG_C=4\nCONFIG_C=5\n");
        assert_eq!(merged, format!("CONFIG_B=y\n# CONFIG_A is not set\nCONFIG_C=5\n{REQUIRED}"));
    }

    #[test]
    fn what_the_kernel_did_not_take_is_found() {
        let finished = format!("CONFIG_A=y\n# CONFIG_B is not set\n{REQUIRED}");
        assert_eq!(unmet("CONFIG_A=y\nCONFIG_B=y\n# CONFIG_Z is not set\n", &finished), ["CONFIG_B=y"]);
        assert!(is_set(&finished, "A") && !is_set(&finished, "B"));
        assert_eq!(unmet("CONFIG_A=y\n", "CONFIG_A=y\n"), ["CONFIG_LD_DEAD_CODE_DATA_ELIMINATION=y"]);
    }

    #[test]
    fn whole_configurations_are_told_by_what_make_writes() {
        assert!(is_whole("#\n# Automatically generated file; DO NOT EDIT.\n"));
        assert!(!is_whole("CONFIG_A=y\n"));
    }
}
