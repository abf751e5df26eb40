//! Compiles programs, and shows the machine's files, or some in memory, as a tree.

use std::collections::BTreeMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use elf::{Node, Root};

use crate::analysis::{Options, Report, Subject, analyse};

/// Compiles or assembles `source` with gcc; `None`, and a line that says so, where there is none
/// for x86-64.
pub(super) fn gcc(extension: &str, source: &str, options: &[&str]) -> Option<Vec<u8>> {
    if cfg!(not(target_arch = "x86_64")) {
        println!("skipped: gcc here makes no x86-64 code");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join(format!("input.{extension}")), folder.path().join("output"));
    fs::write(&input, source).unwrap();
    // Options that name libraries come behind what needs them.
    let Ok(ran) = Command::new("gcc").arg("-o").arg(&output).arg(&input).args(options).output() else {
        println!("skipped: no gcc");
        return None;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(fs::read(output).unwrap())
}

/// Options for programs that are all their own.
pub(super) const BARE: &[&str] = &["-nostdlib", "-static", "-no-pie", "-fno-stack-protector"];

/// Files in memory, all directories implied.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) files: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Memory {
    pub(super) fn with(mut self, path: &str, bytes: impl AsRef<[u8]>) -> Memory {
        self.files.insert(path.into(), bytes.as_ref().to_vec());
        self
    }
}

impl Root for Memory {
    fn node(&self, path: &[u8]) -> io::Result<Option<Node>> {
        let below = [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat();
        Ok(match self.files.contains_key(path) {
            true => Some(Node::File),
            false => self.files.keys().any(|key| key.starts_with(&below)).then_some(Node::Directory),
        })
    }

    fn read_at(&self, path: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        elf::Bytes::read_at(bytes.as_slice(), offset, buffer)
    }

    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let below = [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat();
        let rest = self.files.keys().filter_map(|key| key.strip_prefix(below.as_slice()));
        let mut names: Vec<Vec<u8>> =
            rest.map(|rest| rest.split(|byte| *byte == b'/').next().unwrap_or_default().to_vec()).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// The files of this machine.
pub(super) struct Machine;

fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

impl Root for Machine {
    fn node(&self, at: &[u8]) -> io::Result<Option<Node>> {
        let Ok(about) = fs::symlink_metadata(path(at)) else { return Ok(None) };
        Ok(Some(if about.is_symlink() {
            Node::Symlink(fs::read_link(path(at))?.into_os_string().into_vec())
        } else if about.is_dir() {
            Node::Directory
        } else if about.is_file() {
            Node::File
        } else {
            Node::Other
        }))
    }

    fn read_at(&self, at: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        fs::File::open(path(at))?.read_at(buffer, offset)
    }

    fn names(&self, at: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(path(at))?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    }
}

/// Analyses one program that needs nothing else.
pub(super) fn alone(bytes: &[u8]) -> Report {
    with(bytes, &Options::default())
}

pub(super) fn with(bytes: &[u8], options: &Options) -> Report {
    let root = Memory::default().with("/program", bytes);
    analyse(&root, &Subject::Programs(vec![b"/program".to_vec()]), options).unwrap()
}

/// Numbers of the calls that code makes: without what the kernel does to start a program and to go
/// on with a call.
pub(super) fn numbers(report: &Report) -> Vec<u32> {
    let is_code = |number: &&u32| report.calls[number].sources.iter().any(|source| source.object != "kernel");
    report.calls.keys().filter(is_code).copied().collect()
}
