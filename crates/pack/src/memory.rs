//! Turns lack of memory into an error instead of an abort: before a phase, its memory is allocated
//! once in one piece and freed. Nothing of it is touched, so it costs nothing.
//!
//! This finds a limit of the process (`ulimit -v`) and a machine that does not overcommit. It does
//! not see a limit on resident memory (cgroups); the kernel ends the process there.

use crate::sort::Features;
use crate::{Options, PackError};

/// Bytes of a batch of the survey and of what describes it; one is read while one is described and
/// one waits.
const SURVEY_BYTES: u64 = 48 << 20;
/// Bytes of the sorter for each shingle, counting its own list and the index: measured 8 to 12.
const SHINGLE_BYTES: u64 = 12;
/// Bytes of the sorter and the emitter for each distinct chunk.
const CHUNK_BYTES: u64 = 160;
/// Blocks, raw and compressed, that a thread holds at most, with room for the codec.
const THREAD_BLOCKS: u64 = 24;

/// Fails if there is no room for the first pass.
pub(crate) fn ensure_survey() -> Result<(), PackError> {
    ensure(SURVEY_BYTES, "reading the tree")
}

/// Fails if there is no room to sort so many chunks.
pub(crate) fn ensure_sort(chunks: u64, features: &Features) -> Result<(), PackError> {
    ensure(chunks * CHUNK_BYTES + features.shingle_count() * SHINGLE_BYTES, "sorting")
}

/// Fails if there is no room to make blocks on all threads.
pub(crate) fn ensure_blocks(options: &Options) -> Result<(), PackError> {
    let block = u64::from(options.hot_block_bytes().max(options.block_bytes));
    ensure(options.effective_threads() as u64 * THREAD_BLOCKS * block, "compressing")
}

fn ensure(bytes: u64, phase: &'static str) -> Result<(), PackError> {
    let failed = PackError::Memory { megabytes: bytes.div_ceil(1_000_000), phase };
    let Ok(count) = usize::try_from(bytes) else { return Err(failed) };
    let mut probe: Vec<u8> = Vec::new();
    let reserved = probe.try_reserve_exact(count);
    // An allocation that nobody looks at may never be made.
    std::hint::black_box(&probe);
    reserved.map_err(|_| failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error_that_names_the_phase() {
        assert!(ensure(1 << 20, "sorting").is_ok());
        // More than the address space of any machine has.
        let error = ensure(1 << 60, "sorting").expect_err("too much").to_string();
        assert!(error.contains("sorting") && error.contains("1152921504607 MB"), "{error}");
        let options = Options { threads: 4, hot_block_bytes: Some(1 << 20), ..Options::default() };
        assert!(ensure_blocks(&options).is_ok());
    }
}
