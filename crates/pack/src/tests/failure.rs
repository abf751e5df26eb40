//! Full disks and bad input: one clear error, nothing left behind, nothing destroyed.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use image::{Codec, ImageError};

use super::build::*;
use super::round_trip::Mounted;
use crate::{Options, Output, PackError, Silent, pack, pack_to};

/// An output on a disk with room for so many bytes.
struct Limited {
    room: usize,
    bytes: Vec<u8>,
    committed: bool,
}

impl Output for Limited {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes.len() + bytes.len() > self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        self.committed = true;
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("/disk/out.rnl")
    }
}

#[test]
fn a_disk_that_fills_up_anywhere_is_one_clear_error() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, false);
    let attempt = |room| {
        let mut output = Limited { room, bytes: Vec::new(), committed: false };
        let result = pack_to(directory(&source), &mut output, &quick(), &Silent);
        (result, output)
    };
    let (report, output) = attempt(usize::MAX);
    let whole = report.unwrap().bytes_out as usize;
    assert!(output.committed && output.bytes.len() == whole);
    for room in [0, 4095, 4096, 10_000, whole / 2, whole - 1] {
        let (result, output) = attempt(room);
        let error = result.unwrap_err();
        assert!(matches!(error, PackError::DiskFull { .. }), "{error}");
        assert!(error.to_string().contains("/disk/out.rnl"), "{error}");
        assert!(!output.committed);
        // What was written is no image: its first bytes are the zeros that the superblock replaces
        // last of all.
        let opened = image::Metadata::open(&output.bytes, &Default::default());
        assert!(matches!(opened, Err(ImageError::Magic { .. } | ImageError::FileLength { .. })));
    }
    assert!(attempt(whole).0.is_ok());
}

#[test]
fn a_full_file_system_loses_the_new_image_and_keeps_the_old() {
    let scratch = scratch();
    let disk = scratch.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let _mount = match Mounted::tmpfs(&disk, c"size=256k") {
        Ok(mount) => mount,
        Err(error) => return eprintln!("skipped: mounting a small tmpfs: {error}"),
    };
    let out = disk.join("out.rnl");
    fs::write(&out, b"old").unwrap();
    let source = scratch.path().join("source");
    write(&source.join("large"), noise(1, 2 << 20));
    let error = pack(directory(&source), &out, &quick(), &Silent).unwrap_err();
    assert!(matches!(&error, PackError::DiskFull { path } if *path == out), "{error}");
    assert_eq!(listing(&disk), ["out.rnl = old"]);
}

#[test]
fn a_failed_pack_leaves_no_temporary_file() {
    let scratch = scratch();
    let out = scratch.path().join("out.rnl");
    fs::write(&out, b"old").unwrap();
    let error = pack(directory(&scratch.path().join("none")), &out, &quick(), &Silent).unwrap_err();
    assert!(matches!(&error, PackError::Read { path, .. } if path.ends_with("none")), "{error}");
    assert_eq!(listing(scratch.path()), ["out.rnl = old"]);
}

#[test]
fn options_are_checked_before_anything_is_written() {
    let scratch = scratch();
    let out = scratch.path().join("out.rnl");
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        pack(directory(scratch.path()), &out, &options, &Silent)
    };
    for change in [
        &(|options: &mut Options| options.block_bytes = 2048) as &dyn Fn(&mut Options),
        &|options| options.block_bytes = 5000,
        &|options| options.block_bytes = 2 << 20,
        &|options| options.level = Some(23),
        &|options| (options.codec, options.level) = (Codec::Lz4, Some(13)),
        &|options| options.threads = 100_000,
        &|options| options.chunk_bytes = Some(128),
        &|options| options.chunk_bytes = Some(8192),
        &|options| options.chunk_bytes = Some(3000),
        &|options| options.locality = 1_000_000,
    ] {
        let error = with(change).unwrap_err();
        assert!(matches!(error, PackError::Option { .. }), "{error}");
    }
    assert_eq!(listing(scratch.path()), [""; 0]);
    let error = pack(directory(scratch.path()), scratch.path(), &quick(), &Silent).unwrap_err();
    assert!(matches!(&error, PackError::Write { path, .. } if path == scratch.path()), "{error}");
}

#[test]
fn a_file_that_changes_under_our_hands_is_named() {
    /// Changes a file once listing is over.
    struct Meddler(PathBuf, fn(&Path));
    impl crate::Progress for Meddler {
        fn phase(&self, phase: crate::Phase, _total: u64) {
            if phase == crate::Phase::Survey {
                self.1(&self.0);
            }
        }
        fn advance(&self, _amount: u64) {}
    }
    let grow = |path: &Path| fs::write(path, b"longer than before").unwrap();
    let swap = |path: &Path| {
        fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
    };
    let scratch = scratch();
    for (index, change) in [grow as fn(&Path), swap].into_iter().enumerate() {
        let source = scratch.path().join(format!("source-{index}"));
        write(&source.join("log"), b"before");
        let meddler = Meddler(source.join("log"), change);
        let error = pack(directory(&source), &scratch.path().join("out.rnl"), &quick(), &meddler).unwrap_err();
        assert!(error.to_string().contains("log"), "{error}");
        assert!(!scratch.path().join("out.rnl").exists());
    }
}

/// Waits until the kernel would give a changed file another time than any it has given so far: it
/// stamps files by a clock that goes on in ticks of some milliseconds.
fn next_tick() {
    use rustix::time::{ClockId, clock_gettime};
    let called = clock_gettime(ClockId::Realtime);
    while clock_gettime(ClockId::RealtimeCoarse) <= called {
        std::hint::spin_loop();
    }
}

#[test]
fn a_tree_whose_names_or_attributes_change_is_refused_by_path() {
    type Change = fn(&Path);
    /// Changes a tree whose data has been packed already.
    struct Meddler(PathBuf, Change);
    impl crate::Progress for Meddler {
        fn phase(&self, phase: crate::Phase, _total: u64) {
            if phase == crate::Phase::Pack {
                next_tick();
                self.1(&self.0);
            }
        }
        fn advance(&self, _amount: u64) {}
    }
    let cases: [(Change, &str); 7] = [
        (|tree| fs::write(tree.join("sub/new"), b"x").unwrap(), "sub"),
        (|tree| fs::remove_file(tree.join("sub/empty")).unwrap(), "sub"),
        (|tree| fs::rename(tree.join("sub"), tree.join("bus")).unwrap(), "source"),
        (|tree| chmod(&tree.join("sub"), 0o700), "sub"),
        (|tree| chmod(&tree.join("file"), 0o600), "file"),
        (
            |tree| fs::File::open(tree.join("sub/empty")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap(),
            "sub/empty",
        ),
        (
            |tree| {
                let old = fs::metadata(tree).unwrap().modified().unwrap();
                fs::remove_file(tree.join("link")).unwrap();
                std::os::unix::fs::symlink("elsewhere", tree.join("link")).unwrap();
                fs::File::open(tree).unwrap().set_modified(old).unwrap();
            },
            "link",
        ),
    ];
    let scratch = scratch();
    for (index, (change, named)) in cases.into_iter().enumerate() {
        let source = scratch.path().join(index.to_string()).join("source");
        write(&source.join("file"), b"text");
        write(&source.join("sub/empty"), b"");
        std::os::unix::fs::symlink("target", source.join("link")).unwrap();
        let meddler = Meddler(source.clone(), change);
        let error = pack(directory(&source), &scratch.path().join("out.rnl"), &quick(), &meddler).unwrap_err();
        assert!(matches!(&error, PackError::Changed { path } if path.ends_with(named)), "case {index}: {error}");
        assert!(!scratch.path().join("out.rnl").exists());
    }
    // Another hard link, or a mode changed back, leaves what is packed as it was.
    let source = scratch.path().join("source");
    write(&source.join("file"), b"text");
    let meddler = Meddler(source.clone(), |tree| {
        fs::hard_link(tree.join("file"), tree.with_file_name("other name")).unwrap();
        chmod(&tree.join("file"), 0o600);
        chmod(&tree.join("file"), 0o644);
    });
    chmod(&source.join("file"), 0o644);
    pack(directory(&source), &scratch.path().join("out.rnl"), &quick(), &meddler).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn names_that_no_image_can_hold_are_named() {
    let scratch = scratch();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    archive.append_data(&mut header, format!("dir/{}", "n".repeat(256)), io::empty()).unwrap();
    let bytes = archive.into_inner().unwrap();
    let error = pack(tar_stream(bytes), &scratch.path().join("out.rnl"), &quick(), &Silent).unwrap_err();
    assert!(matches!(&error, PackError::Entry { path, .. } if path.starts_with("/dir")), "{error}");
}

#[test]
fn a_damaged_block_stops_extraction_and_cat() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    write(&source.join("file"), noise(1, 10_000));
    let image = scratch.path().join("image.rnl");
    packed(directory(&source), &image, &quick());
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"damage", 4096 + 100).unwrap();
    let error = unpack(&image, &scratch.path().join("target")).unwrap_err();
    let PackError::Incomplete { entries: 0, source: cause, .. } = error else { panic!("{error}") };
    assert!(matches!(*cause, PackError::Image(ImageError::BlockHash { .. })), "{cause}");
    assert!(!scratch.path().join("target/file").exists(), "no file that is not whole");
    let opened = crate::FileImage::open(&image).unwrap();
    let metadata = image::Metadata::open(&opened, &Default::default()).unwrap();
    let mut out = Vec::new();
    crate::cat(&metadata, &opened, b"/file", &mut out).unwrap_err();
    assert_eq!(out, b"");
}

#[test]
fn a_bootable_tree_has_a_first_program_and_folders_to_mount_on() {
    let scratch = scratch();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("out.rnl"));
    let options = Options { bootable: true, ..quick() };
    let options = Options { stages: crate::Stages { dictionary: false, ..options.stages }, ..options };
    let lacks = |options: &Options| match pack(directory(&source), &image, options, &Silent) {
        Ok(_) => Vec::new(),
        Err(PackError::NotBootable { lacks }) => lacks,
        Err(error) => panic!("{error}"),
    };
    for folder in ["dev", "proc", "usr/sbin", "usr/lib"] {
        fs::create_dir_all(source.join(folder)).unwrap();
    }
    fs::write(source.join("run"), "no folder").unwrap();
    assert_eq!(lacks(&Options { bootable: false, ..options.clone() }).len(), 0);
    assert_eq!(lacks(&options).len(), 3, "/sys, /run and the program: {:?}", lacks(&options));
    fs::remove_file(source.join("run")).unwrap();
    for folder in ["run", "sys"] {
        fs::create_dir(source.join(folder)).unwrap();
    }
    // As on Debian, by links from the root of the tree.
    std::os::unix::fs::symlink("usr/sbin", source.join("sbin")).unwrap();
    std::os::unix::fs::symlink("/usr/lib/system", source.join("usr/sbin/init")).unwrap();
    assert_eq!(lacks(&options).len(), 1, "a link to nothing");
    fs::write(source.join("usr/lib/system"), "#!/bin/sh\n").unwrap();
    assert_eq!(lacks(&options).len(), 1, "not executable");
    fs::set_permissions(source.join("usr/lib/system"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(lacks(&options), Vec::<String>::new());
}

#[test]
fn a_bootable_image_uses_nothing_that_kernels_lack() {
    for stages in [crate::Stages::ALL, crate::Stages::SMALL] {
        assert!(matches!(
            Options { bootable: true, stages, ..quick() }.validate(),
            Err(PackError::Option { name: "recompression" | "dictionaries", .. })
        ));
    }
}
