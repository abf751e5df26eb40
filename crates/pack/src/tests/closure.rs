//! A program of this machine with all it needs, packed and started from nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::*;
use crate::{PackError, Silent, Source, pack};

fn closure(root: &Path, programs: &[&str], includes: &[&str]) -> Source {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
    Source::Closure { root: root.into(), programs: paths(programs), includes: paths(includes) }
}

#[test]
fn a_packed_program_runs_without_the_rest_of_the_system() {
    let scratch = scratch();
    let target = round_trip(closure(Path::new("/"), &["/bin/sh"], &["/usr/bin/env"]), scratch.path(), &quick());
    assert!(!target.join("etc/passwd").exists());
    if !is_root() {
        return eprintln!("skipped: starting it needs root (chroot)");
    }
    let run =
        Command::new("chroot").arg(&target).args(["/bin/sh", "-c", "/usr/bin/env X=42 /bin/sh -c 'echo $X'"]).output();
    let Ok(output) = run else { return eprintln!("skipped: no chroot program") };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn paths_symlinks_and_attributes_of_directories_are_kept() {
    let scratch = scratch();
    let root = scratch.path().join("root");
    write(&root.join("usr/bin/real"), b"#!/bin/helper\n");
    write(&root.join("usr/bin/unrelated"), b"");
    write(&root.join("data/tree/one"), b"1");
    write(&root.join("data/outside"), b"2");
    symlink("../outside", root.join("data/tree/two")).unwrap();
    symlink("/no/where", root.join("data/tree/three")).unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    touch(&root.join("usr"), 77, 0);
    // The interpreter of the script is not there.
    let error = pack(closure(&root, &["/bin/real"], &[]), &scratch.path().join("x"), &quick(), &Silent).unwrap_err();
    assert!(matches!(error, PackError::MissingLibraries { .. }), "{error}");
    assert!(error.to_string().contains("/bin/helper (needed by /usr/bin/real)"), "{error}");

    let target = round_trip(closure(&root, &[], &["bin/real", "/data/tree"]), scratch.path(), &quick());
    assert_eq!(
        listing(&target),
        [
            "bin -> usr/bin",
            "data/",
            "data/outside = 2",
            "data/tree/",
            "data/tree/one = 1",
            "data/tree/three -> /no/where",
            "data/tree/two -> ../outside",
            "usr/",
            "usr/bin/",
            "usr/bin/real = #!/bin/helper\n",
        ]
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(target.join("usr")).unwrap().mtime(), 77);
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let scratch = scratch();
    let out = scratch.path().join("out.rnl");
    let error = pack(closure(Path::new("/"), &["no-such-program"], &[]), &out, &quick(), &Silent).unwrap_err();
    assert!(error.to_string().contains("no-such-program"), "{error}");
    let error = pack(closure(Path::new("/"), &[], &["/no/such/path"]), &out, &quick(), &Silent).unwrap_err();
    assert!(error.to_string().contains("/no/such/path"), "{error}");
}
