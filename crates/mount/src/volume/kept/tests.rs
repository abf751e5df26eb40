//! What the next daemon finds.

use std::time::{Duration, Instant};

use fuse::INodeNo;
use stream::{FileInfo, Handle, LeaseKind, LockOwner, Seen};
use units::LockKind;

use super::*;

const TOP: u64 = 1;

fn file(id: u64) -> FileInfo {
    FileInfo { seen: Seen { file: id, version: 1 }, links: 1, size: id, ..FileInfo::default() }
}

fn opened(memory: &OwnedFd) -> Kept {
    Kept::open(Some(memory.try_clone().expect("a descriptor")), true).expect("a journal")
}

fn listing(count: u64) -> Listing {
    let entry = |id: u64| FolderEntry { name: format!("a file {id}").into_bytes(), info: file(id) };
    Some(Arc::new((0..count).map(entry).collect()))
}

#[test]
fn the_next_daemon_finds_all_of_it() {
    let memory = Journal::memory().expect("a memory");
    let (owner, now) = (LockOwner { is_flock: true, number: 9 }, Instant::now());
    let locked = LockPiece { start: 5, end: 90, kind: Some(LockKind::Exclusive) };
    let mut kept = opened(&memory);
    assert!(!kept.is_resumed());
    let made = kept.inodes.found(TOP, b"made", &file(0));
    let number = kept.inodes.found(TOP, b"a", &file(7));
    kept.inodes.opened(number, Handle(3), true);
    kept.commit();
    kept.held.note(number, owner, Handle(3), locked);
    kept.put_done(40, vec![LockPiece { kind: None, ..locked }]);
    kept.leases.put(7, Some(LeaseKind::Exclusive), now + Duration::from_secs(60), now);
    kept.leases.put(8, Some(LeaseKind::Shared), now + Duration::from_secs(60), now);
    kept.leases.put(8, None, now, now);
    kept.put_folder(50, None);
    kept.put_folder(52, None);
    kept.put_folder(52, listing(3));
    kept.put_folder(54, None);
    kept.remove_folder(54);
    kept.commit();
    for _ in 0..2 {
        let mut next = opened(&memory);
        assert!(next.is_resumed());
        assert_eq!(next.inodes.path(made), Ok(b"made".to_vec()));
        assert!(next.inodes.writes(number, Handle(3)) && !next.inodes.writes(number, Handle(4)));
        assert!(next.inodes.is_doubtful(number) && next.inodes.differs(number, &file(7)));
        assert_eq!(next.held.pieces(number, owner, 5, 90), [locked]);
        assert_eq!(next.held.owners(number, Handle(3)), [owner]);
        assert_eq!(next.before(40), Some(vec![LockPiece { kind: None, ..locked }]));
        assert!(next.leases.value(7, now).starts_with("exclusive "));
        assert_eq!(next.leases.value(8, now), "none");
        assert_eq!((next.folder(50), next.folder(54)), (Some(&None), None));
        assert_eq!(next.folder(52), Some(&listing(3)));
        assert_ne!(next.inodes.found(TOP, b"other", &file(0)), made, "numbers are given away once");
        // Not added: this is what a daemon that is killed leaves.
    }
}

#[test]
fn what_is_true_takes_the_place_of_a_long_journal() {
    let memory = Journal::memory().expect("a memory");
    let mut kept = opened(&memory);
    let number = kept.inodes.found(TOP, b"a", &file(7));
    for round in 0..40 {
        kept.put_folder(2, listing(5000 + round));
        kept.commit();
    }
    let held = rustix::fs::fstat(&memory).expect("a file").st_blocks * 512;
    assert!(held < 6 << 20, "{held} bytes are held");
    let next = opened(&memory);
    assert_eq!((next.inodes.path(number), next.folder(2)), (Ok(b"a".to_vec()), Some(&listing(5039))));
}

#[test]
fn a_change_of_names_is_made_once() {
    let memory = Journal::memory().expect("a memory");
    let mut kept = opened(&memory);
    let number = kept.inodes.found(TOP, b"a", &file(7));
    kept.once(60, |inodes| inodes.renamed((TOP, b"a"), (TOP, b"b")));
    kept.once(62, |inodes| inodes.removed(TOP, b"x"));
    kept.commit();
    kept.answered(62);
    kept.inodes.found(TOP, b"x", &file(8));
    kept.commit();
    let mut next = opened(&memory);
    // Its program still waits.
    next.once(60, |inodes| inodes.renamed((TOP, b"a"), (TOP, b"b")));
    assert_eq!(next.inodes.path(number), Ok(b"b".to_vec()));
    assert!(next.before(60).is_some() && next.before(62).is_none());
}

#[test]
fn the_records_of_another_version_are_refused() {
    let memory = Journal::memory().expect("a memory");
    let (mut journal, _) = Journal::open(memory.try_clone().expect("a descriptor")).expect("a journal");
    journal.append(&encode(&[Record::Begin { version: VERSION + 6 }])).expect("added");
    let error = Kept::open(Some(memory), true).err().expect("refused").to_string();
    assert!(error.contains(&format!("version {}", VERSION + 6)) && error.contains(&VERSION.to_string()), "{error}");
    let memory = Journal::memory().expect("a memory");
    let (mut journal, _) = Journal::open(memory.try_clone().expect("a descriptor")).expect("a journal");
    journal.append(&encode(&[Record::Next(3)])).expect("added");
    assert!(Kept::open(Some(memory), true).is_err());
}

#[test]
fn what_was_agreed_with_the_kernel_stays() {
    let memory = Journal::memory().expect("a memory");
    drop(opened(&memory));
    assert!(Kept::open(Some(memory), false).expect("a journal").is_writable());
    assert!(!Kept::open(None, false).expect("nothing").is_writable());
    assert_eq!(Kept::open(None, true).expect("nothing").inodes.path(INodeNo(TOP)), Ok(Vec::new()));
}
