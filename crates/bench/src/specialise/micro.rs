//! Microbenchmarks in a guest that counts instructions, as lmbench has them: what operations of the
//! kernel cost, stock and reduced.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use kernel::{Initramfs, Machine};

use crate::process::tool;

/// The program that measures.
const SOURCE: &str = include_str!("micro.c");

/// More than a guest takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Mark of the lines that say what an operation takes.
const MARK: &str = "@@micro ";

/// Compiles the program into `work`.
///
/// # Errors
/// There is no compiler.
pub fn program(work: &Path) -> anyhow::Result<PathBuf> {
    let (source, program) = (work.join("micro.c"), work.join("micro"));
    fs::write(&source, SOURCE).with_context(|| source.display().to_string())?;
    tool(Command::new("gcc").args(["-static", "-O1", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}

/// Instructions of each operation on a kernel.
///
/// # Errors
/// The guest did not come to its end.
pub fn instructions(program: &Path, kernel: &Path, work: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let initramfs = work.join("micro.initramfs");
    let mut archive = Initramfs::new();
    archive.folder("dev");
    archive.file("init", &fs::read(program)?);
    fs::write(&initramfs, archive.finish())?;
    let machine = Machine {
        kernel: kernel.to_path_buf(),
        initramfs,
        command_line: kernel::Processor::X86_64.command_line().to_string(),
        disks: Vec::new(),
        memory_mib: 128,
        processors: 1,
        counted: true,
        deadline: DEADLINE,
    };
    let boot = machine.run()?;
    let tail = || boot.console.lines().rev().take(12).collect::<Vec<_>>().join("\n");
    ensure!(boot.console.contains("@@done") && !boot.console.contains("@@failed"), "the guest failed:\n{}", tail());
    let lines = boot.console.lines().filter_map(|line| line.trim_end().strip_prefix(MARK)?.split_once(' '));
    Ok(lines.filter_map(|(name, count)| Some((name.to_string(), count.parse().ok()?))).collect())
}

/// The mean of the changes of all operations: 0.01 is one per cent more.
pub fn change(stock: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) -> Option<f64> {
    let ratios: Vec<f64> =
        stock.iter().filter_map(|(name, count)| Some(other.get(name)? / count)).filter(|ratio| *ratio > 0.0).collect();
    let count = ratios.len();
    // Of ratios the geometric mean.
    (count > 0).then(|| (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count as f64).exp() - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_averaged_over_operations() {
        let values = |one: f64, two: f64| BTreeMap::from([("a".to_string(), one), ("b".to_string(), two)]);
        assert_eq!(change(&values(100.0, 10.0), &values(100.0, 10.0)), Some(0.0));
        let mean = change(&values(100.0, 10.0), &values(200.0, 5.0)).unwrap();
        assert!(mean.abs() < 1e-9, "{mean}");
        assert_eq!(change(&BTreeMap::new(), &values(1.0, 1.0)), None);
    }
}
