//! No bytes make the analysis panic or go on without end.

use units::{Rng, SplitMix64};

use super::build::{BARE, Memory, gcc};
use crate::analysis::{Options, Subject, analyse};

const SOURCE: &str = "
    __attribute__((noipa)) static long enter(long number, long *out) { long result;
        __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number) : \"rcx\", \"r11\", \"memory\"); return *out = result; }
    __attribute__((noipa)) static long pick(int what, long *out) { switch (what) { case 1: return enter(39, out);
        case 2: return enter(102, out); case 3: *out = 4; break; case 4: return enter(104, out) + 1; case 5: *out *= 7; break;
        case 6: return enter(*out, out); } return what; }
    long (*volatile table[])(int, long *) = { pick, pick };
    void _start(void) { long kept[4] = { 1, 2, 3, 4 }; for (int i = 0; i < 9; i++) { table[i & 1](i, kept + (i & 3)); }
        enter(60, kept); for (;;) { } }";

#[test]
fn fuzz_damaged_programs_are_refused_or_analysed_to_an_end() {
    let mut seeds = Vec::new();
    for more in [&["-O1"][..], &["-O2", "-fPIC"], &["-O2", "-s", "-fno-asynchronous-unwind-tables"]] {
        let Some(bytes) = gcc("c", SOURCE, &[BARE, more].concat()) else { return };
        seeds.push(bytes);
    }
    let mut rng = SplitMix64(11);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..1500 {
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=rng.below(10) {
            let reach = if rng.below(2) == 0 { 512 } else { bytes.len() as u64 };
            let at = rng.below(reach.min(bytes.len() as u64)) as usize;
            match rng.below(16) {
                0 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                1 => bytes.truncate(at.max(1)),
                2..6 => bytes[at] ^= 1 << rng.below(8),
                _ => bytes[at] = rng.next_u64() as u8,
            }
        }
        let root = Memory::default().with("/program", bytes);
        let subject = Subject::Programs(vec![b"/program".to_vec()]);
        match analyse(&root, &subject, &Options { with_arguments: round % 2 == 0, ..Options::default() }) {
            Ok(report) => {
                assert!(report.resolved + report.vouched + report.unresolved.len() == report.sites);
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 150 && refused > 150, "{accepted} accepted, {refused} refused");
}
