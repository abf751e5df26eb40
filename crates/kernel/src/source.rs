//! A kernel's source as it was unpacked. It is only read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::io_at;
use crate::{KernelError, Processor};

/// A tree of the kernel's source.
#[derive(Clone, Debug)]
pub struct Source {
    folder: PathBuf,
    release: String,
}

impl Source {
    /// Opens the source in `folder`.
    ///
    /// # Errors
    /// It is none, or it was built in place, which keeps it from being built elsewhere.
    pub fn open(folder: &Path) -> Result<Self, KernelError> {
        let folder = fs::canonicalize(folder).map_err(io_at(folder))?;
        let not_source = |reason| KernelError::NotSource { path: folder.clone(), reason };
        let makefile = fs::read_to_string(folder.join("Makefile")).map_err(|_| not_source("it has no Makefile"))?;
        let field = |name: &str| {
            let lines = makefile.lines().take(20);
            let mut found = lines.filter_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
            found.next().map(|value| value.trim().to_string())
        };
        let numbers = (field("VERSION"), field("PATCHLEVEL"), field("SUBLEVEL"));
        let (Some(version), Some(patch), Some(sub)) = numbers else {
            return Err(not_source("its Makefile names no version"));
        };
        if !folder.join("scripts/link-vmlinux.sh").is_file() {
            return Err(not_source("it has no scripts/link-vmlinux.sh"));
        }
        if folder.join(".config").exists() {
            return Err(not_source("it was configured in place; run make mrproper in it"));
        }
        Ok(Self { folder, release: format!("{version}.{patch}.{sub}") })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its release, such as `6.12.48`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// System calls of a processor by name, with their entry points (`sys_…`).
    ///
    /// # Errors
    /// The source has no such table.
    pub fn entry_points(&self, processor: Processor) -> Result<BTreeMap<String, String>, KernelError> {
        let (table, kinds) = processor.calls();
        let path = self.folder.join(table);
        Ok(specialise::entry_points(&fs::read_to_string(&path).map_err(io_at(&path))?, kinds))
    }
}
