//! The counters of an instrumented kernel: a byte for each of its blocks, in the order of the map
//! that was written with it.

use serde::{Deserialize, Serialize};

use crate::blocks::{Group, groups, unordered, whole};
use crate::collector::coverage;
use crate::format::{BLOCKS_MAX, FILE_BYTES_MAX, FUNCTION_BYTES_MAX, FUNCTIONS_MAX};
use crate::writer::{is_label, is_name};
use crate::{Block, Coverage, CoverageError, Function, How, Phase};

/// What the map says it is.
const FORMAT: &str = "runnel block map 1";

/// Which block each counter of an instrumented kernel is for: JSON beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockMap {
    format: String,
    release: String,
    functions: Vec<MappedFunction>,
}

/// A function of an instrumented kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappedFunction {
    /// Its symbol.
    pub name: String,
    /// Its size before it was instrumented.
    pub bytes: u64,
    /// Offset and bytes of its blocks before it was instrumented, by offset, a counter each.
    pub blocks: Vec<(u32, u32)>,
}

impl BlockMap {
    /// The map of functions (name, bytes, and offset and bytes of each block) in the order of their
    /// counters.
    ///
    /// # Errors
    /// A function is not as [`MappedFunction`] says, or there are too many.
    pub fn new(
        release: &str,
        functions: impl IntoIterator<Item = (String, u64, Vec<(u32, u32)>)>,
    ) -> Result<Self, CoverageError> {
        let mapped = |(name, bytes, blocks)| MappedFunction { name, bytes, blocks };
        let functions = functions.into_iter().map(mapped).collect();
        let map = Self { format: FORMAT.to_string(), release: release.to_string(), functions };
        map.check()?;
        Ok(map)
    }

    /// Reads a map.
    ///
    /// # Errors
    /// It is none, or not as [`BlockMap::new`] makes them.
    pub fn read(bytes: &[u8]) -> Result<Self, CoverageError> {
        if bytes.len() > FILE_BYTES_MAX {
            return Err(CoverageError::Limit { what: "bytes of the map", max: FILE_BYTES_MAX as u64 });
        }
        let map: Self =
            serde_json::from_slice(bytes).map_err(|error| CoverageError::Map { reason: error.to_string() })?;
        map.check()?;
        Ok(map)
    }

    /// The map as a file, a line for each function.
    pub fn write(&self) -> String {
        let (format, release) = (json(&self.format), json(&self.release));
        let functions: Vec<String> = self.functions.iter().map(json).collect();
        format!("{{\"format\":{format},\"release\":{release},\"functions\":[\n{}\n]}}\n", functions.join(",\n"))
    }

    /// Release of the kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Its functions, in the order of their counters.
    pub fn functions(&self) -> &[MappedFunction] {
        &self.functions
    }

    /// Blocks, which is how many counters there are.
    pub fn blocks(&self) -> usize {
        self.functions.iter().map(|function| function.blocks.len()).sum()
    }

    fn check(&self) -> Result<(), CoverageError> {
        let wrong = |reason: String| Err(CoverageError::Map { reason });
        if self.format != FORMAT {
            return wrong(format!("expected the format '{FORMAT}'"));
        }
        if !is_label(&self.release) {
            return wrong("no release".to_string());
        }
        for (what, found, max) in
            [("functions", self.functions.len(), FUNCTIONS_MAX), ("blocks", self.blocks(), BLOCKS_MAX)]
        {
            if found > max {
                return Err(CoverageError::Limit { what, max: max as u64 });
            }
        }
        for (index, function) in self.functions.iter().enumerate() {
            if !is_name(&function.name) || function.bytes > FUNCTION_BYTES_MAX {
                return wrong(format!("function {index} has no good name or size"));
            }
            let mut end = 0;
            for (offset, bytes) in &function.blocks {
                let next = u64::from(*offset) + u64::from(*bytes);
                if u64::from(*offset) < end || *bytes == 0 || next > function.bytes {
                    let name = &function.name;
                    return wrong(format!("blocks of {name} overlap, are not in order, or do not lie in it"));
                }
                end = next;
            }
        }
        Ok(())
    }
}

/// Strings, numbers and lists as JSON, which cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The coverage of a kernel's counters: a block whose counter is not zero ran in `phase`, and a
/// function without blocks, which is not counted, in service too.
///
/// Functions of the same name are one if their sizes are equal; else that name ran as a whole if
/// any of them did.
///
/// # Errors
/// There are more or fewer counters than blocks, or `scenario` cannot be the name of one.
pub fn from_counters(map: &BlockMap, counters: &[u8], phase: Phase, scenario: &str) -> Result<Coverage, CoverageError> {
    if counters.len() != map.blocks() {
        return Err(CoverageError::Counters { expected: map.blocks(), found: counters.len() });
    }
    let mut counters = counters.iter();
    let mut ran = Vec::new();
    let mut sizes: std::collections::HashMap<&str, (u64, bool)> = std::collections::HashMap::new();
    for function in &map.functions {
        let size = sizes.entry(&function.name).or_insert((function.bytes, false));
        *size = (size.0.max(function.bytes), size.1 || size.0 != function.bytes);
        let (boot, service) = (phase.boot(), phase.service());
        if function.blocks.is_empty() {
            // Nobody knows, and what runs in service must not be taken for what does not.
            let whole = whole(function.bytes, boot, true);
            ran.push(Function { boot, service: true, ..unordered(&function.name, function.bytes, whole) });
            continue;
        }
        let counted = function.blocks.iter().zip(counters.by_ref());
        let blocks: Vec<Block> = counted
            .filter(|(_, counter)| **counter != 0)
            .map(|((offset, bytes), _)| Block { offset: *offset, bytes: *bytes, boot, service })
            .collect();
        if !blocks.is_empty() {
            ran.push(unordered(&function.name, function.bytes, blocks));
        }
    }
    let functions = groups(ran).into_iter().map(|(name, mut group)| {
        if let Some((bytes, true)) = sizes.get(name.as_str()) {
            group.differ(*bytes);
        }
        Group::finish(group)
    });
    coverage(&map.release, scenario, How::Instrumented, functions.collect())
}
