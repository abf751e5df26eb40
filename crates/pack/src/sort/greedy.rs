//! Greedy block fill: a block starts with the next chunk in the order of the tree, then always
//! takes the chunk that shares most with the block.
//!
//! The score of a chunk is the weight of its shingles that are in the block. Each counts once,
//! since a codec needs a repetition once. Rare shingles weigh more (inverse document frequency;
//! Spärck Jones, 1972): a shingle of many chunks is in any block. If nothing matches, the next
//! chunk in the order of the tree follows.
//!
//! A chunk of a file that is in the block already has two bonuses: one once, for the block that
//! need not be opened for this file, and one for each direct neighbour. So a file stays in few
//! blocks unless its chunks match clearly better elsewhere. This keeps more of the size than moving
//! whole files or runs of chunks: those decide before the loss is known.
//!
//! When a shingle enters a block, the scores of the chunks that hold it rise, so the work is the
//! sum over blocks of the lists of their shingles. Placed chunks are dropped from the lists on the
//! way.

use super::index::Index;
use super::ranking::Ranking;
use super::{Config, Group, LOCALITY_DEFAULT};

/// Weights are logarithms to base 2 in units of `1 / (1 << WEIGHT_SHIFT)`.
const WEIGHT_SHIFT: u32 = 4;
/// Chunks to either side of a placed one that profit from its file being in the block: enough for
/// all but 0.5 % of files, and a bound on the work for the others.
const NEAR: usize = 64;
/// Chunks that may be found too large for the room that is left before the block is closed.
const MISFITS_MAX: u32 = 16;
/// Keys are scores for each byte, times `1 << KEY_SHIFT`.
const KEY_SHIFT: u32 = 16;
/// Stands for "in no block".
const NONE: u32 = u32::MAX;

/// Worth, in units of weight, of a block less to open for a file, at the default locality.
const FILE_BONUS: u64 = 6 << 10;
/// Worth of a direct neighbour in the block, at the default locality.
const NEIGHBOUR_BONUS: u64 = 7 << 9;
/// Most a bonus may be: more than any chunk shares.
const BONUS_MAX: u64 = 1 << 20;
/// Added to the sizes of chunks in keys, so that a small chunk does not come first for a single
/// common shingle.
const BASE_BYTES: u32 = 1024;

/// The blocks of a group.
pub(super) fn fill(group: Group<'_>, config: &Config<'_>) -> Vec<Vec<u32>> {
    let mut fill = Fill::new(group, config);
    let mut blocks = Vec::new();
    while let Some(seed) = fill.next() {
        let block = fill.block(seed);
        blocks.push(block.into_iter().map(|chunk| group.members[chunk as usize]).collect());
    }
    blocks
}

/// Blocks being filled. Chunks are numbered by their place among the members of the group.
struct Fill<'a> {
    group: Group<'a>,
    index: Index,
    file_bonus: u32,
    neighbour_bonus: u32,
    block_bytes: u32,
    /// Weight of each shingle.
    weights: Vec<u32>,
    /// Chunks of each shingle that may not be placed yet: so many at the start of its list.
    waiting: Vec<u32>,
    /// The block each chunk is in.
    block_of: Vec<u32>,
    /// All chunks before it are placed.
    cursor: usize,
    /// Number of the open block, and the last block each shingle was in.
    open: u32,
    seen: Vec<u32>,
    scores: Scores<'a>,
}

impl<'a> Fill<'a> {
    fn new(group: Group<'a>, config: &Config<'_>) -> Fill<'a> {
        let index = Index::new(group);
        let chunks = group.members.len();
        let locality = u64::from(config.locality);
        let scale = |bonus: u64| (bonus * locality / u64::from(LOCALITY_DEFAULT)).min(BONUS_MAX) as u32;
        let waiting: Vec<u32> = (0..index.len()).map(|shingle| index.chunks.list(shingle).len() as u32).collect();
        Fill {
            group,
            file_bonus: scale(FILE_BONUS),
            neighbour_bonus: scale(NEIGHBOUR_BONUS),
            block_bytes: config.block_bytes,
            weights: waiting.iter().map(|&holders| weight(holders)).collect(),
            waiting,
            block_of: vec![NONE; chunks],
            cursor: 0,
            open: 0,
            seen: vec![NONE; index.len() as usize],
            scores: Scores::new(group),
            index,
        }
    }

    /// The first chunk that is not placed.
    fn next(&mut self) -> Option<u32> {
        while *self.block_of.get(self.cursor)? != NONE {
            self.cursor += 1;
        }
        Some(self.cursor as u32)
    }

    /// Fills a block that starts with `seed`.
    fn block(&mut self, seed: u32) -> Vec<u32> {
        let mut block = vec![seed];
        let mut room = self.block_bytes - self.group.bytes(seed);
        self.place(seed);
        let mut misfits = 0;
        while misfits < MISFITS_MAX {
            let best = self.scores.ranking.best();
            let Some(chunk) = best.or_else(|| self.next()) else { break };
            let bytes = self.group.bytes(chunk);
            if bytes <= room {
                room -= bytes;
                self.place(chunk);
                block.push(chunk);
            } else if best.is_some() {
                misfits += 1;
                self.scores.ranking.set(chunk, 0);
            } else {
                break;
            }
        }
        self.scores.clear();
        self.open += 1;
        block
    }

    fn place(&mut self, chunk: u32) {
        self.block_of[chunk as usize] = self.open;
        self.scores.ranking.set(chunk, 0);
        for at in self.index.shingles.range(chunk) {
            let shingle = self.index.shingles.value(at);
            if std::mem::replace(&mut self.seen[shingle as usize], self.open) != self.open {
                self.raise_sharing(shingle);
            }
        }
        self.raise_file(chunk as usize);
    }

    /// The shingle is new in the block: raises the chunks that hold it.
    fn raise_sharing(&mut self, shingle: u32) {
        let weight = self.weights[shingle as usize];
        let waiting = &mut self.waiting[shingle as usize];
        let list = self.index.chunks.list_mut(shingle);
        let mut at = 0;
        while at < *waiting {
            let chunk = list[at as usize];
            if self.block_of[chunk as usize] == NONE {
                self.scores.raise(chunk, weight);
                at += 1;
            } else {
                *waiting -= 1;
                list[at as usize] = list[*waiting as usize];
            }
        }
    }

    /// Raises the direct neighbours, and all chunks nearby of the same file if none of them was in
    /// the block.
    fn raise_file(&mut self, placed: usize) {
        let same = |chunk: &usize| self.group.file(*chunk) == self.group.file(placed);
        let before = (placed.saturating_sub(NEAR)..placed).rev().take_while(same).count();
        let after = (placed + 1..self.block_of.len()).take(NEAR).take_while(same).count();
        let nearby = placed - before..placed + after + 1;
        let known = nearby.clone().any(|chunk| chunk != placed && self.block_of[chunk] == self.open);
        let file_bonus = if known { 0 } else { self.file_bonus };
        for chunk in nearby.filter(|chunk| self.block_of[*chunk] == NONE) {
            let direct = chunk.abs_diff(placed) == 1;
            let bonus = file_bonus + if direct { self.neighbour_bonus } else { 0 };
            if bonus > 0 {
                self.scores.raise(chunk as u32, bonus);
            }
        }
    }
}

/// What each chunk is worth to the open block.
struct Scores<'a> {
    group: Group<'a>,
    scores: Vec<u32>,
    /// By score for each byte.
    ranking: Ranking,
    /// Chunks with a score.
    touched: Vec<u32>,
}

impl<'a> Scores<'a> {
    fn new(group: Group<'a>) -> Scores<'a> {
        let chunks = group.members.len();
        Scores { group, scores: vec![0; chunks], ranking: Ranking::new(chunks), touched: Vec::new() }
    }

    fn raise(&mut self, chunk: u32, by: u32) {
        let score = &mut self.scores[chunk as usize];
        if *score == 0 {
            self.touched.push(chunk);
        }
        *score = score.saturating_add(by);
        let bytes = u64::from(self.group.bytes(chunk) + BASE_BYTES);
        let key = (u64::from(*score) << KEY_SHIFT) / bytes;
        self.ranking.set(chunk, key.clamp(1, u32::MAX.into()) as u32);
    }

    fn clear(&mut self) {
        for chunk in self.touched.drain(..) {
            self.scores[chunk as usize] = 0;
            self.ranking.set(chunk, 0);
        }
    }
}

/// Weight of a shingle that `holders` chunks hold: the logarithm of how rare it is among as many
/// chunks as make half a gigabyte. Not among those of the group, since the bonuses would then weigh
/// less in a larger tree.
fn weight(holders: u32) -> u32 {
    const SCALE: u32 = 17 << WEIGHT_SHIFT;
    let holders = holders.max(1);
    let whole = holders.ilog2();
    // Between powers of two the logarithm is taken as straight.
    let part = ((u64::from(holders) << WEIGHT_SHIFT) >> whole) as u32 - (1 << WEIGHT_SHIFT);
    SCALE.saturating_sub((whole << WEIGHT_SHIFT) + part)
}
