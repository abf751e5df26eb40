use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::parse::set_attr;
use super::*;
use crate::abi::fattr;
use crate::attributes::time;

/// A request as the kernel writes it.
pub(crate) fn message(opcode: u32, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 42,
        node,
        uid: 3,
        gid: 4,
        pid: 5,
        extension_words: 0,
        padding: 0,
    };
    [header.as_bytes(), &body].concat()
}

fn parsed(opcode: u32, parts: &[&[u8]]) -> Result<String, Errno> {
    let bytes = message(opcode, 7, parts);
    let parsed = parse(&bytes).expect("it has a header");
    assert_eq!((parsed.request.unique(), parsed.request.node()), (42, INodeNo(7)));
    assert_eq!((parsed.request.uid(), parsed.request.gid(), parsed.request.pid()), (3, 4, 5));
    parsed.operation.map(|operation| format!("{operation:?}"))
}

#[test]
fn names_and_structs_are_taken_apart() {
    assert_eq!(parsed(opcode::LOOKUP, &[b"name\0"]), Ok("Lookup(\"name\")".into()));
    let rename = abi::Rename2In { new_parent: 9, flags: 1, padding: 0 };
    let text = parsed(opcode::RENAME2, &[rename.as_bytes(), b"old\0new\0"]).expect("a rename");
    assert!(text.contains("\"old\"") && text.contains("new_parent: INodeNo(9)") && text.contains("\"new\""), "{text}");
    let text = parsed(opcode::RENAME, &[9u64.as_bytes(), b"old\0new\0"]).expect("a rename");
    assert!(text.contains("flags: 0"), "{text}");
    let text = parsed(opcode::SYMLINK, &[b"name\0../target\0"]).expect("a symlink");
    assert_eq!(text, "Symlink { name: \"name\", target: \"../target\" }");
    let made = abi::MknodIn { mode: 0o100_644, rdev: 0, umask: 0o22, padding: 0 };
    let text = parsed(opcode::MKNOD, &[made.as_bytes(), b"n\0"]).expect("a node");
    assert_eq!(text, "Mknod(\"n\", Make { mode: 33188, umask: 18, rdev: 0 })");
}

#[test]
fn writes_carry_their_bytes_and_no_more() {
    let write =
        abi::WriteIn { handle: 1, offset: 5, size: 3, write_flags: 0, lock_owner: 0, flags: 0o2001, padding: 0 };
    let bytes = message(opcode::WRITE, 1, &[write.as_bytes(), b"abc"]);
    let operation = parse(&bytes).and_then(|parsed| parsed.operation.ok()).expect("a write");
    let expected = Write { handle: FileHandle(1), offset: 5, data: b"abc", flags: 0o2001, is_writeback: false };
    assert_eq!(operation, Operation::Write(expected));
    assert!(!operation.ends_by_signal(), "an append that is repeated would be there twice");
    assert_eq!(parsed(opcode::WRITE, &[write.as_bytes(), b"ab"]), Err(Errno::IO));
    let behind = abi::WriteIn { offset: 1 << 63, ..write };
    assert_eq!(parsed(opcode::WRITE, &[behind.as_bytes(), b"abc"]), Err(Errno::INVAL));
}

#[test]
fn only_direct_reads_end_by_a_caught_signal() {
    for (read_flags, ends) in [(abi::READ_LOCK_OWNER, true), (0, false)] {
        let read = abi::ReadIn { handle: 1, offset: 0, size: 1, read_flags, lock_owner: 0, flags: 0, padding: 0 };
        let bytes = message(opcode::READ, 1, &[read.as_bytes()]);
        let operation = parse(&bytes).and_then(|parsed| parsed.operation.ok()).expect("a read");
        assert_eq!(operation.ends_by_signal(), ends);
    }
}

#[test]
fn attributes_to_set_are_those_whose_bits_are_set() {
    let bytes = [0u8; size_of::<abi::SetAttrIn>()];
    let none = abi::SetAttrIn::read_from_bytes(&bytes).expect("its size");
    assert_eq!(set_attr(&none), Ok(SetAttr::default()));
    let some = abi::SetAttrIn {
        valid: fattr::MODE | fattr::SIZE | fattr::MTIME_NOW | fattr::MTIME | fattr::CTIME | fattr::HANDLE,
        mode: 0o600,
        size: 9,
        handle: 8,
        ctime: 1,
        ..none
    };
    let given = set_attr(&some).expect("attributes");
    assert_eq!((given.mode, given.size, given.uid, given.atime), (Some(0o600), Some(9), None, None));
    assert_eq!((given.mtime, given.ctime), (Some(TimeOrNow::Now), time(1, 0)));
    assert_eq!(given.handle, Some(FileHandle(8)));
    let wrong = abi::SetAttrIn { valid: fattr::ATIME, atime_nsec: 1_000_000_000, ..none };
    assert_eq!(set_attr(&wrong), Err(Errno::INVAL));
}

#[test]
fn many_forgets_come_at_once() {
    let count = abi::BatchForgetIn { count: 2, dummy: 0 };
    let entries = [abi::ForgetOne { node: 5, lookups: 1 }, abi::ForgetOne { node: 6, lookups: 7 }];
    let bytes = message(opcode::BATCH_FORGET, 0, &[count.as_bytes(), entries.as_bytes()]);
    let parsed = parse(&bytes).expect("a header");
    assert!(!parsed.is_answered());
    let Ok(Operation::BatchForget(forgets)) = parsed.operation else { panic!("{parsed:?}") };
    assert_eq!(forgets.collect::<Vec<_>>(), [(INodeNo(5), 1), (INodeNo(6), 7)]);
    let many = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
    let bytes = message(opcode::BATCH_FORGET, 0, &[many.as_bytes(), entries.as_bytes()]);
    let short = parse(&bytes).expect("a header");
    assert!(short.operation.is_err() && !short.is_answered(), "nobody waits for an answer");
}

#[test]
fn short_and_odd_requests_are_errors() {
    assert!(parse(&[]).is_none());
    assert!(parse(&[0; 39]).is_none());
    for (opcode, body) in [
        (opcode::LOOKUP, &b"no end"[..]),
        (opcode::LOOKUP, b"\0"),
        (opcode::LOOKUP, b"a/b\0"),
        (opcode::RENAME, b"12345678only one\0"),
        (opcode::OPEN, b"123"),
        (opcode::INIT, b"123"),
        (opcode::SETLK, b"123"),
        (opcode::COPY_FILE_RANGE, b"123"),
    ] {
        assert_eq!(parsed(opcode, &[body]), Err(Errno::IO), "{opcode} {body:?}");
    }
    for unknown in [0, 7, 19, 37, 39, 40, 48, 50, 52, 4096, u32::MAX] {
        assert_eq!(parsed(unknown, &[b"whatever it is"]), Err(Errno::NOSYS), "{unknown}");
    }
    // A header that does not tell the truth about the length, and one with extensions that are not
    // there.
    let mut bytes = message(opcode::STATFS, 1, &[]);
    bytes.extend_from_slice(b"more");
    assert_eq!(parse(&bytes).map(|parsed| parsed.operation), Some(Err(Errno::IO)));
    let mut bytes = message(opcode::STATFS, 1, &[]);
    bytes[36] = 1;
    assert_eq!(parse(&bytes).map(|parsed| parsed.operation), Some(Err(Errno::IO)));
}

#[test]
fn old_kernels_send_a_short_init() {
    let words: [u32; 4] = [7, 31, 4096, 5];
    let bytes = message(opcode::INIT, 0, &[words.as_bytes()]);
    let Some(Ok(Operation::Init(init))) = parse(&bytes).map(|parsed| parsed.operation) else { panic!("an init") };
    assert_eq!((init.major, init.minor, init.max_readahead, init.flags, init.flags2), (7, 31, 4096, 5, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes, most of them with a header that is right, so that the arguments are looked at.
    #[test]
    fn prop_no_bytes_make_the_parser_panic(
        opcode in 0u32..60,
        extension in 0u16..3,
        truth in any::<bool>(),
        body in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200),
    ) {
        let mut bytes = message(opcode, 1, &[&body]);
        bytes[36] = extension as u8;
        bytes[0] ^= u8::from(!truth);
        if let Some(parsed) = parse(&bytes)
            && let Ok(Operation::BatchForget(forgets)) = parsed.operation
        {
            prop_assert!(forgets.count() <= body.len() / 16);
        }
        let _ = parse(&body);
    }
}
