//! The report of `runnel specialise` as one page.

use std::collections::BTreeSet;
use std::fmt::Write;

use ::bench::html::{Table, escape, head};
use ::kernel::{Calls, JobReport, SizeRow};
use specialise::Sizes;

/// Removals that the page shows.
const REMOVALS_MAX: usize = 60;

/// The page.
pub fn page(report: &JobReport) -> String {
    let removed = &report.removed;
    let mut html = head("Specialised kernel");
    let _ = writeln!(html, "<header><h1>Specialised kernel {}</h1></header>\n<main>", escape(&removed.release));
    let _ = writeln!(
        html,
        "<p>{} sections, {} atoms, of which {} are left; analysis and rewriting took {:.2} s and {} MiB.</p>",
        removed.sections,
        removed.atoms,
        removed.atoms_left,
        report.analysis_seconds,
        report.analysis_peak_bytes >> 20
    );
    html.push_str("<h2>Memory and boot image (KiB)</h2>\n");
    html.push_str(&kernels(&report.kernels).html());
    html.push_str("<p>Resident: text, rodata, names, data, unwinder tables and bss, without padding.</p>\n");
    html.push_str("<h2>What each pass removed (bytes)</h2>\n");
    let mut table = Table::new(&["pass", "atoms", "text", "rodata", "data", "bss", "init", "tables"]);
    for pass in &removed.passes {
        let name = if pass.on { pass.name.to_string() } else { format!("{} (off)", pass.name) };
        table.row([vec![name, pass.atoms.to_string()], numbers(&pass.bytes)].concat());
    }
    for (name, atoms, sizes) in
        [("before", removed.atoms, &removed.before), ("after", removed.atoms_left, &removed.after)]
    {
        table.row([vec![name.to_string(), atoms.to_string()], numbers(sizes)].concat());
    }
    html.push_str(&table.html());
    html.push_str("<p>The pass initialisation moves functions into memory that is freed after the start.</p>\n");
    html.push_str("<h2>Side tables</h2>\n");
    let mut table = Table::new(&["table", "entries", "dropped", "left", "bytes", "bytes left"]);
    for row in &removed.tables {
        let numbers = [row.entries, row.entries - row.entries_left, row.entries_left, row.bytes, row.bytes_left];
        table.row([vec![row.name.to_string()], numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    html.push_str(&table.html());
    html.push_str("<h2>Largest removals</h2>\n");
    let mut table = Table::new(&["name", "pass", "was used by", "bytes"]).words(3);
    for removal in removed.largest.iter().take(REMOVALS_MAX) {
        let user = removal.used_by.clone().unwrap_or_else(|| "nothing".to_string());
        table.row([removal.name.clone(), removal.pass.to_string(), user, removal.bytes.to_string()]);
    }
    html.push_str(&table.html());
    list(&mut html, "System calls that answer ENOSYS", &removed.syscalls_removed);
    let _ = writeln!(
        html,
        "<p>What logs a removed call that is made after all takes {} bytes of the reduced kernel.</p>",
        report.removed_call_bytes
    );
    match &report.calls {
        Some(calls) => kept(&mut html, calls),
        None => list(&mut html, "System calls that stay", &removed.syscalls_kept),
    }
    list(&mut html, "Boot parameters that were dropped", &removed.parameters_removed);
    if removed.quirks_removed > 0 {
        let _ = writeln!(html, "<p>{} quirks of absent PCI devices were dropped.</p>", removed.quirks_removed);
    }
    list(&mut html, "Drivers that are not registered any more", &removed.drivers_removed);
    list(&mut html, "Warnings", &removed.warnings);
    html.push_str("</main></body></html>\n");
    html
}

/// The calls that stay, with who keeps them.
fn kept(html: &mut String, calls: &Calls) {
    html.push_str("<h2>System calls that stay</h2>\n");
    let mut table = Table::new(&["call", "programs", "functions", "constant arguments"]).words(4);
    for (name, call) in calls.iter() {
        let listed = call.listed.then(|| "(listed)".to_string());
        let programs: Vec<String> = call.programs.iter().cloned().chain(listed).collect();
        let functions: Vec<&str> = call.functions.iter().map(String::as_str).collect();
        let values =
            |values: &BTreeSet<u64>| values.iter().map(|value| format!("{value:#x}")).collect::<Vec<_>>().join("|");
        let constants: Vec<String> =
            call.arguments.iter().map(|(index, found)| format!("{index}={}", values(found))).collect();
        table.row([name.to_string(), programs.join(" "), functions.join(" "), constants.join(" ")]);
    }
    html.push_str(&table.html());
}

fn kernels(rows: &[SizeRow]) -> Table {
    let mut table = Table::new(&[
        "kernel",
        "text",
        "rodata",
        "names",
        "data",
        "orc",
        "bss",
        "resident",
        "change",
        "padding",
        "init",
        "boot image",
        "change",
    ]);
    let first = rows.first();
    for row in rows {
        let change = |value: u64, base: u64| match (base, value == base) {
            (0, _) | (_, true) => "-".to_string(),
            _ => format!("{:+.1} %", 100.0 * (value as f64 / base as f64 - 1.0)),
        };
        let sizes = &row.sizes;
        let kib = |bytes: u64| bytes.div_ceil(1024).to_string();
        table.row([
            row.name.clone(),
            kib(sizes.text),
            kib(sizes.rodata),
            kib(sizes.kallsyms),
            kib(sizes.data),
            kib(sizes.orc),
            kib(sizes.bss),
            kib(row.resident),
            change(row.resident, first.map_or(0, |first| first.resident)),
            kib(sizes.padding),
            kib(sizes.init_text + sizes.init_data),
            kib(row.bzimage),
            change(row.bzimage, first.map_or(0, |first| first.bzimage)),
        ]);
    }
    table
}

fn numbers(sizes: &Sizes) -> Vec<String> {
    let fields = [sizes.text, sizes.rodata, sizes.data, sizes.bss, sizes.init, sizes.tables];
    fields.map(|bytes| bytes.to_string()).to_vec()
}

fn list(html: &mut String, title: &str, names: &[String]) {
    if !names.is_empty() {
        let _ = writeln!(html, "<h2>{} ({})</h2>\n<p>{}</p>", escape(title), names.len(), escape(&names.join(", ")));
    }
}
