//! Makes page caches cold, and warms those of the server again.
//!
//! Device and server share the kernel of the guest, so that dropping the caches of one drops those
//! of the other. A real server that has been up for a while has in memory what it serves all the
//! time: it is read back before every run.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

/// Drops every clean page, name and inode that nobody uses.
pub fn drop_all() -> anyhow::Result<()> {
    rustix::fs::sync();
    let path = "/proc/sys/vm/drop_caches";
    fs::write(path, "3").with_context(|| format!("cannot write {path}"))
}

/// Reads files, and all files of folders, from start to end.
pub fn read_back(paths: &[PathBuf]) -> anyhow::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    paths.iter().try_for_each(|path| read_all(path, &mut buffer))
}

fn read_all(path: &Path, buffer: &mut [u8]) -> anyhow::Result<()> {
    let context = || format!("cannot read {} back into memory", path.display());
    let kind = fs::symlink_metadata(path).with_context(context)?;
    if kind.is_dir() {
        for entry in fs::read_dir(path).with_context(context)? {
            read_all(&entry.with_context(context)?.path(), buffer)?;
        }
    } else if kind.is_file() {
        let mut file = File::open(path).with_context(context)?;
        while file.read(buffer).with_context(context)? > 0 {}
    } else if kind.is_symlink() && path.metadata().is_ok_and(|target| target.is_file()) {
        let target = fs::canonicalize(path).with_context(context)?;
        read_all(&target, buffer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_and_what_is_missing_is_named() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("file"), vec![0; 3 * READ_BYTES])?;
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling"))?;
        read_back(&[folder.path().to_path_buf()])?;
        let error = read_back(&[folder.path().join("other")]).expect_err("it is not there");
        assert!(format!("{error:#}").contains("other"), "{error:#}");
        Ok(())
    }
}
