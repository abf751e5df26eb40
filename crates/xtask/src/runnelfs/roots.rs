//! Roots of other devices, whose hot sets are measured: what Debian packages hold for AArch64, and
//! libraries of Android apps. Nothing in them runs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};

use super::boot::{self, SUITE};
use super::measure::APPLICATIONS;
use super::{applications, trees};

/// How a root is made.
#[derive(Debug)]
struct Recipe {
    name: &'static str,
    /// Packages, which come with all that they need.
    packages: &'static str,
    /// Whether the packages of a minimal system are left out.
    is_small: bool,
    /// What is there beside: a library of Android apps, each an archive of a Maven repository.
    apps: &'static [&'static str],
}

const RECIPES: [Recipe; 3] = [
    Recipe { name: "debian-arm64", packages: "python3,perl,git,vim-tiny", is_small: false, apps: &[] },
    Recipe {
        name: "android",
        packages: "android-libart,android-libandroidfw,android-libboringssl,android-libnativeloader,\
            android-framework-res,fonts-roboto-unhinted,fonts-noto-core,toybox",
        is_small: true,
        apps: &[
            "com.facebook.react:react-android:0.72.6:aar:release",
            "com.facebook.react:hermes-android:0.72.6:aar:release",
            "org.tensorflow:tensorflow-lite:2.14.0:aar",
            "org.videolan.android:libvlc-all:3.5.1:aar",
        ],
    },
    Recipe {
        name: "buildroot",
        packages: "busybox-static,musl,dropbear-bin,dnsmasq-base,hostapd,wpasupplicant,lighttpd,mosquitto,nftables,\
            iptables,iproute2,ethtool,i2c-tools,alsa-utils,openssl,curl,lua5.4",
        is_small: true,
        apps: &[],
    },
];

/// What no device has.
const LEFT_OUT: [&str; 6] =
    ["usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug"];

/// Changes when roots are made in another way.
const VERSION: &str = "1";

/// The tree of this name, made if it is not there; or the folder.
pub(super) fn find(name: &str, work: &Path) -> anyhow::Result<PathBuf> {
    let folder = work.join(name);
    if name == APPLICATIONS {
        applications::make(&folder)?;
    } else if let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == name) {
        make(recipe, &folder)?;
    } else {
        return fs::canonicalize(name).with_context(|| format!("{name} is no folder and no tree of ours"));
    }
    Ok(folder)
}

fn make(recipe: &Recipe, folder: &Path) -> anyhow::Result<()> {
    let (stamp, wanted) = (folder.with_extension("stamp"), format!("{SUITE} {recipe:?} {VERSION}"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    trees::fresh(folder)?;
    let chosen = folder.with_extension("chosen");
    let left_out = if recipe.is_small { minimal(&chosen)? } else { BTreeSet::new() };
    boot::remove(&chosen)?;
    debootstrap(&["--download-only", "--include", recipe.packages], &chosen)?;
    let named: BTreeSet<&str> = recipe.packages.split(',').collect();
    for package in files(&chosen.join("var/cache/apt/archives"), "deb")? {
        let file = package.file_name().unwrap_or_default().to_string_lossy();
        let name = file.split('_').next().unwrap_or_default();
        if named.contains(name) || !left_out.contains(name) {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(folder), "apt-get install dpkg")?;
        }
    }
    boot::remove(&chosen)?;
    for app in recipe.apps {
        add_app(app, folder)?;
    }
    for path in LEFT_OUT {
        boot::remove(&folder.join(path))?;
    }
    fs::write(stamp, wanted)?;
    Ok(())
}

/// Names of the packages of a minimal system.
fn minimal(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    boot::remove(folder)?;
    let output = debootstrap(&["--print-debs"], folder)?;
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect())
}

fn debootstrap(options: &[&str], folder: &Path) -> anyhow::Result<Output> {
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", "--arch=arm64"]).args(options);
    run(command.arg(SUITE).arg(folder).arg(boot::mirror()), "apt-get install debootstrap")
}

/// Unpacks an archive of an Android library as an installed app: its code for this processor, its
/// classes packed as they are, its resources.
fn add_app(app: &str, root: &Path) -> anyhow::Result<()> {
    let name = app.split(':').nth(1).unwrap_or(app);
    let downloads = root.with_extension("apps").join(name);
    let mut fetch = Command::new("mvn");
    fetch.args(["--batch-mode", "--quiet", "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"]);
    fetch.arg(format!("-Dartifact={app}")).arg(format!("-DoutputDirectory={}", downloads.display()));
    // Not below a project, whose settings would count.
    run(fetch.current_dir("/"), "apt-get install maven")?;
    let folder = root.join("app").join(name);
    fs::create_dir_all(&folder)?;
    for archive in files(&downloads, "aar")? {
        let mut unpack = Command::new("unzip");
        unpack.args(["-q", "-o"]).arg(&archive).args(["jni/arm64-v8a/*", "classes.jar", "res/*", "assets/*"]);
        // 11: it has none of some of these.
        let output = unpack.arg("-d").arg(&folder).output().context("unzip is missing; apt-get install unzip")?;
        ensure!(matches!(output.status.code(), Some(0 | 11)), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The files of a folder whose names end so, in order.
fn files(folder: &Path, end: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new(end)))
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "{} has no .{end}", folder.display());
    Ok(files)
}

fn run(command: &mut Command, missing: &str) -> anyhow::Result<Output> {
    let output = command.output().with_context(|| format!("{command:?} cannot run; {missing}"))?;
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy);
    ensure!(output.status.success(), "{command:?}: {}{}", said[0], said[1]);
    Ok(output)
}
