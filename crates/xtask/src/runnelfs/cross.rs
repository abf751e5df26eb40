//! The module for other processors: compiled against a kernel's source, not started.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;

use super::kernels::{copy_module, source};
use crate::watch;

/// Names of processors as the kernel calls them, and the prefix of their tools.
const PROCESSORS: [(&str, &str); 2] = [("arm64", "aarch64-linux-gnu-"), ("arm", "arm-linux-gnueabihf-")];

/// What a 32-bit processor has no instruction for, and the kernel no function.
const MISSING: [&str; 2] = ["__aeabi_uldivmod", "__aeabi_ldivmod"];

/// Builds the module for each processor whose compiler is installed, if the source of a kernel was
/// fetched before (`scripts/kernel-source.sh`).
pub(super) fn run(work: &Path) -> anyhow::Result<()> {
    let Some(source) = source() else {
        eprintln!("   skipped: no source of a kernel; scripts/kernel-source.sh fetches it");
        return Ok(());
    };
    for (processor, tools) in PROCESSORS {
        let compiler = format!("{tools}gcc");
        if Command::new(&compiler).arg("--version").output().is_err() {
            eprintln!("   skipped {processor}: no {compiler}");
            continue;
        }
        build(&source, &work.join(processor), processor, tools)?;
    }
    Ok(())
}

fn build(source: &Path, to: &Path, processor: &str, tools: &str) -> anyhow::Result<()> {
    let (kernel, module) = (to.join("kernel"), to.join("module"));
    fs::create_dir_all(&kernel)?;
    copy_module(&module)?;
    let make = |words: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(source).arg(format!("O={}", kernel.display())).args(words);
        make.args([format!("ARCH={processor}"), format!("CROSS_COMPILE={tools}")]);
        make
    };
    if !kernel.join("include/config/kernel.release").is_file() {
        watch::run(&mut make(&["defconfig"]))?;
        watch::run(&mut make(&["modules_prepare"]))?;
    }
    // The kernel itself is not built, so nothing says what it exports.
    let folder = format!("M={}", module.display());
    let output = make(&[&folder, "W=1", "KCFLAGS=-Werror", "KBUILD_MODPOST_WARN=1", "modules"]).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "the module for {processor}:\n{text}");
    let symbols = Command::new(format!("{tools}nm")).arg("-u").arg(module.join("runnelfs.ko")).output()?;
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let missing = MISSING.iter().find(|name| symbols.contains(**name));
    ensure!(missing.is_none(), "the module for {processor} needs {missing:?}");
    eprintln!("   compiled for {processor}");
    Ok(())
}
