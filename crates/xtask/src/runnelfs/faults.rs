//! Memory that is not there, and memory that is lost: in the guest, where its kernel can tell.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use nix::mount::{MsFlags, mount};

use super::guest::{Mount, Plan, TARGET, forget_pages};

/// Where the kernel has what is for its own developers.
const DEBUG: &str = "/sys/kernel/debug";

/// The number of allocations until one fails, of this thread.
const FAIL: &str = "/proc/thread-self/fail-nth";

/// So that allocations of every kind fail, and nothing is said about it.
const SETTINGS: [(&str, &str); 6] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("fail_page_alloc/verbose", "0"),
];

/// No call of the kernel that is tried makes so many.
const ALLOCATIONS_MAX: u32 = 20_000;

/// The tree whose images have dictionaries.
const ALIKE: &str = "alike/";

/// A file of the trees, in several blocks where they are small.
const FILE: &str = "text-70001";

/// Calls `call` again and again, after `before`; each time the next one of its allocations fails.
/// Returns how many it makes.
fn each_failing<T>(before: fn() -> anyhow::Result<()>, call: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<u32> {
    for nth in 1..ALLOCATIONS_MAX {
        before()?;
        // Opened before, so that it takes no allocation that could be the one.
        let mut fail = File::options().read(true).write(true).open(FAIL)?;
        fail.write_all(nth.to_string().as_bytes())?;
        let outcome = call();
        let mut left = [0; 16];
        let length = fail.read(&mut left)?;
        fail.write_all(b"0")?;
        outcome.with_context(|| format!("allocation {nth}"))?;
        if !left[..length].starts_with(b"0") {
            return Ok(nth - 1);
        }
    }
    bail!("it makes more than {ALLOCATIONS_MAX}")
}

/// Each allocation of a mount, and of reading a file, fails once: then the call does, or it does
/// without. Images with dictionaries are only mounted.
pub fn allocations(plan: &Plan) -> anyhow::Result<Option<String>> {
    if !Path::new(FAIL).exists() {
        return Ok(None);
    }
    mount(Some("debugfs"), DEBUG, Some("debugfs"), MsFlags::empty(), None::<&str>).context(DEBUG)?;
    for (name, value) in SETTINGS {
        fs::write(Path::new(DEBUG).join(name), value).with_context(|| name.to_string())?;
    }
    let (mut mounting, mut reading) = (0, 0);
    for image in plan.bases.iter().chain(plan.images.iter().filter(|image| image.starts_with(ALIKE))) {
        let path = Path::new("/").join(image);
        let mounts = || match Mount::new(&path, "") {
            outcome @ (Ok(_) | Err(nix::Error::ENOMEM)) => Ok(outcome),
            Err(error) => bail!("the mount gives {error}"),
        };
        mounting += each_failing(|| Ok(()), mounts).with_context(|| image.clone())?;
        if !plan.bases.contains(image) {
            continue;
        }
        let _mount = Mount::new(&path, "").context("cannot mount it")?;
        let file = Path::new(TARGET).join(FILE);
        let right = fs::read(&file)?;
        let read = || match fs::read(&file) {
            Ok(bytes) => {
                ensure!(bytes == right, "other bytes are read");
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::OutOfMemory || error.raw_os_error() == Some(5) => Ok(()),
            Err(error) => bail!("reading gives {error}"),
        };
        reading += each_failing(forget_pages, read).with_context(|| image.clone())?;
    }
    Ok(Some(format!("{mounting} of mounts and {reading} of reads failed, one at a time")))
}

/// Looks for memory that the module lost.
pub fn leaks() -> anyhow::Result<Option<String>> {
    let file = Path::new(DEBUG).join("kmemleak");
    if !file.exists() {
        return Ok(None);
    }
    // What a processor has in hand is not seen; so only what two scans find is lost.
    for _ in 0..2 {
        fs::write(&file, "scan").context("cannot scan")?;
    }
    let found = fs::read_to_string(&file)?;
    let ours: Vec<&str> = found.split("unreferenced object").filter(|object| object.contains("[runnelfs]")).collect();
    ensure!(ours.is_empty(), "{} object(s); the first:{}", ours.len(), ours[0]);
    Ok(Some("none".to_string()))
}
