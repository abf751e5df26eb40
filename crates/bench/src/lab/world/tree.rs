//! The trees of the programs: folders that hold the files of some Debian packages, of all they
//! depend on, and of the lab.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::super::program::{NEXT_VERSIONS, TREES};
use super::debian::Root;
use super::stage::{Fingerprint, Stages, finish, unfinished};
use crate::workload::tree::{self, Source};
use crate::workload::{Database, HELLO_C, class, python};

/// Changes when trees are made in another way.
pub const VERSION: u32 = 1;

/// The file that is different in the next version of Python's tree: a large module, which gets a
/// line at its start, so that everything after it has moved.
const CHANGED_FILE: &str = "usr/lib/python3.11/typing.py";

/// That line.
const CHANGED_LINE: &[u8] = b"# the next version\n";

/// Folder of the lab's own files inside a tree.
const OWN: &str = "lab";

/// A tree that was made.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Name in the table of programs.
    pub name: &'static str,
    /// Its folder.
    pub folder: PathBuf,
    /// Tells its content from that of other trees.
    pub fingerprint: Fingerprint,
}

/// Makes the trees `names` in `folder` from the Debian system `base`, which lies on the same file
/// system.
pub fn prepare(
    names: &BTreeSet<&'static str>,
    base: &Root,
    folder: &Path,
    stages: &Stages,
) -> anyhow::Result<Vec<Tree>> {
    let database = Database::read_at(&base.folder)?;
    let mut trees = Vec::new();
    for (name, packages) in TREES.iter().filter(|(name, _)| names.contains(name)) {
        let packages: Vec<String> = packages.iter().map(|package| package.to_string()).collect();
        if let Some(missing) = packages.iter().find(|package| !database.has(package)) {
            anyhow::bail!(
                "the package {missing} is not in {}; remove that folder to set up again",
                base.folder.display()
            );
        }
        let closure = database.closure(&packages);
        let inputs = format!("version {VERSION}\n{}", database.versions(&closure)?);
        let root = folder.join(name);
        stages.run(&format!("tree-{name}"), &inputs, &root, || {
            let new = unfinished(&root)?;
            let source = Source { root: &base.folder, link: true };
            source.create(&new)?;
            source.copy(&database.files(&closure)?, &new)?;
            if *name == "java" {
                // Generated when the package is installed: the class archive, without which a start
                // takes twice as long.
                source.copy_folder(Path::new("/usr/lib/jvm/java-17-openjdk-amd64/lib/server"), &new)?;
                ensure!(
                    new.join("usr/lib/jvm/java-17-openjdk-amd64/lib/server/classes.jsa").exists(),
                    "the Java runtime has no class archive"
                );
            }
            own_files(name, &new)?;
            if NEXT_VERSIONS.iter().any(|(_, next)| next == name) {
                change_a_file(&new)?;
            }
            tree::finish(&new)?;
            finish(&root)
        })?;
        trees.push(Tree { name, folder: root, fingerprint: Fingerprint::EMPTY.and(inputs.as_bytes()) });
    }
    Ok(trees)
}

/// Makes of a tree its next version. The file is made anew: its old one is that of the Debian
/// system too.
fn change_a_file(root: &Path) -> anyhow::Result<()> {
    let path = root.join(CHANGED_FILE);
    let old = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::remove_file(&path)
        .and_then(|()| fs::write(&path, [CHANGED_LINE, &old].concat()))
        .with_context(|| format!("cannot change {}", path.display()))
}

/// Files of the lab in every tree: the same place everywhere, the program's own where it is used.
fn own_files(name: &str, root: &Path) -> anyhow::Result<()> {
    let folder = root.join(OWN);
    fs::create_dir_all(&folder)?;
    let (file, content) = match name {
        "python" | "python-next" => ("python_200.py", python::program_of_imports(root)?.into_bytes()),
        "gcc" => ("hello.c", HELLO_C.into()),
        "java" => ("Hello.class", class::hello("Hello", "hello")),
        _ => return Ok(()),
    };
    let path = folder.join(file);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}
