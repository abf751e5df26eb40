//! Where cases read and what they write: fixed pseudo-random sequences, the same for every system.

use units::{Rng, SplitMix64};

/// Size of the files that are read: 1 MB as the paper has it.
pub const FILE_BYTES: usize = 1 << 20;

/// Size of a random read.
pub const RANDOM_READ_BYTES: usize = 1024;

/// Random reads: so many that 40 % of the file is touched (`1 - exp(-523 / 1024)`), each piece 1.28
/// times on average. Much more, and not even a perfect system could be 2.5 times as fast as a
/// download.
pub const RANDOM_READS: usize = 523;

/// Size of a record of the table: a key and a value.
pub const RECORD_BYTES: usize = 32;

/// Size of a record's key.
pub const KEY_BYTES: usize = 8;

/// Records of the table.
pub const RECORDS: usize = FILE_BYTES / RECORD_BYTES;

/// Files that are written.
pub const FILES: usize = 1000;

/// Smallest and largest file that is written, bytes.
const WRITTEN_BYTES: [u64; 2] = [4096, 65536];

/// Seeds: one for each thing that is drawn.
const POSITIONS_SEED: u64 = 0x5150_0001;
const KEYS_SEED: u64 = 0x5150_0002;
const OTHER_KEYS_SEED: u64 = 0x5150_0003;
const SIZES_SEED: u64 = 0x5150_0004;
const CONTENTS_SEED: u64 = 0x5150_0005;

/// Positions of the random reads, multiples of their size, with repetitions.
pub fn random_positions() -> Vec<u64> {
    let mut random = SplitMix64(POSITIONS_SEED);
    let pieces = (FILE_BYTES / RANDOM_READ_BYTES) as u64;
    (0..RANDOM_READS).map(|_| random.below(pieces) * RANDOM_READ_BYTES as u64).collect()
}

/// Number of the record whose key is looked up in the `run`th run, from 1. Runs that are measured
/// and those from which a server learns look up different keys.
pub fn searched_record(run: u32, learning: bool) -> usize {
    let seed = if learning { OTHER_KEYS_SEED } else { KEYS_SEED };
    SplitMix64(seed ^ (u64::from(run) << 32)).below(RECORDS as u64) as usize
}

/// Name of the `index`th file that is written.
pub fn written_name(index: usize) -> String {
    format!("file-{index:04}")
}

/// Content of the `index`th file that is written: random bytes, or a piece of `text` from a random
/// place.
pub fn written_content(index: usize, text: Option<&[u8]>) -> Vec<u8> {
    let [least, most] = WRITTEN_BYTES;
    let seed = |base: u64| base ^ ((index as u64) << 32);
    let size = (least + SplitMix64(seed(SIZES_SEED)).below(most - least + 1)) as usize;
    let Some(text) = text else { return random_bytes(seed(CONTENTS_SEED), size) };
    let places = text.len().saturating_sub(size) as u64 + 1;
    let start = SplitMix64(seed(CONTENTS_SEED)).below(places) as usize;
    text[start..(start + size).min(text.len())].to_vec()
}

/// `count` random bytes.
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = SplitMix64(seed);
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn four_tenths_of_the_file_are_read_at_random() {
        let positions = random_positions();
        let touched: BTreeSet<u64> = positions.iter().copied().collect();
        let share = (touched.len() * RANDOM_READ_BYTES) as f64 / FILE_BYTES as f64;
        assert!((0.39..0.41).contains(&share), "{share}");
        assert!(positions.iter().all(|position| position + RANDOM_READ_BYTES as u64 <= FILE_BYTES as u64));
    }

    #[test]
    fn keys_of_learning_and_measured_runs_differ() {
        let measured: BTreeSet<usize> = (1..20).map(|run| searched_record(run, false)).collect();
        assert!(measured.len() == 19 && (1..200).all(|run| !measured.contains(&searched_record(run, true))));
    }

    #[test]
    fn written_files_have_the_sizes_that_are_claimed() {
        let sizes: Vec<usize> = (0..FILES).map(|index| written_content(index, None).len()).collect();
        assert!(sizes.iter().all(|size| (4096..=65536).contains(size)));
        let text = random_bytes(1, FILE_BYTES);
        assert!((0..FILES).all(|index| written_content(index, Some(&text)).len() == sizes[index]));
        let mean = sizes.iter().sum::<usize>() / FILES;
        assert!((33_000..37_000).contains(&mean), "{mean}");
    }
}
