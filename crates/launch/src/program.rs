//! Which program is meant, and which plan belongs to it.
//!
//! A plan belongs to a program file. An interpreter runs another program with each script, so the
//! name of its plan also depends on what it is told to run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::LaunchError;

/// Names of programs that are what their script makes of them; versions follow (`python3.11`).
const INTERPRETERS: &[&str] = &[
    "python", "perl", "ruby", "node", "java", "lua", "php", "Rscript", "sh", "bash", "dash", "zsh", "guile", "tclsh",
    "wish", "mono",
];

/// Options of interpreters whose value is the next argument and is not the script.
const VALUED: &[&str] =
    &["-cp", "-classpath", "--class-path", "-p", "--module-path", "-W", "-X", "-I", "-r", "--add-modules"];

/// Options after which the next argument is what is run.
const RUNS_NEXT: &[&str] = &["-c", "-m", "-e", "-jar", "--module", "-l"];

/// Arguments of an interpreter that are looked at.
const ARGUMENTS_MAX: usize = 64;

/// A program as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file to execute, absolute; links are left as they are, because some programs look at
    /// their own name.
    pub file: PathBuf,
    /// The same with links resolved.
    pub real: PathBuf,
    /// What an interpreter is told to run: options and the script, module or text. Empty for other
    /// programs.
    pub script: Vec<OsString>,
}

impl Program {
    /// Finds `command[0]` as execvp(3) would, but for shims of ours in PATH: what they start is
    /// meant.
    ///
    /// # Errors
    /// There is no such program.
    pub fn find(command: &[OsString]) -> Result<Program, LaunchError> {
        let name = command.first().map(OsString::as_os_str).unwrap_or_default();
        let not_found = || LaunchError::NotFound(PathBuf::from(name));
        let file = if name.as_bytes().contains(&b'/') {
            std::path::absolute(name).ok().filter(|path| is_program(path)).ok_or_else(not_found)?
        } else {
            let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
            let folders = std::env::split_paths(&path).map(|folder| folder.join(name));
            let found = folders
                .filter_map(|file| std::path::absolute(file).ok())
                .find(|file| is_program(file) && !crate::shim::is_shim(file));
            found.ok_or_else(not_found)?
        };
        let real = file.canonicalize().map_err(LaunchError::io("resolve", &file))?;
        let script = script(&real, command.get(1..).unwrap_or_default(), Path::new(""));
        Ok(Program { file, real, script })
    }

    /// A program that runs already: `real` with these arguments (without its own name), in the
    /// folder.
    pub(crate) fn running(real: PathBuf, arguments: &[OsString], folder: &Path) -> Program {
        Program { script: script(&real, arguments, folder), file: real.clone(), real }
    }

    /// Whether it is what its script makes of it.
    pub(crate) fn is_interpreter(real: &Path) -> bool {
        is_interpreter(real.file_name().unwrap_or_default())
    }

    /// Path and script, for people.
    pub fn title(&self) -> String {
        let words = std::iter::once(self.file.as_os_str()).chain(self.script.iter().map(OsString::as_os_str));
        let title: Vec<String> = words.map(|word| word.to_string_lossy().chars().take(60).collect()).collect();
        title.join(" ").replace(|letter: char| letter.is_control(), " ")
    }

    /// What names its plan.
    pub(crate) fn key(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.real.as_os_str().as_bytes());
        for word in &self.script {
            hasher.update(b"\0").update(word.as_bytes());
        }
        hasher.finalize()
    }
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn script(program: &Path, arguments: &[OsString], folder: &Path) -> Vec<OsString> {
    let name = program.file_name().unwrap_or_default();
    if !is_interpreter(name) {
        return Vec::new();
    }
    let mut taken = Vec::new();
    let mut value_of = None;
    for argument in arguments.iter().take(ARGUMENTS_MAX) {
        let is = |names: &[&str]| names.iter().any(|name| argument == name);
        // A script by a relative name is another one in another folder.
        let named = std::fs::canonicalize(folder.join(argument))
            .ok()
            .filter(|path| path.is_file())
            .map(PathBuf::into_os_string);
        match value_of.take() {
            Some(false) => taken.push(argument.clone()),
            Some(true) => {
                taken.push(named.unwrap_or_else(|| argument.clone()));
                return taken;
            }
            None if argument.as_bytes().starts_with(b"-") && argument != "-" => {
                value_of = if is(VALUED) { Some(false) } else { is(RUNS_NEXT).then_some(true) };
                taken.push(argument.clone());
            }
            None => {
                taken.push(named.unwrap_or_else(|| argument.clone()));
                return taken;
            }
        }
    }
    taken
}

fn is_interpreter(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.' || letter == '-');
    INTERPRETERS.contains(&stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn only_interpreters_have_a_script() {
        for (program, arguments, expected) in [
            ("/usr/bin/gimp-2.10", "photo.png", ""),
            ("/usr/bin/python3.11", "-m http.server 80", "-m http.server"),
            ("/usr/bin/python3", "-I -X dev /no/such.py --option x", "-I -X"),
            ("/usr/bin/python3", "-u /no/such.py --option x", "-u /no/such.py"),
            ("/usr/lib/jvm/bin/java", "-Xmx1g -cp a.jar:b.jar Main arg", "-Xmx1g -cp a.jar:b.jar Main"),
            ("/usr/bin/perl", "-e print", "-e print"),
            ("/usr/bin/bash", "", ""),
            ("/usr/bin/shellcheck", "a.sh", ""),
        ] {
            // -I takes a folder for perl and ruby and nothing for python: then one word more or
            // less names the plan.
            let found = script(Path::new(program), &words(arguments), Path::new(""));
            match expected.starts_with("-I") {
                true => assert!(found.starts_with(&words(expected)), "{found:?}"),
                false => assert_eq!(found, words(expected), "{program} {arguments}"),
            }
        }
    }

    #[test]
    fn a_program_is_found_like_the_shell_finds_it() {
        let sh = Program::find(&words("sh -c true")).unwrap();
        assert!(sh.file.ends_with("sh") && sh.real.is_absolute());
        assert_eq!(sh.script, words("-c true"));
        assert_ne!(sh.key(), Program::find(&words("sh -c false")).unwrap().key());
        assert_eq!(sh.key(), Program::find(&words("/bin/sh -c true more")).unwrap().key());
        for missing in ["no-such-program-here", "/etc/passwd", "/"] {
            assert!(matches!(Program::find(&words(missing)), Err(LaunchError::NotFound(_))), "{missing}");
        }
    }
}
