//! The closure of programs of this machine, compared with what `ldd` says the loader would load.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::{Finder, Node, Root};

struct Host;

fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

impl Root for Host {
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

/// The files that `ldd` lists, symlinks resolved; `None` if it does not run or the program is
/// static.
fn ldd(program: &Path) -> Option<BTreeSet<Vec<u8>>> {
    let output = Command::new("ldd").arg(program).env_remove("LD_LIBRARY_PATH").output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    let files = text.lines().filter_map(|line| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place).split_whitespace().next()?;
        let real = place.starts_with('/').then(|| fs::canonicalize(place).ok())??;
        Some(real.into_os_string().into_vec())
    });
    Some(files.collect())
}

#[test]
fn ref_closures_hold_what_ldd_lists() {
    let mut compared = 0;
    for program in ["/bin/sh", "/usr/bin/python3", "/usr/bin/perl", "/usr/bin/openssl", "/usr/bin/gcc", "/usr/bin/git"]
    {
        let Some(expected) = ldd(Path::new(program)) else {
            eprintln!("skipped {program}: not here, static, or no ldd");
            continue;
        };
        let mut finder = Finder::new(&Host);
        finder.program(program.as_bytes()).unwrap();
        let closure = finder.finish();
        assert_eq!(closure.missing, [], "{program}");
        for file in &expected {
            assert!(closure.paths.contains(file), "{program}: {} is missing", String::from_utf8_lossy(file));
        }
        // Nothing else, except variants for newer processors, the cache and the program itself.
        let own = fs::canonicalize(program).unwrap().into_os_string().into_vec();
        for file in closure.paths.iter().filter(|file| path(file).symlink_metadata().is_ok_and(|about| about.is_file()))
        {
            let text = String::from_utf8_lossy(file);
            let extra = text.contains("glibc-hwcaps") || text == "/etc/ld.so.cache";
            assert!(extra || *file == own || expected.contains(file), "{program}: {text} is not needed");
        }
        compared += 1;
    }
    eprintln!("compared {compared} programs with ldd");
}
