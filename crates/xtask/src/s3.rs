//! The S3 service that tests of stores run against, versitygw: built by Go from its module, and
//! kept in the build folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::{root, watch};

/// The newest release when the tests were written.
const VERSION: &str = "v1.8.0";

const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw";

/// The toolchain that is fetched where the one of the system is older than toolchains that fetch
/// others themselves, as that of Debian 12 is.
const TOOLCHAIN: &str = "golang.org/toolchain@v0.0.1-go1.26.8.linux";

/// The first minor version of Go that fetches a newer one.
const FETCHES_OTHERS: u32 = 21;

/// Where tests look for it.
fn binary() -> PathBuf {
    root().join(format!("target/tools/versitygw-{VERSION}/versitygw"))
}

/// Builds the service if it is not there: two minutes of a processor.
pub fn install() -> anyhow::Result<()> {
    let binary = binary();
    if binary.exists() {
        return Ok(());
    }
    let folder = binary.parent().context("a folder")?;
    let building = folder.with_extension("building");
    fs::create_dir_all(&building)?;
    let go = match minor_version()? {
        minor if minor >= FETCHES_OTHERS => PathBuf::from("go"),
        _ => fetched_toolchain()?,
    };
    let mut install = Command::new(go);
    install.arg("install").arg(format!("{MODULE}@{VERSION}"));
    install.env("GOBIN", &building).env("GOTOOLCHAIN", "auto").env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    watch::run(&mut install)?;
    fs::create_dir_all(folder)?;
    // In one step, so that one that is there is whole.
    fs::rename(building.join("versitygw"), &binary)?;
    Ok(())
}

/// The system's Go: 19 for `go version go1.19.8 linux/amd64`.
fn minor_version() -> anyhow::Result<u32> {
    let output = Command::new("go").arg("version").output();
    let output = output.context("Go builds the S3 service of the tests; ./x setup installs it")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    minor_of(&text).with_context(|| format!("no version of Go: {text}"))
}

fn minor_of(text: &str) -> Option<u32> {
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// A newer Go, as a module. An old Go takes it for one with any files, and leaves out that some of
/// them are programs.
fn fetched_toolchain() -> anyhow::Result<PathBuf> {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let mut download = Command::new("go");
    let module = format!("{TOOLCHAIN}-{architecture}");
    // Outside of any module.
    download.args(["mod", "download", "-json", &module]).current_dir("/").env_remove("GOFLAGS");
    let output = download.output()?;
    ensure!(output.status.success(), "{module} cannot be fetched: {}", String::from_utf8_lossy(&output.stderr));
    let about: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = PathBuf::from(about["Dir"].as_str().context("the folder of the toolchain")?);
    for programs in ["bin", "pkg/tool"] {
        make_executable(&folder.join(programs))?;
    }
    Ok(folder.join("bin/go"))
}

fn make_executable(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => make_executable(&path)?,
            false => fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_are_read() {
        for (text, expected) in [
            ("go version go1.19.8 linux/amd64", Some(19)),
            ("go version go1.26 linux/amd64", Some(26)),
            ("go version devel +abc", None),
        ] {
            assert_eq!(minor_of(text), expected, "{text}");
        }
    }
}
