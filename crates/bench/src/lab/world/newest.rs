//! Tools of other systems in their newest version: packages of Debian's unstable, unpacked into the
//! cache and run with the libraries that they bring along.
//!
//! The machine's own release is years behind what its rivals' authors would want to be measured by.
//! Where the mirror has no unstable, the machine's own tools are used, and the report says which.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::debian;
use super::stage::{Stages, finish, unfinished};
use crate::process::tool;

/// The suite that has the newest versions.
const SUITE: &str = "sid";

/// The packages: they make the images of squashfs and EROFS.
const PACKAGES: [&str; 2] = ["squashfs-tools", "erofs-utils"];

/// Libraries and the loader of the unpacked packages.
const LIBRARIES: &str = "root/usr/lib/x86_64-linux-gnu";

/// The loader, there.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The versions of the packages, a line each.
const VERSIONS: &str = "versions";

/// Packages that were unpacked.
#[derive(Clone, Debug)]
pub struct Newest {
    folder: PathBuf,
}

impl Newest {
    /// Downloads and unpacks the packages into `CACHE/newest`, unless they are there.
    pub fn prepare(cache: &Path, stages: &Stages) -> anyhow::Result<Newest> {
        let folder = cache.join("newest");
        // What was fetched first stays until the cache is removed: a newer one would change
        // results.
        stages.run("newest", &format!("{SUITE} {}\n", PACKAGES.join(" ")), &folder, || {
            let new = unfinished(&folder)?;
            fetch(&new)?;
            finish(&folder)
        })?;
        Ok(Newest { folder })
    }

    /// A command that runs `program`; none if the packages have no such program.
    pub fn command(&self, program: &str) -> Option<Command> {
        let path = self.folder.join("root/usr/bin").join(program);
        let libraries = self.folder.join(LIBRARIES);
        let mut command = Command::new(libraries.join(LOADER));
        command.arg("--library-path").arg(&libraries).arg(&path);
        path.is_file().then_some(command)
    }

    /// Names and versions of the packages.
    pub fn versions(&self) -> anyhow::Result<Vec<String>> {
        let text = fs::read_to_string(self.folder.join(VERSIONS)).context("the newest packages have no versions")?;
        Ok(text.lines().map(str::to_string).collect())
    }
}

/// Fetches the packages with all they depend on, by a state of apt of its own in `folder`.
fn fetch(folder: &Path) -> anyhow::Result<()> {
    let state = folder.join("apt");
    for name in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(name)).with_context(|| format!("cannot make {name}"))?;
    }
    // Nothing is installed: everything that is needed is fetched.
    fs::write(state.join("status"), "")?;
    fs::write(state.join("sources.list"), format!("deb {} {SUITE} main\n", debian::mirror()?))?;
    let state_path = state.display();
    let settings = [
        format!("Dir::Etc::sourcelist={state_path}/sources.list"),
        "Dir::Etc::sourceparts=/dev/null".to_string(),
        format!("Dir::State={state_path}"),
        format!("Dir::State::lists={state_path}/lists"),
        format!("Dir::State::status={state_path}/status"),
        format!("Dir::Cache={state_path}/cache"),
        // As root: apt's own user may not be allowed to write here.
        "APT::Sandbox::User=root".to_string(),
    ];
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.arg("-qq");
        command.args(settings.iter().flat_map(|setting| ["-o", setting]));
        tool(command.args(arguments))
    };
    apt(&["update"])?;
    let install = ["--download-only", "--no-install-recommends", "-y", "install"];
    apt(&[&install[..], &PACKAGES].concat())?;
    let mut versions = Vec::new();
    for entry in fs::read_dir(state.join("cache/archives")).context("apt-get kept no packages")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        tool(Command::new("dpkg-deb").arg("-x").arg(&path).arg(folder.join("root")))?;
        let field = |name: &str| -> anyhow::Result<String> {
            let output = tool(Command::new("dpkg-deb").arg("-f").arg(&path).arg(name))?;
            Ok(String::from_utf8_lossy(&output).trim().to_string())
        };
        let name = field("Package")?;
        if PACKAGES.contains(&name.as_str()) {
            versions.push(format!("{name} {}", field("Version")?));
        }
    }
    ensure!(versions.len() == PACKAGES.len(), "apt-get downloaded {versions:?} only");
    versions.sort();
    fs::write(folder.join(VERSIONS), versions.join("\n") + "\n")?;
    super::stage::remove(&state)
}
