//! The guest's side of the lab: measures the rows of a plan one after the other and reports each on
//! standard output.
//!
//! Device, server and the link between them ([`net`]) are in this one machine. A row is measured by
//! its experiment ([`start`], [`touch`], [`fault`], [`set`], [`fetch`], [`data`]) on its
//! [`system`]; one line of JSON per event goes to the serial console. [`exec`] is the little helper
//! that programs and servers are started through. Times are seconds of the guest's clock, sizes
//! bytes. The first process of the guest runs it as root, as `runnel-bench lab-guest`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::data::EXPERIMENT as DATA;
use super::link::Link;
use super::plan::{self, Entry, Row};
use super::program::Program;
use super::record::{Event, LINE_MARK, Record};
use system::System;

pub mod capture;
pub mod card;
pub mod data;
pub mod disk;
pub mod exec;
pub mod execution;
pub mod fault;
pub mod fetch;
pub mod group;
pub mod kernel;
pub mod machine;
pub mod net;
pub mod nfs;
pub mod page_cache;
pub mod pages;
pub mod peer;
pub mod product;
pub mod profile;
pub mod set;
pub mod start;
pub mod system;
pub mod touch;

/// Measured values by the names of records.
pub type Values = BTreeMap<String, f64>;

/// What one run of an experiment found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Values of the record.
    pub values: Values,
    /// Series of the record.
    pub series: BTreeMap<String, Vec<f64>>,
}

impl Outcome {
    /// Sets a value.
    pub fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_string(), value);
    }
}

/// Measures every row of `plan`. A row that fails is reported, and the next one tried.
pub fn run(plan: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(plan).with_context(|| format!("cannot read the plan {}", plan.display()))?;
    let entries = plan::parse(&text)?;
    emit(&Event::Up { kernel: kernel::release()? })?;
    machine::prepare().context("cannot prepare the machine")?;
    for entry in &entries {
        emit(&Event::Begin { row: entry.row.clone() })?;
        if let Err(error) = measure(entry) {
            emit(&Event::Failed { row: entry.row.clone(), reason: format!("{error:#}") })?;
        }
        machine::clear();
    }
    emit(&Event::Done)
}

/// One line on the console.
fn emit(event: &Event) -> anyhow::Result<()> {
    let line = serde_json::to_string(event).context("an event is always JSON")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{LINE_MARK}{line}").and_then(|()| out.flush()).context("cannot write to the console")
}

/// Starts the system of a row, measures all runs, and takes the system down again whatever
/// happened.
fn measure(entry: &Entry) -> anyhow::Result<()> {
    if entry.row.experiment == DATA {
        return data::measure(entry);
    }
    let link = if entry.row.link == "-" { None } else { Some(Link::named(&entry.row.link)?) };
    let program = Program::named(&entry.row.program)?;
    net::shape(link.as_ref())?;
    let mut system = system::make(&entry.row)?;
    let measured = runs(entry, program, system.as_mut());
    let unmounted = system.unmount().context("cannot unmount at the end of the row");
    let stopped = system.stop().context("cannot stop the server at the end of the row");
    measured.and(unmounted).and(stopped)
}

fn runs(entry: &Entry, program: &'static Program, system: &mut dyn System) -> anyhow::Result<()> {
    system.serve(program.tree).with_context(|| format!("cannot serve {}", program.tree))?;
    if let Some(row) = entry.first().filter(|_| system.is_remote()) {
        let outcome = start::measure_first(system, program).context("the first start")?;
        let Outcome { values, series } = outcome;
        emit(&Event::Record { record: Record { row, run: 1, values, series } })?;
    }
    for run in 1..=entry.runs {
        let outcome = one(&entry.row, program, system).with_context(|| format!("run {run}"))?;
        let Outcome { values, series } = outcome;
        emit(&Event::Record { record: Record { row: entry.row.clone(), run, values, series } })?;
    }
    Ok(())
}

/// Experiments by their names in plans.
const EXPERIMENTS: [&str; 12] =
    [plan::START, plan::FIRST, plan::MOUNT, "touch", "page", "set", "cache", "energy", "profile", "pin", "cut", DATA];

/// Refuses a row that no guest could measure. Called by the host, before anything is set up.
pub fn check(row: &Row) -> anyhow::Result<()> {
    let experiment = row.experiment.as_str();
    let known = EXPERIMENTS.join(", ");
    ensure!(EXPERIMENTS.contains(&experiment), "the lab has no experiment '{experiment}'; there are {known}");
    if experiment == DATA {
        return data::check(row);
    }
    Program::named(&row.program)?;
    let is_remote = system::make(row)?.is_remote();
    ensure!(!is_remote || experiment != "set", "the experiment 'set' is for disks: local, sd");
    match row.link.as_str() {
        "-" => ensure!(!is_remote, "{} needs a link; '-' is for disks", row.system),
        name => Link::named(name).map(drop)?,
    }
    Ok(())
}

/// One run of the experiment of `row`.
fn one(row: &Row, program: &'static Program, system: &mut dyn System) -> anyhow::Result<Outcome> {
    match row.experiment.as_str() {
        plan::START => start::measure(system, program),
        plan::FIRST => start::measure_new_server(system, program),
        plan::MOUNT => start::measure_mount(system, program),
        "cache" => start::measure_cold_server(system, program),
        "energy" => start::measure_with_capture(system, program),
        "profile" => profile::measure(system, program),
        "touch" => touch::measure(system, program),
        "page" => fault::measure(system, program),
        "set" => set::measure(system, program),
        "pin" => fetch::measure(system, program),
        "cut" => fetch::measure_with_cuts(system, program),
        other => bail!("the lab has no experiment '{other}'"),
    }
}

/// Makes everything cold, mounts, and says what mounting took.
fn mount_cold(system: &mut dyn System, program: &Program) -> anyhow::Result<Outcome> {
    make_cold(system, program)?;
    mount_timed(system, program)
}

/// Takes the mount of the run before away and makes everything cold but what a server has in memory
/// and the programs of the client.
fn make_cold(system: &mut dyn System, program: &Program) -> anyhow::Result<()> {
    system.unmount().context("cannot unmount the run before")?;
    page_cache::drop_all()?;
    page_cache::read_back(&system.server_files(program))?;
    page_cache::read_back(&system.client_files())
}

/// Mounts and says what that took.
fn mount_timed(system: &mut dyn System, program: &Program) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let (bytes, time) = (kernel::traffic()?.rx_bytes, kernel::clock_seconds());
    system.mount(program.tree).with_context(|| format!("cannot mount {}", program.tree))?;
    outcome.set("mount", kernel::clock_seconds() - time);
    outcome.set("mount_rx_bytes", kernel::traffic()?.rx_bytes - bytes);
    Ok(outcome)
}
