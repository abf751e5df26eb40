//! The kernel's own ThinLTO, by Debian's clang: the stock kernel for comparison, without anything
//! of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;

use crate::build::{LOG, STAMP, enter, make, read, write};
use crate::{KernelError, Output, Source, config, tool};

/// Debian's packages that such a build needs beside those of every build.
pub const CLANG_PACKAGES: [&str; 3] = ["clang-14", "lld-14", "llvm-14"];

/// Programs of these packages.
const PROGRAMS: [&str; 3] = ["clang-14", "ld.lld-14", "llvm-ar-14"];

/// What make is told, so that it takes them.
const LLVM: &str = "LLVM=-14";

/// Lines over the configuration.
const THIN: &str = "# CONFIG_LTO_NONE is not set\nCONFIG_LTO_CLANG_THIN=y\n";

/// Whether all of [`CLANG_PACKAGES`] are there.
pub fn has_clang() -> bool {
    let runs = |program: &&str| {
        let mut command = Command::new(program);
        let quiet = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    PROGRAMS.iter().all(runs)
}

/// Builds `source` with `config` (the text of a whole configuration or of a fragment) and ThinLTO
/// in `folder`, unless it holds that build already. Takes minutes; `say` is told what begins.
///
/// # Errors
/// The configuration does not allow ThinLTO, or make failed.
pub fn thin_lto(
    source: &Source,
    config: &str,
    folder: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<Output, KernelError> {
    let (folder, _lock) = enter(folder)?;
    let output = Output {
        vmlinux: folder.join("vmlinux"),
        bzimage: folder.join("arch/x86/boot/bzImage"),
        system_map: folder.join("System.map"),
    };
    let stamp = format!("{}\n{}\n{LLVM}\n{config}{THIN}", source.folder().display(), source.release());
    let is_known = fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == stamp);
    if is_known && output.vmlinux.is_file() && output.bzimage.is_file() {
        return Ok(output);
    }
    let (path, log): (PathBuf, PathBuf) = (folder.join(".config"), folder.join(LOG));
    let make = || {
        let mut make = make(source, &folder);
        make.arg(LLVM);
        make
    };
    say("configuring the kernel for ThinLTO");
    let base = if config::is_whole(config) {
        String::new()
    } else {
        tool::run(make().arg("tinyconfig"), &log)?;
        read(&path)?
    };
    write(&path, &config::lay(&base, &format!("{}\n{THIN}", config.trim_end())))?;
    tool::run(make().arg("olddefconfig"), &log)?;
    if !config::is_set(&read(&path)?, "LTO_CLANG_THIN") {
        let reason = "CONFIG_LTO_CLANG_THIN cannot be set with this configuration".to_string();
        return Err(KernelError::Config { reason });
    }
    say("building the kernel with ThinLTO; this takes minutes");
    let jobs = available_parallelism().map_or(1, usize::from);
    tool::run(make().arg(format!("-j{jobs}")).arg("bzImage"), &log)?;
    write(&folder.join(STAMP), &stamp)?;
    Ok(output)
}
