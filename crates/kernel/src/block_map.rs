//! The file that says which function and which instructions each counter of an instrumented kernel counts.
//!
//! JSON: `format`, `version`, `release` of the kernel, and `functions` in the order of their counters, each with `name`, its
//! `bytes` in the original kernel, and `blocks`: pairs of the offset of a block in the original function and its bytes, in the
//! order of their counters. A function without blocks is not counted and must be taken for executed.

use std::path::Path;

use serde::Serialize;
use specialise::CountedFunction;

use crate::KernelError;

/// The first field of the file.
const FORMAT: &str = "runnel kernel block map";

/// Its version.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct BlockMap<'m> {
    format: &'static str,
    version: u32,
    release: &'m str,
    functions: Vec<Function<'m>>,
}

#[derive(Serialize)]
struct Function<'m> {
    name: &'m str,
    bytes: u64,
    blocks: Vec<(u32, u32)>,
}

/// Writes the file.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(path: &Path, release: &str, counted: &[CountedFunction]) -> Result<(), KernelError> {
    crate::build::write(path, &format!("{}\n", text(path, release, counted)?))
}

fn text(path: &Path, release: &str, counted: &[CountedFunction]) -> Result<String, KernelError> {
    let functions = counted.iter().map(|function| Function {
        name: &function.name,
        bytes: function.bytes,
        blocks: function.blocks.iter().map(|block| (block.offset, block.bytes)).collect(),
    });
    let map = BlockMap { format: FORMAT, version: VERSION, release, functions: functions.collect() };
    let wrong = |error: serde_json::Error| KernelError::Input { path: path.to_path_buf(), reason: error.to_string() };
    serde_json::to_string(&map).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use specialise::CountedBlock;

    use super::*;

    #[test]
    fn blocks_are_pairs_in_the_order_of_the_counters() {
        let block = |offset, bytes| CountedBlock { offset, bytes };
        let function = |name: &str, bytes, blocks| CountedFunction { name: name.to_string(), bytes, blocks };
        let counted = [function("read", 12, vec![block(0, 4), block(4, 8)]), function("memcpy", 3, Vec::new())];
        let expected = "{\"format\":\"runnel kernel block map\",\"version\":1,\"release\":\"6.12.1\",\"functions\":[\
                        {\"name\":\"read\",\"bytes\":12,\"blocks\":[[0,4],[4,8]]},{\"name\":\"memcpy\",\"bytes\":3,\"blocks\":[]}]}";
        assert_eq!(text(Path::new("map"), "6.12.1", &counted).unwrap(), expected);
    }
}
