//! QEMU's log of translated blocks (`-d in_asm`): a block of instructions when it runs for the
//! first time.
//!
//! A line is `0xADDRESS: 48 89 e5 movq %rsp, %rbp`: bytes in groups of two digits with one space
//! between, then two spaces, then the instruction. On AArch64 it is `0xADDRESS: d65f03c0 ret`: a
//! word, little endian in memory. A long instruction continues in a line of its own, with its
//! address and no instruction. A QEMU without a disassembler writes the address, and then lines
//! `OBJD-T: 4889e5…`. Other lines separate blocks.

/// Longest line that is looked at; they have about 100 bytes.
const LINE_BYTES_MAX: usize = 1 << 12;

/// Longest block: QEMU translates at most 512 instructions of at most 15 bytes at once. Longer ones
/// come in parts.
const BLOCK_BYTES_MAX: usize = 1 << 13;

/// Takes the log in pieces of any length and gives its blocks.
#[derive(Debug, Default)]
pub struct LogParser {
    line: Vec<u8>,
    /// Where the block that is being read begins, and its bytes.
    address: u64,
    bytes: Vec<u8>,
}

impl LogParser {
    /// Nothing was read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a piece; `block` gets the address and the bytes of each block that it ends.
    pub fn push(&mut self, piece: &[u8], block: &mut dyn FnMut(u64, &[u8])) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.line(&line, block);
                self.line = line;
                self.line.clear();
            }
        }
    }

    /// The log has ended; a line that is not whole does not count.
    pub fn finish(mut self, block: &mut dyn FnMut(u64, &[u8])) {
        self.end(block);
    }

    fn line(&mut self, line: &[u8], block: &mut dyn FnMut(u64, &[u8])) {
        if let Some(digits) = line.strip_prefix(b"OBJD-T: ") {
            self.add(digits.chunks_exact(2).map_while(byte), block);
        } else if let Some((address, rest)) = address(line) {
            if self.bytes.is_empty() || address != self.address.wrapping_add(self.bytes.len() as u64) {
                self.end(block);
                self.address = address;
            }
            let rest = rest.trim_ascii_start();
            if let Some(word) = word(rest) {
                self.add(word.into_iter(), block);
                return;
            }
            let groups = rest.chunks(3);
            // Two digits and a space: what follows a second space is the instruction.
            self.add(groups.map_while(|group| byte(group.strip_suffix(b" ").or(group.strip_suffix(b"\n"))?)), block);
        } else {
            self.end(block);
        }
    }

    fn add(&mut self, bytes: impl Iterator<Item = u8>, block: &mut dyn FnMut(u64, &[u8])) {
        for byte in bytes {
            if self.bytes.len() == BLOCK_BYTES_MAX {
                let next = self.address.wrapping_add(self.bytes.len() as u64);
                self.end(block);
                self.address = next;
            }
            self.bytes.push(byte);
        }
    }

    fn end(&mut self, block: &mut dyn FnMut(u64, &[u8])) {
        if !self.bytes.is_empty() {
            block(self.address, &self.bytes);
            self.bytes.clear();
        }
    }
}

/// `0xADDRESS:` at the start of a line, and what follows.
fn address(line: &[u8]) -> Option<(u64, &[u8])> {
    let line = line.strip_prefix(b"0x")?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let rest = line[digits..].strip_prefix(b":")?;
    let text = std::str::from_utf8(&line[..digits]).ok()?;
    Some((u64::from_str_radix(text, 16).ok()?, rest))
}

/// Eight digits with nothing between, as bytes in memory.
fn word(text: &[u8]) -> Option<[u8; 4]> {
    let (digits, rest) = text.split_at_checked(8)?;
    if !rest.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    let mut bytes = [0; 4];
    for (byte, digits) in bytes.iter_mut().rev().zip(digits.chunks(2)) {
        *byte = self::byte(digits)?;
    }
    Some(bytes)
}

/// Two digits.
fn byte(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(*high)? << 4 | digit(*low)?) as u8)
}
