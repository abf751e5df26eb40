//! Which files belong to a set of Debian packages and to all they depend on, from the dpkg database
//! of the machine or of another Debian system in a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::process::tool;

/// Packages that only tie dpkg's own machinery to a package; no program reads their files.
const NOT_FOLLOWED: [&str; 4] = ["dpkg", "debconf", "tar", "install-info"];

/// Folders that no program of the workloads reads.
const NOT_COPIED: [&str; 6] = ["doc", "man", "locale", "info", "lintian", "bug"];

/// For every installed package, its dependencies: each a list of alternatives.
type Dependencies = BTreeMap<String, Vec<Vec<String>>>;

/// What dpkg knows about the installed packages.
#[derive(Debug)]
pub struct Database {
    installed: Dependencies,
    /// Virtual package to one that provides it.
    providers: BTreeMap<String, String>,
    /// Folder of the Debian system.
    root: PathBuf,
}

impl Database {
    /// Asks dpkg once.
    pub fn read() -> anyhow::Result<Database> {
        Database::read_at(Path::new("/"))
    }

    /// The same for the Debian system in the folder `root`.
    pub fn read_at(root: &Path) -> anyhow::Result<Database> {
        let format = "${Package}\t${db:Status-Abbrev}\t${Pre-Depends}, ${Depends}\t${Provides}\n";
        let output = tool(query(root).args(["-W", "-f", format]));
        let output = output.context("the workloads are made of Debian packages")?;
        let database = Database::parse(&String::from_utf8_lossy(&output));
        Ok(Database { root: root.to_path_buf(), ..database })
    }

    fn parse(text: &str) -> Database {
        let mut database = Database { installed: BTreeMap::new(), providers: BTreeMap::new(), root: "/".into() };
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, status, depends, provides] = fields[..] else { continue };
            if !status.starts_with("ii") {
                continue;
            }
            let alternatives = |group: &str| group.split('|').filter_map(package_name).collect::<Vec<_>>();
            let groups = depends.split(',').map(alternatives).filter(|group| !group.is_empty());
            database.installed.insert(name.to_string(), groups.collect());
            for virtual_name in provides.split(',').filter_map(package_name) {
                database.providers.entry(virtual_name).or_insert_with(|| name.to_string());
            }
        }
        database
    }

    /// True if the package is installed.
    pub fn has(&self, package: &str) -> bool {
        self.installed.contains_key(package)
    }

    /// `packages` and everything they depend on, sorted.
    pub fn closure(&self, packages: &[String]) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut pending: Vec<String> = packages.to_vec();
        while let Some(package) = pending.pop() {
            let Some(groups) = self.installed.get(&package) else { continue };
            if NOT_FOLLOWED.contains(&package.as_str()) || !seen.insert(package) {
                continue;
            }
            for group in groups {
                let real = group
                    .iter()
                    .find(|name| self.has(name))
                    .or_else(|| group.iter().find_map(|name| self.providers.get(name)));
                pending.extend(real.cloned());
            }
        }
        seen
    }

    /// Names and versions of `packages`, one a line: what a tree made of them depends on.
    pub fn versions(&self, packages: &BTreeSet<String>) -> anyhow::Result<String> {
        let output = tool(query(&self.root).args(["-W", "-f", "${Package} ${Version}\n"]).args(packages))?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Every path of `packages`, sorted, without documentation. Folders are among them. They begin
    /// with a slash wherever the system lies.
    pub fn files(&self, packages: &BTreeSet<String>) -> anyhow::Result<BTreeSet<PathBuf>> {
        let output = tool(query(&self.root).arg("-L").args(packages))?;
        let text = String::from_utf8_lossy(&output);
        // Lines that do not begin with a slash speak of diversions.
        let paths = text.lines().filter(|line| line.starts_with('/') && !is_documentation(line));
        Ok(paths.map(PathBuf::from).collect())
    }
}

fn query(root: &Path) -> Command {
    let mut command = Command::new("dpkg-query");
    if root != Path::new("/") {
        command.arg("--admindir").arg(root.join("var/lib/dpkg"));
    }
    command
}

/// `libc6 (>= 2.3)` or `python3:any` without what follows the name.
fn package_name(text: &str) -> Option<String> {
    let name = text.trim().split([' ', '(', ':']).next()?;
    (!name.is_empty()).then(|| name.to_string())
}

fn is_documentation(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/usr/share/") else { return false };
    NOT_COPIED.contains(&rest.split('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_followed_through_alternatives_and_virtual_packages() {
        let text = "a\tii \tlibc6 (>= 2.3), b | c\t\n\
                    c\tii \t, virtual-d (= 1)\t\n\
                    d\tii \t, a:any\tvirtual-d (= 1), other\n\
                    libc6\tii \t, dpkg\t\n\
                    dpkg\tii \t, x\t\n\
                    x\tii \t, \t\n\
                    b\trc \t, x\t\n";
        let database = Database::parse(text);
        assert!(database.has("a") && !database.has("b") && !database.has("virtual-d"));
        let closure: Vec<String> = database.closure(&["a".to_string(), "gone".to_string()]).into_iter().collect();
        assert_eq!(closure, ["a", "c", "d", "libc6"]);
    }

    #[test]
    fn documentation_is_left_out() {
        assert!(is_documentation("/usr/share/doc/perl/README") && is_documentation("/usr/share/man"));
        assert!(!is_documentation("/usr/share/perl/5.36.0/POSIX.pod") && !is_documentation("/usr/share/docs"));
    }
}
