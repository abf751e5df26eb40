//! pack, ls, cat, extract, check and dump on real input.

use std::process::{Command, Stdio};

use pack::compare::{Attribute, CompareOptions};

use crate::support::*;

#[test]
fn packing_a_directory_and_its_tar_stream_gives_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("a/b")).unwrap();
    std::fs::write(tree.join("a/b/file"), "hello ".repeat(10_000)).unwrap();
    std::os::unix::fs::symlink("b/file", tree.join("a/link")).unwrap();
    let from_directory = folder.path().join("directory.rnl");
    let from_tar = folder.path().join("tar.rnl");
    ok(&["pack".as_ref(), tree.as_os_str(), "-o".as_ref(), from_directory.as_os_str()]);
    let mut tar =
        Command::new("tar").arg("-C").arg(&tree).args(["-cf", "-", "."]).stdout(Stdio::piped()).spawn().unwrap();
    let packed = runnel()
        .args(["pack", "-", "-o"])
        .arg(&from_tar)
        .stdin(tar.stdout.take().expect("tar has a pipe"))
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    assert!(tar.wait().unwrap().success());
    for image in [&from_directory, &from_tar] {
        ok(&["check".as_ref(), image.as_os_str()]);
        let listing = ok(&["ls".as_ref(), image.as_os_str(), "/a".as_ref()]);
        assert!(listing.contains("link") && listing.contains('b'), "{listing}");
        let text = ok(&["cat".as_ref(), image.as_os_str(), "/a/b/file".as_ref()]);
        assert_eq!(text, "hello ".repeat(10_000));
        let out = folder.path().join("out");
        ok(&["extract".as_ref(), image.as_os_str(), "-C".as_ref(), out.as_os_str()]);
        // The tar stream keeps whole seconds only.
        let options = CompareOptions { ignored: vec![Attribute::Mtime], ..CompareOptions::default() };
        pack::compare::assert_equal(&tree, &out, &options);
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn the_same_tree_gives_the_same_bytes_whatever_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["1", "2", "5"].map(|threads| {
        let path = folder.path().join(format!("{threads}.rnl"));
        ok(&[
            "pack".as_ref(),
            "--threads".as_ref(),
            threads.as_ref(),
            "--closure".as_ref(),
            "/usr/bin/perl".as_ref(),
            "-o".as_ref(),
            path.as_os_str(),
        ]);
        std::fs::read(path).unwrap()
    });
    assert!(paths[0] == paths[1] && paths[1] == paths[2]);
}
