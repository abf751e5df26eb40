//! A mounted image against the tree it was made from, file by file, attributes included, through
//! the real packer and the real session.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use client::{Config, Session};
use connection::Target;
use mount::{Mounted, Options};
use pack::compare::{Attribute, CompareOptions, assert_equal};
use pack::{Silent, Source, pack};
use support::{obstacle, odd_tree};

/// Packs `tree`, mounts it, and hands both to `check`.
fn with_mount(tree: &Path, check: impl FnOnce(&Mounted, &Session)) {
    let folder = tempfile::tempdir().expect("tempdir");
    let (image, root) = (folder.path().join("tree.rnl"), folder.path().join("mount"));
    fs::create_dir(&root).expect("made");
    let source = Source::detect(tree).expect("a directory");
    pack(source, &image, &pack::Options::default(), &Silent).expect("packed");
    let session = Session::open(&Target::File(image), Config::default()).expect("opens");
    let options = Options { control: false, ..Options::default() };
    let mounted = Mounted::start(session.clone(), &root, options).expect("mounts");
    check(&mounted, &session);
    mounted.unmount().expect("unmounts");
}

#[test]
fn fuse_ref_a_mount_equals_its_source() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let tree = odd_tree();
    with_mount(tree.path(), |mounted, session| {
        assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
        let first = session.counters().reads.reads;
        assert!(first > 0);
        // Once more, out of the kernel's caches.
        assert_equal(tree.path(), mounted.mountpoint(), &CompareOptions::default());
        let again = session.counters().reads.reads - first;
        assert!(again * 10 <= first, "{first} READs at first and {again} again");
    });
}

/// The comparison itself must notice what it is there to notice.
#[test]
fn fuse_canary_a_changed_source_differs() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let tree = odd_tree();
    with_mount(tree.path(), |mounted, _| {
        fs::write(tree.path().join("big/7"), "8").expect("written");
        fs::set_permissions(tree.path().join("empty"), fs::Permissions::from_mode(0o700)).expect("chmod");
        let options = CompareOptions { ignored: vec![Attribute::Mtime], ..CompareOptions::default() };
        let comparison = pack::compare::compare(tree.path(), mounted.mountpoint(), &options).expect("compared");
        let found: Vec<_> = comparison.differences.iter().map(|difference| difference.attribute).collect();
        assert_eq!(found, [Attribute::Contents, Attribute::Permissions]);
    });
}

#[test]
fn fuse_ref_programs_of_this_machine_equal_their_image() {
    let source = Path::new("/usr/sbin");
    if let Some(why) = obstacle().or((!source.is_dir()).then_some("no /usr/sbin")) {
        eprintln!("skipped: {why}");
        return;
    }
    with_mount(source, |mounted, _| assert_equal(source, mounted.mountpoint(), &CompareOptions::default()));
}
