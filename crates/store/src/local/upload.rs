//! An object being written: a temporary file until it is committed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Staging, gone, read_cached, read_failed, sync_folder};
use crate::error::UPLOAD;
use crate::{StoreError, Upload, check_key};

/// An upload in the folder of temporaries.
pub(super) struct LocalUpload {
    pub root: Arc<PathBuf>,
    pub staging: Arc<Staging>,
    pub path: PathBuf,
    pub file: File,
    pub bytes: u64,
    /// The temporary was renamed away, so there is nothing to remove.
    pub done: bool,
}

impl Upload for LocalUpload {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.staging
            .step("write")
            .and_then(|()| self.file.write_all_at(bytes, offset))
            .map_err(|error| StoreError::from_io("write", UPLOAD, error))?;
        self.bytes = self.bytes.max(offset.saturating_add(bytes.len() as u64));
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_exact_at(buf, offset).map_err(|error| read_failed(UPLOAD, offset, buf.len(), self.bytes, error))
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        Ok(read_cached(&self.file, offset, buf))
    }

    fn commit(mut self: Box<Self>, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        self.publish(key).map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists => StoreError::Conflict { key: key.to_owned() },
            // The temporary was there, and folders on the way are made.
            io::ErrorKind::NotFound => gone(&self.root),
            _ => StoreError::from_io("write", key, error),
        })
    }
}

impl LocalUpload {
    fn publish(&mut self, key: &str) -> io::Result<()> {
        let place = self.root.join(key);
        self.staging.step("sync file")?;
        self.file.sync_all()?;
        let parts: Vec<&str> = key.split('/').collect();
        let mut folder = self.root.to_path_buf();
        for part in &parts[..parts.len() - 1] {
            let above = folder.clone();
            folder.push(part);
            self.staging.step("make folder")?;
            match fs::create_dir(&folder) {
                Ok(()) => {
                    self.staging.step("sync folder above")?;
                    sync_folder(&above)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        self.staging.step("rename")?;
        fs::rename(&self.path, &place)?;
        self.done = true;
        self.staging.step("sync folder")?;
        sync_folder(&folder)
    }
}

impl Drop for LocalUpload {
    fn drop(&mut self) {
        if !self.done && self.staging.alive() {
            // The next open removes it if this fails.
            let _ = fs::remove_file(&self.path);
        }
    }
}
