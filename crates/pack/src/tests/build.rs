//! Builds trees on disk, packs and extracts them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use image::Metadata;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat, utimensat,
};
use tempfile::TempDir;

use crate::{ExtractOptions, FileImage, Layout, Options, PackError, Report, Silent, Source, TarInput, extract, pack};

/// A temporary directory that can be removed even where tests made it unreadable.
pub(crate) fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("runnel-pack-").tempdir().unwrap()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn name(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Sets the modification time of a path, symlinks not followed.
pub(crate) fn touch(path: &Path, seconds: i64, nanoseconds: u32) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    utimensat(CWD, path, &Timestamps { last_access: time, last_modification: time }, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
}

/// Bytes that do not compress and depend on `seed` alone.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0u8; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Fills `base` with one of everything this user can make. `sparse` adds a file of 5 GiB that takes
/// 12 KiB.
pub(crate) fn rich_tree(base: &Path, sparse: bool) {
    fs::create_dir_all(base.join("empty-directory")).unwrap();
    write(&base.join("empty"), b"");
    write(&base.join("one"), b"x");
    write(&base.join("page"), noise(1, 4096));
    write(&base.join("page-and-one"), noise(2, 4097));
    write(&base.join("zeros"), vec![0u8; 100_000]);
    write(&base.join("text"), "the same line again\n".repeat(20_000));
    write(&base.join("copy"), "the same line again\n".repeat(20_000));
    write(&base.join("noise"), noise(3, 300_000));
    let mut half = vec![0u8; 40_960];
    half[20_000..24_000].copy_from_slice(&noise(4, 4000));
    write(&base.join("zeros-around"), half);
    write(&base.join("deep/er/and/deeper/still/file"), b"deep");
    write(&base.join(name(b"not-utf8-\xff\xfe\x80")), b"latin");
    write(&base.join(name(b"line\nfeed and \x1b escape")), b"odd");
    write(&base.join("n".repeat(255)), b"longest name");
    write(&base.join("links/first"), b"several names");
    fs::hard_link(base.join("links/first"), base.join("links/second")).unwrap();
    fs::hard_link(base.join("links/first"), base.join("deep/third")).unwrap();
    symlink("nowhere/at/all", base.join("dangling")).unwrap();
    symlink("/etc/passwd", base.join("absolute")).unwrap();
    symlink(name(b"not-utf8-\xff\xfe\x80"), base.join("to-not-utf8")).unwrap();
    symlink("t".repeat(4000), base.join("long-target")).unwrap();
    mknodat(CWD, base.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    // The path of a socket is limited, so it is bound under a short name and moved.
    let short = scratch();
    UnixListener::bind(short.path().join("s")).unwrap();
    fs::rename(short.path().join("s"), base.join("socket")).unwrap_or_else(|_| {
        mknodat(CWD, base.join("socket"), FileType::Socket, Mode::from_raw_mode(0o755), 0).unwrap();
    });
    for (index, bits) in [0o4755, 0o2711, 0o1777, 0o000, 0o444, 0o7777].into_iter().enumerate() {
        let path = base.join(format!("mode-{index}"));
        write(&path, format!("{bits:o}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
    }
    if sparse {
        let file = File::create(base.join("sparse")).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"beyond four GiB", (4 << 30) + 1234).unwrap();
        file.write_all_at(&noise(5, 4096), (4 << 30) + (1 << 20)).unwrap();
        file.set_len((5 << 30) + 7).unwrap();
    }
    attributes(base);
    if is_root() {
        root_only(base);
    } else {
        eprintln!("skipped: owners, devices, capabilities and trusted attributes need root; unreadable files removed");
        fs::remove_file(base.join("mode-3")).unwrap();
    }
    touch(&base.join("one"), -2, 500_000_000);
    touch(&base.join("empty"), 0, 0);
    touch(&base.join("dangling"), 1_234_567_890, 123_456_789);
    touch(&base.join("fifo"), 4_000_000_000, 1);
    touch(&base.join("deep/er"), 1, 999_999_999);
    touch(base, 86_400, 42);
}

fn attributes(base: &Path) {
    let set = |path: &str, key: &str, value: &[u8]| lsetxattr(base.join(path), key, value, XattrFlags::empty());
    if let Err(error) = set("text", "user.plain", b"value") {
        eprintln!("skipped: user attributes: {error}");
        return;
    }
    set("text", "user.binary", b"\0a=b\nc\xff").unwrap();
    set("text", "user.empty", b"").unwrap();
    set("empty-directory", "user.on-directory", &noise(6, 1000)).unwrap();
    set("copy", "user.plain", b"value").unwrap();
}

fn root_only(base: &Path) {
    let at = |path: &str| base.join(path);
    for (path, kind, device) in [
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("loop", FileType::BlockDevice, makedev(7, 200)),
        ("large-minor", FileType::CharacterDevice, makedev(4095, 0xf_ffff)),
    ] {
        if let Err(error) = mknodat(CWD, at(path), kind, Mode::from_raw_mode(0o600), device) {
            eprintln!("skipped: device {path}: {error}");
        }
    }
    let own = |path: &str, user, group| std::os::unix::fs::lchown(at(path), Some(user), Some(group)).unwrap();
    own("page", 1000, 1001);
    own("deep", 65_534, 4_000_000_000);
    own("dangling", 12, 34);
    own("fifo", 5, 6);
    own("socket", 7, 8);
    // Changing the owner clears these bits.
    own("mode-0", 33, 33);
    fs::set_permissions(at("mode-0"), fs::Permissions::from_mode(0o6755)).unwrap();
    // CAP_NET_RAW permitted and effective, as in the file capabilities of `ping`; version 2 of the
    // attribute.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (path, key, value) in [
        ("page", "security.capability", &capability[..]),
        ("dangling", "trusted.on-symlink", b"value"),
        ("fifo", "trusted.on-fifo", b"value"),
        ("text", "trusted.hidden", b"value"),
    ] {
        if let Err(error) = lsetxattr(at(path), key, value, XattrFlags::empty()) {
            eprintln!("skipped: {key} on {path}: {error}");
        }
    }
}

pub(crate) fn directory(path: &Path) -> Source {
    Source::Directory { path: path.into(), one_file_system: false, layout: Layout::Files }
}

pub(crate) fn tar_file(path: &Path) -> Source {
    Source::Tar { input: TarInput::File(path.into()), layout: Layout::Detect }
}

pub(crate) fn tar_stream(bytes: Vec<u8>) -> Source {
    let input = TarInput::Stream { reader: Box::new(std::io::Cursor::new(bytes)), name: "standard input".into() };
    Source::Tar { input, layout: Layout::Detect }
}

/// Quick options for tests that are not about compression.
pub(crate) fn quick() -> Options {
    Options { level: Some(1), threads: 2, ..Options::default() }
}

/// Packs into `out`, checks every byte of the image and returns the report.
#[track_caller]
pub(crate) fn packed(source: Source, out: &Path, options: &Options) -> Report {
    let report = pack(source, out, options, &Silent).unwrap();
    let image = FileImage::open(out).unwrap();
    let checked = image::check(&image, &Default::default(), &mut |_, _| {}).unwrap();
    assert_eq!(checked.id, report.id);
    assert_eq!(fs::metadata(out).unwrap().size(), report.bytes_out);
    report
}

/// Packs and extracts; the two directories can then be compared.
#[track_caller]
pub(crate) fn round_trip(source: Source, scratch: &Path, options: &Options) -> PathBuf {
    let image = scratch.join("image.rnl");
    packed(source, &image, options);
    let target = scratch.join("extracted");
    unpack(&image, &target).unwrap();
    target
}

pub(crate) fn unpack(image: &Path, target: &Path) -> Result<crate::ExtractReport, PackError> {
    let image = FileImage::open(image)?;
    let metadata = Metadata::open(&image, &Default::default())?;
    extract(&metadata, &image, target, &ExtractOptions::default(), &Silent)
}

/// All paths below `base` in byte order, with a letter for what they are and the contents of small
/// files.
pub(crate) fn listing(base: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![base.to_owned()];
    while let Some(path) = pending.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let shown = path.strip_prefix(base).unwrap().display().to_string();
        if about.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            if path != base {
                found.push(format!("{shown}/"));
            }
        } else if about.is_symlink() {
            found.push(format!("{shown} -> {}", fs::read_link(&path).unwrap().display()));
        } else {
            found.push(format!("{shown} = {}", String::from_utf8_lossy(&fs::read(&path).unwrap())));
        }
    }
    found.sort();
    found
}

/// Compresses like `gzip`.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
