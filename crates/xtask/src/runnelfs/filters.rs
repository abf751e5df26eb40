//! The module's filters, compiled as a program that checks its own accesses: what they undo is what
//! the crate undoes, of machine code and of anything else.

use std::fs;

use anyhow::ensure;
use codec::Filter;
use units::{PAGE_BYTES, Rng, SplitMix64};

use super::hashes::Program;

/// What the module's file takes from the rest, and a loop over chunks: filter, position, bytes.
const PROGRAM: &str = r#"
#define RUNNELFS_H
#include <linux/kernel.h>
#include "format.h"
#include "filter.c"
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	u32 head[3];

	while (fread(head, sizeof(head), 1, stdin)) {
		/* So small that each access behind them is noticed. */
		u8 *from = malloc(head[2]), *to = malloc(head[2]);

		if (fread(from, 1, head[2], stdin) != head[2])
			return 1;
		rnl_unfilter(head[0], head[1], from, to, head[2]);
		fwrite(to, 1, head[2], stdout);
		free(from);
		free(to);
	}
	return 0;
}
"#;

/// Chunks, of each kind as many.
const CHUNKS: usize = 1500;

/// Bytes that instructions of unusual length begin with.
const UNUSUAL: &[u8] = &[
    0x00, 0x04, 0x05, 0x0f, 0x25, 0x26, 0x38, 0x3a, 0x41, 0x48, 0x49, 0x62, 0x66, 0x81, 0x84, 0x8b, 0x8d, 0xb8, 0xc4,
    0xc5, 0xc7, 0xe8, 0xe9, 0xf2, 0xf6, 0xf7,
];

/// The bytes of a chunk; `code` is a program.
fn chunk(kind: usize, bytes: usize, code: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut any = |below: usize| random.below(below as u64) as usize;
    match kind {
        0 => (0..bytes).map(|_| any(256) as u8).collect(),
        1 => (0..bytes).map(|_| UNUSUAL[any(UNUSUAL.len())]).collect(),
        _ => {
            let from = any(code.len() - bytes);
            code[from..from + bytes].to_vec()
        }
    }
}

#[test]
fn filters_undo_what_the_crate_undoes() -> anyhow::Result<()> {
    let program = Program::new("filters", PROGRAM)?;
    program.compile_checked()?;

    // Half of a program of ours is machine code of this processor.
    let code = fs::read(std::env::current_exe()?)?;
    let mut random = SplitMix64(24);
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    for filter in Filter::ALL.into_iter().filter(|filter| filter.is_of_chunks()) {
        for number in 0..3 * CHUNKS {
            let bytes = match random.below(3) {
                0 => 1 + random.below(64) as usize,
                1 => 1 + random.below(PAGE_BYTES as u64) as usize,
                _ => PAGE_BYTES,
            };
            let position = random.below(1 << 24) << 8;
            let mut chunk = chunk(number % 3, bytes, &code, &mut random);
            if number % 2 == 0 {
                codec::filter::encode(filter, position, &mut chunk);
            }
            for word in [u32::from(filter.to_u8()), position as u32, bytes as u32] {
                input.extend(word.to_le_bytes());
            }
            input.extend(&chunk);
            codec::filter::decode(filter, position, &mut chunk);
            expected.push((filter, bytes, chunk));
        }
    }
    fs::write(program.path("data"), &input)?;
    let output = program.run(program.command().stdin(fs::File::open(program.path("data"))?))?;
    let mut rest = &output[..];
    for (number, (filter, bytes, chunk)) in expected.iter().enumerate() {
        ensure!(rest.len() >= *bytes, "chunk {number} is missing");
        let (found, behind) = rest.split_at(*bytes);
        ensure!(found == chunk, "chunk {number} of {bytes} bytes, filter {filter}: not as by the crate");
        rest = behind;
    }
    ensure!(rest.is_empty(), "there are more chunks than were asked for");
    Ok(())
}
