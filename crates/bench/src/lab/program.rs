//! The programs of the lab and the trees they live in. Host and guest both read this table.

/// A program whose start is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name in plans.
    pub name: &'static str,
    /// Name of the tree, of the image and of the exported folder.
    pub tree: &'static str,
    /// Command inside the tree. `/tmp` is a fresh writable folder.
    pub command: &'static [&'static str],
    /// What its output must contain, else it did not do its work.
    pub expected: &'static str,
}

/// Every program, in the order of the tables; the first five kinds are those of the SYSFLOW paper.
pub const PROGRAMS: [Program; 15] = [
    Program {
        name: "jvm",
        tree: "java",
        command: &["/usr/lib/jvm/java-17-openjdk-amd64/bin/java", "-cp", "/lab", "Hello"],
        expected: "hello",
    },
    Program { name: "python", tree: "python", command: &["/usr/bin/python3", "-c", "pass"], expected: "" },
    Program {
        name: "python-imports",
        tree: "python",
        command: &["/usr/bin/python3", "-c", "import json,ssl,asyncio,sqlite3"],
        expected: "",
    },
    Program {
        name: "python-200",
        tree: "python",
        command: &["/usr/bin/python3", "-I", "-S", "-W", "ignore", "/lab/python_200.py"],
        expected: "imports",
    },
    Program { name: "perl", tree: "perl", command: &["/usr/bin/perl", "-e", "1"], expected: "" },
    Program {
        name: "perl-modules",
        tree: "perl",
        command: &["/usr/bin/perl", "-MPOSIX", "-MEncode", "-MStorable", "-MData::Dumper", "-e", "1"],
        expected: "",
    },
    Program { name: "openssl", tree: "openssl", command: &["/usr/bin/openssl", "rand", "1024"], expected: "" },
    Program { name: "gcc", tree: "gcc", command: &["/usr/bin/gcc", "-o", "/tmp/hello", "/lab/hello.c"], expected: "" },
    Program {
        name: "node",
        tree: "node",
        command: &["/usr/bin/node", "-e", "console.log('hello')"],
        expected: "hello",
    },
    Program { name: "busybox", tree: "busybox", command: &["/bin/busybox", "echo", "hello"], expected: "hello" },
    Program {
        name: "sqlite",
        tree: "sqlite",
        command: &["/usr/bin/sqlite3", "/tmp/db", "create table t(a); insert into t values('hello'); select a from t"],
        expected: "hello",
    },
    Program { name: "git", tree: "git", command: &["/usr/bin/git", "init", "-q", "/tmp/repository"], expected: "" },
    // Siblings: what one of them needs begins like what another one needs.
    Program {
        name: "python-nine",
        tree: "python",
        command: &[
            "/usr/bin/python3",
            "-c",
            "import json,ssl,asyncio,sqlite3,decimal,email.message,http.client,xml.dom.minidom,unittest",
        ],
        expected: "",
    },
    Program {
        name: "python-decimal",
        tree: "python",
        command: &["/usr/bin/python3", "-c", "import decimal"],
        expected: "",
    },
    Program {
        name: "python-phases",
        tree: "python",
        command: &["/usr/bin/python3", "-c", "import json,time; time.sleep(2); import ssl,asyncio,sqlite3"],
        expected: "",
    },
];

/// A tree, and the one that holds its next version, in which one file was changed.
pub const NEXT_VERSIONS: [(&str, &str); 1] = [("python", "python-next")];

/// Trees and the Debian packages each is made of, besides their dependencies.
pub const TREES: [(&str, &[&str]); 10] = [
    ("java", &["openjdk-17-jre-headless"]),
    ("python", &["python3"]),
    ("perl", &["perl"]),
    ("openssl", &["openssl"]),
    ("gcc", &["gcc", "libc6-dev"]),
    ("node", &["nodejs"]),
    ("busybox", &["busybox-static"]),
    ("sqlite", &["sqlite3"]),
    ("git", &["git"]),
    ("python-next", &["python3"]),
];

/// With the name of a program, the mode of a server that has learned only from starts of that
/// program.
pub const LEARNED_FROM: &str = "of-";

/// What every program finds in its environment, on every system. Python would try to write its
/// cache into the tree.
pub const ENVIRONMENT: [(&str, &str); 5] =
    [("PATH", "/usr/bin:/bin"), ("HOME", "/root"), ("LANG", "C"), ("TMPDIR", "/tmp"), ("PYTHONDONTWRITEBYTECODE", "1")];

impl Program {
    /// The tree with the next version of the program's files, if the lab has one.
    pub fn next_tree(&self) -> Option<&'static str> {
        NEXT_VERSIONS.iter().find(|(tree, _)| *tree == self.tree).map(|(_, next)| *next)
    }

    /// The program called `name`.
    pub fn named(name: &str) -> anyhow::Result<&'static Program> {
        PROGRAMS.iter().find(|program| program.name == name).ok_or_else(|| {
            let known: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            anyhow::anyhow!("no program '{name}' in the lab; there are {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_tree_and_a_name_of_its_own() {
        for (index, program) in PROGRAMS.iter().enumerate() {
            assert!(TREES.iter().any(|tree| tree.0 == program.tree), "{}", program.name);
            assert!(PROGRAMS[..index].iter().all(|other| other.name != program.name));
            assert!(program.command[0].starts_with('/'));
            assert!(program.next_tree().is_none_or(|next| TREES.iter().any(|tree| tree.0 == next)));
        }
    }
}
