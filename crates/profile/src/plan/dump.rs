//! A plan as text: stable, for people and for golden tests.

use std::fmt::{self, Write};

use units::Moment;

use super::{Group, Identity, LaunchPlan, PlanFile, Trigger};

/// Writes `plan` as text: the files, then each group with its trigger, opens and extents in their
/// order. An extent is `first page + pages`. `symbol` gives the name of the function at an offset
/// of a file, if it knows it.
///
/// # Errors
/// Those of `out`.
pub fn dump(plan: &LaunchPlan, symbol: &dyn Fn(&PlanFile, u64) -> Option<String>, out: &mut dyn Write) -> fmt::Result {
    let LaunchPlan { program, runs, files, groups } = plan;
    let bytes: u64 = groups.iter().map(|group| plan.bytes(group)).sum();
    let (program, version) = (program.escape_ascii(), plan.version());
    writeln!(
        out,
        "plan version {version} program {program} runs {runs} files {} groups {} bytes {bytes}",
        files.len(),
        groups.len()
    )?;
    for (number, file) in files.iter().enumerate() {
        dump_file(number, file, out)?;
    }
    for (number, group) in groups.iter().enumerate() {
        dump_group(plan, number, group, symbol, out)?;
    }
    Ok(())
}

fn dump_file(number: usize, file: &PlanFile, out: &mut dyn Write) -> fmt::Result {
    write!(out, "file {number} {}", file.path.escape_ascii())?;
    if let Some(Identity { inode, size, mtime_ns, build_id }) = &file.identity {
        write!(out, " inode {inode} size {size} mtime {mtime_ns}")?;
        if !build_id.is_empty() {
            write!(out, " build-id ")?;
            build_id.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        }
    }
    writeln!(out)
}

fn dump_group(
    plan: &LaunchPlan,
    number: usize,
    group: &Group,
    symbol: &dyn Fn(&PlanFile, u64) -> Option<String>,
    out: &mut dyn Write,
) -> fmt::Result {
    write!(out, "group {number} at {} ", seconds(group.at))?;
    match &group.trigger {
        Trigger::Launch => write!(out, "launch")?,
        Trigger::With(earlier) => write!(out, "with {earlier}")?,
        Trigger::Breakpoint(breakpoint) => {
            write!(out, "breakpoint {}+{:#x}", name(plan, breakpoint.file), breakpoint.offset)?;
            let file = plan.files.get(breakpoint.file as usize);
            if let Some(symbol) = file.and_then(|file| symbol(file, breakpoint.offset)) {
                write!(out, " ({symbol})")?;
            }
            write!(out, " byte {:02x} process {}", breakpoint.byte, name(plan, breakpoint.process))?;
            write!(out, " hit {}", seconds(breakpoint.at))?;
        }
    }
    if let Some(library) = &group.library {
        write!(out, " library {} loaded {}", name(plan, library.file), seconds(library.at))?;
    }
    let lead = Moment(plan.lead(number).as_micros() as u64);
    let (opens, extents, bytes) = (group.opens.len(), group.extents.len(), plan.bytes(group));
    writeln!(out, " lead {} opens {opens} extents {extents} bytes {bytes}", seconds(lead))?;
    for open in &group.opens {
        writeln!(out, "  open {}", name(plan, *open))?;
    }
    for extent in &group.extents {
        writeln!(out, "  read {} {}+{}", name(plan, extent.file), extent.page, extent.pages)?;
    }
    Ok(())
}

fn name(plan: &LaunchPlan, file: u32) -> String {
    plan.files.get(file as usize).map_or_else(|| format!("#{file}"), |file| file.path.escape_ascii().to_string())
}

fn seconds(at: Moment) -> String {
    format!("{}.{:06}", at.0 / 1_000_000, at.0 % 1_000_000)
}
