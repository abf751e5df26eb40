//! What is packed and extracted is what it was.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use image::{Codec, Metadata};
use rustix::fs::{AtFlags, CWD};

use super::build::*;
use crate::compare::{CompareOptions, assert_equal};
use crate::{ExtractOptions, FileImage, Options, PackError, Silent, cat, extract, list, write_listing};

#[test]
fn a_rich_tree_survives_with_every_attribute() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, true);
    let target = round_trip(directory(&source), scratch.path(), &Options::default());
    assert_equal(&source, &target, &CompareOptions::default());
    // Holes come back as holes.
    let about = fs::metadata(target.join("sparse")).unwrap();
    assert!(about.size() == (5 << 30) + 7 && about.blocks() * 512 < 1 << 20, "{} blocks", about.blocks());
}

#[test]
fn every_codec_and_block_size_gives_the_same_files() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, false);
    for codec in Codec::ALL {
        for block_bytes in [4 << 10, 16 << 10, 1 << 20] {
            let case = scratch.path().join(format!("{codec}-{block_bytes}"));
            fs::create_dir(&case).unwrap();
            let target = round_trip(directory(&source), &case, &Options { codec, block_bytes, ..Options::default() });
            assert_equal(&source, &target, &CompareOptions::default());
        }
    }
}

#[test]
fn an_empty_directory_is_an_image_too() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let target = round_trip(directory(&source), scratch.path(), &quick());
    assert_equal(&source, &target, &CompareOptions::default());
    assert_eq!(listing(&target), [""; 0]);
}

#[test]
fn equal_chunks_are_stored_once_and_zeros_never() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    let bytes = noise(1, 64 << 10);
    write(&source.join("a"), &bytes);
    write(&source.join("b"), &bytes);
    write(&source.join("c"), [&bytes[4096..8192], &[0; 8192], &bytes[..4096]].concat());
    let report = packed(directory(&source), &scratch.path().join("out.rnl"), &quick());
    assert_eq!((report.source.files, report.source.bytes), (3, (128 << 10) + 16_384));
    assert_eq!((report.chunks.count, report.chunks.unique, report.chunks.unique_bytes), (34, 16, 64 << 10));
    assert_eq!(report.blocks, 1);
    // Noise does not shrink, so the block is stored as it is.
    assert!(report.bytes_out - report.bytes_metadata == 4096 + (64 << 10));
    // Scripts read these names.
    let json = serde_json::to_value(&report).unwrap();
    let mut names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = "blocks blocks_per_file blocks_per_file_all bytes_dictionaries bytes_in bytes_metadata bytes_out \
        bytes_unique chunks chunks_unique deflate_bytes deflate_bytes_expanded deflate_bytes_stored deflate_files files \
        hot_blocks hot_bytes hot_bytes_stored id inodes notes seconds stages times";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn the_output_is_left_out_of_the_directory_it_lies_in() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    write(&source.join("a"), b"a");
    let out = source.join("out.rnl");
    let first = packed(directory(&source), &out, &quick());
    let second = packed(directory(&source), &out, &quick());
    assert_eq!((first.source.files, second.source.files), (1, 1));
}

#[test]
fn one_file_system_stays_on_it() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    write(&source.join("mounted/hidden"), b"below");
    let _mount = match Mounted::tmpfs(&source.join("mounted"), c"size=64k") {
        Ok(mount) => mount,
        Err(error) => return eprintln!("skipped: mounting a tmpfs: {error}"),
    };
    write(&source.join("mounted/inside"), b"other file system");
    let all = round_trip(directory(&source), &sub(&scratch, "all"), &quick());
    assert_eq!(listing(&all), ["mounted/", "mounted/inside = other file system"]);
    let path = source.clone();
    let one = crate::Source::Directory { path, one_file_system: true, layout: crate::Layout::Files };
    let one = round_trip(one, &sub(&scratch, "one"), &quick());
    assert_eq!(listing(&one), ["mounted/"]);
}

fn sub(scratch: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let path = scratch.path().join(name);
    fs::create_dir(&path).unwrap();
    path
}

/// A file system mounted for one test.
pub(super) struct Mounted(std::path::PathBuf);

impl Mounted {
    pub(super) fn tmpfs(at: &Path, options: &std::ffi::CStr) -> rustix::io::Result<Mounted> {
        rustix::mount::mount("tmpfs", at, "tmpfs", rustix::mount::MountFlags::empty(), Some(options))?;
        Ok(Mounted(at.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

#[test]
fn extraction_follows_no_symlink_and_needs_an_empty_target() {
    let scratch = scratch();
    let outside = scratch.path().join("outside");
    write(&outside, b"untouched");
    touch(&outside, 1000, 0);
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    std::os::unix::fs::symlink(&outside, source.join("link")).unwrap();
    touch(&source.join("link"), 2000, 0);
    let image = scratch.path().join("image.rnl");
    packed(directory(&source), &image, &quick());
    let target = scratch.path().join("target");
    unpack(&image, &target).unwrap();
    let about = fs::metadata(&outside).unwrap();
    assert_eq!((about.mtime(), about.permissions().mode() & 0o777), (1000, 0o666 & !umask()));
    let again = unpack(&image, &target).unwrap_err();
    assert!(matches!(&again, PackError::TargetNotEmpty { path } if *path == target), "{again}");
}

fn umask() -> u32 {
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::umask(old);
    old.as_raw_mode()
}

#[test]
fn without_owners_no_program_runs_as_another_user() {
    let scratch = scratch();
    let file = |name: &[u8]| {
        let mut bytes = super::archive::entry(b'0', name, b"", b"program");
        let mut header = tar::Header::from_byte_slice(&bytes[..512]).clone();
        header.set_mode(0o6755);
        header.set_uid(if name == b"own" { rustix::process::geteuid().as_raw() } else { 12_345 }.into());
        header.set_gid(if name == b"own" { rustix::process::getegid().as_raw() } else { 12_345 }.into());
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        bytes
    };
    let image = scratch.path().join("image.rnl");
    packed(tar_stream([file(b"own"), file(b"other"), vec![0; 1024]].concat()), &image, &quick());
    let image = FileImage::open(&image).unwrap();
    let metadata = Metadata::open(&image, &Default::default()).unwrap();
    let target = scratch.path().join("target");
    let report = extract(&metadata, &image, &target, &ExtractOptions { owners: false }, &Silent).unwrap();
    let mode = |name: &str| fs::metadata(target.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("own"), mode("other")), (0o6755, 0o755));
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    assert!(report.notes.iter().all(|note| note.contains("/other")), "{:?}", report.notes);
}

#[test]
fn files_are_listed_and_shown() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    write(&source.join("d/b"), [vec![0u8; 100_000], b"end".to_vec()].concat());
    write(&source.join("a"), b"hello");
    std::os::unix::fs::symlink("d/b", source.join("l")).unwrap();
    fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    touch(&source.join("a"), 951_782_400, 0);
    let image = scratch.path().join("image.rnl");
    packed(directory(&source), &image, &quick());
    let image = FileImage::open(&image).unwrap();
    let metadata = Metadata::open(&image, &Default::default()).unwrap();
    let paths = |path: &[u8], recursive| {
        let mut found = Vec::new();
        let listed = list(&metadata, path, recursive, |one| {
            found.push(String::from_utf8(one.path.clone()).unwrap());
            Ok(())
        });
        listed.map(|()| found)
    };
    assert_eq!(paths(b"/", false).unwrap(), ["/a", "/d", "/l"]);
    assert_eq!(paths(b"", true).unwrap(), ["/a", "/d", "/d/b", "/l"]);
    assert_eq!(paths(b"/a", true).unwrap(), ["/a"]);
    assert!(matches!(paths(b"/none", true), Err(PackError::ImagePath { .. })));
    let mut line = Vec::new();
    list(&metadata, b"/a", false, |one| {
        write_listing(one, true, &mut line).unwrap();
        Ok(())
    })
    .unwrap();
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with("-rw-r-----   1 ") && line.ends_with("          5 2000-02-29 00:00 /a\n"), "{line:?}");

    let shown = |path: &[u8]| {
        let mut out = Vec::new();
        cat(&metadata, &image, path, &mut out).map(|()| out)
    };
    assert_eq!(shown(b"/a").unwrap(), b"hello");
    assert_eq!(shown(b"/l").unwrap(), [vec![0u8; 100_000], b"end".to_vec()].concat());
    assert!(matches!(shown(b"/d"), Err(PackError::ImagePath { problem: "not a regular file", .. })));
}

#[test]
fn ref_a_real_directory_survives() {
    let source = Path::new("/etc");
    if !is_root() || rustix::fs::accessat(CWD, source, rustix::fs::Access::READ_OK, AtFlags::empty()).is_err() {
        return eprintln!("skipped: reading all of /etc needs root");
    }
    let scratch = scratch();
    let path = source.to_owned();
    let source_of = crate::Source::Directory { path, one_file_system: true, layout: crate::Layout::Files };
    let target = round_trip(source_of, scratch.path(), &Options::default());
    // Files bound into a container's /etc lie on other file systems; their contents were packed all
    // the same.
    assert_equal(source, &target, &CompareOptions::default());
}
