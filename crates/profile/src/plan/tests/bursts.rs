//! Bursts and idle periods.

use std::time::Duration;

use super::burst::{Read, bursts, reads};
use super::*;

/// Reads from stretches `(first millisecond, how many, milliseconds between)`.
fn reads_of(stretches: &[(u64, u64, u64)]) -> Vec<Read> {
    let all = stretches.iter().flat_map(|(from, count, step)| {
        (0..*count).map(move |read| Read { at: Moment((from + read * step) * 1000), pages: 1 })
    });
    all.collect()
}

fn millis(threshold: u64) -> BurstConfig {
    BurstConfig { threshold: Duration::from_millis(threshold), ..BurstConfig::default() }
}

/// Whether the stretches make bursts of these milliseconds and numbers of reads.
#[track_caller]
fn check(stretches: &[(u64, u64, u64)], config: BurstConfig, expected: &[(u64, u64, usize)]) {
    let found = bursts(&reads_of(stretches), &config);
    let found: Vec<_> =
        found.iter().map(|burst| (burst.began.0 / 1000, burst.ended.0 / 1000, burst.reads.len())).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_burst_lasts_while_the_queue_spans_less_than_the_threshold() {
    check(&[], millis(3000), &[]);
    check(&[(5, 1, 0)], millis(3000), &[(5, 5, 1)]);
    check(&[(5, 1, 0)], millis(0), &[(5, 5, 1)]);
    check(&[(0, 100, 10)], millis(3000), &[(0, 990, 100)]);
    check(&[(0, 100, 10), (5000, 100, 10)], millis(3000), &[(0, 990, 100), (5000, 5990, 100)]);
    // 31 steps of 96 ms are under 3 s, 31 steps of 97 ms are not.
    check(&[(0, 60, 96)], millis(3000), &[(0, 59 * 96, 60)]);
    check(&[(0, 60, 97)], millis(3000), &[(0, 30 * 97, 31)]);
    // An idle period of 2 s is not seen by the paper's threshold where reads are dense, but by a
    // smaller one.
    let two = [(0, 100, 1), (2100, 100, 1)];
    check(&two, millis(3000), &[(0, 2199, 200)]);
    check(&two, millis(500), &[(0, 99, 100), (2100, 2199, 100)]);
}

#[test]
fn before_the_queue_is_full_it_counts_as_it_is() {
    check(&[(0, 5, 10), (10_000, 1, 0), (20_000, 1, 0)], millis(3000), &[(0, 40, 5)]);
    check(&[(0, 5, 10), (10_000, 40, 10)], millis(3000), &[(0, 40, 5), (10_000, 10_390, 40)]);
    // Later, what no full queue holds is idle.
    check(&[(0, 40, 10), (10_000, 31, 10)], millis(3000), &[(0, 390, 40)]);
    check(&[(0, 40, 10), (10_000, 32, 10)], millis(3000), &[(0, 390, 40), (10_000, 10_310, 32)]);
}

#[test]
fn short_idle_periods_and_small_bursts_are_merged() {
    let near = [(0, 100, 1), (300, 100, 1), (5000, 40, 1)];
    check(&near, millis(150), &[(0, 99, 100), (300, 399, 100), (5000, 5039, 40)]);
    let longer = BurstConfig { idle_min: Duration::from_millis(202), ..millis(150) };
    check(&near, longer, &[(0, 399, 200), (5000, 5039, 40)]);
    check(&near, BurstConfig { reads_min: 41, ..longer }, &[(0, 399, 200)]);
    // The launch stays, however small; two small bursts near each other are one that is large
    // enough.
    check(&[(0, 3, 1), (5000, 40, 1)], BurstConfig { reads_min: 50, ..millis(150) }, &[(0, 2, 3)]);
    let small = BurstConfig { queue_reads: 8, reads_min: 16, ..millis(50) };
    check(&[(0, 9, 1), (1000, 8, 1), (1100, 8, 1), (3000, 8, 1)], small, &[(0, 8, 9), (1000, 1107, 16)]);
}

#[test]
fn a_read_is_what_one_process_asks_of_one_file_at_once() {
    let run = run_of(
        "
        0 start 1 bin/app
        0 start 2 bin/tool
        0 read 1 bin/app 0..16
        0 read 2 bin/app 8..20
        0 read 1 share/a 0..100
        3 find 1 share/a
        3 read 1 share/a 90..101 1
        3 find 2 share/a
        ",
    );
    let found: Vec<(u64, u32)> = reads(&run).iter().map(|read| (read.at.0 / 1000, read.pages)).collect();
    assert_eq!(found, [(0, 16), (0, 4), (0, 32), (0, 32), (0, 32), (0, 4), (3, 0), (13, 1)]);
    assert_eq!(run.pages(), 121);
}

/// The threshold that is chosen for the stretches, in milliseconds.
fn auto(stretches: &[(u64, u64, u64)]) -> u128 {
    BurstConfig::default().auto(&reads_of(stretches)).threshold.as_millis()
}

#[test]
fn the_threshold_follows_from_the_run() {
    // Full queues last 31 ms in bursts and 2 s over the idle periods: the geometric middle.
    assert_eq!(auto(&[(0, 200, 1), (2230, 200, 1), (4460, 200, 1)]), (31.0f64 * 2061.0).sqrt() as u128);
    // The same program with its files in memory, a read each 0.01 ms: no less than 0.1 s.
    let dense = [(0, 200, 0), (2000, 200, 0), (4000, 200, 0)];
    assert_eq!(auto(&dense), 100);
    let config = BurstConfig::default().auto(&reads_of(&dense));
    check(&dense, config, &[(0, 0, 200), (2000, 2000, 200), (4000, 4000, 200)]);
    // A slow disk: bursts of 20 ms a read, 0.6 s a queue; idle periods of 5 s. No more than the
    // paper's 3 s.
    let slow = [(0, 200, 20), (9000, 200, 20), (22_000, 200, 20)];
    let chosen = auto(&slow);
    assert!((620..3000).contains(&chosen), "{chosen}");
    // One burst, nothing, and a trickle leave it as it was.
    for stretches in [vec![(0, 500, 1)], vec![], vec![(0, 3, 1)], vec![(0, 100, 1000)]] {
        assert_eq!(auto(&stretches), 3000, "{stretches:?}");
    }
    // An idle period that would be merged anyway is not looked for.
    assert_eq!(auto(&[(0, 200, 1), (350, 200, 1)]), 3000);
}

#[test]
fn periods_cover_all_moments() {
    let run = run_of("0 start 1 bin/app\n5 read 1 bin/app 0..40 1\n3000 read 1 share/a 0..40 1");
    let timeline = Timeline::new(&run, &BurstConfig::default(), true);
    let periods = [0, 5, 44, 2999, 3000, 9_000_000].map(|at| timeline.period(Moment(at * 1000)));
    assert_eq!(periods, [0, 0, 0, 0, 1, 1]);
}
