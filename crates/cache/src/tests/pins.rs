//! What is pinned stays, and no more than fits.

use super::*;
use crate::format::Header;

fn pin(cache: &Cache, image: u64, numbers: std::ops::Range<u64>, bytes: usize) -> usize {
    let put = |number: &u64| cache.put_pinned(&owner(image), Kind::Block, &key(*number), b"", &vec![7; bytes]).unwrap();
    numbers.filter(put).count()
}

/// The numbers of the blocks that are pinned for image 1.
fn pinned(cache: &Cache) -> Vec<u64> {
    let keys = cache.pinned_keys(&owner(1), Kind::Block);
    (0..100).filter(|number| keys.contains(&key(*number))).collect()
}

#[test]
fn what_is_pinned_stays_whatever_comes() {
    both(|top| {
        let cache = open(top).unwrap();
        assert_eq!(pin(&cache, 1, 0..10, 10 << 10), 10);
        // One of them once more.
        assert_eq!(pin(&cache, 1, 3..4, 10 << 10), 1);
        cache.close();
        for image in 2..30 {
            let other = open(top).unwrap();
            let put = |number| other.put(&owner(image), Kind::Block, &key(100 * image + number), b"", &[7; 10 << 10]);
            assert!((0..10).all(|number| put(number).unwrap()));
            assert!(bytes_in(top.path()) <= LIMIT);
        }
        // One that may hold less, and one that is emptied.
        drop(Cache::open_with(top.path(), Some(64 << 10), top.key.as_ref(), Duration::ZERO).unwrap());
        open(top).unwrap().clear().unwrap();
        let last = open(top).unwrap();
        assert_eq!(pinned(&last), (0..10).collect::<Vec<_>>());
        assert_eq!(last.verify().unwrap(), (10, 0));
        assert_eq!(last.status().unwrap().bytes, last.pinned_bytes().unwrap());
        assert_eq!(last.pins().into_iter().collect::<Vec<_>>(), [(owner(1), 100 << 10)]);
    });
}

#[test]
fn what_is_unpinned_goes_as_others_do() {
    both(|top| {
        let cache = open(top).unwrap();
        assert_eq!(pin(&cache, 1, 0..10, 10 << 10), 10);
        // Somebody else is at it.
        let other = open(top).unwrap();
        assert!(other.unpin(&owner(1)).unwrap_err().to_string().contains("another process"));
        assert_eq!(pinned(&other).len(), 10);
        cache.close();
        other.unpin(&owner(1)).unwrap();
        assert_eq!((other.pins().len(), other.pinned_bytes().unwrap()), (0, 0));
        assert_eq!(other.read(Kind::Block, &key(1)).unwrap(), [7; 10 << 10], "it is still there");
        // The one that pinned it goes on elsewhere.
        assert_eq!(pin(&cache, 1, 10..11, 10 << 10), 1);
        cache.close();
        let last = open(top).unwrap();
        assert_eq!(pinned(&last), [10]);
        for number in 0..40 {
            assert!(last.put(&owner(2), Kind::Block, &key(100 + number), b"", &[7; 10 << 10]).unwrap());
        }
        let last = open(top).unwrap();
        assert_eq!([9, 10].map(|number| last.has(Kind::Block, &key(number))), [false, true]);
    });
}

#[test]
fn what_fits_can_be_pinned_and_no_more() {
    both(|top| {
        let cache = open(top).unwrap();
        // What is there goes.
        for number in 0..20 {
            assert!(cache.put(&owner(2), Kind::Block, &key(1000 + number), b"", &[7; 10 << 10]).unwrap());
        }
        cache.close();
        let fits = |image, count: usize, bytes: usize| {
            let room = cache.pin_room(&owner(image), None, &vec![bytes; count]).unwrap();
            assert_eq!(room.max, LIMIT);
            room.needed <= room.free
        };
        for bytes in [100, 3000, 10 << 10, 60 << 10] {
            let most = (1..3000).take_while(|count| fits(1, *count, bytes)).count();
            // A record takes 200 bytes beside its payload.
            let taken = most * (bytes + 200);
            assert!(taken > LIMIT as usize / 2 && taken < LIMIT as usize, "{most} of {bytes}");
            let numbers = bytes as u64 * 10_000..bytes as u64 * 10_000 + most as u64;
            assert_eq!(pin(&cache, 1, numbers, bytes), most, "{bytes}");
            assert!(bytes_in(top.path()) <= LIMIT);
            assert!(fits(1, most, bytes) && !fits(3, most, bytes), "it is taken");
            cache.unpin(&owner(1)).unwrap();
            cache.clear().unwrap();
        }
        // More than is written in an hour otherwise.
        let cache = top.open(LIMIT).unwrap();
        for round in 0..4 {
            assert_eq!(pin(&cache, 1, round * 100..round * 100 + 15, 10 << 10), 15);
            cache.unpin(&owner(1)).unwrap();
            cache.clear().unwrap();
        }
    });
}

#[test]
fn the_room_of_one_that_leaves_counts_as_free() {
    both(|top| {
        let cache = open(top).unwrap();
        assert_eq!(pin(&cache, 1, 0..10, 10 << 10) + pin(&cache, 2, 10..15, 10 << 10), 15);
        cache.close();
        let free = |leaving| cache.pin_room(&owner(3), leaving, &[1000]).unwrap().free;
        assert!(free(None) < free(Some(owner(2))) && free(Some(owner(2))) < free(Some(owner(1))));
        assert_eq!(free(Some(owner(9))), free(None));
    });
}

#[test]
fn the_budget_of_a_month_is_counted_for_all_processes() {
    both(|top| {
        let spend = |month, least, most| open(top).unwrap().spend(month, least, most, 1000).unwrap();
        assert_eq!(spend(682, 10, 600), Spent { granted: 600, all: 600 });
        assert_eq!(spend(682, 500, 600), Spent { granted: 0, all: 600 });
        assert_eq!(spend(682, 400, 600), Spent { granted: 400, all: 1000 });
        open(top).unwrap().unspend(682, 300).unwrap();
        // The count of bytes written is in the same file.
        assert!(open(top).unwrap().put(&owner(1), Kind::Block, &key(1), b"", b"one").unwrap());
        assert_eq!(spend(682, 1, 1), Spent { granted: 1, all: 701 });
        // A clock that was not set, or set back a little.
        assert_eq!(spend(0, 1, 1), Spent { granted: 1, all: 702 });
        assert_eq!(spend(681, 1, 1), Spent { granted: 1, all: 703 });
        assert_eq!(spend(683, 1, 5000), Spent { granted: 1000, all: 1000 });
        // One that was far ahead.
        assert_eq!(spend(700, 1, 1), Spent { granted: 1, all: 1 });
        assert_eq!(spend(684, 1, 1), Spent { granted: 1, all: 1 });
    });
}

#[test]
fn headers_say_what_is_pinned() {
    for is_pinned in [false, true] {
        let header = Header { owner: owner(5), is_pinned };
        let mut bytes = format::header(&header);
        assert_eq!(format::parse_header(&bytes), Some(header));
        bytes[9] ^= 1;
        assert_eq!(format::parse_header(&bytes), None);
    }
}

#[test]
fn what_others_put_again_stays_pinned() {
    both(|top| {
        let cache = open(top).unwrap();
        assert_eq!(pin(&cache, 1, 0..4, 1000), 4);
        let label_of =
            |image| cache.records(&owner(image), Kind::Block).iter().map(|found| found.label.len()).sum::<usize>();
        // The same block of another image, which counts from now on, and then goes.
        assert!(cache.put(&owner(2), Kind::Block, &key(1), b"label", &[7; 1000]).unwrap());
        assert_eq!([1, 2].map(label_of), [0, 5]);
        assert_eq!([1, 2].map(|image| cache.records(&owner(image), Kind::Block).len()), [4, 1]);
        cache.clear().unwrap();
        assert_eq!(cache.read(Kind::Block, &key(1)).unwrap(), [7; 1000]);
        assert_eq!([1, 2].map(|image| cache.records(&owner(image), Kind::Block).len()), [4, 0]);
        // One that turns out to be wrong.
        assert!(cache.put(&owner(2), Kind::Block, &key(2), b"", b"wrong").unwrap());
        assert_eq!(cache.read(Kind::Block, &key(2)).unwrap(), b"wrong");
        cache.forget(Kind::Block, &key(2));
        assert_eq!(cache.read(Kind::Block, &key(2)).unwrap(), [7; 1000]);
        cache.forget(Kind::Block, &key(2));
        assert_eq!(cache.read(Kind::Block, &key(2)), None);
    });
}
