//! The directories in which `ld.so` searches a library, by the rules of glibc and of musl.
//!
//! glibc, for a name without a slash, searches DT_RPATH of the file that needs it and of the chain
//! that loaded it (only where a file has no DT_RUNPATH, and not at all if the needing file has
//! one), then DT_RUNPATH of the needing file, the directories of `/etc/ld.so.conf`, and the default
//! ones. musl searches RPATH and RUNPATH alike along the chain, then the directories of
//! `/etc/ld-musl-ARCH.path` or its three default ones. LD_LIBRARY_PATH is not used; that is the
//! caller's business. `$ORIGIN`, `$LIB` and `$PLATFORM` are expanded to everything they may stand
//! for.

use std::collections::HashMap;

use crate::ldconf;
use crate::resolve::{Resolver, parent};
use crate::{Class, ClosureError, Machine, Program};

/// A file already loaded into the process under construction.
pub(crate) struct Loaded {
    /// The path by which it was found, symlinks and all.
    pub(crate) path: Vec<u8>,
    pub(crate) program: Program,
    /// Index of the file that first needed it.
    pub(crate) loader: Option<usize>,
}

/// Which C library's loader starts the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Glibc,
    Musl,
}

impl Flavour {
    pub(crate) fn of(interpreter: Option<&[u8]>) -> Flavour {
        let name = interpreter.and_then(|path| path.rsplit(|byte| *byte == b'/').next()).unwrap_or_default();
        if name.starts_with(b"ld-musl-") { Flavour::Musl } else { Flavour::Glibc }
    }
}

/// A directory to be searched, and the cache file without which the loader would not search it.
pub(crate) type SearchDirectory = (Vec<u8>, Option<&'static str>);

/// Directories in the order to be searched for what `loaded[needer]` needs.
pub(crate) fn directories(
    resolver: &Resolver<'_>,
    configured: &mut HashMap<Vec<u8>, Vec<Vec<u8>>>,
    loaded: &[Loaded],
    needer: usize,
    interpreter: Option<&[u8]>,
) -> Result<Vec<SearchDirectory>, ClosureError> {
    let flavour = Flavour::of(interpreter);
    let mut found: Vec<SearchDirectory> = Vec::new();
    let needing = &loaded[needer];
    if flavour == Flavour::Musl || needing.program.runpath.is_none() {
        let mut link = Some(needer);
        while let Some(index) = link {
            let file = &loaded[index];
            let path = match (flavour, &file.program.runpath) {
                (Flavour::Glibc, Some(_)) => None,
                (Flavour::Musl, Some(runpath)) => Some(runpath),
                (_, None) => file.program.rpath.as_ref(),
            };
            found.extend(expand_list(path, file).map(|directory| (directory, None)));
            // A loader always has a smaller index than what it loads, so this ends.
            link = file.loader;
        }
    }
    if flavour == Flavour::Glibc {
        found.extend(expand_list(needing.program.runpath.as_ref(), needing).map(|directory| (directory, None)));
    }
    let (machine, class) = (needing.program.machine, needing.program.class);
    let defaults = match flavour {
        Flavour::Glibc => machine.default_directories(class),
        Flavour::Musl => [&b"/lib"[..], b"/usr/local/lib", b"/usr/lib"].map(<[u8]>::to_vec).to_vec(),
    };
    let file = configuration_file(flavour, interpreter);
    if !configured.contains_key(&file) {
        let directories = match flavour {
            Flavour::Glibc => ldconf::directories(resolver, &file)?,
            Flavour::Musl => musl_directories(resolver, &file)?,
        };
        configured.insert(file.clone(), directories);
    }
    for directory in &configured[&file] {
        // What is a default directory anyway needs no cache file in the closure.
        let cache =
            (flavour == Flavour::Glibc && !is_built_in(machine, class, directory)).then_some("/etc/ld.so.cache");
        found.push((directory.clone(), cache));
    }
    found.extend(defaults.into_iter().map(|directory| (directory, None)));
    Ok(found)
}

/// The configuration file that adds directories. musl derives its name from its own:
/// `ld-musl-x86_64.so.1` reads `/etc/ld-musl-x86_64.path`.
pub(crate) fn configuration_file(flavour: Flavour, interpreter: Option<&[u8]>) -> Vec<u8> {
    let name = interpreter.and_then(|path| path.rsplit(|byte| *byte == b'/').next()).unwrap_or_default();
    match flavour {
        Flavour::Glibc => b"/etc/ld.so.conf".to_vec(),
        Flavour::Musl => {
            let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default();
            [b"/etc/", stem, b".path"].concat()
        }
    }
}

/// Whether the loader of this architecture's usual distributions searches `directory` without a
/// cache.
fn is_built_in(machine: Machine, class: Class, directory: &[u8]) -> bool {
    machine.default_directories(class).iter().any(|built_in| built_in == directory)
}

fn musl_directories(resolver: &Resolver<'_>, file: &[u8]) -> Result<Vec<Vec<u8>>, ClosureError> {
    let text = ldconf::read_small(resolver, file)?.unwrap_or_default();
    let words = text.split(|byte| *byte == b'\n' || *byte == b':').map(<[u8]>::trim_ascii);
    Ok(words.filter(|word| word.first() == Some(&b'/')).map(<[u8]>::to_vec).collect())
}

/// The directories of an RPATH or RUNPATH. Relative ones depend on the caller's directory and are
/// left out.
fn expand_list(list: Option<&Vec<u8>>, file: &Loaded) -> impl Iterator<Item = Vec<u8>> {
    let entries = list.map(|list| list.split(|byte| *byte == b':')).into_iter().flatten();
    let expanded: Vec<Vec<u8>> = entries.flat_map(|entry| expand(entry, file)).collect();
    expanded.into_iter().filter(|directory| directory.first() == Some(&b'/'))
}

/// Everything `text` may stand for when `file` says it: `$ORIGIN` is the directory of the file,
/// `$LIB` and `$PLATFORM` have several values. One token kind has few values, so the result stays
/// small.
pub(crate) fn expand(text: &[u8], file: &Loaded) -> Vec<Vec<u8>> {
    let (machine, class) = (file.program.machine, file.program.class);
    let platforms: Vec<Vec<u8>> = machine.platforms().iter().map(|name| name.as_bytes().to_vec()).collect();
    let libraries: Vec<Vec<u8>> = machine.library_directories(class).into_iter().map(String::into_bytes).collect();
    let mut texts = vec![replace(text, b"ORIGIN", parent(&file.path))];
    for (token, values) in [(&b"LIB"[..], libraries), (b"PLATFORM", platforms)] {
        texts = texts
            .into_iter()
            .flat_map(|text| {
                if replace(&text, token, b"") == text {
                    return vec![text];
                }
                values.iter().map(|value| replace(&text, token, value)).collect()
            })
            .collect();
    }
    texts
}

/// Replaces `$TOKEN` and `${TOKEN}`; a longer name that begins with the token is another name.
fn replace(text: &[u8], token: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let braced = after.strip_prefix(b"{").and_then(|name| name.strip_prefix(token)?.strip_prefix(b"}"));
        let plain = after
            .strip_prefix(token)
            .filter(|tail| !tail.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_'));
        match braced.or(plain) {
            Some(tail) => {
                out.extend_from_slice(value);
                rest = tail;
            }
            None => {
                out.push(b'$');
                rest = after;
            }
        }
    }
    out.extend_from_slice(rest);
    out
}
