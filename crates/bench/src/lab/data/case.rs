//! The cases of the experiment `data`.

use anyhow::Context;

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// It is read in order, [`SEQUENTIAL_BYTES`] at a time.
    Sequential,
    /// 1 KiB is read at each of the positions of [`super::pattern::random_positions`].
    Random,
    /// It is read in order, and every block is computed on; computing takes this many times as long
    /// as the link needs for the block's bytes.
    Interleaved(f64),
    /// One key is looked up in a sorted table, by binary search.
    Search,
    /// The game is played.
    Game,
    /// New files are written, each synced before the next; of random bytes or of text.
    Write(Filling),
}

/// What written files hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Random bytes, which nobody can compress.
    Random,
    /// Pieces of [`TEXT_FILE`].
    Text,
}

/// Bytes of a sequential read and of a block that is computed on.
pub const SEQUENTIAL_BYTES: usize = 4096;

/// A case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Name in plans.
    pub name: &'static str,
    /// What is done.
    pub work: Work,
    /// The file, below the tree; empty if files are written.
    pub file: &'static str,
    /// Block size of our volume, bytes: the smallest piece that the case reads, within what volumes
    /// take.
    pub block_bytes: u32,
}

/// Name of the file of random bytes.
pub const RANDOM_FILE: &str = "random.bin";

/// Name of the file of text.
pub const TEXT_FILE: &str = "text.txt";

/// Name of the sorted table.
pub const TABLE_FILE: &str = "table.bin";

/// Name of the game's program.
pub const PROGRAM_FILE: &str = "program";

/// Name of the game's scenes.
pub const SCENES_FILE: &str = "scenes.bin";

const fn case(name: &'static str, work: Work, file: &'static str, block_bytes: u32) -> Case {
    Case { name, work, file, block_bytes }
}

/// Every case, in the order of the tables.
pub const CASES: [Case; 11] = [
    case("seq", Work::Sequential, RANDOM_FILE, 4096),
    case("seq-text", Work::Sequential, TEXT_FILE, 4096),
    case("rand1k", Work::Random, RANDOM_FILE, 1024),
    case("stat-0.25", Work::Interleaved(0.25), RANDOM_FILE, 4096),
    case("stat-0.5", Work::Interleaved(0.5), RANDOM_FILE, 4096),
    case("stat-1", Work::Interleaved(1.0), RANDOM_FILE, 4096),
    case("stat-2", Work::Interleaved(2.0), RANDOM_FILE, 4096),
    case("bsearch", Work::Search, TABLE_FILE, 512),
    case("game", Work::Game, SCENES_FILE, 4096),
    case("files1000", Work::Write(Filling::Random), "", 4096),
    case("files1000-text", Work::Write(Filling::Text), "", 4096),
];

impl Case {
    /// The case called `name`.
    pub fn named(name: &str) -> anyhow::Result<&'static Case> {
        CASES.iter().find(|case| case.name == name).with_context(|| {
            let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
            format!("no case '{name}' of data; there are {}", known.join(", "))
        })
    }

    /// Whether files are changed.
    pub fn writes(&self) -> bool {
        matches!(self.work, Work::Write(_))
    }

    /// Whether it is text that is read or written, which can be compressed.
    pub fn is_text(&self) -> bool {
        self.file == TEXT_FILE || self.work == Work::Write(Filling::Text)
    }

    /// Seconds of computing on each block, over a link of `rate_bits` bits a second.
    pub fn compute_seconds(&self, rate_bits: u64) -> f64 {
        match self.work {
            Work::Interleaved(utilisation) => utilisation * (SEQUENTIAL_BYTES * 8) as f64 / rate_bits as f64,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_blocks_of_a_power_of_two() -> anyhow::Result<()> {
        for (index, case) in CASES.iter().enumerate() {
            assert!(CASES[..index].iter().all(|other| other.name != case.name));
            assert!(case.block_bytes.is_power_of_two());
        }
        assert!((Case::named("stat-0.5")?.compute_seconds(128_000) - 0.128).abs() < 1e-9);
        assert!(Case::named("rand2k").is_err());
        Ok(())
    }
}
