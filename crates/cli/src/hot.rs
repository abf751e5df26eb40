//! Hot pages from files: traces of `runnel record`, and the actions that a server learned
//! (`learned/ID.actions` in its store).

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use image::{Kind, Limits, Metadata};
use profile::{ActionSet, Hot, HotError, HotRun, Names};
use trace::{Tail, Trace};
use units::{ImageId, InodeId};

use crate::failure;

/// Merges what `files` say, each a trace or an actions file by its first bytes, into one list of
/// hot pages. `image` is the image that they were recorded on, and is needed only for those that do
/// not name their files. Pages that fewer than `min_runs` runs touched are left out.
///
/// # Errors
/// A file cannot be read, is neither, is damaged, or speaks of another image; each names the file
/// and what to do.
pub fn load(files: &[PathBuf], image: Option<&Path>, min_runs: u32) -> anyhow::Result<Hot> {
    let image = image.map(|path| Ok::<_, anyhow::Error>((path, client::open_file(path, &Limits::default())?.1)));
    let image = image.transpose()?;
    let (mut runs, mut programs) = (Vec::new(), Vec::new());
    let mut names_needed = false;
    for path in files {
        match read(path)? {
            File::Trace(trace) => {
                let all =
                    |names: Option<Names>| Ok((HotRun::from_trace(&trace, names)?, HotRun::programs(&trace, names)?));
                let found = match all(None) {
                    Err(HotError::NoNames { .. }) => {
                        names_needed = true;
                        names_from(&image, |names| all(names))
                    }
                    found => found,
                };
                let (run, each) = found.map_err(|error| explain(path, &image, error))?;
                runs.push(run);
                programs.extend(each);
            }
            File::Actions(actions) => {
                names_needed = true;
                let missing = HotError::NoNames { image: actions.image() };
                let found = names_from(&image, |names| HotRun::from_actions(&actions, names.ok_or(missing)?));
                let each = found.map_err(|error| explain(path, &image, error))?;
                programs.extend(each.iter().cloned());
                runs.extend(each);
            }
        }
    }
    let hot = Hot { programs, ..Hot::merge(&runs, min_runs) };
    let unused = image.as_ref().map(|(path, _)| *path).filter(|_| !names_needed);
    if !files.is_empty() {
        warnings(unused, min_runs, hot.runs).iter().for_each(|warning| tell!("warning: {warning}"));
    }
    Ok(hot)
}

/// Options that mean nothing for these traces.
fn warnings(unused_image: Option<&Path>, min_runs: u32, runs: u32) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(path) = unused_image {
        found.push(format!("--trace-image {} is not used: all traces name their files", path.display()));
    }
    if min_runs > runs {
        found.push(format!("--min-runs is {min_runs}, but the number of runs is {runs}: that is taken instead"));
    }
    found
}

/// Longest file we read: hundreds of millions of touches.
const TRACE_BYTES_MAX: u64 = 256 << 20;

enum File {
    Trace(Trace),
    Actions(ActionSet),
}

fn read(path: &Path) -> anyhow::Result<File> {
    let name = path.display();
    let mut file = host::file::open(path).with_context(|| format!("cannot read the trace {name}"))?;
    let mut bytes = Vec::new();
    let mut more = |limit: u64, bytes: &mut Vec<u8>| {
        let read = (&mut file).take(limit).read_to_end(bytes);
        read.with_context(|| format!("cannot read the trace {name}"))
    };
    more(trace::format::MAGIC.len() as u64, &mut bytes)?;
    if bytes.starts_with(&trace::format::MAGIC) || bytes.starts_with(&profile::format::MAGIC) {
        more(TRACE_BYTES_MAX + 1, &mut bytes)?;
    }
    if bytes.len() as u64 > TRACE_BYTES_MAX {
        return Err(failure::corrupt(format!("{name} is longer than {TRACE_BYTES_MAX} bytes; record shorter runs")));
    }
    if bytes.starts_with(&trace::format::MAGIC) {
        let trace = trace::read(&bytes, &trace::Limits::default())
            .map_err(|error| failure::corrupt(format!("{name}: {error}; record it anew with `runnel record`")))?;
        if trace.tail != Tail::Whole {
            tell!("warning: {name}: {}", trace.tail);
        }
        return Ok(File::Trace(trace));
    }
    if bytes.starts_with(&profile::format::MAGIC) {
        let actions = profile::decode(&bytes, &profile::Limits::default())
            .map_err(|error| failure::corrupt(format!("{name}: {error}; copy it anew from the server's store")))?;
        return Ok(File::Actions(actions));
    }
    Err(failure::corrupt(format!(
        "{name}: neither a trace nor learned actions; `runnel record` makes traces, and a server keeps what it learned in \
         `learned` in its store"
    )))
}

/// Calls `with` with the names of the files of `image`.
fn names_from<T>(image: &Option<(&Path, Metadata)>, with: impl FnOnce(Option<Names>) -> T) -> T {
    let Some((_, metadata)) = image else { return with(None) };
    let file = |inode: InodeId| {
        let found = metadata.inode(inode).filter(|found| found.kind() == Kind::File)?;
        Some((metadata.path(inode)?, found.size()))
    };
    with(Some(Names { image: metadata.id(), file: &file }))
}

fn explain(path: &Path, image: &Option<(&Path, Metadata)>, error: HotError) -> anyhow::Error {
    let name = path.display();
    let short = |id: ImageId| id.to_string()[..12].to_string();
    let given = image.as_ref().map(|(path, _)| path.display().to_string()).unwrap_or_default();
    match error {
        HotError::NoNames { image } => failure::usage(format!(
            "{name} does not name its files; it needs --trace-image, the image it was recorded on ({}…)",
            short(image)
        )),
        HotError::OtherImage { found, expected } => failure::usage(format!(
            "{name} was recorded on image {}…, but {given} is {}…; give the former with --trace-image",
            short(expected),
            short(found)
        )),
        damaged => failure::corrupt(format!("{name}: {damaged}")),
    }
}

#[cfg(test)]
mod tests;
