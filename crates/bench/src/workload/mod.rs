//! The programs that are started, and the root trees they live in.
//!
//! A workload is a command of a Debian program. Its tree holds the files of the program's packages
//! and of everything they depend on, as installed on this machine, so it needs no download and is
//! the same on machines with the same packages. Trees are made once per work folder and shared by
//! the workloads that need the same packages.

pub mod class;
mod debian;
pub mod python;
pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

pub use debian::Database;
pub use tree::Size;

/// What stands for a scratch folder of the caller in a workload's arguments.
const SCRATCH: &str = "{scratch}";

/// The C program that is compiled.
pub const HELLO_C: &str = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";

/// Which tree a workload needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tree {
    /// python3 with its standard library.
    Python,
    /// perl with its modules.
    Perl,
    /// The openssl command.
    Openssl,
    /// The C compiler with the headers of the C library.
    Gcc,
    /// A Java runtime without a display.
    Java,
}

impl Tree {
    /// Name of the folder and of the image.
    pub fn name(self) -> &'static str {
        match self {
            Tree::Python => "python",
            Tree::Perl => "perl",
            Tree::Openssl => "openssl",
            Tree::Gcc => "gcc",
            Tree::Java => "java",
        }
    }

    /// The packages it is made of, besides their dependencies.
    fn packages(self) -> Vec<String> {
        let fixed: &[&str] = match self {
            // /usr/bin/python3 is a link to the version that is the default: the name of its
            // package.
            Tree::Python => return vec![python::version(), "python3-minimal".to_string()],
            Tree::Perl => &["perl"],
            Tree::Openssl => &["openssl"],
            Tree::Gcc => &["gcc", "libc6-dev"],
            Tree::Java => &["openjdk-17-jre-headless"],
        };
        fixed.iter().map(|name| name.to_string()).collect()
    }

    /// The first package that this machine lacks.
    pub fn missing(self, database: &Database) -> Option<String> {
        self.packages().into_iter().find(|package| !database.has(package))
    }

    /// Builds the tree under `folder` unless an earlier call did; returns its root and size.
    pub fn build(self, database: &Database, folder: &Path) -> anyhow::Result<(PathBuf, Size)> {
        let root = folder.join(format!("{}.tree", self.name()));
        if root.exists() {
            let size = tree::finish(&root)?;
            return Ok((root, size));
        }
        // Under another name first: a tree that was interrupted is not taken for a whole one.
        let unfinished = folder.join(format!("{}.tree.new", self.name()));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).context("cannot remove an unfinished tree")?;
        }
        let machine = tree::Source::machine();
        machine.create(&unfinished)?;
        let files = database.files(&database.closure(&self.packages()))?;
        machine.copy(&files, &unfinished)?;
        self.add_own_files(&unfinished)?;
        let size = tree::finish(&unfinished)?;
        fs::rename(&unfinished, &root).context("cannot rename a finished tree")?;
        Ok((root, size))
    }

    fn add_own_files(self, root: &Path) -> anyhow::Result<()> {
        let machine = tree::Source::machine();
        let (name, content) = match self {
            Tree::Python => ("python_200.py", python::program_of_imports(Path::new("/"))?.into_bytes()),
            Tree::Gcc => ("hello.c", HELLO_C.into()),
            Tree::Java => {
                // Made when the package is installed, so not in its list: the class archive,
                // without which a start takes twice as long, and the trust store.
                machine.copy_folder(&java_home().join("lib/server"), root)?;
                machine.copy_folder(Path::new("/etc/java-17-openjdk"), root)?;
                ("Hello.class", class::hello("Hello", "hello"))
            }
            Tree::Perl | Tree::Openssl => return Ok(()),
        };
        let path = root.join("bench").join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn java_home() -> PathBuf {
    // The folder carries Debian's name of the architecture.
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    PathBuf::from(format!("/usr/lib/jvm/java-17-openjdk-{architecture}"))
}

/// A program whose start is measured.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name of the case.
    pub name: &'static str,
    /// The tree it lives in.
    pub tree: Tree,
    program: Vec<String>,
    /// What its output must contain; else it did not do its work and the time means nothing.
    pub expected: &'static str,
}

impl Workload {
    /// Every workload, in the order of the tables.
    pub fn all() -> Vec<Workload> {
        let java = java_home().join("bin/java").display().to_string();
        let modules =
            ["POSIX", "Data::Dumper", "File::Find", "Encode", "Storable", "IO::Socket", "Time::HiRes", "Text::Wrap"];
        let perl_modules: Vec<String> = modules.iter().map(|name| format!("-M{name}")).collect();
        let perl: Vec<&str> = ["/usr/bin/perl"].into_iter().chain(perl_modules.iter().map(String::as_str)).collect();
        let workload = |name, tree, program: &[&str], expected| {
            let program = program.iter().map(|word| word.to_string()).collect();
            Workload { name, tree, program, expected }
        };
        let python = ["/usr/bin/python3", "-I", "-S", "-W", "ignore"];
        vec![
            workload("python-200", Tree::Python, &[&python[..], &["/bench/python_200.py"]].concat(), "imports"),
            workload("python-pass", Tree::Python, &[&python[..], &["-c", "print('hello')"]].concat(), "hello"),
            workload("perl", Tree::Perl, &[&perl[..], &["-e", "print qq(hello\\n)"]].concat(), "hello"),
            workload("openssl", Tree::Openssl, &["/usr/bin/openssl", "version", "-a"], "OpenSSL"),
            workload("gcc", Tree::Gcc, &["/usr/bin/gcc", "-O1", "/bench/hello.c", "-o", "{scratch}/hello"], ""),
            workload("jvm", Tree::Java, &[&java, "-cp", "/bench", "Hello"], "hello"),
        ]
    }

    /// The workload called `name`.
    pub fn named(name: &str) -> Option<Workload> {
        Workload::all().into_iter().find(|workload| workload.name == name)
    }

    /// Program and arguments; output files go below `scratch`, which the entry into a tree keeps
    /// visible.
    pub fn command(&self, scratch: &Path) -> Vec<String> {
        let scratch = scratch.display().to_string();
        self.program.iter().map(|word| word.replace(SCRATCH, &scratch)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_have_distinct_names_and_absolute_programs() {
        let all = Workload::all();
        for (index, workload) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.name != workload.name));
            let command = workload.command(Path::new("/tmp/here"));
            assert!(command[0].starts_with('/') && !command.concat().contains(SCRATCH), "{command:?}");
        }
        assert!(
            Workload::named("gcc")
                .is_some_and(|gcc| gcc.command(Path::new("/tmp/here")).contains(&"/tmp/here/hello".into()))
        );
        assert!(Workload::named("cobol").is_none());
    }

    #[test]
    fn the_class_file_is_well_formed() {
        let class = class::hello("Hello", "hello");
        assert_eq!(class[..10], [0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 49, 0, 22]);
        // Walk the constant pool to its end and check that the class ends where its parts say.
        let mut at = 10;
        for _ in 1..22 {
            at += match class[at] {
                1 => 3 + usize::from(class[at + 2]),
                7 | 8 => 3,
                _ => 5,
            };
        }
        assert_eq!(class[at..at + 2], [0x00, 0x21], "the access flags follow the pool");
        let attribute = at + 12 + 8;
        assert_eq!(class[attribute..attribute + 6], [0, 21, 0, 0, 0, 21], "the code attribute and its length");
        assert_eq!(class.len(), attribute + 6 + 21 + 2);
    }
}
