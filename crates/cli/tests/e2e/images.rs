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

/// An image whose blocks say one thing and whose chunk hashes another has no content that could be
/// shown.
#[test]
fn regress_no_command_uses_an_image_with_two_contents() {
    use image::fixture::{Fixture, Node};
    let folder = tempfile::tempdir().unwrap();
    for derive in [false, true] {
        let mut fixture = Fixture { block_bytes: 4096, ..Fixture::default() };
        fixture.params.derive_hashes = derive;
        fixture.pretended = Some((vec![b'a'; 4096], vec![b'b'; 4096]));
        let bytes = fixture.pack(&[Node::file(b"one", &[b'1'; 4096]), Node::file(b"two", &[b'a'; 4096])]).unwrap();
        let path = folder.path().join(format!("two-{derive}.rnl"));
        std::fs::write(&path, bytes).unwrap();
        let path = path.to_str().unwrap();
        let (out, tar) = (folder.path().join("out"), folder.path().join("out.tar"));
        let (out, tar) = (out.to_str().unwrap(), tar.to_str().unwrap());
        let mut commands =
            vec![vec!["check", path], vec!["extract", path, "-C", out], vec!["export", path, "--tar", tar]];
        if !derive {
            // With derived hashes a reader of one file has seen nothing but its block.
            commands.push(vec!["cat", path, "/two"]);
        }
        for command in commands {
            let done = runnel().args(&command).output().unwrap();
            let text = String::from_utf8_lossy(&done.stderr);
            assert!(!done.status.success() && text.contains("contradicts itself"), "{command:?}: {text}");
            assert!(!done.stdout.contains(&b'a'), "{command:?} shows a content");
            let _ = std::fs::remove_dir_all(out);
        }
    }
}
