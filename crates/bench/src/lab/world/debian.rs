//! Debian roots of the lab: a minimal system made once by debootstrap, and copies of it with
//! packages installed.
//!
//! Everything comes from the mirror that apt on this machine is set up for. [`super::guest`] makes
//! the root of the guest this way, [`super::tree`] the root from which the programs' trees are
//! taken.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::stage::{Stages, finish, unfinished};
use crate::process::{find_program, tool, with_own_mounts};
use crate::stream::say;

/// The release whose packages the lab uses: results are compared across machines, so it does not
/// follow the host's.
pub const RELEASE: &str = "bookworm";

/// Where the release comes from if apt names no mirror of it.
const MIRROR: &str = "http://deb.debian.org/debian/";

/// What runs inside a root to install the packages given as arguments: quietly, without recommended
/// packages, and without starting what they contain. It reports the packages that the release does
/// not have on lines with `missing`.
const INSTALL: &str = r#"export DEBIAN_FRONTEND=noninteractive LC_ALL=C
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d
mkdir -p /usr/share/man/man1
apt-get -qq update >&2
known=
for name in "$@"; do
  if apt-cache show "$name" >/dev/null 2>&1; then known="$known $name"; else echo "missing $name"; fi
done
apt-get -qq install -y --no-install-recommends -o Dpkg::Use-Pty=0 $known >&2
apt-get clean
rm -rf /var/lib/apt/lists/* /usr/sbin/policy-rc.d
"#;

/// A folder with a Debian system.
#[derive(Clone, Debug)]
pub struct Root {
    /// The folder.
    pub folder: PathBuf,
    /// The packages that were asked for, besides their dependencies and the minimal system.
    pub packages: BTreeSet<String>,
}

/// Makes the minimal system in `CACHE/minbase`.
pub fn minimal(cache: &Path, stages: &Stages) -> anyhow::Result<PathBuf> {
    let folder = cache.join("minbase");
    stages.run("minbase", &format!("{RELEASE} 1\n"), &folder, || {
        let debootstrap = find_program("debootstrap").context("debootstrap is missing; apt-get install debootstrap")?;
        let mirror = mirror()?;
        let new = unfinished(&folder)?;
        let mut command = Command::new(debootstrap);
        command.arg("--variant=minbase");
        if mirror.starts_with("https") {
            command.arg("--include=ca-certificates");
        }
        command.arg(RELEASE).arg(&new).arg(&mirror);
        tool(&mut command).with_context(|| format!("debootstrap says more in {}/debootstrap", new.display()))?;
        finish(&folder)
    })?;
    Ok(folder)
}

/// Makes `folder` a copy of the minimal system with `packages`. A root that has more of them than
/// needed is kept; one that lacks some is made again with what it had and what is needed, so that
/// plans do not undo each other's set-up.
pub fn root(
    name: &str,
    folder: &Path,
    packages: &BTreeSet<String>,
    minimal: &Path,
    stages: &Stages,
) -> anyhow::Result<Root> {
    let had: BTreeSet<String> = stages.inputs(name).unwrap_or_default().lines().map(str::to_string).collect();
    let all: BTreeSet<String> = had.union(packages).cloned().collect();
    let inputs: String = all.iter().map(|name| format!("{name}\n")).collect();
    stages.run(name, &inputs, folder, || {
        let new = unfinished(folder)?;
        tool(Command::new("cp").args(["-a", "--reflink=auto"]).arg(minimal).arg(&new))?;
        fs::write(new.join("etc/apt/apt.conf.d/90lab"), apt_settings()?).context("cannot write apt's settings")?;
        let output = run_inside(&new, INSTALL, &all)?;
        for missing in String::from_utf8_lossy(&output).lines().filter_map(|line| line.strip_prefix("missing ")) {
            say(&format!("lab: {RELEASE} has no package {missing}; rows that need it will fail"));
        }
        finish(folder)
    })?;
    Ok(Root { folder: folder.to_path_buf(), packages: all })
}

/// Runs a shell script in `root`, with /proc, and returns what it prints. Its PATH is Debian's own:
/// that of the caller may name folders which the root does not have.
pub fn run_inside<'a>(
    root: &Path,
    script: &str,
    arguments: impl IntoIterator<Item = &'a String>,
) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(find_program("chroot").context("chroot is missing; apt-get install coreutils")?);
    command
        .arg(root)
        .args(["/bin/sh", "-c", &format!("set -e\nmount -t proc proc /proc\n{script}"), "sh"])
        .args(arguments);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    with_own_mounts(|| tool(&mut command))
}

/// Settings of this machine's apt for fetching: proxies and certificates.
fn apt_settings() -> anyhow::Result<String> {
    let output = tool(Command::new("apt-config").arg("dump"))?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let lines = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("acquire::http"));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// The mirror of the release that apt on this machine uses.
pub fn mirror() -> anyhow::Result<String> {
    let output = tool(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI) $(CODENAME)"]))?;
    Ok(choose_mirror(&String::from_utf8_lossy(&output)))
}

fn choose_mirror(targets: &str) -> String {
    let mut pairs = targets.lines().filter_map(|line| line.split_once(' '));
    let found = pairs.find(|(_, codename)| *codename == RELEASE);
    // On a machine of another release: its mirror has the other releases too, unless it is a
    // special archive.
    let other = || targets.lines().filter_map(|line| line.split_once(' ')).find(|(uri, _)| uri.ends_with("/debian/"));
    found.or_else(other).map_or_else(|| MIRROR.to_string(), |(uri, _)| uri.to_string())
}

/// The package of Debian's 6.12 kernel: the one that a metapackage names.
pub fn kernel_package() -> anyhow::Result<String> {
    for metapackage in ["linux-image-6.12-amd64", "linux-image-amd64"] {
        let output = tool(Command::new("apt-cache").args(["depends", metapackage])).unwrap_or_default();
        if let Some(package) = kernel_in(&String::from_utf8_lossy(&output)) {
            return Ok(package);
        }
    }
    anyhow::bail!(
        "apt knows no package linux-image-6.12-amd64: the lab needs Debian 12 with bookworm-security or \
         bookworm-backports in apt's sources (or a release with Linux 6.12), and apt-get update"
    )
}

fn kernel_in(depends: &str) -> Option<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with("linux-image-6.12.")).map(str::to_string)
}

/// Downloads `packages` with apt and unpacks them into `folder`.
pub fn unpack(packages: &[&str], folder: &Path) -> anyhow::Result<()> {
    let downloads = folder.with_extension("debs");
    super::stage::remove(&downloads)?;
    for path in [&downloads, &folder.to_path_buf()] {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let mut command = Command::new("apt-get");
    // As root: apt's own user may not be allowed to write here.
    command.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]).args(packages).current_dir(&downloads);
    tool(&mut command).context("is apt's package list up to date? try apt-get update")?;
    let mut count = 0;
    for entry in fs::read_dir(&downloads)? {
        tool(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(folder))?;
        count += 1;
    }
    ensure!(count == packages.len(), "apt-get downloaded {count} of {} packages", packages.len());
    super::stage::remove(&downloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_release() {
        let security = "http://deb.debian.org/debian-security/ bookworm-security\n";
        let own = "http://mirror.example.org/debian/ bookworm\n";
        assert_eq!(choose_mirror(&format!("{security}{own}")), "http://mirror.example.org/debian/");
        let newer = "http://mirror.example.org/debian/ trixie\n";
        assert_eq!(choose_mirror(&format!("{security}{newer}")), "http://mirror.example.org/debian/");
        assert_eq!(choose_mirror(security), MIRROR);
    }

    #[test]
    fn the_kernel_is_the_package_that_the_metapackage_depends_on() {
        let text = "linux-image-6.12-amd64\n  Depends: linux-image-6.12.48+deb12-amd64\n";
        assert_eq!(kernel_in(text).as_deref(), Some("linux-image-6.12.48+deb12-amd64"));
        assert_eq!(kernel_in("linux-image-amd64\n  Depends: linux-image-6.1.0-42-amd64\n"), None);
    }
}
