//! What a journal accepts from transactions, a recovery accepts from the journal, whatever numbers
//! are in it.

use units::{Rng, SplitMix64};

use super::model::random;
use super::*;
use crate::record::{decode, encode};
use crate::reserve::RangeSupport;
use crate::staging::{Limits, Staging};

const LIMITS: Limits = Limits { quota_bytes: None, ranges: RangeSupport { room: true, holes: true, zeros: true } };

fn one_of<T: Clone>(rng: &mut SplitMix64, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize].clone()
}

/// At both sides of every limit that a number has somewhere.
fn some_number(rng: &mut SplitMix64) -> u64 {
    let limit = one_of(rng, &[0, 1 << 12, FILE_BYTES_MAX, 1 << 62, i64::MAX as u64, u64::MAX]);
    limit.saturating_add(rng.below(3)).saturating_sub(rng.below(3))
}

fn make_extreme(operation: &mut Operation, rng: &mut SplitMix64) {
    let numbers: [u64; 3] = std::array::from_fn(|_| some_number(rng));
    let mode = (numbers[0] as u16) ^ (numbers[1] as u16 >> 1);
    match operation {
        Operation::Write { offset, bytes, .. } => {
            *offset = numbers[0];
            bytes.truncate(rng.below(3) as usize);
        }
        Operation::Append { bytes, .. } => bytes.truncate(rng.below(3) as usize),
        Operation::Truncate { size, .. } => *size = numbers[0],
        Operation::Allocate { offset, length, allocation, .. } => {
            (*offset, *length) = (numbers[0], numbers[1]);
            allocation.reserve = rng.below(2) == 0;
        }
        Operation::Copy { offset, from_offset, length, .. } => {
            (*offset, *from_offset) = (numbers[0], numbers[1]);
            *length = one_of(rng, &[0, 1, 600, COPY_BYTES_MAX, u32::MAX]);
        }
        Operation::SetTime { mtime_ns: time, .. } | Operation::SetAccessTime { atime_ns: time, .. } => {
            *time = numbers[0] as i64;
        }
        Operation::SetMode { mode: bits, .. }
        | Operation::Create { mode: bits, .. }
        | Operation::MakeFolder { mode: bits, .. }
        | Operation::MakeNode { mode: bits, .. } => *bits = mode,
        Operation::MakeLink { target, .. } => {
            let count = one_of(rng, &[0, 1, LINK_BYTES_MAX, LINK_BYTES_MAX + 1, 1 << 16]);
            *target = vec![rng.below(40) as u8; count];
        }
        _ => {}
    }
}

#[test]
fn prop_every_accepted_transaction_can_be_read_again() {
    let mut rng = SplitMix64(1);
    let mut accepted = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let volume = open(&disk, SMALL).unwrap();
        for _ in 0..20 {
            let _ = volume.commit(random(&mut rng));
        }
        disk.set_capacity(Some(disk.space().unwrap().bytes.min(4 << 20)));
        let mut table = volume.shared.table.lock().unwrap().clone();
        let mut staging = Staging::new(&disk, volume.leases(), &mut table, LIMITS).unwrap();
        for _ in 0..100 {
            let mut transaction = random(&mut rng);
            transaction.operations.truncate(1);
            transaction.operations.iter_mut().for_each(|operation| make_extreme(operation, &mut rng));
            let from = staging.records().len();
            if staging.add(&transaction, |_, _| Ok(())).is_err() {
                continue;
            }
            accepted += 1;
            let mut bytes = Vec::new();
            let records = &staging.records()[from..];
            encode(records, &mut bytes);
            let read = decode(&bytes, records.len() as u32);
            assert_eq!(read.as_deref(), Ok(records), "seed {seed}: {transaction:?}");
        }
    }
    assert!(accepted > 300, "{accepted}");
}

#[test]
fn regress_an_empty_write_at_the_end_of_all_numbers_is_none() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    volume.commit(transaction(vec![create("f"), write("f", None, u64::MAX, b"")])).unwrap();
    let refused = volume.commit(transaction(vec![write("f", None, u64::MAX, b"x")]));
    assert!(matches!(refused, Err(VolumeError::TooLarge { .. })), "{refused:?}");
    disk.crash_at(Some(disk.changes() + 1));
    drop(volume);
    disk.restart();
    assert_eq!(open(&disk, SMALL).unwrap().stat(&path("f")).unwrap().size, 0);
}
