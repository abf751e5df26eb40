//! The map of an instrumented kernel, by which `runnel record --kernel-counters` reads its
//! counters.

use coverage::BlockMap;
use specialise::CountedFunction;

use crate::KernelError;

/// The map of a kernel of this release: what each counter counts.
///
/// # Errors
/// It has more than a map may have.
pub fn block_map(release: &str, counted: &[CountedFunction]) -> Result<BlockMap, KernelError> {
    let functions = counted.iter().map(|function| {
        let blocks = function.blocks.iter().map(|block| (block.offset, block.bytes)).collect();
        (function.name.clone(), function.bytes, blocks)
    });
    let wrong = |source| KernelError::Coverage { path: "the instrumented kernel".into(), source };
    BlockMap::new(release, functions).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use specialise::CountedBlock;

    use super::*;

    #[test]
    fn a_map_is_read_as_it_was_written() {
        let block = |offset, bytes| CountedBlock { offset, bytes };
        let function = |name: &str, bytes, blocks| CountedFunction { name: name.to_string(), bytes, blocks };
        let counted = [function("read", 12, vec![block(0, 4), block(4, 8)]), function("memcpy", 3, Vec::new())];
        let map = block_map("6.12.1", &counted).unwrap();
        assert_eq!(BlockMap::read(map.write().as_bytes()).unwrap(), map);
        assert_eq!((map.blocks(), map.functions().len(), map.release()), (2, 2, "6.12.1"));
        assert_eq!(map.functions()[0].blocks, [(0, 4), (4, 8)]);
        assert!(block_map("6.12.1", &[function("read", 2, vec![block(0, 4)])]).is_err());
    }
}
