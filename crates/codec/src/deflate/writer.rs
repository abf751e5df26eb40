//! Deflate blocks: symbols, their codes, and the bits of both.
//!
//! A block is written with codes of its own, with the fixed ones, or as plain bytes, whichever gzip
//! or zlib would take.

use super::huffman::{CODE_BITS_MAX, Code, LENGTH_CODE_BITS_MAX};
use super::{Fault, Program, Style};

/// Literals, the end of a block, and lengths of copies.
const LITERALS: usize = 286;
/// Distances.
const DISTANCES: usize = 30;
/// Lengths of codes, and three ways to repeat them.
const LENGTHS: usize = 19;
/// The symbol that ends a block.
const END: usize = 256;
/// The order in which a block names the lengths of the codes of lengths (RFC 1951, section 3.2.7).
const LENGTHS_ORDER: [usize; LENGTHS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// gzip looks every so many symbols whether a block had better end.
const LOOK_SYMBOLS: usize = 4096;
/// Bytes that a stored block holds at most.
const STORED_MAX: usize = 0xffff;

/// Bits that come together to bytes, lowest first.
#[derive(Default)]
struct Bits {
    held: u64,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u32, bits: u32, out: &mut Vec<u8>) {
        self.held |= u64::from(value) << self.count;
        self.count += bits;
        while self.count >= 8 {
            out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    fn align(&mut self, out: &mut Vec<u8>) {
        self.put(0, (8 - self.count % 8) % 8, out);
    }
}

/// A literal, or a copy of earlier bytes.
#[derive(Clone, Copy)]
struct Symbol {
    /// 0 for a literal.
    distance: u16,
    /// The literal, or the length less 3.
    value: u8,
}

/// Code, bits that follow it, and their value.
struct Coded {
    code: usize,
    extra_bits: u32,
    extra: u32,
}

/// Code of a length less 3.
fn length_code(value: u8) -> Coded {
    let value = u32::from(value);
    match value {
        0..4 => Coded { code: value as usize, extra_bits: 0, extra: 0 },
        255 => Coded { code: 28, extra_bits: 0, extra: 0 },
        _ => {
            let extra_bits = value.ilog2() - 2;
            let code = 4 * (extra_bits + 1) + (value >> extra_bits & 3);
            Coded { code: code as usize, extra_bits, extra: value & ((1 << extra_bits) - 1) }
        }
    }
}

/// Code of a distance, at least 1.
fn distance_code(distance: u16) -> Coded {
    let value = u32::from(distance) - 1;
    match value {
        0..2 => Coded { code: value as usize, extra_bits: 0, extra: 0 },
        _ => {
            let extra_bits = value.ilog2() - 1;
            let code = 2 * (extra_bits + 1) + (value >> extra_bits & 1);
            Coded { code: code as usize, extra_bits, extra: value & ((1 << extra_bits) - 1) }
        }
    }
}

/// Writes the blocks of one stream.
pub(super) struct Writer<'a> {
    style: Style,
    symbols: Vec<Symbol>,
    literals: [u32; LITERALS],
    distances: [u32; DISTANCES],
    copies: usize,
    bits: Bits,
    fixed: (Code, Code),
    out: &'a mut Vec<u8>,
    /// `out` may grow to this many bytes.
    end_max: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(style: Style, out: &'a mut Vec<u8>, end_max: usize) -> Writer<'a> {
        let mut lengths = [8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        let mut distances = [0; 288];
        distances[..DISTANCES].fill(5);
        Writer {
            style,
            symbols: Vec::new(),
            literals: [0; LITERALS],
            distances: [0; DISTANCES],
            copies: 0,
            bits: Bits::default(),
            fixed: (Code::canonical(lengths, 287), Code::canonical(distances, DISTANCES - 1)),
            out,
            end_max,
        }
    }

    /// Notes a literal. As for [`Writer::copy`].
    pub(super) fn literal(&mut self, byte: u8, taken: usize) -> bool {
        self.literals[usize::from(byte)] += 1;
        self.symbols.push(Symbol { distance: 0, value: byte });
        self.is_full(taken)
    }

    /// Notes a copy of 3 to 258 bytes from 1 to 32768 bytes back. `taken` is how many bytes of the
    /// block the matcher has looked at. True if the block ends here.
    pub(super) fn copy(&mut self, distance: usize, length: usize, taken: usize) -> bool {
        let symbol = Symbol { distance: distance as u16, value: (length - 3) as u8 };
        self.literals[END + 1 + length_code(symbol.value).code] += 1;
        self.distances[distance_code(symbol.distance).code] += 1;
        self.copies += 1;
        self.symbols.push(symbol);
        self.is_full(taken)
    }

    fn is_full(&self, taken: usize) -> bool {
        let count = self.symbols.len();
        if self.style.program == Program::Gzip && self.style.level > 2 && count.is_multiple_of(LOOK_SYMBOLS) {
            // A guess of the compressed size: a byte a symbol, and the distances.
            let distances: usize =
                (0..DISTANCES).map(|code| self.distances[code] as usize * (5 + (code / 2).saturating_sub(1))).sum();
            let bytes = (count * 8 + distances) >> 3;
            if self.copies < count / 2 && bytes < taken / 2 {
                return true;
            }
        }
        count == self.style.symbols_max() - 1
    }

    /// Ends a block, which stands for the bytes `plain`.
    pub(super) fn end_block(&mut self, plain: &[u8], is_last: bool) -> Result<(), Fault> {
        self.literals[END] = 1;
        let literals = Code::build(&self.literals, CODE_BITS_MAX);
        let distances = Code::build(&self.distances, CODE_BITS_MAX);
        let mut runs = runs(&literals.lengths[..=literals.last]);
        runs.extend(self::runs(&distances.lengths[..=distances.last]));
        let mut counts = [0u32; LENGTHS];
        runs.iter().for_each(|run| counts[run.code] += 1);
        let lengths = Code::build(&counts, LENGTH_CODE_BITS_MAX);
        let named = LENGTHS_ORDER.iter().rposition(|&code| lengths.lengths[code] > 0).unwrap_or(0).max(3) + 1;
        let header: u32 = runs.iter().map(|run| u32::from(lengths.lengths[run.code]) + run.extra_bits).sum();
        let own = self.body_bits(&literals, &distances) + header + 14 + 3 * named as u32;
        let fixed = self.body_bits(&self.fixed.0, &self.fixed.1);
        let (own_bytes, fixed_bytes) = ((own + 3 + 7) >> 3, (fixed + 3 + 7) >> 3);
        let is_fixed = fixed_bytes <= own_bytes;
        if plain.len() + 4 <= own_bytes.min(fixed_bytes) as usize {
            self.stored(plain, is_last)?;
        } else if is_fixed {
            self.put(2 | u32::from(is_last), 3);
            let (literals, distances) = self.fixed.clone();
            self.body(&literals, &distances);
        } else {
            self.put(4 | u32::from(is_last), 3);
            self.put(literals.last as u32 + 1 - 257, 5);
            self.put(distances.last as u32, 5);
            self.put(named as u32 - 4, 4);
            for &code in &LENGTHS_ORDER[..named] {
                self.put(lengths.lengths[code].into(), 3);
            }
            for run in &runs {
                self.coded(&lengths, run.code, run);
            }
            self.body(&literals, &distances);
        }
        if is_last {
            self.bits.align(self.out);
        }
        self.symbols.clear();
        (self.literals, self.distances, self.copies) = ([0; LITERALS], [0; DISTANCES], 0);
        if self.out.len() > self.end_max { Err(Fault::TooLong) } else { Ok(()) }
    }

    /// What was written so far, but for bits that do not make a byte yet.
    pub(super) fn written(&self) -> &[u8] {
        self.out
    }

    fn put(&mut self, value: u32, bits: u32) {
        self.bits.put(value, bits, self.out);
    }

    fn coded(&mut self, code: &Code, symbol: usize, coded: &Coded) {
        self.put(code.codes[symbol].into(), code.lengths[symbol].into());
        self.put(coded.extra, coded.extra_bits);
    }

    /// Bits of the symbols with these codes.
    fn body_bits(&self, literals: &Code, distances: &Code) -> u32 {
        let extra_of_length = |symbol: usize| match symbol.saturating_sub(END + 1) {
            28 => 0,
            code => (code / 4).saturating_sub(1),
        };
        let of = |counts: &[u32], code: &Code, extra: &dyn Fn(usize) -> usize| -> u32 {
            let each = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            each.map(|(symbol, count)| count * (u32::from(code.lengths[symbol]) + extra(symbol) as u32)).sum()
        };
        of(&self.literals, literals, &extra_of_length)
            + of(&self.distances, distances, &|code| (code / 2).saturating_sub(1))
    }

    fn body(&mut self, literals: &Code, distances: &Code) {
        for at in 0..self.symbols.len() {
            let symbol = self.symbols[at];
            if symbol.distance == 0 {
                self.put(
                    literals.codes[usize::from(symbol.value)].into(),
                    literals.lengths[usize::from(symbol.value)].into(),
                );
                continue;
            }
            let length = length_code(symbol.value);
            self.coded(literals, END + 1 + length.code, &length);
            let distance = distance_code(symbol.distance);
            self.coded(distances, distance.code, &distance);
        }
        self.put(literals.codes[END].into(), literals.lengths[END].into());
    }

    fn stored(&mut self, plain: &[u8], is_last: bool) -> Result<(), Fault> {
        if plain.len() > STORED_MAX {
            return Err(Fault::TooLong);
        }
        self.put(is_last.into(), 3);
        self.bits.align(self.out);
        let bytes = plain.len() as u16;
        self.out.extend_from_slice(&bytes.to_le_bytes());
        self.out.extend_from_slice(&(!bytes).to_le_bytes());
        self.out.extend_from_slice(plain);
        Ok(())
    }
}

/// Lengths of codes, repetitions counted.
fn runs(lengths: &[u8]) -> Vec<Coded> {
    let mut found = Vec::new();
    let mut before = None;
    let mut rest = lengths;
    while let Some(&length) = rest.first() {
        // A repetition of a length names it first, unless it was the last thing named.
        let most = match length {
            0 => 138,
            _ if before == Some(length) => 6,
            _ => 7,
        };
        let count = rest.iter().take(most).take_while(|&&other| other == length).count();
        let least = if length == 0 || before == Some(length) { 3 } else { 4 };
        let plain = Coded { code: length.into(), extra_bits: 0, extra: 0 };
        let repeat = |code, extra_bits, extra: usize| Coded { code, extra_bits, extra: extra as u32 };
        if count < least {
            found.extend((0..count).map(|_| Coded { ..plain }));
        } else if length > 0 {
            let named = usize::from(before != Some(length));
            found.extend((0..named).map(|_| Coded { ..plain }));
            found.push(repeat(16, 2, count - named - 3));
        } else if count <= 10 {
            found.push(repeat(17, 3, count - 3));
        } else {
            found.push(repeat(18, 7, count - 11));
        }
        before = Some(length);
        rest = &rest[count..];
    }
    found
}
