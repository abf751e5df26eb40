//! No bytes make reading or following panic, hang or allocate without bound.

use units::{Rng, SplitMix64};

use super::build::gcc;
use crate::code::{FUNCTION_STEPS_MAX, Flow, Linked, TABLE_ENTRIES_MAX, discover, x86_64::X86_64};

const SOURCE: &str =
    "int getpid(void); int f(int x, int *y) { switch (x) { case 1: return getpid(); case 2: *y = 3; break;
    case 3: *y = 5; break; case 4: return *y; case 5: *y *= 7; break; case 6: return 9; } return x; }
    int (*pointers[])(int, int *) = { f, f }; int main(int c, char **v) { return pointers[c & 1](c, (int *)v); }";

/// Follows all of a file, within a budget of instructions.
fn follow(bytes: &[u8]) -> bool {
    let Ok(mut linked) = Linked::parse(bytes) else { return false };
    let seeds: Vec<u64> =
        linked.pointers().into_iter().map(|(_, target)| target).chain([linked.entry]).take(64).collect();
    discover(&X86_64, &mut linked.layout, &seeds);
    let mut budget = 20_000usize;
    let starts: Vec<u64> = linked.layout.extents.all().iter().map(|extent| extent.start).collect();
    for start in starts.into_iter().chain(seeds) {
        let flow = Flow::trace(&X86_64, &linked.layout, &[start]);
        assert!(flow.steps.len() <= FUNCTION_STEPS_MAX);
        assert!(flow.tables.iter().all(|table| table.targets.len() <= TABLE_ENTRIES_MAX));
        assert!(flow.blocks.windows(2).all(|two| two[0].start < two[1].start));
        budget = budget.saturating_sub(flow.steps.len() + 1);
        if budget == 0 {
            break;
        }
    }
    true
}

#[test]
fn fuzz_damaged_objects_are_refused_or_followed_to_an_end() {
    let mut seeds = Vec::new();
    for options in [&["-shared", "-fPIC", "-O2"][..], &["-O1", "-no-pie"], &["-O2", "-pie", "-s"]] {
        let Some(bytes) = gcc("c", SOURCE, options) else { return };
        assert!(follow(&bytes), "the canary");
        seeds.push(bytes);
    }
    let mut rng = SplitMix64(7);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=rng.below(12) {
            // Headers, tables and code alike.
            let reach = if rng.below(2) == 0 { 1024 } else { bytes.len() as u64 };
            let at = rng.below(reach.min(bytes.len() as u64)) as usize;
            match rng.below(16) {
                0 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                1 => bytes.truncate(at.max(1)),
                2..6 => bytes[at] ^= 1 << rng.below(8),
                _ => bytes[at] = rng.next_u64() as u8,
            }
        }
        if follow(&bytes) { accepted += 1 } else { refused += 1 }
    }
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused");
}
