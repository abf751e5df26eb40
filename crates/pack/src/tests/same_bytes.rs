//! The image is a function of the tree and the options, and of nothing else.

use std::fs;
use std::path::Path;

use super::build::*;
use crate::Options;

fn id(source: &Path, out: &Path, options: &Options) -> (String, Vec<u8>) {
    let report = packed(directory(source), out, options);
    (report.id.to_string(), fs::read(out).unwrap())
}

#[test]
fn threads_do_not_show() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, false);
    // Several batches: the smallest is 8 MiB, and its size depends on the number of threads.
    for index in 0..3 {
        write(&source.join(format!("large-{index}")), noise(index, 5 << 20).repeat(2));
    }
    let out = scratch.path().join("out.rnl");
    let at = |threads| id(&source, &out, &Options { threads, block_bytes: 1 << 20, ..quick() });
    let one = at(1);
    assert!(one == at(4), "4 threads made another image than 1");
    assert!(one == at(13), "13 threads made another image than 1");
}

#[test]
fn the_order_of_directories_on_disk_does_not_show() {
    let scratch = scratch();
    let names: Vec<String> = (0..300).map(|index| format!("d{}/file-{}", index % 7, (index * 37) % 300)).collect();
    let make = |base: &Path, names: &mut dyn Iterator<Item = &String>| {
        for name in names {
            write(&base.join(name), name);
            touch(&base.join(name), 1, 2);
        }
        for index in 0..7 {
            touch(&base.join(format!("d{index}")), 3, 4);
        }
        touch(base, 5, 6);
    };
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    make(&first, &mut names.iter());
    make(&second, &mut names.iter().rev());
    let out = scratch.path().join("out.rnl");
    assert!(id(&first, &out, &quick()) == id(&second, &out, &quick()), "the images differ");
}

#[test]
fn a_changed_byte_or_attribute_shows() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    write(&source.join("a"), b"a");
    touch(&source.join("a"), 1, 0);
    let out = scratch.path().join("out.rnl");
    let before = id(&source, &out, &quick()).0;
    touch(&source.join("a"), 1, 1);
    let after = id(&source, &out, &quick()).0;
    assert_ne!(before, after);
}
