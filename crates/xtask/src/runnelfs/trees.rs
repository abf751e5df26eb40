//! Trees with everything that an image can hold.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, setxattr, utimensat};
use units::{Rng, SplitMix64};

/// Programs whose code the filter for x86-64 knows; the second one is declared to be of AArch64,
/// since what a filter does to bytes does not depend on what they mean.
const PROGRAMS: [&str; 2] = ["/bin/ls", "/bin/cp"];

/// `e_machine` of an ELF header, and AArch64.
const ELF_MACHINE: u64 = 18;
const EM_AARCH64: u16 = 183;

/// Headers of the kernel for programs, which come with those of the C library.
const HEADERS: &str = "/usr/include/linux";

/// One of them, which takes 25 KiB when it is compressed.
const HEADER: &str = "videodev2.h";

/// An access control list as the kernel stores it: version 2; owner rwx, user 1000 r-x, group r-x,
/// mask r-x, others none.
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\xe8\x03\0\0\x04\0\x05\0\xff\xff\xff\xff\
    \x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

/// `cap_net_raw+ep`, version 2.
const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// A small tree of every kind of file. Owners, devices and trusted attributes take root.
pub fn small(root: &Path) -> anyhow::Result<()> {
    fresh(root)?;
    let mut random = SplitMix64(24);
    for size in [0, 1, 255, 256, 4095, 4096, 4097, 20_000, 70_001] {
        fs::write(root.join(format!("text-{size}")), text(size, &mut random))?;
        fs::write(root.join(format!("noise-{size}")), noise(size, &mut random))?;
    }
    // Equal to another one, and with a part of it.
    fs::copy(root.join("text-20000"), root.join("copy"))?;
    fs::write(root.join("part"), &fs::read(root.join("text-70001"))?[..40_960])?;
    sparse(&root.join("sparse"), 300_000)?;
    sparse(&root.join("holes-only"), 0)?;
    let folder = root.join("folder/deeper/deepest");
    fs::create_dir_all(&folder)?;
    fs::create_dir(root.join("empty"))?;
    fs::write(folder.join(OsStr::from_bytes(b"not \xff UTF-8")), "name")?;
    fs::write(folder.join("n".repeat(255)), "long name")?;
    fs::hard_link(root.join("text-4097"), folder.join("hard-link"))?;
    fs::hard_link(root.join("text-4097"), root.join("another-link"))?;
    symlink("../../text-1", folder.join("link"))?;
    symlink("t/".repeat(2000), root.join("long-link"))?;
    nodes(root)?;
    attributes(root)?;
    times(root)
}

/// The small tree with programs, large files and a large folder beside it.
pub fn large(root: &Path) -> anyhow::Result<()> {
    small(root)?;
    let mut random = SplitMix64(42);
    for program in PROGRAMS {
        let name = Path::new(program).file_name().unwrap_or_default();
        fs::copy(program, root.join(name)).with_context(|| program.to_string())?;
    }
    File::options().write(true).open(root.join("cp"))?.write_all_at(&EM_AARCH64.to_le_bytes(), ELF_MACHINE)?;
    fs::write(root.join("large-text"), text(1_500_000, &mut random))?;
    // What fits in a block and has a text that other codecs make smaller can be kept as that.
    fs::copy(Path::new(HEADERS).join(HEADER), root.join("header"))?;
    let compressed = Command::new("gzip").arg("-9kn").args([root.join("large-text"), root.join("header")]).status()?;
    ensure!(compressed.success(), "cannot compress a file");
    fs::write(root.join("large-noise"), noise(300_000, &mut random))?;
    let many = root.join("many");
    fs::create_dir(&many)?;
    for i in 0..500 {
        fs::write(many.join(format!("file-{i}")), text(random.below(900) as usize, &mut random))?;
    }
    let mut nested = root.join("nested");
    for _ in 0..60 {
        fs::create_dir(&nested)?;
        nested.push("d");
    }
    times(root)
}

/// Files that have much in common, so that dictionaries are worth it.
pub fn alike(root: &Path) -> anyhow::Result<()> {
    fresh(root)?;
    for entry in fs::read_dir(HEADERS).with_context(|| HEADERS.to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), root.join(entry.file_name()))?;
        }
    }
    Ok(())
}

pub(super) fn fresh(root: &Path) -> anyhow::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    fs::create_dir_all(root).with_context(|| root.display().to_string())
}

/// Words of few kinds, which compress.
fn text(bytes: usize, random: &mut SplitMix64) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        let _ = write!(text, "{:x} lorem{}", random.below(4000), if random.below(9) == 0 { "\n" } else { " " });
    }
    text.truncate(bytes);
    text
}

fn noise(bytes: usize, random: &mut SplitMix64) -> Vec<u8> {
    (0..bytes).map(|_| random.next_u64() as u8).collect()
}

/// Data between holes, with a hole at its end; nothing but a hole if `data` is 0.
fn sparse(path: &Path, data: u64) -> anyhow::Result<()> {
    let file = File::create(path)?;
    file.set_len(2 * data + 600_000)?;
    if data > 0 {
        file.write_all_at(b"at its start", 0)?;
        file.write_all_at(&vec![b'm'; 9000], data)?;
    }
    Ok(())
}

fn nodes(root: &Path) -> anyhow::Result<()> {
    let mode = Mode::from_bits_truncate(0o640);
    mknod(&root.join("fifo"), SFlag::S_IFIFO, mode, 0)?;
    mknod(&root.join("null"), SFlag::S_IFCHR, mode, makedev(1, 3))?;
    mknod(&root.join("disk"), SFlag::S_IFBLK, mode, makedev(259, 70_000))?;
    // A path of a socket is short, so it is made beside and moved.
    let socket = std::env::temp_dir().join(format!("runnelfs-{}", std::process::id()));
    UnixListener::bind(&socket)?;
    let moved = Command::new("mv").arg(&socket).arg(root.join("socket")).status()?;
    ensure!(moved.success(), "cannot move a socket");
    Ok(())
}

fn attributes(root: &Path) -> anyhow::Result<()> {
    let set = |path: &str, name: &str, value: &[u8]| {
        setxattr(root.join(path), name, value, XattrFlags::empty()).with_context(|| format!("{name} of {path}"))
    };
    set("text-255", "user.one", b"1")?;
    set("text-255", "user.two", &[0, 1, 2])?;
    set("noise-255", "user.one", b"1")?;
    set("text-1", "user.large", &[b'v'; 2000])?;
    set("text-1", "user.empty", b"")?;
    set("text-256", "trusted.overlay.opaque", b"y")?;
    set("text-4095", "security.capability", CAPABILITY)?;
    set("text-4096", "system.posix_acl_access", ACL)?;
    set("folder", "system.posix_acl_default", ACL)?;
    set("folder", "system.posix_acl_access", ACL)?;
    set("empty", "user.of-a-folder", b"yes")?;
    for (path, mode) in [("text-20000", 0o4755), ("noise-1", 0o2750), ("empty", 0o1777), ("noise-0", 0)] {
        fs::set_permissions(root.join(path), Permissions::from_mode(mode))?;
    }
    for (path, uid, gid) in [("copy", 1000, 1001), ("fifo", 65_534, 4_000_000_000), ("empty", 7, 8)] {
        chown(root.join(path), Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Times before 1970 too, with nanoseconds. Last, since new entries change those of folders.
fn times(root: &Path) -> anyhow::Result<()> {
    for (path, seconds) in
        [("text-1", 1), ("text-255", -100_000), ("long-link", 77), ("folder", 1_000_000_000), ("", 5)]
    {
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let both = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, root.join(path), &both, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
