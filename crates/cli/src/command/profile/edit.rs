//! `runnel profile edit`.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::failure;
use crate::recording::output;

pub fn run(file: &Path) -> anyhow::Result<()> {
    let before = super::bytes_of(file, super::FILE_BYTES_MAX)?;
    let text = super::text_of(&super::decode(&before, file)?)?;
    let (path, mut kept) = temporary(file)?;
    let written = kept.write_all(text.as_bytes()).and_then(|()| kept.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    written.with_context(|| format!("cannot write {}", path.display()))?;
    let kept = || {
        let (text, graph) = (path.display(), file.display());
        format!("your text is kept in {text}; when it is right, `runnel profile import {text} -o {graph} --force`")
    };
    let ended = edit(&path);
    let edited = super::read_text(&path);
    if edited.as_ref().is_ok_and(|edited| *edited == text) {
        let _ = std::fs::remove_file(&path);
        ended?;
        tell!("nothing changed");
        return Ok(());
    }
    let parsed = ended.and(edited).and_then(|edited| super::parse(&edited, &path.display().to_string()));
    let graph = parsed.with_context(kept)?;
    // Somebody else may have saved it meanwhile, or live use may have updated it.
    if super::bytes_of(file, super::FILE_BYTES_MAX)? != before {
        return Err(failure::usage(format!("{} has changed meanwhile; {}", file.display(), kept())));
    }
    output::replace(file, &graph.encode()).with_context(kept)?;
    // It is saved; a text left behind does no harm.
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// A new file for the text that nobody else can read or put a link in place of.
fn temporary(file: &Path) -> anyhow::Result<(PathBuf, std::fs::File)> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let path = std::env::temp_dir().join(format!("{stem}-{}.flow.txt", std::process::id()));
    let opened = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
    Ok((path.clone(), opened.with_context(|| format!("cannot make {}", path.display()))?))
}

/// Runs the user's editor. What it is may hold arguments, so a shell reads it, as other programs
/// have it.
fn edit(path: &Path) -> anyhow::Result<()> {
    let chosen = ["VISUAL", "EDITOR"].into_iter().filter_map(std::env::var_os).find(|editor| !editor.is_empty());
    let editor = chosen.unwrap_or_else(|| "vi".into());
    let mut line = editor.clone();
    line.push(" \"$@\"");
    let ended =
        Command::new("sh").arg("-c").arg(line).arg("sh").arg(path).status().context("cannot start the editor")?;
    match ended.success() {
        true => Ok(()),
        false => anyhow::bail!("the editor {} ended with {ended}; set $EDITOR to another one", editor.display()),
    }
}
