//! What a fresh machine has: a folder of links to the programs of Debian's essential packages, of
//! apt, of the packages that `./x` installs, and of what these depend on. `ci` runs with this
//! folder as its PATH, so that a test that uses another program fails here and not on the first
//! machine that lacks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

/// Cargo and what it starts, and Go; Debian's packages or others have put them somewhere on PATH.
const TOOLCHAIN: [&str; 9] =
    ["cargo", "rustc", "rustdoc", "rustfmt", "cargo-fmt", "cargo-clippy", "clippy-driver", "rustup", "go"];

/// Folders of programs, in the order in which they are searched.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// An installed package.
#[derive(Default)]
struct Package {
    essential: bool,
    /// One of each group has to be there.
    depends: Vec<Vec<String>>,
}

/// Makes the folder anew and returns it; `None`, and a line that says so, on a machine without
/// dpkg.
pub fn path(root: &Path) -> anyhow::Result<Option<PathBuf>> {
    let format = "-f=${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\t${db:Status-Status}\n";
    let Ok(listed) = Command::new("dpkg-query").args(["-W", format]).output() else {
        eprintln!("== surroundings: skipped: no dpkg here, so the tests may use every program of this machine");
        return Ok(None);
    };
    let (packages, provided) = parse(&String::from_utf8_lossy(&listed.stdout));
    let named = text(Command::new(root.join("x")).arg("packages"))?;
    // Not essential by Debian's word, but no machine that installs anything is without it; the
    // static build does.
    let wanted = closure(&packages, &provided, named.lines().chain(["apt"]));
    let files = text(Command::new("dpkg-query").arg("-L").args(&wanted))?;
    let is_program =
        |path: &&Path| path.parent().is_some_and(|parent| FOLDERS.iter().any(|folder| parent == Path::new(folder)));
    let mut programs: BTreeSet<PathBuf> = files.lines().map(Path::new).filter(is_program).map(PathBuf::from).collect();
    programs.insert("/bin/sh".into());
    programs.extend(alternatives(&programs));

    let folder = root.join("target/surroundings");
    // Left by an earlier run.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for program in programs.iter().filter(|program| program.is_file()) {
        let link = program.file_name().map(|name| folder.join(name)).filter(|link| link.symlink_metadata().is_err());
        link.map_or(Ok(()), |link| symlink(program, &link)).with_context(|| program.display().to_string())?;
    }
    for program in TOOLCHAIN {
        let link = folder.join(program);
        if link.symlink_metadata().is_err()
            && let Some(found) = on_path(program)
        {
            symlink(&found, &link).with_context(|| found.display().to_string())?;
        }
    }
    Ok(Some(folder))
}

/// What dpkg says of the installed packages, and which of them provide a name.
fn parse(listed: &str) -> (BTreeMap<String, Package>, BTreeMap<String, Vec<String>>) {
    let (mut packages, mut provided) = (BTreeMap::new(), BTreeMap::<String, Vec<String>>::new());
    for line in listed.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, essential, depends, provides, "installed"] = fields[..] else { continue };
        // `a (>= 1) | b:any`: versions and architectures were settled when the package was
        // installed.
        let bare = |text: &str| text.split([' ', ':', '(']).find(|word| !word.is_empty()).map(str::to_owned);
        let group = |text: &str| text.split('|').filter_map(bare).collect::<Vec<_>>();
        let depends = depends.split(',').map(group).filter(|group| !group.is_empty()).collect();
        for other in provides.split(',').filter_map(bare) {
            provided.entry(other).or_default().push(name.to_owned());
        }
        packages.insert(name.to_owned(), Package { essential: essential == "yes", depends });
    }
    (packages, provided)
}

/// The essential packages, the named ones, and all that they depend on, as far as they are
/// installed.
fn closure<'a>(
    packages: &BTreeMap<String, Package>,
    provided: &BTreeMap<String, Vec<String>>,
    named: impl Iterator<Item = &'a str>,
) -> BTreeSet<String> {
    let essential = packages.iter().filter(|(_, package)| package.essential).map(|(name, _)| name.clone());
    let mut open: Vec<String> = essential.chain(named.map(str::to_owned)).collect();
    let mut wanted = BTreeSet::new();
    while let Some(name) = open.pop() {
        match packages.get(&name) {
            Some(package) if wanted.insert(name.clone()) => open.extend(package.depends.iter().flatten().cloned()),
            Some(_) => {}
            None => {
                open.extend(provided.get(&name).into_iter().flatten().filter(|name| !wanted.contains(*name)).cloned())
            }
        }
    }
    wanted
}

/// Names such as /usr/bin/awk that lead over /etc/alternatives to one of `programs`.
fn alternatives(programs: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let real: BTreeSet<PathBuf> = programs.iter().filter_map(|program| fs::canonicalize(program).ok()).collect();
    let entries = FOLDERS.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let chosen = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.starts_with("/etc/alternatives"))
            && fs::canonicalize(path).is_ok_and(|target| real.contains(&target))
    };
    entries.map(|entry| entry.path()).filter(chosen).collect()
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn text(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    // dpkg-query fails for one package that it does not know, and tells of the others.
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_essential_or_named_and_its_dependencies_count() {
        let listed = "base\tyes\tawk, libc (>= 2.3)\t\tinstalled\nmawk\tno\t, \tawk\tinstalled\nlibc\tno\t\t\tinstalled\n\
                      gcc\tno\tcpp (= 12) | tcc, ld:any\t\tinstalled\ncpp\tno\t\t\tinstalled\nld\tno\tgcc\t\tinstalled\n\
                      procps\tno\tlibc\t\tinstalled\nold\tyes\t\t\tconfig-files\n";
        let (packages, provided) = parse(listed);
        let wanted = closure(&packages, &provided, ["gcc", "absent"].into_iter());
        assert_eq!(wanted.into_iter().collect::<Vec<_>>(), ["base", "cpp", "gcc", "ld", "libc", "mawk"]);
    }
}
