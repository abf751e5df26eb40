//! Merges several coverages into one.

use crate::blocks::{Group, groups};
use crate::{Coverage, CoverageError, writer};

/// What ran in any of them: phases and blocks united, the least order. A function that has
/// different sizes in them (recorded on kernels that were reduced differently) counts as executed
/// as a whole. A scenario that several have is named once.
///
/// # Errors
/// There is none, they are of different releases, or there is more in them than a file may have.
pub fn merge(coverages: Vec<Coverage>) -> Result<Coverage, CoverageError> {
    let release = coverages.first().ok_or(CoverageError::Nothing)?.release.clone();
    if let Some(other) = coverages.iter().find(|coverage| coverage.release != release) {
        return Err(CoverageError::Releases { one: release, other: other.release.clone() });
    }
    let mut scenarios: Vec<_> = coverages.iter().flat_map(|coverage| coverage.scenarios.iter().cloned()).collect();
    scenarios.sort();
    scenarios.dedup();
    let functions = groups(coverages.into_iter().flat_map(|coverage| coverage.functions));
    let functions = functions.into_values().map(Group::finish).collect();
    let merged = Coverage { release, scenarios, functions };
    writer::check(&merged)?;
    Ok(merged)
}
