//! The report of `runnel specialise` as one page.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use ::kernel::{Calls, JobReport, SizeRow};
use ::report::html::{Table, escape, head};
use specialise::{FreezeReport, Report, Sizes};

/// Removals that the page shows.
const REMOVALS_MAX: usize = 60;

/// The description of a pass.
fn removes(pass: &str) -> &'static str {
    match pass {
        "unreachable" => "what nothing reaches",
        "syscalls" => "system calls that no program of the device makes",
        "parameters" => "boot and module parameters that the command line does not use",
        "quirks" => "quirks of absent PCI devices",
        "drivers" => "drivers of absent PCI devices",
        "constants" => "what only branches lead to that never go that way",
        "blocks" => "such code inside functions that stay",
        "padding" => "padding before functions that only a mitigation uses",
        "duplicates" | "duplicates-taken" => "equal functions",
        "initialisation" => "moved, not removed: functions that run only while the kernel starts; that memory is freed",
        "names" => "names of functions that are freed; they count under names above",
        _ => "",
    }
}

/// The code that is frozen, and the code that is not.
fn frozen(report: &FreezeReport) -> Table {
    let mut table = Table::new(&["code", "bytes"]).words(1);
    let mut row = |what: String, bytes: u64| table.row(vec![what, bytes.to_string()]);
    row("all that stays after the start".to_string(), report.text);
    row("ran in service".to_string(), report.ran_in_service);
    row("ran in the start only".to_string(), report.ran_in_start);
    row("never ran".to_string(), report.never_ran);
    for (why, bytes) in &report.kept {
        row(format!("never ran, not frozen: {why}"), *bytes);
    }
    row("frozen".to_string(), report.frozen);
    row("strings that only frozen code uses".to_string(), report.strings);
    table
}

/// The bytes that each pass removed.
fn passes(removed: &Report) -> Table {
    let mut table =
        Table::new(&["pass", "what goes", "pieces", "text", "rodata", "data", "bss", "init", "tables"]).words(2);
    let mut sum = |name: String, what: &str, pieces: u64, sizes: &Sizes| {
        table.row([vec![name, what.to_string(), pieces.to_string()], numbers(sizes)].concat());
    };
    sum("before".to_string(), "", removed.atoms, &removed.before);
    for pass in &removed.passes {
        let name = if pass.on { pass.name.to_string() } else { format!("{} (off)", pass.name) };
        sum(name, removes(pass.name), pass.atoms, &pass.bytes);
    }
    sum("after".to_string(), "", removed.atoms_left, &removed.after);
    table
}

/// The entries that were dropped from tables of the kernel.
fn side_tables(removed: &Report) -> Table {
    let mut table = Table::new(&["table", "entries", "dropped", "left", "bytes", "bytes left"]);
    for row in &removed.tables {
        let numbers = [row.entries, row.entries - row.entries_left, row.entries_left, row.bytes, row.bytes_left];
        table.row([vec![row.name.to_string()], numbers.map(|number| number.to_string()).to_vec()].concat());
    }
    table
}

/// The largest removals.
fn largest(removed: &Report) -> Table {
    let mut table = Table::new(&["name", "pass", "was used by", "bytes"]).words(3);
    for removal in removed.largest.iter().take(REMOVALS_MAX) {
        let user = removal.used_by.clone().unwrap_or_else(|| "nothing".to_string());
        table.row([removal.name.clone(), removal.pass.to_string(), user, removal.bytes.to_string()]);
    }
    table
}

/// The page.
pub fn page(report: &JobReport) -> String {
    let removed = &report.removed;
    let mut html = head(&format!("Specialised kernel {}", removed.release));
    let _ = writeln!(html, "<header><h1>Specialised kernel {}</h1></header>\n<main>", escape(&removed.release));
    if report.asked.trap {
        html.push_str("<p>A kernel to try: what is called removed below is still in place, filled with traps.</p>\n");
    }
    html.push_str("<h2>What was asked for</h2>\n");
    html.push_str(&asked(report).html());
    html.push_str("<h2>Memory and boot image (KiB)</h2>\n");
    html.push_str(&kernels(&report.kernels).html());
    html.push_str(
        "<p>Resident: text (code), rodata (constants), names (of symbols), data and bss (variables), and tables of the stack unwinder, \
         without padding. Padding aligns them to 2 MiB, so that what is removed grows it; --layout compact drops it. Initial code and data \
         are freed after the start.</p>\n",
    );
    if let Some(frozen) = &removed.frozen {
        html.push_str("<h2>Kept compressed (bytes)</h2>\n");
        html.push_str(&self::frozen(frozen).html());
        html.push_str(
            "<p>These are part of text above. The kernel compresses their pages when it starts, frees them, and says how small they \
             became; names of symbols are among them. A page comes back when it is used, and goes when it was not for a while.</p>\n",
        );
    }
    html.push_str("<h2>What each pass removed (bytes)</h2>\n");
    html.push_str(&passes(removed).html());
    let _ = writeln!(
        html,
        "<p>Pieces are functions, variables, strings and entries of tables. Bytes are those of the object before the link, \
         init those that are freed after the start. Analysis and rewriting took {:.2} s; the process had {} MiB at most.</p>",
        report.analysis_seconds,
        report.analysis_peak_bytes >> 20
    );
    html.push_str("<h2>Side tables</h2>\n");
    html.push_str(&side_tables(removed).html());
    let _ = writeln!(html, "<h2>The {} largest removals</h2>", removed.largest.len().min(REMOVALS_MAX));
    html.push_str(&largest(removed).html());
    html.push_str("<p>Names with + are places without a name: a section and an offset in it.</p>\n");
    if !report.calls_removed.is_empty() {
        list(&mut html, "System calls that answer ENOSYS", &report.calls_removed);
        let _ = writeln!(
            html,
            "<p>What logs a removed call that is made after all takes {} bytes of the reduced kernel.</p>",
            report.removed_call_bytes
        );
    }
    match &report.calls {
        Some(calls) => kept(&mut html, calls),
        None => html.push_str("<h2>System calls that stay</h2>\n<p>All: neither programs nor a list were given.</p>\n"),
    }
    list(&mut html, "Boot parameters that were dropped", &removed.device.parameters_removed);
    if removed.device.quirks_removed > 0 {
        let _ = writeln!(
            html,
            "<h2>Quirks of absent PCI devices that were dropped</h2>\n<p>{}</p>",
            removed.device.quirks_removed
        );
    }
    list(&mut html, "Drivers that are not registered any more", &removed.device.drivers_removed);
    list(&mut html, "Lines of the configuration that the kernel did not take", &report.config_unmet);
    list(&mut html, "Warnings", &removed.warnings);
    html.push_str("</main></body></html>\n");
    html
}

/// The device, as far as it was told.
fn asked(report: &JobReport) -> Table {
    let asked = &report.asked;
    let mut table = Table::new(&["option", "value"]).words(2);
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            table.row([name.to_string(), value]);
        }
    };
    let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    row("--config", Some(asked.config.display().to_string()));
    row("--cmdline", Some(asked.command_line.clone().unwrap_or_else(|| "not given: all parameters stay".to_string())));
    row("--devices", Some(file(&asked.devices).unwrap_or_else(|| "not given: all devices count as there".to_string())));
    let programs: BTreeSet<&String> =
        report.calls.iter().flat_map(|calls| calls.iter()).flat_map(|(_, call)| &call.programs).collect();
    let programs: Vec<&str> = programs.into_iter().map(String::as_str).collect();
    row("programs of --image", (!programs.is_empty()).then(|| programs.join(" ")));
    row("--syscalls", file(&asked.syscalls));
    row("--policy", file(&asked.policy));
    let off: Vec<&str> = report.removed.passes.iter().filter(|pass| !pass.on).map(|pass| pass.name).collect();
    row("passes that are off", (!off.is_empty()).then(|| off.join(" ")));
    let fixed: Vec<String> = asked.fixed.iter().map(|(name, value)| format!("{name}={value:#x}")).collect();
    row("--fix", (!fixed.is_empty()).then(|| fixed.join(" ")));
    row("--with arguments", asked.arguments.then(|| "calls with other arguments are undefined".to_string()));
    table
}

/// The calls that stay, with who keeps them.
fn kept(html: &mut String, calls: &Calls) {
    let _ = writeln!(html, "<h2>System calls that stay ({})</h2>", calls.iter().count());
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
    html.push_str(
        "<p>(listed): in --syscalls or a policy, or one that the kernel makes for every program. Functions are named as file:function, or by \
         address where the file is stripped; of many, some. Constant arguments: the number of the argument, from 0, and all values that it \
         has.</p>\n",
    );
}

fn kernels(rows: &[SizeRow]) -> Table {
    let mut table = Table::new(&[
        "kernel",
        "text",
        "rodata",
        "names",
        "data",
        "unwinder",
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
