//! Looks at the program before it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes looked at: an ELF header and its program headers, which linkers put right behind it.
const HEAD_BYTES: u64 = 4096;

/// Type of the program header that names the dynamic linker.
const PT_INTERP: u32 = 3;

/// Scripts that name a script, as in Linux.
const SCRIPTS_MAX: usize = 5;

/// Whether no library can be preloaded into a program because it has no dynamic linker. What cannot
/// be found or read, or is no ELF file of 64 bits, is not said to be static.
pub(crate) fn is_static(program: &OsStr) -> bool {
    let Some(mut path) = find(program) else { return false };
    for _ in 0..SCRIPTS_MAX {
        let Some(head) = head(&path) else { return false };
        let Some(line) = head.strip_prefix(b"#!") else { return has_no_interpreter(&head).unwrap_or(false) };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let name = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        path = PathBuf::from(OsStr::from_bytes(name));
    }
    false
}

/// As `execvp` does.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// `None` for what is no ELF file of 64 bits, little-endian.
fn has_no_interpreter(head: &[u8]) -> Option<bool> {
    head.strip_prefix(b"\x7fELF\x02\x01")?;
    let number = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let at = u64::from_le_bytes(*head.get(32..)?.first_chunk()?);
    let (size, count) = (number(54)?, number(56)?);
    for index in 0..count {
        let header = usize::try_from(at).ok()?.checked_add(usize::from(index) * usize::from(size))?;
        if u32::from_le_bytes(*head.get(header..)?.first_chunk()?) == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_linker_are_not_static() {
        assert!(!is_static(OsStr::new("sh")));
        assert!(!is_static(OsStr::new("/nonexistent")));
        let head = head(Path::new("/bin/sh")).expect("readable");
        assert_eq!(has_no_interpreter(&head), Some(false));
        for cut in 0..head.len() {
            let _ = has_no_interpreter(&head[..cut]);
        }
    }
}
