//! What the kernel's own tools say about the module's source.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::kernels::{copy_module, source};
use crate::root;

/// What checkpatch would have otherwise, by file, or in all: versions matter outside the kernel's
/// source, and parts of initialisers cannot stand in parentheses.
const LEFT: [(&str, &[&str]); 2] = [
    ("", &["LINUX_VERSION_CODE", "COMPLEX_MACRO", "MACRO_ARG_REUSE"]),
    // Vectors, also outside of a kernel: its words for attributes are not there.
    ("hash_lanes.h", &["NEW_TYPEDEFS", "PREFER_DEFINED_ATTRIBUTE_MACRO", "SPACING"]),
];

/// Runs both that are there; anything that they say is a failure.
pub(super) fn run(headers: &Path, work: &Path) -> anyhow::Result<()> {
    match Command::new("sparse").arg("--version").output() {
        Ok(_) => sparse(headers, &work.join("sparse"))?,
        Err(_) => eprintln!("   skipped: no sparse; apt-get install sparse"),
    }
    match source() {
        Some(source) => checkpatch(&source),
        None => {
            eprintln!("   skipped: no source of a kernel, which has checkpatch; scripts/kernel-source.sh fetches it");
            Ok(())
        }
    }
}

fn sparse(headers: &Path, to: &Path) -> anyhow::Result<()> {
    copy_module(to)?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers).arg(format!("M={}", to.display())).args(["C=2", "modules"]);
    let output = make.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let place = to.display().to_string();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&place)).collect();
    ensure!(output.status.success() && lines.is_empty(), "sparse:\n{text}");
    Ok(())
}

fn checkpatch(source: &Path) -> anyhow::Result<()> {
    let entries = fs::read_dir(root().join("kernel/runnelfs"))?.collect::<Result<Vec<_>, _>>()?;
    let is_source =
        |path: &PathBuf| path.extension().and_then(OsStr::to_str).is_some_and(|end| matches!(end, "c" | "h"));
    let files = entries.into_iter().map(|entry| entry.path()).filter(is_source);
    let mut check = Command::new(source.join("scripts/checkpatch.pl"));
    check.args(["--strict", "--no-tree", "--terse", "--no-summary", "--show-types", "-f"]).args(files);
    let output = check.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_left = |line: &str| {
        LEFT.iter()
            .any(|(file, kinds)| line.contains(file) && kinds.iter().any(|kind| line.contains(&format!(":{kind}:"))))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_left(line)).collect();
    ensure!(lines.is_empty(), "checkpatch:\n{}", lines.join("\n"));
    Ok(())
}
