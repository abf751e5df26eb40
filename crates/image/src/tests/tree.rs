//! Trees to test with: one that has everything once, and random ones.

use crate::fixture::{Body, Fixture, Node, Part};
use crate::{BuilderParams, Codec, Content, Filter, Limits, device_number};
use units::{Rng, SplitMix64};

/// Bytes that repeat little, from a seed.
pub(super) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

/// Bytes that compress well.
pub(super) fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    let words = [&b"runnel "[..], b"image ", b"page ", b"chunk ", b"block\n"];
    let mut out = Vec::new();
    while out.len() < bytes {
        out.extend_from_slice(words[rng.below(5) as usize]);
    }
    out.truncate(bytes);
    out
}

/// A tree with every kind of inode and every oddity once, small enough to flip each of its bytes.
pub(super) fn everything() -> Vec<Node> {
    let mut root = Node::dir(b"");
    root.permissions = 0o1777;
    let mut setuid = Node::file(b"bin/sudo", &text(1, 600));
    setuid.permissions = 0o4755;
    setuid.mtime = (1_700_000_000, 999_999_999);
    setuid.xattrs =
        vec![(b"security.capability".to_vec(), vec![1, 0, 0, 2, 0, 0xff, 0, 0]), (b"user.empty".to_vec(), Vec::new())];
    let mut same_xattrs = Node::file(b"bin/ping", &text(1, 600));
    same_xattrs.xattrs = setuid.xattrs.iter().rev().cloned().collect();
    let mut owned = Node::dir(b"home");
    (owned.uid, owned.gid, owned.permissions, owned.mtime) = (u32::MAX, 70_000, 0o2700, (-1, 1));
    let sparse = vec![Part::Data(noise(3, 4096)), Part::Hole(8192), Part::Data(text(4, 4096)), Part::Hole(100)];
    let other = |path: &[u8], content| Node::new(path, Body::Other(content));
    vec![
        root,
        Node::dir(b"bin"),
        setuid,
        same_xattrs,
        Node::new(b"bin/sudoedit", Body::HardLink(b"bin/sudo".to_vec())),
        Node::symlink(b"bin/sh", b"sudo"),
        Node::symlink(b"bin/absolute", b"/home/\xff\xfe/deep"),
        Node::symlink(b"loop", b"loop"),
        owned,
        Node::dir(b"home/\xff\xfe"),
        Node::dir(b"home/\xff\xfe/deep"),
        Node::file(b"home/\xff\xfe/new\nline \\ and space", b"x"),
        Node::file(b"home/empty", b""),
        Node::new(b"home/sparse", Body::File(sparse)),
        Node::new(b"home/huge", Body::File(vec![Part::Hole(5 << 30), Part::Data(b"the end".to_vec())])),
        other(b"null", Content::Char(device_number(1, 3).unwrap())),
        other(b"disk", Content::Block(device_number(4095, (1 << 20) - 1).unwrap())),
        other(b"pipe", Content::Fifo),
        other(b"socket", Content::Socket),
        Node::dir(b"vacant"),
    ]
}

/// A packer whose output depends on no compression library: what may be pinned.
pub(super) fn plain() -> Fixture {
    let params = BuilderParams { metadata_codec: Codec::Stored, metadata_level: 0, ..BuilderParams::default() };
    Fixture { params, block_bytes: 8192, codecs: vec![Codec::Stored], ..Fixture::default() }
}

/// A dictionary learned from text as it stands in random trees.
pub(super) fn dictionary() -> Vec<u8> {
    let samples: Vec<Vec<u8>> = (0..200).map(|seed| text(seed, 400)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    codec::train(&samples, 4096).unwrap().expect("enough to learn from")
}

/// A random packer: chunk size, block size, codecs, filters, dictionary, order.
pub(super) fn random_fixture(rng: &mut impl Rng) -> Fixture {
    let params = BuilderParams {
        chunk_shift: 8 + rng.below(5) as u8,
        metadata_codec: Codec::ALL[rng.below(4) as usize],
        metadata_level: 3,
        derive_hashes: rng.below(4) == 0,
        limits: Limits::WRITTEN,
    };
    let codecs = (0..1 + rng.below(3)).map(|_| Codec::ALL[rng.below(4) as usize]).collect();
    let shuffle = if rng.below(2) == 0 { Some(rng.next_u64()) } else { None };
    let filters = (0..1 + rng.below(3)).map(|_| Filter::ALL[rng.below(5) as usize]).collect();
    let dictionary = if rng.below(2) == 0 { Some(dictionary()) } else { None };
    Fixture { params, block_bytes: 4096 << rng.below(5), codecs, filters, dictionary, shuffle, ..Fixture::default() }
}

fn random_name(rng: &mut impl Rng) -> Vec<u8> {
    let bytes = if rng.below(20) == 0 { 255 } else { 1 + rng.below(6) };
    let name: Vec<u8> = (0..bytes)
        .map(|_| match rng.below(4) {
            0 => 1 + rng.below(255) as u8,
            _ => b'a' + rng.below(3) as u8,
        })
        .map(|byte| if byte == b'/' { b'_' } else { byte })
        .collect();
    if name == b"." || name == b".." { b"dots".to_vec() } else { name }
}

/// Parts of a file: data from a small set of chunks, so that deduplication finds something, and
/// holes.
fn random_parts(rng: &mut impl Rng, chunk_bytes: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    for _ in 0..rng.below(5) {
        let chunks = 1 + rng.below(4) as usize;
        parts.push(match rng.below(3) {
            0 => Part::Hole((chunks * chunk_bytes) as u64),
            1 => Part::Data(noise(rng.below(4), chunks * chunk_bytes)),
            _ => Part::Data(text(rng.below(4), chunks * chunk_bytes)),
        });
    }
    match rng.below(4) {
        0 => parts.push(Part::Data(noise(rng.below(3), 1 + rng.below(chunk_bytes as u64 - 1) as usize))),
        1 => parts.push(Part::Hole(1 + rng.below(chunk_bytes as u64))),
        _ => {}
    }
    parts
}

fn random_xattrs(rng: &mut impl Rng) -> Vec<(Vec<u8>, Vec<u8>)> {
    let sets = if rng.below(3) == 0 { 1 + rng.below(3) } else { 0 };
    (0..sets).map(|i| (format!("user.{i}").into_bytes(), noise(rng.below(3), rng.below(20) as usize))).collect()
}

/// A random tree; paths are distinct and parents come first.
pub(super) fn random_tree(rng: &mut impl Rng, chunk_bytes: usize) -> Vec<Node> {
    let mut nodes = vec![Node::dir(b"")];
    let mut dirs: Vec<Vec<u8>> = vec![Vec::new()];
    let mut linkable: Vec<Vec<u8>> = Vec::new();
    for _ in 0..rng.below(40) {
        let mut path = dirs[rng.below(dirs.len() as u64) as usize].clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(random_name(rng));
        if nodes.iter().any(|node| node.path == path) {
            continue;
        }
        let body = match rng.below(10) {
            0..=2 => Body::Other(Content::Dir),
            3 => Body::Other(Content::Symlink(random_name(rng))),
            4 => Body::Other(Content::Char(rng.next_u64() as u32)),
            5 => Body::Other([Content::Fifo, Content::Socket, Content::Block(7)][rng.below(3) as usize].clone()),
            6 if !linkable.is_empty() => Body::HardLink(linkable[rng.below(linkable.len() as u64) as usize].clone()),
            _ => Body::File(random_parts(rng, chunk_bytes)),
        };
        match &body {
            Body::Other(Content::Dir) => dirs.push(path.clone()),
            Body::HardLink(_) => {}
            _ => linkable.push(path.clone()),
        }
        nodes.push(Node {
            path,
            permissions: rng.below(0o10000) as u16,
            uid: rng.next_u64() as u32,
            gid: rng.next_u64() as u32,
            mtime: (rng.next_u64() as i64, rng.below(1_000_000_000) as u32),
            xattrs: random_xattrs(rng),
            body,
        });
    }
    nodes
}
