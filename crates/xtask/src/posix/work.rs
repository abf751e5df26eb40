//! What programmers do in a folder, whole: builds of C and Rust, npm, git, and SQLite; beside the
//! same here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::compare::{Times, in_turn, sh};
use super::{Setting, mounted::Server, tools};
use crate::watch;

/// Most that the volume may take, in times of this machine's own file system.
const RATIO_MAX: f64 = 2.0;

/// A crate that is a program, with some fifty others below it.
const CRATE: (&str, &str) = ("ripgrep", "14.1.1");

/// A package of npm with a thousand files.
const PACKAGE: &str = "eslint@9.17.0";

const CONFIGURE_AND_MAKE: &str =
    "tar xf $SOURCE; cd hello-*; ./configure -q; make -s -j2 2>../log; ./hello | grep -q Hello";

const CARGO_BUILD: &str =
    "cp -r $SOURCE/. .; cargo build --offline --quiet --target-dir target; target/debug/rg --version";

const NPM_INSTALL: &str = "npm install --silent --no-audit --no-fund --prefer-offline --cache $SOURCE $PACKAGE
    node_modules/.bin/eslint --version";

const CLONE_AND_GC: &str = "git clone -q file://$SOURCE clone; cd clone; git fsck --strict --no-progress
    git gc -q; git fsck --strict --no-progress; test -z \"$(git status --porcelain)\"";

/// A transaction for each row, as a program without care makes them.
const ROLLBACK_JOURNAL: &str = "{ echo 'create table t(k integer primary key, v text);'
    for n in $(seq 200); do echo 'insert into t(v) values(hex(randomblob(300)));'; done; } | sqlite3 -bail db
    test \"$(sqlite3 db 'pragma integrity_check; select count(*) from t;' | tr '\\n' ' ')\" = 'ok 200 '";

const WRITE_AHEAD_LOG: &str = "{ echo 'pragma locking_mode=exclusive; pragma journal_mode=wal;'
    echo 'create table t(k integer primary key, v text);'
    for n in $(seq 2000); do echo 'insert into t(v) values(hex(randomblob(300)));'; done; } | sqlite3 -bail db
    test \"$(sqlite3 db 'pragma integrity_check; select count(*) from t;' | tr '\\n' ' ')\" = 'ok 2000 '";

pub fn run(setting: &Setting) -> anyhow::Result<()> {
    if !setting.full {
        return Ok(());
    }
    let server = Server::start(&setting.runnel, &setting.folder.join("work"))?;
    let mount = server.mount("mnt")?;
    let local = setting.local("work")?;
    let mut slow = Vec::new();
    let mut compare = |name: &'static str, source: &Path, script: &str| -> anyhow::Result<()> {
        let variables = [("SOURCE", source), ("PACKAGE", Path::new(PACKAGE))];
        let times = in_turn(&local, &mount.path, name, |folder| sh(folder, &variables, script))?;
        print(name, &times);
        if times.ratio() > RATIO_MAX {
            slow.push(name);
        }
        Ok(())
    };
    if tools::has("make", "configure and make") {
        compare("make", &debian_source(&setting.cache, "hello")?, CONFIGURE_AND_MAKE)?;
    }
    if tools::has("git", "git clone and gc") {
        compare("git", &setting.root, CLONE_AND_GC)?;
    }
    if tools::has("sqlite3", "SQLite") {
        compare("sqlite-delete", &setting.root, ROLLBACK_JOURNAL)?;
        compare("sqlite-wal", &setting.root, WRITE_AHEAD_LOG)?;
    }
    if tools::has("npm", "npm install") {
        let cache = setting.cache.join("npm");
        // The first run fetches.
        let warm = setting.local("npm")?;
        sh(&warm, &[("SOURCE", &cache), ("PACKAGE", Path::new(PACKAGE))], NPM_INSTALL)?;
        compare("npm", &cache, NPM_INSTALL)?;
    }
    compare("cargo", &vendored(&setting.cache)?, CARGO_BUILD)?;
    mount.end()?;
    ensure!(slow.is_empty(), "more than {RATIO_MAX} times as long as here: {}", slow.join(", "));
    Ok(())
}

fn print(name: &str, times: &Times) {
    let Times { local, volume } = times;
    println!(
        "{name:14} here {:6.2} s, volume {:6.2} s, {:.2} times",
        local.as_secs_f64(),
        volume.as_secs_f64(),
        times.ratio()
    );
}

/// The archive of a Debian source package, by apt with lists of its own: few machines have sources
/// in theirs.
fn debian_source(cache: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = cache.join("debian");
    let found = |folder: &Path| -> Option<PathBuf> {
        let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        files.into_iter().find(|path| path.to_string_lossy().contains(&format!("{name}_")) && is_archive(path))
    };
    if let Some(archive) = found(&folder) {
        return Ok(archive);
    }
    fs::create_dir_all(folder.join("lists/partial"))?;
    fs::write(folder.join("sources.list"), "deb-src http://deb.debian.org/debian bookworm main\n")?;
    let apt = |arguments: &[&str]| {
        let option = |name: &str, file: &str| format!("{name}={}", folder.join(file).display());
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-o", &option("Dir::Etc::sourcelist", "sources.list"), "-o", "Dir::Etc::sourceparts=-"]);
        apt.args(["-o", &option("Dir::State::lists", "lists")]).args(arguments).current_dir(&folder);
        watch::run(&mut apt)
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", name])?;
    found(&folder).with_context(|| format!("apt-get source {name} brought no archive"))
}

fn is_archive(path: &Path) -> bool {
    path.to_string_lossy().contains(".orig.tar.") && path.extension().is_some_and(|extension| extension != "asc")
}

/// A crate with all that it needs beside it, and the configuration that has cargo use that.
fn vendored(cache: &Path) -> anyhow::Result<PathBuf> {
    let (name, version) = CRATE;
    let folder = cache.join(format!("{name}-{version}"));
    let configuration = folder.join(".cargo/config.toml");
    if configuration.is_file() {
        return Ok(folder);
    }
    // What a package needs is known from its own lock file, so it has to be fetched first.
    let fetch = cache.join("fetch");
    fs::create_dir_all(fetch.join("src"))?;
    let head = "[package]\nname = \"fetch\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n";
    fs::write(fetch.join("Cargo.toml"), format!("{head}{name} = \"={version}\"\n"))?;
    fs::write(fetch.join("src/lib.rs"), "")?;
    let vendor = |folder: &Path| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        watch::run(Command::new(cargo).args(["vendor", "--quiet"]).current_dir(folder).stdout(Stdio::null()))
    };
    vendor(&fetch)?;
    watch::run(Command::new("cp").arg("-rT").args([&fetch.join("vendor").join(name), &folder]))?;
    vendor(&folder)?;
    fs::create_dir_all(folder.join(".cargo"))?;
    let source = "[source.crates-io]\nreplace-with = \"vendored\"\n[source.vendored]\ndirectory = \"vendor\"\n";
    fs::write(configuration, source)?;
    Ok(folder)
}
