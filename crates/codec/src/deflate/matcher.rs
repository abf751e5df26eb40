//! Finds copies as gzip and zlib find them: hash chains, lazily evaluated, with the limits of each
//! level.
//!
//! Positions are those in the whole text and no window is moved: the limit of distances has the
//! same effect. Position 0 is never copied from: in the chains, 0 means "none". gzip's window
//! matters only at its very end, where gzip searches for nothing, so only its position is kept
//! ([`Window`]).

use std::ops::Range;

use super::writer::Writer;
use super::{Fault, Program, Style};

/// Shortest and longest copy.
const COPY_MIN: usize = 3;
const COPY_MAX: usize = 258;
/// Bytes of history, and so places of a hash chain.
const WINDOW: usize = 1 << 15;
/// Farthest copy: the window less what must be ahead.
const DISTANCE_MAX: usize = WINDOW - AHEAD_MIN;
/// Copies of three bytes from farther than this cost more than three literals.
const SHORT_DISTANCE_MAX: usize = 4096;
/// Bytes that must be ahead, unless the text ends.
const AHEAD_MIN: usize = COPY_MAX + COPY_MIN + 1;
/// Bytes compared for the price of one step along a chain.
const BYTES_PER_STEP: usize = 8;

/// What a level does.
struct Limits {
    /// From this length on, a quarter of the chain is enough to look for a better copy.
    good: usize,
    /// From this length on, nothing better is looked for; at fast levels: nothing inside the copy
    /// is remembered.
    lazy: usize,
    /// From this length on, the search ends.
    nice: usize,
    /// Steps along a chain.
    chain: usize,
}

/// The limits of level 1 to 9; the first three are the fast ones.
const LEVELS: [Limits; 9] = [
    Limits { good: 4, lazy: 4, nice: 8, chain: 4 },
    Limits { good: 4, lazy: 5, nice: 16, chain: 8 },
    Limits { good: 4, lazy: 6, nice: 32, chain: 32 },
    Limits { good: 4, lazy: 4, nice: 16, chain: 16 },
    Limits { good: 8, lazy: 16, nice: 32, chain: 32 },
    Limits { good: 8, lazy: 16, nice: 128, chain: 128 },
    Limits { good: 8, lazy: 32, nice: 128, chain: 256 },
    Limits { good: 32, lazy: 128, nice: 258, chain: 1024 },
    Limits { good: 32, lazy: 258, nice: 258, chain: 4096 },
];
const FAST_LEVEL_MAX: u8 = 3;
/// Bits of the largest hash.
const HASH_BITS_MAX: u32 = 16;

/// What is remembered of a text, kept from one to the next: clearing all of it would take longer
/// than a short text does.
pub(super) struct Tables {
    /// For each hash the last position that has it, 0 for none. All 0 between texts.
    heads: Vec<u32>,
    /// For each position of the window the one before with the same hash. Only places that this
    /// text has set are read.
    before: Box<[u32; WINDOW]>,
}

impl Tables {
    pub(super) fn new() -> Tables {
        Tables { heads: vec![0; 1 << HASH_BITS_MAX], before: Box::new([0; WINDOW]) }
    }
}

/// Where the window of a gzip that reads whole files stands in the text. It holds twice [`WINDOW`]
/// bytes.
#[derive(Default)]
struct Window {
    start: usize,
    /// How far the text was read.
    end: usize,
    is_text_over: bool,
}

impl Window {
    /// Reads on if less than enough is ahead of `at`.
    fn fill(&mut self, at: usize, text_bytes: usize) {
        while self.end - at < AHEAD_MIN && !self.is_text_over {
            if at - self.start >= WINDOW + DISTANCE_MAX {
                self.start += WINDOW;
            }
            let end = text_bytes.min(self.start + 2 * WINDOW);
            self.is_text_over = end == self.end;
            self.end = end;
        }
    }

    /// Whether gzip would look for copies at `at`: not in what it reaches only because the text
    /// ended here.
    fn searches(&self, at: usize) -> bool {
        at - self.start <= 2 * WINDOW - AHEAD_MIN
    }
}

/// The search for copies in one text.
pub(super) struct Matcher<'a> {
    style: Style,
    limits: &'static Limits,
    plain: &'a [u8],
    hash_shift: u32,
    hash_mask: u32,
    tables: &'a mut Tables,
    window: Window,
    /// Steps that may still be taken.
    steps: &'a mut u64,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(style: Style, plain: &'a [u8], tables: &'a mut Tables, steps: &'a mut u64) -> Matcher<'a> {
        let hash_bits = style.hash_bits();
        let limits = &LEVELS[usize::from(style.level.clamp(1, 9)) - 1];
        let (hash_shift, hash_mask) = (hash_bits.div_ceil(COPY_MIN as u32), (1 << hash_bits) - 1);
        Matcher { style, limits, plain, hash_shift, hash_mask, tables, window: Window::default(), steps }
    }

    /// Compresses the text. `watch` sees what was written after each block and says whether to go
    /// on.
    pub(super) fn run(mut self, writer: &mut Writer<'_>, watch: &dyn Fn(&[u8]) -> bool) -> Result<(), Fault> {
        let is_fast = self.style.level <= FAST_LEVEL_MAX;
        let done = if is_fast { self.fast(writer, watch) } else { self.slow(writer, watch) };
        self.forget();
        done
    }

    fn forget(&mut self) {
        if self.plain.len() >= self.tables.heads.len() {
            self.tables.heads.fill(0);
            return;
        }
        for at in 0..self.plain.len() {
            if let Some(hash) = self.hash(at) {
                self.tables.heads[hash] = 0;
            }
        }
    }

    /// Takes the first copy that is found.
    fn fast(&mut self, writer: &mut Writer<'_>, watch: &dyn Fn(&[u8]) -> bool) -> Result<(), Fault> {
        let (plain, mut at, mut block) = (self.plain, 0, 0);
        while at < plain.len() {
            let head = self.candidate(at);
            let (mut length, mut from) = (0, 0);
            if head > 0 {
                (length, from) = self.longest(at, head, COPY_MIN - 1, 0)?;
            }
            let is_full = if length >= COPY_MIN {
                let is_full = writer.copy(at - from, length, at - block);
                if length <= self.limits.lazy {
                    self.remember_all(at + 1..at + length);
                }
                at += length;
                is_full
            } else {
                at += 1;
                writer.literal(plain[at - 1], at - 1 - block)
            };
            if is_full {
                end_block(writer, &plain[block..at], watch)?;
                block = at;
            }
        }
        writer.end_block(&plain[block..], true)
    }

    /// Takes a copy only if the next position has no longer one.
    fn slow(&mut self, writer: &mut Writer<'_>, watch: &dyn Fn(&[u8]) -> bool) -> Result<(), Fault> {
        let (plain, mut at, mut block) = (self.plain, 0, 0);
        let (mut length, mut from, mut is_pending) = (COPY_MIN - 1, 0, false);
        while at < plain.len() {
            let head = self.candidate(at);
            let (length_before, from_before) = (length, from);
            length = COPY_MIN - 1;
            if head > 0 && length_before < self.limits.lazy {
                (length, from) = self.longest(at, head, length_before, from)?;
                if length == COPY_MIN && at - from > SHORT_DISTANCE_MAX {
                    length = COPY_MIN - 1;
                }
            }
            let is_full = if length_before >= COPY_MIN && length <= length_before {
                let is_full = writer.copy(at - 1 - from_before, length_before, at - block);
                let end = at - 1 + length_before;
                self.remember_all(at + 1..end);
                (at, length, is_pending) = (end, COPY_MIN - 1, false);
                is_full.then_some(end)
            } else if is_pending {
                at += 1;
                writer.literal(plain[at - 2], at - 1 - block).then_some(at - 1)
            } else {
                is_pending = true;
                at += 1;
                None
            };
            if let Some(end) = is_full {
                end_block(writer, &plain[block..end], watch)?;
                block = end;
            }
        }
        if is_pending && let Some(&last) = plain.last() {
            writer.literal(last, at - block);
        }
        writer.end_block(&plain[block..], true)
    }

    /// Notes the three bytes at a position; the last one that may have the same, or 0.
    fn remember(&mut self, at: usize) -> usize {
        let Some(hash) = self.hash(at) else { return 0 };
        let head = std::mem::replace(&mut self.tables.heads[hash], at as u32);
        self.tables.before[at % WINDOW] = head;
        head as usize
    }

    /// Notes the three bytes at a position; the first place to copy from, or 0.
    fn candidate(&mut self, at: usize) -> usize {
        let head = self.remember(at);
        let mut is_in_reach = at - head <= DISTANCE_MAX;
        if self.style.program == Program::Gzip {
            self.window.fill(at, self.plain.len());
            is_in_reach &= self.window.searches(at);
        }
        if is_in_reach { head } else { 0 }
    }

    fn remember_all(&mut self, range: Range<usize>) {
        for at in range {
            self.remember(at);
        }
    }

    fn hash(&self, at: usize) -> Option<usize> {
        let &[a, b, c] = self.plain.get(at..)?.first_chunk()?;
        let (a, b, c) = (u32::from(a), u32::from(b), u32::from(c));
        Some(((a << (2 * self.hash_shift) ^ b << self.hash_shift ^ c) & self.hash_mask) as usize)
    }

    /// The longest copy for `at` that is longer than `length`, which begins at `from`, of those
    /// from `candidate` on back.
    fn longest(
        &mut self,
        at: usize,
        mut candidate: usize,
        length: usize,
        mut from: usize,
    ) -> Result<(usize, usize), Fault> {
        let ahead = self.plain.len() - at;
        let (mut best, mut chain) = (length, self.limits.chain);
        if length >= self.limits.good {
            chain >>= 2;
        }
        // gzip looks on for what would go on longer behind the end, where it sees zeros.
        let nice = if self.style.program == Program::Gzip { self.limits.nice } else { self.limits.nice.min(ahead) };
        let nearest_out = at.saturating_sub(DISTANCE_MAX);
        let mut steps = 1;
        loop {
            if self.may_be_longer(candidate, at, best) {
                let found = self.common(candidate, at);
                steps += found / BYTES_PER_STEP;
                if found > best {
                    (best, from) = (found, candidate);
                    if found >= nice {
                        break;
                    }
                }
            }
            candidate = self.tables.before[candidate % WINDOW] as usize;
            chain -= 1;
            steps += 1;
            if candidate <= nearest_out || chain == 0 {
                break;
            }
        }
        *self.steps = self.steps.checked_sub(steps as u64).ok_or(Fault::TooSlow)?;
        Ok((best.min(ahead), from))
    }

    fn byte(&self, at: usize) -> u8 {
        self.plain.get(at).copied().unwrap_or(0)
    }

    /// Whether the bytes agree that a copy longer than `best` cannot lack.
    fn may_be_longer(&self, candidate: usize, at: usize, best: usize) -> bool {
        self.byte(candidate + best) == self.byte(at + best)
            && self.byte(candidate + best - 1) == self.byte(at + best - 1)
            && self.plain[candidate] == self.plain[at]
            && self.byte(candidate + 1) == self.byte(at + 1)
    }

    /// How many bytes are the same at both positions, at most [`COPY_MAX`]; zeros follow the end of
    /// the text.
    fn common(&self, candidate: usize, at: usize) -> usize {
        let most = COPY_MAX.min(self.plain.len() - at);
        let (old, new) = (&self.plain[candidate..candidate + most], &self.plain[at..at + most]);
        let mut same = 0;
        for (old, new) in old.chunks_exact(8).zip(new.chunks_exact(8)) {
            let load = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let differ = load(old) ^ load(new);
            if differ != 0 {
                return same + differ.trailing_zeros() as usize / 8;
            }
            same += 8;
        }
        while same < COPY_MAX && self.byte(candidate + same) == self.byte(at + same) {
            same += 1;
        }
        same
    }
}

fn end_block(writer: &mut Writer<'_>, plain: &[u8], watch: &dyn Fn(&[u8]) -> bool) -> Result<(), Fault> {
    writer.end_block(plain, false)?;
    if watch(writer.written()) { Ok(()) } else { Err(Fault::Differs) }
}
