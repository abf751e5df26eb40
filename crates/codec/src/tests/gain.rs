//! What the filters gain on real programs, printed as a table. By hand: `FILES="/usr/bin/perl ..."
//! cargo test --release -p runnel-codec filter_gain -- --ignored --nocapture`

use crate::filter::{self, Filter};
use crate::{Codec, encode};
use object::{Architecture, Object, ObjectSection};
use std::time::Instant;

/// Chunks are pages, as in an image.
const CHUNK_BYTES: usize = 4096;
/// Enough of each program, or one of 20 MB would decide alone.
const CODE_BYTES_MAX: usize = 4 << 20;
const BLOCK_KIB: [usize; 3] = [64, 128, 1024];

/// The code of one program.
struct Code {
    name: String,
    filter: Filter,
    position: u64,
    bytes: Vec<u8>,
}

fn code(path: &str) -> Code {
    let data = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let file =
        object::read::elf::ElfFile64::<object::Endianness>::parse(&*data).unwrap_or_else(|e| panic!("{path}: {e}"));
    let filter = match file.architecture() {
        Architecture::X86_64 => Filter::X86_64,
        Architecture::Aarch64 => Filter::Aarch64,
        other => panic!("{path}: no filter for {other:?}"),
    };
    let text = file.section_by_name(".text").unwrap_or_else(|| panic!("{path} has no .text"));
    let mut bytes = text.data().unwrap().to_vec();
    bytes.truncate(CODE_BYTES_MAX);
    let (position, _) = text.file_range().unwrap();
    Code { name: path.rsplit('/').next().unwrap_or(path).to_string(), filter, position, bytes }
}

/// The filter of old: E8 and E9 with a distance below 16 MiB, as archivers do it for one chunk.
fn calls_only(position: u64, bytes: &mut [u8]) {
    let mut at = 0;
    while at + 5 <= bytes.len() {
        if bytes[at] & 0xfe == 0xe8 && (bytes[at + 4] == 0 || bytes[at + 4] == 0xff) {
            let distance = u32::from_le_bytes([bytes[at + 1], bytes[at + 2], bytes[at + 3], 0]);
            let target = distance.wrapping_add(position as u32).wrapping_add(at as u32 + 5);
            bytes[at + 1..at + 4].copy_from_slice(&target.to_be_bytes()[1..]);
            at += 5;
        } else {
            at += 1;
        }
    }
}

fn each_chunk(code: &Code, convert: impl Fn(u64, &mut [u8])) -> Vec<u8> {
    let mut bytes = code.bytes.clone();
    for (i, chunk) in bytes.chunks_mut(CHUNK_BYTES).enumerate() {
        convert(code.position + (i * CHUNK_BYTES) as u64, chunk);
    }
    bytes
}

fn stored_bytes(codec: Codec, level: i32, bytes: &[u8], block_kib: usize) -> usize {
    let mut out = Vec::new();
    let mut block = |raw| {
        encode(codec, level, raw, &mut out).unwrap();
        out.len()
    };
    bytes.chunks(block_kib << 10).map(&mut block).sum()
}

fn gain(none: usize, now: usize) -> f64 {
    100.0 * (none as f64 - now as f64) / none as f64
}

#[test]
#[ignore = "needs programs named in FILES; prints a table"]
fn filter_gain() {
    let files = std::env::var("FILES").expect("FILES names ELF files, separated by spaces");
    let (codec, level) = match std::env::var("CODEC").as_deref() {
        Ok("xz") => (Codec::Xz, 9),
        Ok("lz4") => (Codec::Lz4, 12),
        _ => (Codec::Zstd, 19),
    };
    let codes: Vec<Code> = files.split_whitespace().map(code).collect();
    let mut totals = [[0; 3]; BLOCK_KIB.len()];
    println!("{codec} level {level}: bytes without filter, calls only, filter");
    for code in &codes {
        let calls = each_chunk(code, calls_only);
        let mut filtered = each_chunk(code, |position, chunk| filter::encode(code.filter, position, chunk));
        for (total, block_kib) in totals.iter_mut().zip(BLOCK_KIB) {
            let found = [&code.bytes, &calls, &filtered].map(|bytes| stored_bytes(codec, level, bytes, block_kib));
            for (total, found) in total.iter_mut().zip(found) {
                *total += found;
            }
            let [none, calls, now] = found;
            let gains = (gain(none, calls), gain(none, now));
            println!(
                "{:24} {block_kib:5} KiB {none:9} {calls:9} {:5.2} % {now:9} {:5.2} %",
                code.name, gains.0, gains.1
            );
        }
        let start = Instant::now();
        for (i, chunk) in filtered.chunks_mut(CHUNK_BYTES).enumerate() {
            filter::decode(code.filter, code.position + (i * CHUNK_BYTES) as u64, chunk);
        }
        let rate = filtered.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{:24} decodes at {rate:.0} MB/s", code.name);
        assert!(filtered == code.bytes, "{}: the filter is not reversible", code.name);
    }
    for ([none, calls, now], block_kib) in totals.into_iter().zip(BLOCK_KIB) {
        let gains = (gain(none, calls), gain(none, now));
        println!("{:24} {block_kib:5} KiB {none:9} {calls:9} {:5.2} % {now:9} {:5.2} %", "total", gains.0, gains.1);
        assert!(now < none, "the filter makes {block_kib} KiB blocks larger");
    }
}
