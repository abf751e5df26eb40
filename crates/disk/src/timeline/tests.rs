use proptest::prelude::*;

use super::*;
use crate::model::{INSTANT, MODELS, SECOND};

fn disk(name: &str) -> Timeline {
    Timeline::new(*Model::named(name).expect("a model"))
}

/// Serves `reads` that all arrive at once; when the last is done.
fn together(disk: &mut Timeline, reads: impl IntoIterator<Item = (u64, u64)>) -> Moment {
    for (id, (offset, bytes)) in reads.into_iter().enumerate() {
        disk.arrive(0, Request { id: id as u64, offset, bytes });
    }
    std::iter::from_fn(|| disk.next_done()).last().map_or(0, |(done, _)| done)
}

/// Serves `reads` one after the other, each sent when the one before is done.
fn in_turn(disk: &mut Timeline, reads: impl IntoIterator<Item = (u64, u64)>) -> Moment {
    let mut now = 0;
    for (offset, bytes) in reads {
        disk.arrive(now, Request { id: 0, offset, bytes });
        now = disk.next_done().expect("it was sent").0;
    }
    now
}

fn scattered(count: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut state = 7_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % 1_000_000 * 4096, 4096)
    })
}

#[test]
fn sequential_reads_get_the_rate_of_the_disk() {
    for model in MODELS {
        let chunk = 128 << 10;
        let reads = (0..960).map(|index| (index * chunk, chunk));
        let (mut disk, bytes) = (Timeline::new(model), 960 * chunk);
        let took = together(&mut disk, reads);
        let expected = match model.name {
            // One at a time: the latency of each is seen.
            "emmc" => 960 * 300_000 + model.transfer(bytes),
            _ => model.transfer(bytes),
        };
        let tolerance = model.transfer(chunk) + 2 * SECOND / 1000;
        assert!(took.abs_diff(expected) <= tolerance, "{}: {took} and not {expected}", model.name);
        assert_eq!((disk.counters().requests, disk.counters().bytes, disk.counters().seeks), (960, bytes, 0));
    }
}

#[test]
fn a_single_random_read_costs_seek_turn_and_transfer() {
    let mut disk = disk("hdd");
    // Seek over 5 GB: 2.5 ms. Its first byte comes by at the start of a turn (8.33 ms). 4096 bytes
    // take 34 us.
    let done = in_turn(&mut disk, [(5_000_000_000, 4096)]);
    assert_eq!(done, 8_333_333 + 34_133);
    assert_eq!(disk.counters(), Counters { requests: 1, bytes: 4096, seeks: 1, busy: done });
}

#[test]
fn random_reads_of_a_hard_disk_gain_from_a_queue() {
    let alone = SECOND as f64 * 500.0 / in_turn(&mut disk("hdd"), scattered(500)) as f64;
    let queued = SECOND as f64 * 500.0 / together(&mut disk("hdd"), scattered(500)) as f64;
    // Seeks over 4 GB of 500: 1.8 ms in the mean, half a turn 4.2 ms: 160 reads a second; chosen
    // from 32, far more.
    assert!((140.0..200.0).contains(&alone), "{alone} reads a second");
    assert!((250.0..600.0).contains(&queued), "{queued} reads a second");
}

#[test]
fn random_reads_of_flat_disks_have_known_rates() {
    // Latency and transfer of 4096 bytes, one at a time.
    let alone = |name: &str| in_turn(&mut disk(name), scattered(1000)) / 1000;
    assert_eq!((alone("sata"), alone("emmc"), alone("net")), (108_192, 345_511, 1_032_768));
    // Waits overlap in the queue: 4 in 108 us, 1 in 345 us, 32 in 1.03 ms.
    let queued = |name: &str| together(&mut disk(name), scattered(1000)) / 1000;
    let (sata, emmc, net) = (queued("sata"), queued("emmc"), queued("net"));
    assert!((25_000..34_000).contains(&sata), "{sata}");
    assert_eq!(emmc, 345_511);
    assert!((31_000..65_000).contains(&net), "{net}");
}

#[test]
fn a_hard_disk_reads_on_while_nobody_asks() {
    let mut disk = disk("hdd");
    let chunk = 4096;
    let transfer = MODELS[0].transfer(chunk);
    disk.arrive(0, Request { id: 1, offset: 0, bytes: chunk });
    assert_eq!(disk.next_done(), Some((transfer, 1)));
    // A millisecond later the next bytes lie in its buffer.
    disk.arrive(transfer + 1_000_000, Request { id: 2, offset: chunk, bytes: chunk });
    assert_eq!(disk.next_done(), Some((transfer + 1_000_000, 2)));
    // What lies before the head needs a turn.
    disk.arrive(2_000_000, Request { id: 3, offset: 0, bytes: chunk });
    let (done, _) = disk.next_done().expect("it was sent");
    assert_eq!(done, 8_333_333 + transfer);
}

#[test]
fn a_disk_chooses_only_among_what_has_arrived() {
    let mut disk = disk("hdd");
    disk.arrive(0, Request { id: 1, offset: 4_000_000_000, bytes: 4096 });
    disk.arrive(1, Request { id: 2, offset: 0, bytes: 4096 });
    assert_eq!(disk.next_done().map(|(_, id)| id), Some(1), "the nearer one came later");
    assert_eq!(disk.next_done().map(|(_, id)| id), Some(2));
    assert_eq!(disk.next_done(), None);
}

#[test]
fn another_model_takes_over_at_the_same_moment() {
    let mut disk = disk("emmc");
    disk.arrive(0, Request { id: 1, offset: 0, bytes: 4096 });
    let (done, _) = disk.next_done().expect("it was sent");
    disk.change(INSTANT);
    disk.arrive(done, Request { id: 2, offset: 9 << 20, bytes: 4096 });
    assert_eq!(disk.next_done(), Some((done + INSTANT.transfer(4096), 2)));
    assert_eq!(disk.counters().requests, 2);
}

proptest! {
    #[test]
    fn prop_every_request_is_served_once_and_time_goes_on(
        model in 0..MODELS.len(),
        reads in proptest::collection::vec((0..1_u64 << 32, 1..1_u64 << 20, 0..3_000_000_u64), 1..100),
    ) {
        let mut disk = Timeline::new(MODELS[model]);
        let (mut now, mut served, mut last) = (0, Vec::new(), 0);
        for (id, (offset, bytes, pause)) in reads.iter().enumerate() {
            now += pause;
            while let Some((done, id)) = (last <= now).then(|| disk.next_done()).flatten() {
                prop_assert!(done >= last);
                last = done;
                served.push(id);
            }
            disk.arrive(now, Request { id: id as u64, offset: *offset, bytes: *bytes });
        }
        while let Some((done, id)) = disk.next_done() {
            prop_assert!(done >= last);
            last = done;
            served.push(id);
        }
        served.sort_unstable();
        prop_assert_eq!(served, (0..reads.len() as u64).collect::<Vec<_>>());
        let bytes: u64 = reads.iter().map(|(_, bytes, _)| bytes).sum();
        prop_assert_eq!(disk.counters().bytes, bytes);
        prop_assert!(last >= MODELS[model].transfer(*reads.iter().map(|(_, bytes, _)| bytes).max().unwrap_or(&0)));
        prop_assert!(disk.counters().busy <= last, "it cannot have worked longer than it was there");
    }
}
