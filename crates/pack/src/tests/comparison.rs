//! The comparison notices what it is there to notice: an oracle that sees nothing would make every
//! test pass.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, lsetxattr};

use super::build::*;
use crate::compare::{Attribute, CompareOptions, compare};

fn tree(base: &Path) {
    write(&base.join("d/file"), noise(1, 3 << 20));
    write(&base.join("a"), b"a");
    write(&base.join("b"), b"a");
    symlink("a", base.join("link")).unwrap();
    for path in ["a", "b", "link", "d/file", "d", ""] {
        touch(&base.join(path), 1, 1);
    }
}

/// Changes one of two equal trees and returns in what they differ then.
fn after(change: impl FnOnce(&Path)) -> Vec<(String, Attribute)> {
    let scratch = scratch();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    tree(&first);
    tree(&second);
    change(&second);
    // What changes on the way.
    for path in ["d", "", "d/file", "a"] {
        if second.join(path).symlink_metadata().is_ok_and(|about| !about.is_symlink()) {
            touch(&second.join(path), 1, 1);
        }
    }
    let found = compare(&first, &second, &CompareOptions::default()).unwrap();
    found.differences.into_iter().map(|one| (one.path.display().to_string(), one.attribute)).collect()
}

#[test]
fn equal_trees_are_equal() {
    assert_eq!(after(|_| {}), []);
}

#[test]
fn each_difference_is_found_and_named() {
    let one = |path: &str, attribute| vec![(path.to_string(), attribute)];
    let flip = |base: &Path| {
        let mut bytes = noise(1, 3 << 20);
        bytes[(2 << 20) + 5] ^= 1;
        fs::write(base.join("d/file"), bytes).unwrap();
    };
    assert_eq!(after(flip), one("d/file", Attribute::Contents));
    assert_eq!(after(|base| fs::write(base.join("a"), b"ab").unwrap()), one("a", Attribute::Size));
    assert_eq!(after(|base| fs::write(base.join("new"), b"").unwrap()), one("new", Attribute::Presence));
    assert_eq!(after(|base| fs::remove_file(base.join("a")).unwrap()), one("a", Attribute::Presence));
    let chmod = |base: &Path| fs::set_permissions(base.join("d"), fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(after(chmod), one("d", Attribute::Permissions));
    assert_eq!(after(|base| touch(&base.join("link"), 1, 2)), one("link", Attribute::Mtime));
    let retarget = |base: &Path| {
        fs::remove_file(base.join("link")).unwrap();
        symlink("b", base.join("link")).unwrap();
        touch(&base.join("link"), 1, 1);
    };
    assert_eq!(after(retarget), one("link", Attribute::Target));
    let retype = |base: &Path| {
        fs::remove_file(base.join("a")).unwrap();
        fs::create_dir(base.join("a")).unwrap();
    };
    assert_eq!(after(retype), one("a", Attribute::Kind));
    let relink = |base: &Path| {
        fs::remove_file(base.join("b")).unwrap();
        fs::hard_link(base.join("a"), base.join("b")).unwrap();
    };
    assert_eq!(after(relink), [("a".into(), Attribute::Links), ("b".into(), Attribute::Links)]);
}

#[test]
fn attributes_of_root_are_found_too() {
    if !is_root() {
        return eprintln!("skipped: changing owners and devices needs root");
    }
    let chown = |base: &Path| std::os::unix::fs::lchown(base.join("link"), Some(1), Some(2)).unwrap();
    assert_eq!(after(chown), [("link".to_string(), Attribute::Owner)]);
    let mut supported = true;
    let tag = |base: &Path| supported = lsetxattr(base.join("a"), "trusted.x", b"1", XattrFlags::empty()).is_ok();
    let found = after(tag);
    match supported {
        true => assert_eq!(found, [("a".to_string(), Attribute::Xattrs)]),
        false => eprintln!("skipped: no trusted attributes on this file system"),
    }
}

#[test]
fn ignored_attributes_and_paths_are_ignored() {
    let scratch = scratch();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    tree(&first);
    tree(&second);
    touch(&second.join("a"), 9, 9);
    fs::write(second.join("d/more"), b"").unwrap();
    let options = CompareOptions {
        ignored: vec![Attribute::Mtime],
        ignored_paths: vec!["d/more".into()],
        ..CompareOptions::default()
    };
    let found = compare(&first, &second, &options).unwrap();
    assert_eq!(found.differences, []);
    assert_eq!((found.paths, found.bytes), (6, (3 << 20) + 2));
}

#[test]
fn data_is_found_where_the_other_side_has_a_hole() {
    let scratch = scratch();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    for base in [&first, &second] {
        fs::create_dir(base).unwrap();
        fs::File::create(base.join("sparse")).unwrap().set_len(1 << 30).unwrap();
    }
    let options = CompareOptions { ignored: vec![Attribute::Mtime], ..CompareOptions::default() };
    assert_eq!(compare(&first, &second, &options).unwrap().differences, []);
    let write_at = |path: &Path, bytes: &[u8], at| {
        let file = fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
    };
    write_at(&first.join("sparse"), &[0; 8192], 5000);
    assert_eq!(compare(&first, &second, &options).unwrap().differences, []);
    write_at(&second.join("sparse"), b"x", (1 << 30) - 1);
    let found = compare(&first, &second, &options).unwrap().differences;
    assert_eq!(found.len(), 1);
    assert!(found[0].to_string().contains("0x00 at 1073741823"), "{}", found[0]);
}
