//! Starting by plain name: a shim in `~/.local/bin` and a desktop entry in
//! `~/.local/share/applications`, both of which start `runnel launch -- PROGRAM`.
//!
//! Each file begins with a line that says it is ours. Only such files are replaced or removed, so
//! the user loses nothing, and uninstalling leaves no trace.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::LaunchError;

/// The line that makes a file ours.
const MARK: &str = "# made by `runnel launch --install`; `runnel launch --uninstall` takes it away";

/// Longest shim: two paths, each byte of which may be quoted.
const SHIM_BYTES_MAX: u64 = 64 << 10;

/// Longest desktop entry that is copied: translated names make some 30 KB.
const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// The folders that are written to and looked in.
#[derive(Clone, Debug)]
pub struct ShimFolders {
    /// Where shims go.
    pub bin: PathBuf,
    /// Where desktop entries go.
    pub applications: PathBuf,
    /// Where desktop entries of installed programs lie, in the order of precedence.
    pub entries: Vec<PathBuf>,
}

impl ShimFolders {
    /// Those of the user: `~/.local/bin`, `$XDG_DATA_HOME/applications`,
    /// `$XDG_DATA_DIRS/applications`.
    ///
    /// # Errors
    /// HOME is not set.
    pub fn of_user() -> Result<ShimFolders, LaunchError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home =
            variable("HOME").map(PathBuf::from).filter(|path| path.is_absolute()).ok_or(LaunchError::NoFolder)?;
        let data = variable("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
        let dirs = variable("XDG_DATA_DIRS").unwrap_or_else(|| "/usr/local/share:/usr/share".into());
        Ok(ShimFolders {
            bin: home.join(".local/bin"),
            applications: data.join("applications"),
            entries: std::env::split_paths(&dirs).map(|dir| dir.join("applications")).collect(),
        })
    }
}

/// Writes the shim of `program` (an absolute path) and, for each desktop entry that starts it, one
/// that starts `runnel` (an absolute path) with it. The files written.
///
/// # Errors
/// A file in the way that is not ours; a folder that cannot be written to.
pub fn install(folders: &ShimFolders, runnel: &Path, program: &Path) -> Result<Vec<PathBuf>, LaunchError> {
    if let Some(odd) =
        [runnel, program].into_iter().find(|path| path.to_str().is_none_or(|text| text.contains(['\n', '%'])))
    {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "its path holds bytes that no desktop entry can");
        return Err(LaunchError::io("install", odd)(error));
    }
    if is_shim(program) {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "it is a shim of ours; name the program itself");
        return Err(LaunchError::io("install", program)(error));
    }
    let name = program.file_name().unwrap_or(OsStr::new("program"));
    let start = format!("{} launch -- {}", quoted(runnel), quoted(program));
    // A program outlives its launcher.
    let plain = format!("exec {} \"$@\"", quoted(program));
    let shim = format!("#!/bin/sh\n{MARK}\n[ -x {} ] || {plain}\nexec {start} \"$@\"\n", quoted(runnel));
    let mut written = vec![place(&folders.bin.join(name), &shim, 0o755)?];
    for (file, text) in entries_of(folders, program) {
        let entry = format!("{MARK}\n{}", started_by(&text, runnel, program));
        written.push(place(&folders.applications.join(file), &entry, 0o644)?);
    }
    Ok(written)
}

/// Takes away what [`install`] wrote for `program`; the files that were there.
///
/// # Errors
/// A file of ours cannot be taken away.
pub fn uninstall(folders: &ShimFolders, program: &Path) -> Result<Vec<PathBuf>, LaunchError> {
    let name = program.file_name().unwrap_or(OsStr::new("program"));
    let starts = [quoted(program), quoted_in_entry(program)].map(|program| format!("launch -- {program}"));
    let entries = list(&folders.applications);
    let mut removed = Vec::new();
    for path in std::iter::once(folders.bin.join(name)).chain(entries) {
        if read(&path).is_some_and(|text| is_ours(&text) && starts.iter().any(|start| text.contains(start))) {
            fs::remove_file(&path).map_err(LaunchError::io("remove", &path))?;
            removed.push(path);
        }
    }
    Ok(removed)
}

/// Whether `path` is a shim of ours, and so not the program itself.
pub(crate) fn is_shim(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() <= SHIM_BYTES_MAX)
        && read(path).is_some_and(|text| is_ours(&text))
}

fn is_ours(text: &str) -> bool {
    text.lines().take(2).any(|line| line == MARK)
}

fn place(path: &Path, text: &str, mode: u32) -> Result<PathBuf, LaunchError> {
    let in_the_way = fs::symlink_metadata(path).is_ok() && !read(path).is_some_and(|text| is_ours(&text));
    if in_the_way {
        let error = io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is not ours");
        return Err(LaunchError::io("replace", path)(error));
    }
    crate::small_file::replace(path, text.as_bytes())?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(LaunchError::io("set the mode of", path))?;
    Ok(path.to_path_buf())
}

/// Desktop entries that start the program, by file name; the first folder wins.
fn entries_of(folders: &ShimFolders, program: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for path in folders.entries.iter().flat_map(|folder| list(folder)) {
        let Some(name) = path.file_name().map(PathBuf::from) else { continue };
        if found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        if let Some(text) = read(&path)
            && text.lines().any(|line| exec_of(line).is_some_and(|(first, _)| is_program(first, program)))
        {
            found.push((name, text));
        }
    }
    found
}

/// The program of an `Exec=` or `TryExec`-less line and what follows it; quotes are for names with
/// spaces, which are left alone.
fn exec_of(line: &str) -> Option<(&str, &str)> {
    let command = line.strip_prefix("Exec=")?.trim_start();
    Some(command.split_once(' ').unwrap_or((command, "")))
}

fn is_program(first: &str, program: &Path) -> bool {
    match first.starts_with('/') {
        true => Path::new(first) == program || fs::canonicalize(first).is_ok_and(|path| path == program),
        false => program.file_name().map(OsStr::as_bytes) == Some(first.as_bytes()),
    }
}

/// The entry with each `Exec=` line of the program started by us. `DBusActivatable` goes: it would
/// start the program without us.
fn started_by(text: &str, runnel: &Path, program: &Path) -> String {
    let mut entry = String::new();
    for line in text.lines().filter(|line| !line.starts_with("DBusActivatable=")) {
        match exec_of(line) {
            Some((first, rest)) if is_program(first, program) => {
                let start = format!("Exec={} launch -- {} {rest}", quoted_in_entry(runnel), quoted_in_entry(program));
                entry.push_str(start.trim_end());
            }
            _ => entry.push_str(line),
        }
        entry.push('\n');
    }
    entry
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).into_iter().flatten().filter_map(|name| Some(name.ok()?.path()));
    let mut paths: Vec<PathBuf> = names.filter(|path| path.extension() == Some(OsStr::new("desktop"))).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Option<String> {
    let metadata =
        fs::metadata(path).ok().filter(|metadata| metadata.is_file() && metadata.len() <= ENTRY_BYTES_MAX)?;
    let text = fs::read_to_string(path).ok()?;
    (text.len() as u64 <= metadata.len().max(ENTRY_BYTES_MAX)).then_some(text)
}

/// In single quotes for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// In double quotes, as the Desktop Entry Specification wants it in `Exec=` lines: a backslash
/// before the four characters that mean something there, and each backslash twice, because the file
/// itself has escapes too.
fn quoted_in_entry(path: &Path) -> String {
    let mut quoted = String::from("\"");
    for letter in path.display().to_string().chars() {
        match letter {
            '\\' => quoted.push_str(r"\\\\"),
            '"' | '`' | '$' => quoted.extend(['\\', '\\', letter]),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}
