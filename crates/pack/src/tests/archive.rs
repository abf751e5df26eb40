//! Tar archives: what GNU tar and the `tar` crate write, and what nobody should.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use super::build::*;
use crate::compare::{Attribute, CompareOptions, assert_equal};
use crate::{Options, PackError, Silent, pack};

/// One raw entry: header and padded data.
pub(super) fn entry(kind: u8, name: &[u8], link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_mode(if kind == b'5' { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(data.len() as u64);
    header.as_mut_bytes()[156] = kind;
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A PAX record.
pub(super) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut length = body.len() + 1;
    while length != body.len() + length.to_string().len() {
        length = body.len() + length.to_string().len();
    }
    [length.to_string().as_bytes(), &body].concat()
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Packs an archive, extracts it and lists what came out.
fn contents(bytes: Vec<u8>) -> Vec<String> {
    let scratch = scratch();
    listing(&round_trip(tar_stream(bytes), scratch.path(), &quick()))
}

fn refused(bytes: Vec<u8>) -> PackError {
    let scratch = scratch();
    let result = pack(tar_stream(bytes), &scratch.path().join("out.rnl"), &quick(), &Silent);
    assert_eq!(listing(scratch.path()), [""; 0]);
    result.unwrap_err()
}

/// Runs GNU tar in `base`; `None` if it is not here.
fn gnu_tar(base: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("tar").current_dir(base).args(arguments).args(["-cf", "-", "."]).output().ok()?;
    let is_gnu = output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("unrecognized option");
    assert!(output.status.success() || !is_gnu, "{}", String::from_utf8_lossy(&output.stderr));
    is_gnu.then_some(output.stdout)
}

#[test]
fn ref_archives_of_gnu_tar_hold_what_was_put_in() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, true);
    // Tar has no sockets.
    fs::remove_file(source.join("socket")).unwrap();
    touch(&source, 1, 0);
    let all = ["--xattrs", "--xattrs-include=*", "--sparse"];
    for (format, version, ignored) in [
        ("gnu", "0.0", vec![Attribute::Mtime, Attribute::Xattrs]),
        ("posix", "0.0", vec![]),
        ("posix", "0.1", vec![]),
        ("posix", "1.0", vec![]),
    ] {
        let (format, version) = (format!("--format={format}"), format!("--sparse-version={version}"));
        let mut arguments = vec![format.as_str()];
        if format.ends_with("posix") {
            arguments.extend(all.iter().chain([&version.as_str()]));
        } else {
            arguments.push("--sparse");
        }
        let Some(bytes) = gnu_tar(&source, &arguments) else {
            return eprintln!("skipped: no GNU tar");
        };
        let case = scratch.path().join(format!("case{format}{version}"));
        fs::create_dir(&case).unwrap();
        fs::write(case.join("a.tar"), &bytes).unwrap();
        let options = CompareOptions { ignored, ..CompareOptions::default() };
        // From a file, where data stays in place, and from a pipe, where it is copied.
        let target = round_trip(tar_file(&case.join("a.tar")), &case, &quick());
        assert_equal(&source, &target, &options);
        fs::remove_dir_all(&target).unwrap();
        let target = round_trip(tar_stream(bytes), &case, &quick());
        assert_equal(&source, &target, &options);
        fs::remove_dir_all(&case).unwrap();
    }
}

#[test]
fn compressed_archives_are_recognised_by_their_first_bytes() {
    let plain = archive(&[entry(b'0', b"a", b"", b"hello"), entry(b'5', b"d/", b"", b"")]);
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(&plain).unwrap();
    // Two gzip members, as `cat a.gz b.gz` makes them.
    let members = [gzip(&plain[..700]), gzip(&plain[700..])].concat();
    for bytes in [plain.clone(), gzip(&plain), members, zstd::encode_all(&*plain, 1).unwrap(), xz.finish().unwrap()] {
        let scratch = scratch();
        let file = scratch.path().join("no-extension");
        fs::write(&file, &bytes).unwrap();
        let target = round_trip(tar_file(&file), scratch.path(), &quick());
        assert_eq!(listing(&target), ["a = hello", "d/"]);
        assert_eq!(contents(bytes), ["a = hello", "d/"]);
    }
}

#[test]
fn archives_from_files_and_pipes_make_the_same_image() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    rich_tree(&source, false);
    fs::remove_file(source.join("socket")).unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    for path in ["text", "copy", "noise", "zeros-around", "zeros", "empty"] {
        builder.append_path_with_name(source.join(path), path).unwrap();
    }
    let bytes = builder.into_inner().unwrap();
    let file = scratch.path().join("a.tar");
    fs::write(&file, &bytes).unwrap();
    let out = scratch.path().join("out.rnl");
    let first = packed(tar_file(&file), &out, &Options::default()).id;
    assert_eq!(first, packed(tar_stream(bytes.clone()), &out, &Options::default()).id);
    assert_eq!(first, packed(tar_stream(gzip(&bytes)), &out, &Options::default()).id);
}

#[test]
fn paths_cannot_leave_the_image() {
    let scratch = scratch();
    let outside = scratch.path().join("outside");
    let absolute = outside.to_str().unwrap().as_bytes();
    let bytes = archive(&[
        entry(b'0', b"../../../up", b"", b"1"),
        entry(b'0', b"/absolute", b"", b"2"),
        entry(b'0', b"a/../../b/./c", b"", b"3"),
        entry(b'2', b"link", b"../../../..", b""),
        entry(b'0', b"link/through", b"", b"4"),
        entry(b'2', b"out", absolute, b""),
        entry(b'0', b"out/stolen", b"", b"5"),
        entry(b'1', b"hard", b"../../up", b""),
        entry(b'5', b"../..", b"", b""),
    ]);
    let (image, target) = (scratch.path().join("image.rnl"), scratch.path().join("extracted"));
    let notes = packed(tar_stream(bytes), &image, &quick()).notes;
    assert!(notes.iter().any(|note| note.starts_with("../../../up: ")) && notes.len() == 3, "{notes:?}");
    unpack(&image, &target).unwrap();
    assert!(!outside.exists());
    let listed = listing(&target);
    for expected in ["absolute = 2", "b/c = 3", "hard = 1", "link -> ../../../..", "through = 4", "up = 1"] {
        assert!(listed.iter().any(|line| line == expected), "{expected} is not in {listed:?}");
    }
    // The absolute symlink was followed within the image.
    assert!(listed.iter().any(|line| line.ends_with("outside/stolen = 5")), "{listed:?}");
}

#[test]
fn later_entries_win_and_links_share() {
    use std::os::unix::fs::MetadataExt;
    let bytes = archive(&[
        entry(b'0', b"a", b"", b"old"),
        entry(b'1', b"b", b"a", b""),
        entry(b'0', b"a", b"", b"new"),
        entry(b'1', b"c", b"a", b""),
        entry(0, b"old-style-directory/", b"", b""),
        entry(b'7', b"contiguous", b"", b"7"),
        entry(b'Q', b"unknown-kind", b"", b"q"),
        entry(b'V', b"label", b"", b""),
    ]);
    let scratch = scratch();
    let target = round_trip(tar_stream(bytes), scratch.path(), &quick());
    assert_eq!(
        listing(&target),
        ["a = new", "b = old", "c = new", "contiguous = 7", "old-style-directory/", "unknown-kind = q"]
    );
    let inode = |name: &str| fs::metadata(target.join(name)).unwrap().ino();
    assert!(inode("a") == inode("c") && inode("a") != inode("b"));
}

#[test]
fn extension_records_override_headers() {
    use std::os::unix::fs::MetadataExt;
    let long = "p".repeat(150) + "/" + &"q".repeat(200);
    let pax = [
        record("path", long.as_bytes()),
        record("mtime", b"-1.25"),
        record("uid", b"7"),
        record("gid", b"4000000000"),
        record("comment", b"with\nline feed"),
        record("SCHILY.xattr.user.binary", b"a\n=\0b"),
    ];
    let bytes = archive(&[
        entry(b'g', b"global", b"", &record("mtime", b"77")),
        entry(b'x', b"pax", b"", &pax.concat()),
        entry(b'0', b"short", b"", b"x"),
        entry(b'L', b"././@LongLink", b"", &[b"l".repeat(180), vec![0]].concat()),
        entry(b'K', b"././@LongLink", b"", &[b"t".repeat(300), vec![0]].concat()),
        entry(b'2', b"short2", b"short", b""),
        entry(b'0', b"plain", b"", b""),
    ]);
    let scratch = scratch();
    let image = scratch.path().join("image.rnl");
    packed(tar_stream(bytes), &image, &quick());
    let image = crate::FileImage::open(&image).unwrap();
    let metadata = image::Metadata::open(&image, &Default::default()).unwrap();
    let at = |path: &str| metadata.inode(metadata.resolve(path.as_bytes()).unwrap()).unwrap();
    let file = at(&long);
    assert_eq!((file.mtime(), file.uid(), file.gid()), ((-2, 750_000_000), 7, 4_000_000_000));
    let xattrs: Vec<_> = metadata.xattrs(file.id()).collect();
    assert_eq!(xattrs, [(&b"user.binary"[..], &b"a\n=\0b"[..])]);
    let link = at(&"l".repeat(180));
    assert_eq!(metadata.symlink(link.id()).unwrap(), "t".repeat(300).as_bytes());
    assert_eq!(at("plain").mtime(), (77, 0));
    assert!(fs::metadata(scratch.path()).unwrap().mtime() > 77);
}

#[test]
fn damaged_archives_are_refused_with_the_place() {
    let good = archive(&[entry(b'0', b"a", b"", &[b'x'; 2000]), entry(b'0', b"b", b"", b"")]);
    let problem = |bytes: Vec<u8>| match refused(bytes) {
        PackError::Tar { offset, problem, .. } => (offset, problem),
        other => panic!("{other}"),
    };
    let mut sum = good.clone();
    sum[512 + 2048] ^= 1;
    assert_eq!(problem(sum).0, 512 + 2048);
    assert_eq!(problem(good[..1000].to_vec()), (0, "the archive ends in the middle of an entry".into()));
    assert_eq!(problem(good[..2600].to_vec()), (2560, "the archive ends in the middle of a header".into()));
    for other in [b"hello".repeat(200), vec![0xff; 2000]] {
        let error = refused(other);
        assert!(error.to_string().contains("not a tar archive"), "{error}");
    }
    let cases: [(&str, Vec<u8>); 9] = [
        ("target of the hard link", entry(b'1', b"a", b"none", b"")),
        ("extension record of", {
            let mut bytes = entry(b'x', b"a", b"", b"");
            bytes[124..136].copy_from_slice(b"77777777777\0");
            let mut header = tar::Header::from_byte_slice(&bytes[..512]).clone();
            header.set_cksum();
            header.as_bytes().to_vec()
        }),
        ("PAX record is damaged", entry(b'x', b"a", b"", b"99 path=x\n")),
        ("is no number", entry(b'x', b"a", b"", b"x path=x\n")),
        ("is no time", entry(b'x', b"a", b"", &record("mtime", b"1.x"))),
        ("multi-volume", entry(b'M', b"a", b"", b"")),
        ("not a directory", [entry(b'0', b"f", b"", b""), entry(b'0', b"f/x", b"", b"")].concat()),
        ("owner", [entry(b'x', b"p", b"", &record("uid", b"4294967296")), entry(b'0', b"a", b"", b"")].concat()),
        ("symlinks", [entry(b'2', b"l", b"l", b""), entry(b'0', b"l/x", b"", b"")].concat()),
    ];
    for (expected, bytes) in cases {
        let found = problem(archive(&[bytes])).1;
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
    }
    // Two closing blocks and nothing else: an archive of no files.
    assert_eq!(contents(vec![0; 1024]), [""; 0]);
    assert!(matches!(refused(Vec::new()), PackError::Source { .. }));
    // A compressed archive that ends early.
    let mut cut = gzip(&good);
    cut.truncate(cut.len() - 10);
    refused(cut);
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let sparse = |map: &[u8], real: &[u8]| {
        let records = [record("GNU.sparse.map", map), record("GNU.sparse.size", real)].concat();
        archive(&[entry(b'x', b"p", b"", &records), entry(b'0', b"a", b"", b"0123456789")])
    };
    let good = contents(sparse(b"0,5,20,5", b"30"));
    assert_eq!(good, ["a = 01234\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0056789\0\0\0\0\0"]);
    for (map, real) in [
        (&b"0,5,20,6"[..], &b"30"[..]),
        (b"0,5,20,5", b"24"),
        (b"20,5,0,5", b"30"),
        (b"0,5,4,5", b"30"),
        (b"0,5,20", b"30"),
        (b"0,18446744073709551615,1,10", b"30"),
        (b"0,5,18446744073709551615,5", b"18446744073709551615"),
    ] {
        let error = refused(sparse(map, real));
        assert!(matches!(error, PackError::Tar { .. }), "{error}");
    }
    let in_data = |data: &[u8]| {
        let records = [record("GNU.sparse.major", b"1"), record("GNU.sparse.realsize", b"9")].concat();
        archive(&[entry(b'x', b"p", b"", &records), entry(b'0', b"a", b"", data)])
    };
    let mut map = b"1\n4\n5\n".to_vec();
    map.resize(512, 0);
    map.extend_from_slice(b"abcde");
    assert_eq!(contents(in_data(&map)), ["a = \0\0\0\0abcde"]);
    for bad in [&b"2\n4\n5\n"[..], b"99999999999\n", b"x\n", b"123456789012345678901234567890", b""] {
        let error = refused(in_data(bad));
        assert!(matches!(error, PackError::Tar { .. }), "{error}");
    }
}

#[test]
fn an_archive_without_end_marker_is_packed_with_a_note() {
    let scratch = scratch();
    let bytes = entry(b'0', b"a", b"", b"x");
    let report = packed(tar_stream(bytes), &scratch.path().join("out.rnl"), &quick());
    assert!(report.notes.iter().any(|note| note.contains("no end marker")), "{:?}", report.notes);
}

#[test]
fn a_full_spool_directory_is_named() {
    let scratch = scratch();
    let options = Options { spool_directory: Some(scratch.path().join("none")), ..quick() };
    let bytes = archive(&[entry(b'0', b"a", b"", b"x")]);
    let error = pack(tar_stream(bytes), &scratch.path().join("out.rnl"), &options, &Silent).unwrap_err();
    assert!(matches!(&error, PackError::Spool { directory, .. } if directory.ends_with("none")), "{error}");
}

#[test]
fn a_reader_that_fails_is_reported() {
    struct Broken(usize);
    impl io::Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::other("the cable came out"));
            }
            let count = self.0.min(buffer.len());
            buffer[..count].copy_from_slice(&entry(b'0', b"a", b"", &[b'x'; 2000])[2560 - self.0..][..count]);
            self.0 -= count;
            Ok(count)
        }
    }
    let input = crate::TarInput::Stream { reader: Box::new(Broken(2560)), name: "pipe".into() };
    let source = crate::Source::Tar { input, layout: crate::Layout::Detect };
    let scratch = scratch();
    let error = pack(source, &scratch.path().join("out.rnl"), &quick(), &Silent).unwrap_err();
    assert!(error.to_string().contains("the cable came out"), "{error}");
}

/// What a few kilobytes of a compressed archive can ask for; each stops before it has taken much
/// memory.
#[test]
fn regress_archives_of_too_many_or_too_large_names_are_refused() {
    let refuses = |entries: &mut dyn Iterator<Item = Vec<u8>>, expected: &str| {
        let error = refused(gzip(&entries.chain([vec![0; 1024]]).flatten().collect::<Vec<_>>())).to_string();
        assert!(error.contains(expected), "{error}");
    };
    let file = |name: &[u8]| entry(b'0', name, b"", b"");
    // Attributes of a global record belong to all files that follow.
    let xattrs: Vec<u8> = (0..200).flat_map(|i| record(&format!("SCHILY.xattr.user.{i}"), &[b'x'; 60_000])).collect();
    let global = entry(b'g', b"pax", b"", &xattrs);
    let files = (0..400u32).map(|i| file(format!("f{i}").as_bytes()));
    refuses(&mut std::iter::once(global).chain(files), "more bytes of names and attributes than can be packed");
    let many: Vec<u8> = (0..2000).flat_map(|i| record(&format!("SCHILY.xattr.user.{i}"), b"x")).collect();
    refuses(&mut [entry(b'x', b"pax", b"", &many), file(b"f")].into_iter(), "more than 1024 extended attributes");
    let large = record("SCHILY.xattr.user.large", &vec![b'x'; 65_537]);
    refuses(&mut [entry(b'x', b"pax", b"", &large), file(b"f")].into_iter(), "an extended attribute with a name of 10");
    // Long names.
    let long = vec![b'a'; 70_000];
    refuses(&mut [entry(b'L', b"long", b"", &long), file(b"f")].into_iter(), "a path of 70000 bytes");
    refuses(&mut [entry(b'K', b"long", b"", &long), file(b"f")].into_iter(), "a path of 70000 bytes");
    let path = record("path", &long);
    refuses(&mut [entry(b'x', b"pax", b"", &path), file(b"f")].into_iter(), "a path of 70000 bytes");
    let deep = record("path", &b"d/".repeat(3000));
    refuses(&mut [entry(b'x', b"pax", b"", &deep), file(b"f")].into_iter(), "more directories in one path");
}

#[test]
fn regress_archives_of_too_many_files_are_refused() {
    let file = |name: String| entry(b'0', name.as_bytes(), b"", b"");
    let links = (0..2_200_000u32).map(|i| entry(b'1', format!("l{i}").as_bytes(), b"f", b""));
    let endless: [(Made, &str); 3] = [
        (Box::new((0..u32::MAX).map(move |i| file(i.to_string()))), "more files than can be packed (1048576)"),
        (Box::new(std::iter::once(file("f".into())).chain(links)), "more names of files than can be packed (2097152)"),
        (Box::new(std::iter::repeat(file("f".into()))), "more files that are replaced than can be packed"),
    ];
    for (entries, expected) in endless {
        let reader = Box::new(Entries { entries, left: Vec::new() });
        let input = crate::TarInput::Stream { reader, name: "endless".into() };
        let source = crate::Source::Tar { input, layout: crate::Layout::Files };
        let error = pack(source, &scratch().path().join("out.rnl"), &quick(), &Silent).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Entries that are made while they are read.
type Made = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// An archive of them.
struct Entries {
    entries: Made,
    left: Vec<u8>,
}

impl io::Read for Entries {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() {
            self.left = self.entries.next().unwrap_or_default();
        }
        let count = self.left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.left[..count]);
        self.left.drain(..count);
        Ok(count)
    }
}
