//! The python workload: a program that loads two hundred modules of the standard library.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::process::{find_program, tool};

/// Debian's own interpreter, never another one that comes first in PATH.
const INTERPRETER: &str = "/usr/bin/python3";

/// Prints the names of modules to import, in a fixed order: public top-level modules of the
/// standard library by name, as far as they import cleanly, until two hundred modules that are
/// files have been loaded (modules import others). Left out is what has effects when it is imported
/// (opens a browser, prints, needs a display) or is not in every installation of the standard
/// library.
const FIND_MODULES: &str = r#"
import importlib.util, sys, warnings
warnings.simplefilter("ignore")
WANTED = 200
SKIP = {"antigravity", "this", "idlelib", "tkinter", "turtle", "turtledemo", "test", "lib2to3", "ensurepip", "venv", "pydoc_data"}
found = []
for name in sorted(sys.stdlib_module_names - SKIP):
    if name.startswith("_") or sum(1 for m in list(sys.modules.values()) if getattr(m, "__file__", None)) >= WANTED:
        continue
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin in (None, "built-in", "frozen"):
            continue
        __import__(name)
    except BaseException:
        continue
    found.append(name)
print(" ".join(found))
"#;

/// Name of the default python version, for example `python3.11`: also the name of its package.
pub fn version() -> String {
    let target = std::fs::read_link(INTERPRETER).unwrap_or_default();
    target.file_name().map_or("python3".into(), |name| name.to_string_lossy().into_owned())
}

/// Text of the program, for the interpreter of the Debian system in the folder `root`.
pub fn program_of_imports(root: &Path) -> anyhow::Result<String> {
    Ok(program(&modules(root)?))
}

/// A program that imports these modules.
pub fn program(modules: &[String]) -> String {
    let names = wrapped(&modules.join(" "));
    format!("for name in \"\"\"{names}\"\"\".split():\n    __import__(name)\nprint(\"imports done\")\n")
}

/// Modules that load about two hundred files, for the interpreter of the Debian system in the
/// folder `root`.
pub fn modules(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(INTERPRETER);
    if root != Path::new("/") {
        command = Command::new(find_program("chroot").context("chroot is missing; apt-get install coreutils")?);
        command.arg(root).arg(INTERPRETER);
    } else {
        ensure!(Path::new(INTERPRETER).exists(), "{INTERPRETER} is missing: install the Debian package python3");
    }
    // It must not leave byte code in the tree.
    command.args(["-I", "-S", "-B", "-c", FIND_MODULES]);
    let output = tool(command.env_clear().current_dir("/"))?;
    let names = String::from_utf8(output).context("module names are ASCII")?;
    ensure!(
        names.split_whitespace().count() > 30,
        "python3 has only these modules: {names}; install libpython3-stdlib"
    );
    Ok(names.split_whitespace().map(str::to_string).collect())
}

/// Names on lines of at most 100 characters.
fn wrapped(names: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for name in names.split_whitespace() {
        if width + name.len() > 100 {
            text.push('\n');
            width = 0;
        }
        text.push_str(name);
        text.push(' ');
        width += name.len() + 1;
    }
    text
}
