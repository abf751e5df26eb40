//! Makes the file system of a disk: an ext4 with the content of a folder.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::error::{DiskError, tool};

/// Identity and hash seed of every file system made here: the same tree gives the same layout.
const IDENTITY: &str = "72756e6e-656c-4b1d-8e00-000000000001";

/// Bytes of the disk for one inode. Debian's trees have a file for every 16 to 20 KB.
const BYTES_PER_INODE: u32 = 8192;

/// Makes `image`, a sparse file of `bytes` bytes, an ext4 with what the folder `tree` holds, owners
/// and modes included.
///
/// # Errors
/// `mkfs.ext4` is missing or fails, for example because the tree does not fit.
pub fn format(tree: &Path, image: &Path, bytes: u64) -> Result<(), DiskError> {
    let file = File::create(image).map_err(|error| DiskError::step("create", image, error))?;
    file.set_len(bytes).map_err(|error| DiskError::step("extend", image, error))?;
    // No journal: it is never written to. Inode tables are read as they are used, as on any disk.
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal,^resize_inode", "-U", IDENTITY]);
    command.args(["-E", &format!("hash_seed={IDENTITY}"), "-i", &BYTES_PER_INODE.to_string(), "-d"]);
    // System tools live in sbin folders that not every user has in PATH.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    tool(command.arg(tree).arg(image).env("PATH", path)).map(drop)
}
