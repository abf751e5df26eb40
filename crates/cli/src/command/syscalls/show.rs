//! The results of `runnel syscalls`, for people and for programs.

use syscalls::analysis::{CallReport, Report};

/// Columns of a line of names.
const COLUMNS: usize = 96;

/// Functions named in one line of the table.
const SOURCES_SHOWN: usize = 6;

/// Everything as JSON.
pub fn json(report: &Report) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(report)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("complete".into(), report.is_complete().into());
        fields.insert("names".into(), serde_json::to_value(report.names())?);
    }
    Ok(serde_json::to_string(&value)?)
}

/// The report for people.
pub fn text(name: &str, report: &Report) -> anyhow::Result<()> {
    let share = 100.0 * report.resolved as f64 / report.sites.max(1) as f64;
    outln!(
        "{name}: {} system calls, {} of {} places resolved ({share:.1} %){}",
        report.calls.values().filter(|call| call.name.is_some()).count(),
        report.resolved,
        report.sites,
        if report.vouched > 0 { format!(", {} vouched for", report.vouched) } else { String::new() }
    );
    let mut line = String::new();
    for name in report.calls.values().filter_map(|call| call.name) {
        if line.len() + name.len() + 1 > COLUMNS {
            outln!("{line}");
            line.clear();
        }
        line.push_str(if line.is_empty() { "  " } else { " " });
        line.push_str(name);
    }
    if !line.is_empty() {
        outln!("{line}");
    }
    if report.programs.len() > 1 {
        outln!("{:>6} {:>6} {:>10} {:>9}  program", "calls", "places", "unresolved", "functions");
        for program in &report.programs {
            let (calls, functions) = (program.calls.len(), program.functions);
            outln!("{calls:>6} {:>6} {:>10} {functions:>9}  {}", program.sites, program.unresolved, program.path);
        }
    }
    outln!("{:>6} {:>6} {:>10}  file", "calls", "places", "unresolved");
    for object in &report.objects {
        outln!("{:>6} {:>6} {:>10}  {}", object.calls.len(), object.sites, object.sites - object.resolved, object.path);
    }
    for site in &report.unresolved {
        let from = match site.from.object == site.object && site.from.function == site.function {
            true => String::new(),
            false => format!(" in {} {}", site.from.object, site.from.function),
        };
        outln!("unresolved: {} {} {:#x}: {}{from}", site.object, site.function, site.address, site.why);
    }
    Ok(())
}

/// A line for each call.
pub fn table(report: &Report) -> anyhow::Result<()> {
    for (number, call) in &report.calls {
        let name = call.name.unwrap_or("?");
        let sources: Vec<String> = call
            .sources
            .iter()
            .take(SOURCES_SHOWN)
            .map(|source| format!("{}:{}", source.object.rsplit('/').next().unwrap_or_default(), source.function))
            .collect();
        let more = call.sources.len().saturating_sub(SOURCES_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        outln!("{number:>4} {name:24} {:32} {}{more}", arguments(call), sources.join(" "));
    }
    Ok(())
}

/// Constant arguments: `1=0x1|0x2 3=0`.
fn arguments(call: &CallReport) -> String {
    let known = call.arguments.iter().enumerate().filter_map(|(number, values)| {
        let values = values.as_ref().filter(|values| !values.is_empty())?;
        let values: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
        Some(format!("{number}={}", values.join("|")))
    });
    let text = known.collect::<Vec<String>>().join(" ");
    if text.is_empty() { "-".into() } else { text }
}
