//! The journal and the table as bytes: what is written is read back, what is damaged is told,
//! nothing panics.

use proptest::prelude::*;

use crate::format::*;
use crate::journal::{Key, frame, frame_bytes, scan};
use crate::record::{EntryName, Record, decode, encode};
use crate::table::{Table, Tracked};
use crate::*;

const KEY: Key = [7; KEY_BYTES];

fn id() -> impl Strategy<Value = FileId> {
    (1..u64::MAX).prop_map(FileId)
}

fn place() -> impl Strategy<Value = EntryName> {
    let name = proptest::collection::vec(1..=255u8, 1..NAME_BYTES_MAX)
        .prop_filter("a name", |name| !name.contains(&b'/') && name != b"." && name != b"..");
    (id(), name).prop_map(|(folder, name)| EntryName { folder, name })
}

fn attribute() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1..=255u8, 1..250).prop_map(|name| [b"user.", &name[..]].concat())
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::File), Just(Kind::Folder)]
}

fn special() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Fifo), Just(Kind::Socket), Just(Kind::CharDevice), Just(Kind::BlockDevice)]
}

fn writer() -> impl Strategy<Value = Writer> {
    (0..4u128, any::<u64>()).prop_map(|(device, number)| Writer { device, number })
}

fn versions() -> impl Strategy<Value = Vec<Seen>> {
    proptest::collection::vec((id(), any::<u64>()).prop_map(|(file, version)| Seen { file, version }), 0..5)
}

fn record() -> impl Strategy<Value = Record> {
    let identity = (any::<u64>(), any::<i64>()).prop_map(|(inode, born_ns)| Identity { inode, born_ns });
    let offset = 0..=(i64::MAX as u64) / 2;
    prop_oneof![
        (id(), place(), identity, kind(), any::<bool>())
            .prop_map(|(file, at, identity, kind, several)| { Record::Known { file, at, identity, kind, several } }),
        (id(), place(), kind(), 0..=0o7777u16).prop_map(|(file, at, kind, mode)| Record::New { file, at, kind, mode }),
        (id(), place(), proptest::collection::vec(1..=255u8, 1..60)).prop_map(|(file, at, target)| Record::Link {
            file,
            at,
            target
        }),
        (id(), place(), place(), proptest::option::of(id())).prop_map(|(file, from, to, replaced)| Record::Move {
            file,
            from,
            to,
            replaced
        }),
        (id(), place()).prop_map(|(file, at)| Record::Gone { file, at }),
        (id(), offset.clone(), proptest::collection::vec(any::<u8>(), 0..600))
            .prop_map(|(file, offset, bytes)| Record::Write { file, offset, bytes }),
        (id(), offset).prop_map(|(file, size)| Record::Size { file, size }),
        (id(), any::<i64>()).prop_map(|(file, mtime_ns)| Record::Time { file, mtime_ns }),
        (id(), place()).prop_map(|(file, at)| Record::HardLink { file, at }),
        (id(), place(), any::<u64>()).prop_map(|(file, at, version)| Record::Unlink { file, at, version }),
        (id(), attribute(), proptest::collection::vec(any::<u8>(), 0..600))
            .prop_map(|(file, name, value)| Record::SetXattr { file, name, value }),
        (id(), attribute()).prop_map(|(file, name)| Record::RemoveXattr { file, name }),
        (id(), any::<i64>()).prop_map(|(file, atime_ns)| Record::AccessTime { file, atime_ns }),
        (id(), 0..=0o7777u16).prop_map(|(file, mode)| Record::Mode { file, mode }),
        (id(), place(), any::<(u32, u32)>(), proptest::collection::vec(1..=255u8, 1..60)).prop_map(
            |(file, at, (uid, gid), target)| Record::LinkOwned { file, at, owner: Owner { uid, gid }, target }
        ),
        (id(), place(), special(), 0..=0o7777u16, any::<u32>()).prop_map(|(file, at, kind, mode, rdev)| Record::Node {
            file,
            at,
            kind,
            mode,
            rdev
        }),
        (id(), any::<(u32, u32)>(), 0..=0o7777u16).prop_map(|(file, (uid, gid), mode)| Record::Owner {
            file,
            owner: Owner { uid, gid },
            mode
        }),
        (id(), any::<u64>()).prop_map(|(file, version)| Record::Version { file, version }),
        (writer(), any::<u64>(), versions()).prop_map(|(writer, peer, versions)| Record::Answer {
            writer,
            peer: Peer(peer),
            versions
        }),
        (any::<u128>(), any::<u64>(), any::<u128>()).prop_map(|(device, peer, from)| Record::Inherit {
            device,
            peer: Peer(peer),
            from
        }),
    ]
}

/// Frames of these records one after the other, as in a journal file with old bytes behind them.
fn journal(frames: &[Vec<Record>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, records) in frames.iter().enumerate() {
        let mut payload = Vec::new();
        encode(records, &mut payload);
        assert!(payload.len() as u64 <= records.iter().map(Record::bytes_max).sum());
        bytes.extend(frame(&KEY, 10 + index as u64, &payload, records.len() as u32));
    }
    bytes.extend(frame(&[8; KEY_BYTES], 10 + frames.len() as u64, b"of an older key", 0));
    bytes
}

proptest! {
    #[test]
    fn prop_frames_are_read_back_and_cut_at_the_tear(
        frames in proptest::collection::vec(proptest::collection::vec(record(), 1..5), 1..5),
        damage in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let mut bytes = journal(&frames);
        let whole = scan(&bytes, &KEY, 9).unwrap();
        prop_assert_eq!(whole.frames, frames.len() as u64);
        prop_assert_eq!(&whole.records, &frames.concat());
        // One flipped byte: in the last frame it is a tear, in one before an error; in the padding
        // nothing.
        let starts: Vec<usize> = frames.iter().scan(0, |at, records| {
            let start = *at;
            let mut payload = Vec::new();
            encode(records, &mut payload);
            *at += frame_bytes(payload.len()) as usize;
            Some(start)
        }).collect();
        let end = bytes.len() - frame_bytes(15) as usize;
        let at = damage.index(end);
        bytes[at] ^= flip;
        let hit = starts.iter().rposition(|start| *start <= at).unwrap();
        match scan(&bytes, &KEY, 9) {
            Ok(scan) if scan.frames == frames.len() as u64 => prop_assert_eq!(&scan.records, &frames.concat()),
            Ok(scan) => {
                prop_assert_eq!(hit, frames.len() - 1);
                prop_assert_eq!(&scan.records, &frames[..hit].concat());
            }
            Err(VolumeError::Corrupt { offset, .. }) => {
                prop_assert!(hit + 1 < frames.len());
                prop_assert_eq!(offset, starts[hit] as u64);
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn prop_no_bytes_make_a_parser_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000), count in any::<u32>(), at in 0..2000usize, byte in any::<u8>(),
        records in proptest::collection::vec(record(), 1..4),
    ) {
        let _ = decode(&bytes, count);
        let _ = scan(&bytes, &KEY, 0);
        let _ = Table::decode(&bytes);
        // Nearly right ones go further.
        let mut payload = Vec::new();
        encode(&records, &mut payload);
        if let Some(changed) = payload.get_mut(at) {
            *changed = byte;
        }
        let _ = decode(&payload, records.len() as u32);
        let _ = scan(&frame(&KEY, 1, &payload, count), &KEY, 0);
        payload.truncate(at);
        let _ = decode(&payload, records.len() as u32);
    }

    #[test]
    fn prop_tables_are_read_back_and_damage_is_told(
        files in proptest::collection::hash_map(2..u64::MAX, (any::<u64>(), any::<i64>()), 0..20),
        answers in proptest::collection::vec((writer(), 0..3u64, versions()), 0..10),
        device_key in any::<[u8; SECRET_BYTES]>(),
        damage in any::<prop::sample::Index>(),
    ) {
        let mut table = Table::new(KEY);
        for (writer, peer, versions) in answers {
            table.answers.insert(writer, Peer(peer), versions);
        }
        (table.sequence, table.id, table.device_key) = (77, 12, device_key);
        for (index, (file, (version, time))) in files.into_iter().enumerate() {
            let stamp = Stamp { size: version / 2, mtime_ns: time, ctime_ns: !time };
            let identity = Identity { inode: index as u64, born_ns: time };
            table.insert(FileId(file), Tracked { identity, version, stamp, changed: version });
        }
        let mut bytes = table.encode();
        prop_assert_eq!(Table::decode(&bytes).unwrap(), table);
        let at = damage.index(bytes.len());
        bytes[at] ^= 1;
        prop_assert!(Table::decode(&bytes).is_err());
        bytes.truncate(at);
        prop_assert!(Table::decode(&bytes).is_err());
    }
}

/// Tables of earlier versions: without devices, and with devices that belong to nobody.
#[test]
fn tables_of_earlier_versions_are_read() {
    let mut table = Table::new(KEY);
    let stamp = Stamp { size: 1, mtime_ns: 2, ctime_ns: 3 };
    let identity = Identity { inode: 4, born_ns: 5 };
    table.insert(FileId(6), Tracked { identity, version: 7, stamp, changed: 8 });
    let mut bytes = table.encode();
    assert_eq!((&bytes[..8], bytes.len()), (&b"RNLVTBL3"[..], 96 + 64 + 16));
    bytes[..8].copy_from_slice(b"RNLVTBL1");
    bytes.drain(48..96);
    let hashed = |bytes: &mut Vec<u8>| {
        let end = bytes.len() - 16;
        let hash = *blake3::hash(&bytes[..end]).as_bytes();
        bytes[end..].copy_from_slice(&hash[..16]);
    };
    hashed(&mut bytes);
    assert_eq!(Table::decode(&bytes).unwrap(), table);

    let seen = Seen { file: FileId(6), version: 7 };
    table.id = 99;
    table.answers.insert(Writer { device: 5, number: 3 }, Peer::UNKNOWN, vec![seen]);
    let mut bytes = table.encode();
    bytes[..8].copy_from_slice(b"RNLVTBL2");
    let peer_at = bytes.len() - 16 - 16 - 4 - 8 - 4 - 8 - 8;
    bytes.drain(peer_at..peer_at + 8);
    bytes.drain(64..96);
    hashed(&mut bytes);
    assert_eq!(Table::decode(&bytes).unwrap(), table);
}

/// A journal of an earlier version, whose answers belong to nobody.
#[test]
fn answers_without_a_peer_are_read() {
    let answer = |peer| Record::Answer { writer: Writer { device: 5, number: 3 }, peer, versions: vec![] };
    let mut bytes = Vec::new();
    encode(&[answer(Peer(7))], &mut bytes);
    assert_eq!(decode(&bytes, 1).unwrap(), [answer(Peer(7))]);
    bytes[0] = 10;
    bytes.drain(17..25);
    assert_eq!(decode(&bytes, 1).unwrap(), [answer(Peer::UNKNOWN)]);
}

/// A client can write what looks like a frame into a file; without the key it is none.
#[test]
fn a_frame_inside_a_frame_is_content() {
    let inner = frame(&[9; KEY_BYTES], 12, b"forged", 0);
    let write = Record::Write { file: FileId(5), offset: 0, bytes: [vec![0; 512], inner.repeat(3)].concat() };
    let mut bytes = journal(&[vec![write]]);
    bytes[FRAME_HEADER_BYTES + 40] ^= 1;
    let torn = scan(&bytes, &KEY, 9).unwrap();
    assert_eq!((torn.frames, torn.torn), (0, true));
}

/// The bytes of a frame are part of the format; a change needs a new magic and a page in
/// docs/formats.
#[test]
fn the_layout_is_pinned() {
    let records = [
        Record::New {
            file: FileId(2),
            at: EntryName { folder: FileId(1), name: b"f".to_vec() },
            kind: Kind::File,
            mode: 0o644,
        },
        Record::Write { file: FileId(2), offset: 3, bytes: b"abc".to_vec() },
        Record::Version { file: FileId(2), version: 1 },
    ];
    let mut payload = Vec::new();
    encode(&records, &mut payload);
    let frame = frame(&KEY, 1, &payload, 3);
    assert_eq!((payload.len(), frame.len()), (63, 512));
    assert_eq!(&payload[..22], b"\x02\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01f\0\xa4\x01");
    assert_eq!(&frame[..24], b"RNLVJRN1\x01\0\0\0\0\0\0\0\x3f\0\0\0\x03\0\0\0");
    assert_eq!(frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + 63], payload);
}
