//! Volumes are read back by a small reader of EROFS of our own and compared with the nodes the
//! image was made from; and by `fsck.erofs`, where it is installed.

mod reader;

use std::process::Command;

use image::fixture::{Body, Fixture, Node, Part};
use image::{BuilderParams, Content, Limits, Metadata};
use units::{BlockId, ChunkId, PAGE_BYTES, Rng, SplitMix64};

use self::reader::Reader;
use crate::Volume;

fn open(image: &[u8]) -> Metadata {
    Metadata::open(&image, &Limits::default()).expect("valid")
}

fn fixture(chunk_shift: u8) -> Fixture {
    Fixture { params: BuilderParams { chunk_shift, ..BuilderParams::default() }, ..Fixture::default() }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

/// One of everything, and what is special in directories: names around the dots, blocks that are
/// just full, links too long to stand behind their inodes.
fn zoo() -> Vec<Node> {
    let mut odd = Node::file(b"dir/\xff\xfe", &noise(10_000, 1));
    (odd.permissions, odd.uid, odd.gid, odd.mtime) = (0o6751, 70_000, 1 << 31, (-5, 250_000_000));
    odd.xattrs = vec![
        (b"security.capability".to_vec(), b"\x01\0\0\x02".to_vec()),
        (b"system.posix_acl_access".to_vec(), b"\x02\0\0\0".to_vec()),
        (b"system.posix_acl_default".to_vec(), vec![2]),
        (b"trusted.t".to_vec(), vec![]),
        (b"user.colour".to_vec(), b"red".to_vec()),
    ];
    let mut same = Node::file(b"dir/other", b"x");
    same.xattrs = odd.xattrs[4..].to_vec();
    let sparse =
        vec![Part::Data(noise(8192, 2)), Part::Hole(5 << 30), Part::Data(noise(4096, 3)), Part::Hole(12_288 + 100)];
    let mut nodes = vec![
        Node::dir(b""),
        Node::dir(b"dir"),
        odd,
        same,
        Node::new(b"dir/link", Body::HardLink(b"dir/other".to_vec())),
        Node::new(b"sparse", Body::File(sparse)),
        Node::file(b"empty", b""),
        Node::file(b"page", &noise(4096, 4)),
        Node::file(b"repeated", &[noise(4096, 4), noise(4096, 4), noise(4096, 9)].concat()),
        Node::symlink(b"short", b"dir/other"),
        Node::symlink(b"long", &[b'l'; 2049]),
        Node::symlink(b"longest", &[b'm'; 4095]),
        Node::symlink(b"middle", &[b'n'; 2048]),
        Node::new(b"null", Body::Other(Content::Char(image::device_number(1, 3).expect("fits")))),
        Node::new(b"disk", Body::Other(Content::Block(image::device_number(259, 70_000).expect("fits")))),
        Node::new(b"pipe", Body::Other(Content::Fifo)),
        Node::new(b"socket", Body::Other(Content::Socket)),
        Node::dir(b"dots"),
        Node::dir(b"many"),
        Node::dir(b"none"),
    ];
    for name in ["!", "+a", "-", ".-", ".!", "...", "..a", ".a", ".-b", "0"] {
        nodes.push(Node::file(format!("dots/{name}").as_bytes(), name.as_bytes()));
    }
    for number in 0..600u32 {
        nodes.push(Node::file(format!("many/{number:03}").as_bytes(), &number.to_le_bytes()));
    }
    nodes
}

/// Where a page's bytes come from, decoded.
fn blob(image: &[u8], metadata: &Metadata, volume: &Volume) -> Vec<u8> {
    let blocks: Vec<Vec<u8>> = (0..metadata.block_count())
        .map(BlockId)
        .map(|id| {
            let block = metadata.block(id).expect("there");
            let (start, mut raw) = (block.file_offset as usize, Vec::new());
            metadata.decode_block(id, &image[start..start + block.stored_bytes as usize], &mut raw).expect("good");
            raw
        })
        .collect();
    let mut blob = vec![0; volume.blob_bytes() as usize];
    for (slot, page) in blob.chunks_exact_mut(PAGE_BYTES).enumerate() {
        volume.slot_chunks(metadata, slot as u32, |start, chunk: ChunkId| {
            let place = metadata.chunk(chunk).expect("there");
            let raw = &blocks[place.block.0 as usize][place.offset as usize..][..place.bytes as usize];
            page[start..start + raw.len()].copy_from_slice(raw);
        });
    }
    blob
}

fn check(nodes: &[Node], fixture: &Fixture) {
    let image = fixture.pack(nodes).expect("packed");
    let metadata = open(&image);
    let volume = Volume::build(&metadata).expect("fits");
    let blob = blob(&image, &metadata, &volume);
    let read = |offset: u64, bytes: usize| {
        let mut out = vec![0xaa; bytes];
        volume.read(&metadata, offset, &mut out);
        out
    };
    let reader = Reader::new(&read, &blob);
    for node in nodes {
        let target = match &node.body {
            Body::HardLink(path) => nodes.iter().find(|other| other.path == *path).expect("comes earlier"),
            _ => node,
        };
        let nid = reader.resolve(&node.path);
        assert_eq!(nid, reader.resolve(&target.path), "{}", node.path.escape_ascii());
        reader.compare(nid, target);
    }
    // Every directory lists what there is and nothing else, in order.
    for node in nodes.iter().filter(|node| node.body == Body::Other(Content::Dir)) {
        let listed = reader.list(reader.resolve(&node.path));
        assert!(listed.is_sorted_by(|a, b| a.0 < b.0), "{}", node.path.escape_ascii());
        let inside = |other: &&Node| match other.path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => other.path[..slash] == *node.path,
            None => node.path.is_empty() && !other.path.is_empty(),
        };
        assert_eq!(listed.len(), nodes.iter().filter(inside).count() + 2, "{}", node.path.escape_ascii());
    }
}

#[test]
fn ref_a_volume_holds_what_its_image_holds() {
    for chunk_shift in [12, 11, 8] {
        check(&zoo(), &fixture(chunk_shift));
        check(&zoo(), &Fixture { shuffle: Some(7), ..fixture(chunk_shift) });
    }
    check(&[Node::dir(b"")], &fixture(12));
}

#[test]
fn prop_any_part_of_the_metadata_is_part_of_the_whole() {
    let image = fixture(12).pack(&zoo()).expect("packed");
    let metadata = open(&image);
    let volume = Volume::build(&metadata).expect("fits");
    // The index of the sparse file is 10 MB of this.
    let mut whole = vec![0; volume.metadata_bytes() as usize];
    for (number, part) in whole.chunks_mut(1 << 20).enumerate() {
        volume.read(&metadata, (number as u64) << 20, part);
    }
    let mut rng = SplitMix64(3);
    for _ in 0..3000 {
        let offset = rng.below(whole.len() as u64 + 1);
        let bytes = rng.below(20_000) as usize;
        let mut part = vec![0xaa; bytes];
        volume.read(&metadata, offset, &mut part);
        let end = (offset as usize + bytes).min(whole.len());
        let inside = &whole[offset as usize..end];
        assert_eq!(part[..inside.len()], *inside, "{bytes} bytes at {offset}");
        assert!(part[inside.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn files_beyond_all_memory_cost_nothing() {
    let parts = |seed| vec![Part::Hole(8 << 40), Part::Data(noise(4096, seed)), Part::Hole(4 << 40)];
    let nodes: Vec<Node> =
        (0..3u8).map(|number| Node::new(&[b'a' + number], Body::File(parts(number.into())))).collect();
    let image = fixture(12).pack(&nodes).expect("packed");
    let metadata = open(&image);
    let volume = Volume::build(&metadata).expect("fits");
    assert!(volume.metadata_bytes() > 3 * (24 << 30));
    assert!(volume.memory_bytes() < 1000);
    let blob = blob(&image, &metadata, &volume);
    let read = |offset: u64, bytes: usize| {
        let mut out = vec![0; bytes];
        volume.read(&metadata, offset, &mut out);
        out
    };
    let reader = Reader::new(&read, &blob);
    for number in 0..3u8 {
        let nid = reader.resolve(&[b'a' + number]);
        assert_eq!(reader.page(nid, (8u64 << 40) / 4096), Some(&noise(4096, number.into())[..]));
        assert_eq!(reader.page(nid, (8u64 << 40) / 4096 - 1), None);
        assert_eq!(reader.page(nid, (12u64 << 40) / 4096), None);
    }
}

#[test]
fn what_has_no_form_in_erofs_is_counted_or_refused() {
    let mut node = Node::file(b"file", b"x");
    node.xattrs = vec![
        (b"system.nfs4_acl".to_vec(), b"1".to_vec()),
        (b"user.fits".to_vec(), vec![1; 65_535]),
        (b"user.too long".to_vec(), vec![1; 65_536]),
    ];
    let metadata = open(&fixture(12).pack(&[node]).expect("packed"));
    let volume = Volume::build(&metadata).expect("fits");
    assert_eq!(volume.attributes_left_out(), 2);

    // An index that no number of an inode reaches behind.
    let nodes: Vec<Node> =
        (0..20u8).map(|number| Node::new(&[b'a' + number], Body::File(vec![Part::Hole(15 << 40)]))).collect();
    let metadata = open(&fixture(12).pack(&nodes).expect("packed"));
    let error = Volume::build(&metadata).err().expect("too large").to_string();
    assert!(error.contains("the number of an inode"), "{error}");
    // With small chunks there is a table.
    let long = Node::new(b"a", Body::File(vec![Part::Hole(1 << 40)]));
    let metadata = open(&fixture(11).pack(&[long]).expect("packed"));
    assert!(Volume::build(&metadata).is_err());
}

/// `fsck.erofs` reads all inodes, directories and the index of each file.
#[test]
fn ref_fsck_accepts_the_metadata() {
    let found = Command::new("fsck.erofs").arg("--help").output();
    if found.is_err() {
        eprintln!("skipped: no fsck.erofs (package erofs-utils)");
        return;
    }
    let nodes: Vec<Node> = zoo().into_iter().filter(|node| node.path != b"sparse").collect();
    for chunk_shift in [12, 10] {
        let image = fixture(chunk_shift).pack(&nodes).expect("packed");
        let metadata = open(&image);
        let volume = Volume::build(&metadata).expect("fits");
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, device) = (folder.path().join("metadata"), folder.path().join("blob"));
        let mut bytes = vec![0; volume.metadata_bytes() as usize];
        volume.read(&metadata, 0, &mut bytes);
        std::fs::write(&path, &bytes).expect("written");
        std::fs::write(&device, blob(&image, &metadata, &volume)).expect("written");
        let run = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            Command::new("fsck.erofs").arg(format!("--device={}", device.display())).arg(&path).output().expect("runs")
        };
        let output = run(&bytes);
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        // It does look: an inode of an impossible type.
        let mut broken = bytes.clone();
        broken[4096 + 4..4096 + 6].fill(0xff);
        assert!(!run(&broken).status.success());
    }
}
