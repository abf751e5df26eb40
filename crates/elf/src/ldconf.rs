//! `/etc/ld.so.conf` and its includes: the directories that `ldconfig` indexes and glibc's `ld.so`
//! therefore searches.
//!
//! Lines hold directories separated by blanks, commas or colons; `#` starts a comment; `include
//! PATTERN` reads the files that match, in byte order; `hwcap` lines of old systems mean nothing
//! any more.

use std::io;

use crate::resolve::{Resolver, components, join, parent};
use crate::{ClosureError, Node};

/// Bytes of one configuration file that we read; real ones have some hundred.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Files within files; real systems need 2.
const DEPTH_MAX: usize = 8;
/// Directories in all; real systems have about 10.
const DIRECTORIES_MAX: usize = 4096;

/// The directories that the configuration file at `path` names, in order, without duplicates; none
/// if there is no file.
pub(crate) fn directories(resolver: &Resolver<'_>, path: &[u8]) -> Result<Vec<Vec<u8>>, ClosureError> {
    let mut found = Vec::new();
    read(resolver, path, 0, &mut found)?;
    Ok(found)
}

fn read(resolver: &Resolver<'_>, path: &[u8], depth: usize, found: &mut Vec<Vec<u8>>) -> Result<(), ClosureError> {
    if depth > DEPTH_MAX {
        return Err(ClosureError::TooMany { path: path.to_vec(), what: "nested includes", limit: DEPTH_MAX });
    }
    let Some(text) = read_small(resolver, path)? else { return Ok(()) };
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
        let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        match words.next() {
            Some(b"include") => {
                for pattern in words {
                    let pattern = if pattern[0] == b'/' { pattern.to_vec() } else { join(parent(path), pattern) };
                    for file in expand(resolver, &pattern)? {
                        read(resolver, &file, depth + 1, found)?;
                    }
                }
            }
            Some(b"hwcap") | None => {}
            Some(_) => {
                let separators = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',' || *byte == b':';
                for directory in line.split(separators).filter(|word| word.first() == Some(&b'/')) {
                    // `directory=libc6` names the kind of library; long obsolete, still accepted by
                    // ldconfig.
                    let directory = directory.split(|byte| *byte == b'=').next().unwrap_or_default().to_vec();
                    if !found.contains(&directory) {
                        found.push(directory);
                    }
                }
            }
        }
        if found.len() > DIRECTORIES_MAX {
            let what = "library directories";
            return Err(ClosureError::TooMany { path: path.to_vec(), what, limit: DIRECTORIES_MAX });
        }
    }
    Ok(())
}

/// The whole of a small text file; `None` if there is none.
pub(crate) fn read_small(resolver: &Resolver<'_>, path: &[u8]) -> Result<Option<Vec<u8>>, ClosureError> {
    let Some(resolved) = resolver.resolve(path)? else { return Ok(None) };
    if resolved.node != Node::File {
        return Ok(None);
    }
    let mut text = Vec::new();
    let mut buffer = vec![0u8; 16 << 10];
    loop {
        let read = resolver.root().read_at(&resolved.path, text.len() as u64, &mut buffer);
        let count = read.map_err(|source: io::Error| ClosureError::Read { path: resolved.path.clone(), source })?;
        if count == 0 {
            return Ok(Some(text));
        }
        text.extend_from_slice(&buffer[..count.min(buffer.len())]);
        if text.len() > FILE_BYTES_MAX {
            return Err(ClosureError::TooMany { path: resolved.path, what: "bytes", limit: FILE_BYTES_MAX });
        }
    }
}

/// Existing paths that match a pattern with `*`, `?` and `[...]`, in byte order.
fn expand(resolver: &Resolver<'_>, pattern: &[u8]) -> Result<Vec<Vec<u8>>, ClosureError> {
    let mut paths = vec![b"/".to_vec()];
    for component in components(pattern) {
        let mut longer = Vec::new();
        for path in paths {
            if !component.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
                longer.push(join(&path, component));
                continue;
            }
            let Some(directory) = resolver.resolve(&path)? else { continue };
            if directory.node != Node::Directory {
                continue;
            }
            let names = resolver.root().names(&directory.path);
            let mut names = names.map_err(|source| ClosureError::Read { path: path.clone(), source })?;
            names.sort();
            longer.extend(names.iter().filter(|name| matches(component, name)).map(|name| join(&path, name)));
            if longer.len() > DIRECTORIES_MAX {
                let what = "files that match an include";
                return Err(ClosureError::TooMany { path: pattern.to_vec(), what, limit: DIRECTORIES_MAX });
            }
        }
        paths = longer;
    }
    Ok(paths)
}

/// Whether a name matches a pattern component. Hidden names match only patterns that begin with a
/// dot.
///
/// Two positions and one place to go back to (the last `*`): time at most pattern x name, no
/// recursion.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    let (mut at, mut position) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while position < name.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, position));
                at += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => class(&pattern[at..], name[position]),
            Some(byte) => (*byte == name[position]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(length), _) => (at, position) = (at + length, position + 1),
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (at, position) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Matches `byte` against the bracket expression that `pattern` starts with; its length if it does
/// match. A bracket without an end is an ordinary character.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    let Some(end) = (start + 1..pattern.len()).find(|at| pattern[*at] == b']') else {
        return (byte == b'[').then_some(1);
    };
    let mut members = &pattern[start..end];
    let mut inside = false;
    while let [low, rest @ ..] = members {
        if let [b'-', high, after @ ..] = rest {
            inside |= (*low..=*high).contains(&byte);
            members = after;
        } else {
            inside |= *low == byte;
            members = rest;
        }
    }
    (inside != negated).then_some(end + 1)
}
