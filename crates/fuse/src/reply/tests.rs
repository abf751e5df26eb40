use std::io::{self, Read};
use std::time::UNIX_EPOCH;

use super::*;
use crate::abi::opcode;
use crate::device::Device;
use crate::request::{parse, tests::message};

/// What the kernel would get of an answer, without its header.
fn answer(reply: impl FnOnce(Pending)) -> (i32, Vec<u8>) {
    let (mut reader, writer) = io::pipe().expect("pipe");
    let connection = Arc::new(Connection::new(vec![Device::new(writer.into())], None));
    let bytes = message(opcode::STATFS, 1, &[]);
    connection.register(&parse(&bytes).expect("a request"), &bytes, 0, None);
    reply(Pending::new(&connection, 42));
    drop(connection);
    let mut sent = Vec::new();
    reader.read_to_end(&mut sent).expect("read");
    let word = |at: usize| sent[at..at + 4].iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
    assert_eq!(word(0) as usize, sent.len());
    assert_eq!(word(8), 42);
    (word(4).cast_signed(), sent[16..].to_vec())
}

const ATTRIBUTES: FileAttr = FileAttr {
    ino: INodeNo(9),
    size: 5,
    blocks: 1,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0o644,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
};

#[test]
fn a_reply_that_is_dropped_says_so() {
    assert_eq!(answer(|pending| drop(ReplyData(pending))), (-5, Vec::new()));
    assert_eq!(answer(|pending| drop(ReplyDirectory::new(pending, 99))), (-5, Vec::new()));
}

#[test]
fn answers_have_the_kernels_sizes() {
    let ttl = Duration::from_millis(1500);
    assert_eq!(answer(|pending| ReplyEmpty(pending).ok()), (0, Vec::new()));
    assert_eq!(answer(|pending| ReplyEmpty(pending).error(Errno::NOENT)), (-2, Vec::new()));
    assert_eq!(answer(|pending| ReplyData(pending).data(b"abc")), (0, b"abc".to_vec()));
    let (_, entry) = answer(|pending| assert!(ReplyEntry(pending).entry(&ttl, &ATTRIBUTES, 3)));
    assert_eq!((entry.len(), entry[0], entry[8], entry[16]), (128, 9, 3, 1));
    assert_eq!(answer(|pending| ReplyAttr(pending).attr(&ttl, &ATTRIBUTES)).1.len(), 104);
    let (_, opened) = answer(|pending| assert!(ReplyOpen(pending).opened(FileHandle(7), 2)));
    assert_eq!((opened.len(), opened[0], opened[8]), (16, 7, 2));
    let created = answer(|pending| assert!(ReplyCreate(pending).created(&ttl, &ATTRIBUTES, 0, FileHandle(7), 2)));
    assert_eq!(created.1.len(), 144);
    assert_eq!(answer(|pending| ReplyWrite(pending).written(5)).1.len(), 8);
    assert_eq!(answer(|pending| ReplyStatfs(pending).statfs(&Statfs::default())).1.len(), 80);
    assert_eq!(answer(|pending| ReplyXattr(pending).size(5)).1.len(), 8);
    assert_eq!(answer(|pending| ReplyLseek(pending).offset(5)).1, 5u64.as_bytes());
    let (_, listing) = answer(|pending| {
        let mut reply = ReplyDirectoryPlus::new(pending, 400);
        assert!(!reply.add(1, "name", &ttl, &ATTRIBUTES, 0));
        assert!(!reply.add(2, "other", &ttl, &ATTRIBUTES, 0));
        assert!(reply.add(3, "full", &ttl, &ATTRIBUTES, 0));
        assert!(reply.ok());
    });
    assert_eq!(listing.len(), 2 * 160);
}

#[test]
fn what_was_interrupted_is_not_delivered() {
    let (_, sent) = answer(|pending| {
        let connection = pending.connection.clone();
        assert!(connection.answer(42, 4, &[&[], &[]]));
        assert!(!ReplyOpen(pending).opened(FileHandle(1), 0));
    });
    assert!(sent.is_empty());
}
