//! Images mounted by the kernel's EROFS against the trees they were made from; damaged blocks; ways
//! of ending.

mod support;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use image::fixture::{Body, Node, Part};
use image::{BuilderParams, Limits, Metadata};
use mount::{KernelMount, MountError, Options, mountpoint};
use pack::compare::{CompareOptions, assert_equal};
use pack::{FileImage, Silent, Source, pack};
use rustix::fs::{Advice, XattrFlags};
use support::{obstacle, odd_tree};
use units::{ChunkId, PAGE_BYTES};

/// Ends the test where the kernel is too old; any other refusal to mount is a failure.
macro_rules! need_kernel {
    () => {
        if let Some(why) = obstacle().map(String::from).or_else(kernel_obstacle) {
            eprintln!("skipped: {why}");
            return;
        }
    };
}

fn kernel_obstacle() -> Option<String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0u32), numbers.next().unwrap_or(0u32));
    if version < (6, 12) {
        return Some(format!("Linux {release} mounts no EROFS from files"));
    }
    let known = fs::read_to_string("/proc/filesystems").expect("readable");
    (!known.contains("erofs")).then(|| "no EROFS in this kernel".into())
}

struct Fixture {
    folder: tempfile::TempDir,
    image: PathBuf,
    root: PathBuf,
}

/// Packs `tree`; mounts nothing yet.
fn packed(tree: &Path) -> Fixture {
    let folder = tempfile::tempdir().expect("tempdir");
    let (image, root) = (folder.path().join("tree.rnl"), folder.path().join("mount"));
    fs::create_dir(&root).expect("made");
    pack(Source::detect(tree).expect("a directory"), &image, &pack::Options::default(), &Silent).expect("packed");
    Fixture { folder, image, root }
}

impl Fixture {
    fn mount(&self) -> KernelMount {
        let options = Options { name: "tree, a/b".into(), control: false, ..Options::default() };
        KernelMount::start(&self.image, &self.root, options).expect("mounts")
    }
}

/// Puts attributes of every name space that EROFS has on files of the tree.
fn add_attributes(tree: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(tree.join(path), name, value, XattrFlags::empty()).expect("set");
    };
    // Version 2, cap_net_raw permitted and effective.
    set("a/large", "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    set("a", "trusted.origin", b"\0\xff");
    set("a/nothing", "user.long", &[b'v'; 3000]);
    // Version 2: owner rw, user 1000 r, group r, mask r, others none.
    let list: Vec<u8> = [(1u16, 6u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
        .into_iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat())
        .collect();
    let list = [&2u32.to_le_bytes()[..], &list].concat();
    set("a/nothing", "system.posix_acl_access", &list);
    set("a/b", "system.posix_acl_default", &list);
}

#[test]
fn fuse_ref_a_kernel_mount_equals_its_source() {
    need_kernel!();
    let tree = odd_tree();
    add_attributes(tree.path());
    let fixture = packed(tree.path());
    let mounted = fixture.mount();
    assert_eq!(mounted.attributes_left_out(), 0);
    let entry = mountpoint::mounted_at(&fixture.root).expect("read").expect("mounted");
    assert_eq!((entry.kind.as_str(), entry.image()), ("erofs", Some("tree_ a_b")));
    assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
    // The comparison sees groups of links; here that it is one inode.
    let inode = |path: &str| fs::metadata(fixture.root.join(path)).expect("found").ino();
    assert_eq!(inode("a/large"), inode("a/b/c/same"));
    let first = mounted.fuse_counters().read;
    assert!(first > 0);
    assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
    let again = mounted.fuse_counters().read - first;
    assert!(again * 10 <= first, "{first} READs at first and {again} again");
    mounted.unmount().expect("unmounts");
    assert_eq!(mountpoint::mounted_at(&fixture.root).expect("read"), None);
}

#[test]
fn fuse_ref_programs_of_this_machine_equal_their_kernel_mount() {
    need_kernel!();
    let source = Path::new("/usr/sbin");
    if !source.is_dir() {
        eprintln!("skipped: no /usr/sbin");
        return;
    }
    let fixture = packed(source);
    let mounted = fixture.mount();
    assert_equal(source, mounted.mountpoint(), &CompareOptions::default());
    mounted.unmount().expect("unmounts");
}

/// Chunks smaller than a page, in blocks that are in no order: pages are put together from several
/// blocks.
#[test]
fn fuse_pages_of_several_chunks() {
    need_kernel!();
    let noise: Vec<u8> = (0..40_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mixed = vec![
        Part::Data(noise[..1024].to_vec()),
        Part::Hole(2048),
        Part::Data(noise[1024..9216].to_vec()),
        Part::Hole(70_000 * 1024),
        Part::Data(noise[..3000].to_vec()),
    ];
    let bytes_of = |parts: &[Part]| -> Vec<u8> {
        let part = |part: &Part| match part {
            Part::Data(bytes) => bytes.clone(),
            Part::Hole(bytes) => vec![0; *bytes as usize],
        };
        parts.iter().flat_map(part).collect()
    };
    let expected = bytes_of(&mixed);
    let nodes = [
        Node::file(b"noise", &noise),
        Node::file(b"shifted", &noise[1024..]),
        Node::file(b"same", &noise),
        Node::new(b"mixed", Body::File(mixed)),
    ];
    let params = BuilderParams { chunk_shift: 10, ..BuilderParams::default() };
    let packed = image::fixture::Fixture { params, shuffle: Some(3), block_bytes: 5000, ..Default::default() };
    let folder = tempfile::tempdir().expect("tempdir");
    let (image, root) = (folder.path().join("small.rnl"), folder.path().join("mount"));
    fs::write(&image, packed.pack(&nodes).expect("packed")).expect("written");
    fs::create_dir(&root).expect("made");
    let options = Options { control: false, ..Options::default() };
    let mounted = KernelMount::start(&image, &root, options).expect("mounts");
    assert!(fs::read(root.join("noise")).expect("read") == noise);
    assert!(fs::read(root.join("shifted")).expect("read") == noise[1024..]);
    assert!(fs::read(root.join("same")).expect("read") == noise);
    assert!(fs::read(root.join("mixed")).expect("read") == expected);
    mounted.unmount().expect("unmounts");
}

/// Reads one page of a file; `None` if that is an I/O error.
fn page(file: &File, index: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PAGE_BYTES];
    match file.read_at(&mut bytes, (index * PAGE_BYTES) as u64) {
        Ok(count) => {
            bytes.truncate(count);
            Some(bytes)
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
            None
        }
    }
}

#[test]
fn fuse_a_damaged_block_is_an_error_in_its_pages_and_never_zeros() {
    need_kernel!();
    let tree = tempfile::tempdir().expect("tempdir");
    // Does not shrink, so that blocks are many and each has bytes to damage.
    let contents: Vec<u8> = (0..(1u64 << 20) / 8)
        .flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at << 40).rotate_left(at as u32 % 64).to_le_bytes())
        .collect();
    // Five pages come first, so that blocks and the kernel's reads do not start at the same pages.
    const BEFORE: u32 = 5;
    fs::write(tree.path().join("before"), &contents[10..][..BEFORE as usize * PAGE_BYTES]).expect("written");
    fs::write(tree.path().join("file"), &contents).expect("written");
    fs::write(tree.path().join("other"), b"whole").expect("written");
    let fixture = packed(tree.path());
    let metadata = {
        let image = FileImage::open(&fixture.image).expect("opens");
        Metadata::open(&image, &Limits::default()).expect("valid")
    };
    let damaged = metadata.chunk(ChunkId(100)).expect("there").block;
    let place = metadata.block(damaged).expect("there");
    let image = File::options().read(true).write(true).open(&fixture.image).expect("opens");
    let mut byte = [0];
    image.read_exact_at(&mut byte, place.file_offset + 10).expect("read");
    image.write_all_at(&[byte[0] ^ 1], place.file_offset + 10).expect("written");

    let mounted = fixture.mount();
    let expected = |index: usize| &contents[index * PAGE_BYTES..(index + 1) * PAGE_BYTES];
    let in_damaged = |index: usize| metadata.chunk(ChunkId(BEFORE + index as u32)).expect("there").block == damaged;
    let file = File::open(fixture.root.join("file")).expect("opens");
    // Without read-ahead every page stands for itself.
    rustix::fs::fadvise(&file, 0, None, Advice::Random).expect("advised");
    let mut bad = 0;
    for index in 0..contents.len() / PAGE_BYTES {
        let found = page(&file, index);
        assert_eq!(found.as_deref(), (!in_damaged(index)).then(|| expected(index)), "page {index}");
        bad += usize::from(found.is_none());
    }
    assert!(bad > 0 && bad < 64, "{bad} bad pages");
    drop(file);
    mounted.unmount().expect("unmounts");

    // With read-ahead, pages that were read together with damaged ones may fail too; none may be
    // wrong.
    let mounted = fixture.mount();
    let mut file = File::open(fixture.root.join("file")).expect("opens");
    let mut whole = Vec::new();
    assert!(file.read_to_end(&mut whole).is_err());
    assert_eq!(whole, contents[..whole.len()]);
    for index in (0..contents.len() / PAGE_BYTES).rev() {
        let found = page(&file, index);
        assert!(found.is_none() || !in_damaged(index), "page {index} is damaged and was read");
        assert!(found.is_none_or(|found| found == expected(index)), "page {index} is wrong");
    }
    assert_eq!(fs::read(fixture.root.join("other")).expect("read"), b"whole");
    let status = mounted.status().session;
    assert!(status.demand.verify_failures > 0 && status.reads.read_errors > 0);
    drop(file);
    mounted.unmount().expect("unmounts");
}

#[test]
fn fuse_a_kernel_mount_ends_in_use_and_from_outside() {
    need_kernel!();
    let tree = odd_tree();
    let fixture = packed(tree.path());

    // The daemon must go: open files fail where they were not read yet.
    let mounted = fixture.mount();
    let file = File::open(fixture.root.join("a/large")).expect("opens");
    assert!(page(&file, 0).is_some());
    mounted.unmount().expect("unmounts");
    assert_eq!(mountpoint::mounted_at(&fixture.root).expect("read"), None);
    assert!(page(&file, 0).is_some(), "kept by the kernel");
    rustix::fs::fadvise(&file, 0, None, Advice::Random).expect("advised");
    assert!(file.read_at(&mut [0], 700 * PAGE_BYTES as u64).is_err());
    drop(file);

    // Somebody else detaches it: open files work on, and the daemon ends with the last. Several
    // rounds, as EROFS closes its files while the kernel ends the connection.
    for _ in 0..10 {
        let mounted = fixture.mount();
        let file = File::open(fixture.root.join("a/large")).expect("opens");
        mount::umount(&fixture.root).expect("unmounts");
        assert!(page(&file, 700).is_some());
        drop(file);
        mounted.wait().expect("ends");
    }

    // Its directory is as it was.
    assert_eq!(fs::read_dir(&fixture.root).expect("readable").count(), 0);
    fixture.folder.close().expect("removed");
}

#[test]
fn fuse_what_cannot_be_mounted_is_told_and_leaves_nothing() {
    need_kernel!();
    let tree = tempfile::tempdir().expect("tempdir");
    let fixture = packed(tree.path());
    let options = || Options { control: false, ..Options::default() };
    let missing = KernelMount::start(&fixture.folder.path().join("none.rnl"), &fixture.root, options());
    assert!(matches!(missing, Err(MountError::Session(client::ClientError::File { source, .. }))
        if source.kind() == io::ErrorKind::NotFound));
    let cut = fixture.folder.path().join("cut.rnl");
    let bytes = fs::read(&fixture.image).expect("read");
    fs::write(&cut, &bytes[..bytes.len() - 1]).expect("written");
    let damaged = KernelMount::start(&cut, &fixture.root, options());
    assert!(matches!(damaged, Err(MountError::Session(client::ClientError::Image { .. }))));
    // An empty tree has an empty blob.
    let mounted = fixture.mount();
    let twice = KernelMount::start(&fixture.image, &fixture.root, options());
    assert!(matches!(twice, Err(MountError::AlreadyMounted { .. })));
    assert_eq!(fs::read_dir(&fixture.root).expect("readable").count(), 0);
    mounted.unmount().expect("unmounts");
    assert_eq!(mountpoint::mounted_at(&fixture.root).expect("read"), None);
}
