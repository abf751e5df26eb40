//! What runs in the guest, as its first program. It says on the console what it found.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};
use nix::mount::{MsFlags, mount};
use rustix::io::Errno;
use rustix::system::{RebootCommand, finit_module, reboot};

/// How lines begin that the host looks for.
pub const MARK: &str = "@fs-verity ";

/// Names of modules in the order in which they are loaded.
pub const ORDER: &str = "/modules/order";

/// The image, on a file system with fs-verity and on one without.
const SEALED: &str = "/sealed/app.rnl";
const PLAIN: &str = "/plain/app.rnl";

/// The disk of the first one.
const DISK: &str = "/dev/vda";

const TARGET: &str = "/mnt";
const PAGE_BYTES: usize = 4096;

/// Runs everything and powers off.
pub fn run() -> anyhow::Result<()> {
    match work() {
        Ok(()) => println!("{MARK}done"),
        Err(error) => println!("{MARK}FAIL {error:#}"),
    }
    rustix::fs::sync();
    reboot(RebootCommand::PowerOff)?;
    Ok(())
}

/// A step: what it shows, and how.
type Step = (&'static str, fn() -> anyhow::Result<()>);

fn work() -> anyhow::Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")] {
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).with_context(|| target.to_string())?;
    }
    for module in fs::read_to_string(ORDER)?.lines() {
        let file = File::open(Path::new("/modules").join(module))?;
        match finit_module(&file, c"", 0) {
            // One that is faster, on processors that this one is not.
            Ok(()) | Err(Errno::NODEV) => {}
            Err(error) => bail!("cannot load {module}: {error}"),
        }
    }
    for (disk, target) in [(DISK, "/sealed"), ("/dev/vdb", "/plain")] {
        mount(Some(disk), target, Some("ext4"), MsFlags::empty(), None::<&str>).with_context(|| disk.to_string())?;
    }
    let steps: [Step; 6] = [
        ("the signed image is sealed, and reads as its source", sealed),
        ("nobody writes to it", unwritable),
        ("other files in its place are refused", swapped),
        ("it is mounted again", sealed),
        ("without fs-verity nothing is sealed", plain),
        ("bytes that change on the disk are errors", damaged),
    ];
    for (name, step) in steps {
        match step() {
            Ok(()) => println!("{MARK}ok {name}"),
            Err(error) => println!("{MARK}FAIL {name}: {error:#}"),
        }
    }
    Ok(())
}

fn runnel(arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("/runnel");
    command.args(arguments).env("PATH", "/usr/bin").env("HOME", "/tmp").env("RUNNEL_TRUST_STATE", "/tmp/state");
    Ok(command.output()?)
}

fn mount_image(image: &str, sealing: &str) -> anyhow::Result<Output> {
    let name = ["--signed-as", "runnel://fleet/app:1", "--trust", "/root.json"];
    runnel(&[&["mount", "--kernel", image, TARGET, "--fs-verity", sealing], &name[..]].concat())
}

fn mounted(image: &str, sealing: &str) -> anyhow::Result<String> {
    let output = mount_image(image, sealing)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "it is not mounted: {said}");
    Ok(said)
}

fn unmount() -> anyhow::Result<()> {
    let output = runnel(&["umount", TARGET])?;
    ensure!(output.status.success(), "it is not unmounted: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn refused(image: &str, sealing: &str, words: &str) -> anyhow::Result<()> {
    let output = mount_image(image, sealing)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(25) && said.contains(words), "{:?} and {said}", output.status);
    Ok(())
}

/// Compares each file that can be read with its source; returns how many cannot.
fn compare() -> anyhow::Result<usize> {
    let mut failed = 0;
    for name in ["one", "two"] {
        let right = fs::read(Path::new("/sealed/tree").join(name))?;
        let file = File::open(Path::new(TARGET).join(name))?;
        for (index, page) in right.chunks(PAGE_BYTES).enumerate() {
            let mut found = [0; PAGE_BYTES];
            match file.read_exact_at(&mut found[..page.len()], (index * PAGE_BYTES) as u64) {
                Ok(()) => ensure!(found[..page.len()] == *page, "{name}, page {index}: other bytes"),
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => failed += 1,
                Err(error) => bail!("{name}, page {index}: {error}"),
            }
        }
    }
    Ok(failed)
}

fn sealed() -> anyhow::Result<()> {
    let said = mounted(SEALED, "require")?;
    ensure!(!said.contains("not sealed"), "{said}");
    ensure!(compare()? == 0, "pages cannot be read");
    unmount()
}

fn unwritable() -> anyhow::Result<()> {
    let error = OpenOptions::new().write(true).open(SEALED).err().context("it is opened for writing")?;
    ensure!(error.raw_os_error() == Some(Errno::PERM.raw_os_error()), "{error}");
    Ok(())
}

fn swapped() -> anyhow::Result<()> {
    for sealing in ["require", "auto"] {
        refused("/sealed/swapped/app.rnl", sealing, "the kernel measures sha256:")?;
        refused("/sealed/other.rnl", sealing, "was signed as image")?;
    }
    Ok(())
}

fn plain() -> anyhow::Result<()> {
    refused(PLAIN, "require", "tune2fs -O verity")?;
    let said = mounted(PLAIN, "auto")?;
    ensure!(said.contains("is not sealed with fs-verity"), "{said:?}");
    ensure!(compare()? == 0, "pages cannot be read");
    unmount()
}

/// Changes a page of the image file on the disk, below the file system.
fn damaged() -> anyhow::Result<()> {
    mounted(SEALED, "require")?;
    let file = File::open(SEALED)?;
    let at = file.metadata()?.len() / 2 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let mut page = [0; PAGE_BYTES];
    file.read_exact_at(&mut page, at)?;
    let mut disk = OpenOptions::new().read(true).write(true).open(DISK)?;
    let mut all = Vec::new();
    disk.read_to_end(&mut all)?;
    let places: Vec<_> =
        (0..all.len() / PAGE_BYTES).filter(|place| all[place * PAGE_BYTES..].starts_with(&page)).collect();
    ensure!(!places.is_empty(), "the page is not on the disk");
    for place in places {
        disk.write_all_at(&[page[100] ^ 1], (place * PAGE_BYTES + 100) as u64)?;
    }
    disk.flush()?;
    disk.sync_all()?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let error = file.read_exact_at(&mut page, at).err().context("the changed page is read")?;
    ensure!(error.raw_os_error() == Some(Errno::IO.raw_os_error()), "{error}");
    let failed = compare()?;
    ensure!(failed > 0, "all pages are read");
    unmount()
}
