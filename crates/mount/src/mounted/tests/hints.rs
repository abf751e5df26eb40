//! Hints on their way from a path to the pages of an image.

// A hint for one run of pages is a list of one range.
#![allow(clippy::single_range_in_vec_init)]

use std::time::{Duration, Instant};

use super::*;
use crate::Hinter;

fn nodes() -> Vec<Node> {
    vec![
        Node::dir(b"lib"),
        Node::file(b"lib/a.so", &pattern(5 * PAGE_BYTES + 1, 1)),
        Node::file(b"lib/b.so", &pattern(100 * PAGE_BYTES, 2)),
        Node::symlink(b"a", b"lib/a.so"),
        Node::file(b"empty", b""),
    ]
}

fn pages(inode: InodeId, indexes: &[u32]) -> Vec<PageId> {
    indexes.iter().map(|index| PageId::new(inode, *index)).collect()
}

impl Memory {
    /// What was hinted, once there are `count` pages.
    fn hinted(&self, count: usize) -> Vec<PageId> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let hinted = self.hinted.lock().expect("unpoisoned").clone();
            if hinted.len() >= count || Instant::now() > until {
                return hinted;
            }
            thread::yield_now();
        }
    }
}

#[test]
fn fuse_hints_reach_the_session_by_any_path_to_the_file() {
    need_fuse!();
    let mount = mount_with(&nodes(), Options::default());
    let (hinter, a) = (Hinter::new(), mount.source.inode("/lib/a.so"));
    assert!(hinter.hint(&mount.at("lib/a.so"), &[0..2, 4..900, 700..800]), "clipped at the end of the file");
    assert!(hinter.hint(&mount.at("a"), &[3..4]), "through a link");
    assert!(hinter.hint(&mount.at("empty"), &[0..1]), "nothing to do");
    assert_eq!(mount.source.hinted(5), pages(a, &[0, 1, 4, 5, 3]));

    let bound = tempfile::NamedTempFile::new().expect("file");
    rustix::mount::mount_bind(mount.at("lib/a.so"), bound.path()).expect("bound");
    assert!(hinter.hint(bound.path(), &[2..3]));
    mountpoint::detach(bound.path()).expect("detached");
    assert_eq!(mount.source.hinted(6)[5..], pages(a, &[2]));

    for foreign in [bound.path(), Path::new("/proc/self/status"), &mount.at("lib"), &mount.at("none")] {
        assert!(!hinter.hint(foreign, &[0..1]), "{}", foreign.display());
    }
    let read = fs::read(mount.at("lib/a.so")).expect("the mount goes on");
    assert_eq!(read, pattern(5 * PAGE_BYTES + 1, 1));
    let path = mount.at("lib/a.so");
    mount.mounted.unmount().expect("unmounts");
    assert!(!hinter.hint(&path, &[0..1]));
}

#[test]
fn fuse_thousands_of_small_hints_are_not_waited_for_one_by_one() {
    need_fuse!();
    let mount = mount_with(&nodes(), Options::default());
    let (hinter, b) = (Hinter::new(), mount.source.inode("/lib/b.so"));
    let indexes: Vec<u32> = (0..3000).map(|step| step % 100).collect();
    let path = mount.at("lib/b.so");
    assert!(indexes.iter().all(|index| hinter.hint(&path, std::slice::from_ref(&(*index..index + 1)))));
    assert_eq!(mount.source.hinted(3000), pages(b, &indexes), "all of them, in order");
    // More ranges than one line has room for.
    let ranges: Vec<std::ops::Range<u32>> = indexes.iter().map(|index| *index..index + 1).collect();
    assert!(hinter.hint(&path, &ranges));
    assert_eq!(mount.source.hinted(6000).len(), 6000);
}

#[test]
fn fuse_a_wrong_hint_is_explained_and_does_no_harm() {
    need_fuse!();
    let mount = mount_with(&nodes(), Options::default());
    let hint = |path: &str, range| crate::hint_files(mount.folder.path(), &[(path.into(), vec![range])]);
    for (path, range, what) in [
        ("/lib/c.so", 0..1, "no file /lib/c.so"),
        ("/lib", 0..1, "no file /lib"),
        ("/lib/a.so", 3..7, "/lib/a.so has 6 pages, asked for are 3 to 7"),
    ] {
        let error = hint(path, range).expect_err("refused").to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(hint("/lib/a.so", 3..6).expect("taken"));
    assert_eq!(mount.source.hinted(3), pages(mount.source.inode("/lib/a.so"), &[3, 4, 5]));
    assert_eq!(fs::read(mount.at("lib/a.so")).expect("read").len(), 5 * PAGE_BYTES + 1);
}

#[test]
fn fuse_below_an_overlay_only_files_of_the_image_are_hinted() {
    need_fuse!();
    let changes = tempfile::tempdir().expect("tempdir");
    let options = Options { overlay: Some(changes.path().to_path_buf()), ..Options::default() };
    let folder = tempfile::tempdir().expect("tempdir");
    let source = Memory::new(&nodes());
    let mounted = match Mounted::start_source(source.clone(), folder.path(), options) {
        Ok(mounted) => mounted,
        // The temporary folder may lie on an overlay itself.
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let hinter = Hinter::new();
    assert!(hinter.hint(&folder.path().join("a"), &[1..3]), "through a link");
    fs::write(folder.path().join("lib/b.so"), b"mine").expect("written");
    hinter.hint(&folder.path().join("lib/b.so"), &[0..1]);
    assert!(hinter.hint(&folder.path().join("lib/a.so"), &[5..6]));
    assert_eq!(source.hinted(3), pages(source.inode("/lib/a.so"), &[1, 2, 5]));
    mounted.unmount().expect("unmounts");
}

#[derive(Debug)]
struct Nobody;

impl Recorder for Nobody {
    fn begin(&self, _: &Arc<Metadata>) {}
    fn start(&self, _: Token, _: Vec<u8>) {}
    fn touch(&self, _: Token, _: InodeId, _: std::ops::Range<u32>, _: crate::record::Answer) {}
    fn end(&self, _: Token) {}
}

#[test]
fn fuse_a_recorded_mount_takes_no_hints() {
    need_fuse!();
    let mount = mount_with(&nodes(), Options { recorder: Some(Arc::new(Nobody)), ..Options::default() });
    assert!(!Hinter::new().hint(&mount.at("lib/a.so"), &[0..1]));
    assert!(mount.source.hinted(0).is_empty());
}
