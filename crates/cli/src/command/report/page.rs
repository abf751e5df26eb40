//! The page of a launch plan: the program's reads over time, its bursts, groups and breakpoints;
//! and for each group, how far ahead of its burst the breakpoint is hit, against the time that
//! fetching the group takes on a stated disk.
//!
//! The two drawings are like Figures 7 and 8 of the Spidermine paper (doi 10.1145/3555776.3577754):
//! reads over time with the positions of breakpoints, and whether prefetching ends in time.

use std::fmt::Write;

use profile::plan::{Analysis, Group, LaunchPlan, PlanFile, Run, Timeline, Trigger};
use units::{Moment, PAGE_BYTES};

use ::report::html::{Table, escape, head};
use ::report::plot::course::{Course, Mark, Stretch};
use ::report::plot::leads::{Lead, Leads};
use ::report::text;

/// Runs of which the course is drawn; more say nothing new.
const COURSES_MAX: usize = 8;

/// Groups in one drawing of leads: more rows than a page has.
const ROWS_MAX: usize = 64;

/// How fast a disk is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Seconds for each request and each file that is opened, in sorted order.
    pub access: f64,
}

impl Default for Speed {
    /// A rotating disk: 120 MB/s. Fetching 130 MB in 10,000 extents and 2,200 opens, sorted, took
    /// one 8 s: 0.6 ms each.
    fn default() -> Speed {
        Speed { bytes_per_second: 120e6, access: 0.6e-3 }
    }
}

/// The data of the page.
pub struct Input<'a> {
    /// The plan.
    pub plan: &'a LaunchPlan,
    /// The runs it was made from and how, if they are at hand.
    pub learned: Option<(&'a [Run], &'a Analysis)>,
    /// The disk that times are stated for.
    pub speed: Speed,
    /// Name of the function at an offset of a file.
    pub symbol: &'a dyn Fn(&PlanFile, u64) -> Option<String>,
}

/// The whole page.
pub fn page(input: &Input) -> String {
    let program = String::from_utf8_lossy(&input.plan.program);
    let mut html = head(&format!("Launch plan of {program}"));
    let _ = writeln!(html, "<header><h1>Launch plan of {}</h1>", escape(&program));
    html.push_str(&facts(input));
    html.push_str("</header>\n<main>\n");
    section(&mut html, "Reads over time", &courses(input));
    section(&mut html, "Is it fetched in time?", &leads(input));
    section(&mut html, "Groups", &groups(input));
    html.push_str("</main></body></html>\n");
    html
}

fn section(html: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        let _ = write!(html, "<section><h2>{}</h2>\n{body}</section>\n", escape(title));
    }
}

fn facts(input: &Input) -> String {
    let LaunchPlan { runs, files, groups, .. } = input.plan;
    let bytes: u64 = groups.iter().map(|group| input.plan.bytes(group)).sum();
    let breakpoints = groups.iter().filter(|group| matches!(group.trigger, Trigger::Breakpoint(_))).count();
    let mut facts = vec![
        ("Learning runs", runs.to_string()),
        ("Groups", groups.len().to_string()),
        ("Breakpoints", breakpoints.to_string()),
        ("Files", files.len().to_string()),
        ("Bytes", text::bytes(bytes as f64)),
    ];
    let mut notes = Vec::new();
    if let Some((_, analysis)) = input.learned {
        let report = analysis.report;
        let thresholds =
            analysis.timelines.iter().map(|timeline| text::seconds(timeline.config.threshold.as_secs_f64()));
        facts.push(("Burst threshold", thresholds.collect::<Vec<_>>().join(", ")));
        let share = report.pages_hole as f64 / (report.pages_touched as f64).max(1.0);
        facts.push(("Fetched, never touched", text::percent(share)));
        let counts = [
            (report.rare, "pages and paths that only one run needed are left out"),
            (report.files_gone, "files are no longer there"),
            (report.files_changed, "files have changed since they were recorded"),
            (report.over_limit, "pages, paths or bursts are over the limits of a plan"),
        ];
        let counted = counts.into_iter().filter(|(count, _)| *count > 0);
        notes.extend(counted.map(|(count, what)| format!("{} {what}", text::count(count as f64))));
    }
    let mut html = String::from("<dl class=\"about\">");
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    html.push_str("</dl>\n");
    if !notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        notes.iter().for_each(|note| {
            let _ = write!(html, "<li>{}</li>", escape(note));
        });
        html.push_str("</ul>\n");
    }
    html
}

fn seconds(at: Moment) -> f64 {
    at.0 as f64 / 1e6
}

fn courses(input: &Input) -> String {
    let mut html = String::from(
        "<p>The line is what was read for the first time. A burst is reads in quick succession; all from its start to the start of \
         the next one is a prefetch group. A breakpoint is the first address that is run once, in the idle period before a burst; from \
         there on its group is fetched.</p>\n",
    );
    match input.learned {
        None => {
            html.push_str(
                "<p class=\"remark\">A plan keeps when each burst begins, not when it ends; traces show more.</p>\n",
            );
            html.push_str(&planned(input).html());
        }
        Some((runs, analysis)) => {
            let timelines = runs.iter().zip(&analysis.timelines).take(COURSES_MAX).enumerate();
            for (number, (run, timeline)) in timelines {
                html.push_str(&course(input, number, run, timeline).html());
            }
        }
    }
    html
}

fn course(input: &Input, number: usize, run: &Run, timeline: &Timeline) -> Course {
    let reads = timeline.reads.iter().map(|read| (seconds(read.at), f64::from(read.pages) * PAGE_BYTES as f64));
    let stretches = timeline.bursts.iter().enumerate().map(|(number, burst)| Stretch {
        name: number.to_string(),
        span: (seconds(burst.began), seconds(burst.ended)),
    });
    let is_reference = input.learned.is_some_and(|(_, analysis)| analysis.reference == number);
    let (part, marks) = if is_reference { ("makes the groups", marks(input)) } else { ("confirms them", Vec::new()) };
    let title = format!("Run {}, recorded by {}: it {part}", number + 1, run.source);
    Course {
        title,
        label: "bytes read".to_string(),
        reads: reads.collect(),
        stretch: "burst".to_string(),
        stretches: stretches.collect(),
        mark: "breakpoint".to_string(),
        marks,
        ended: seconds(run.ended),
    }
}

/// The course that a plan alone tells: each group at once.
fn planned(input: &Input) -> Course {
    let groups = &input.plan.groups;
    let reads = groups.iter().map(|group| (seconds(group.at), input.plan.bytes(group) as f64));
    let stretches = groups
        .iter()
        .enumerate()
        .map(|(number, group)| Stretch { name: number.to_string(), span: (seconds(group.at), seconds(group.at)) });
    Course {
        title: "Groups of the plan at the starts of their bursts".to_string(),
        label: "bytes to fetch".to_string(),
        reads: reads.collect(),
        stretch: "burst".to_string(),
        stretches: stretches.collect(),
        mark: "breakpoint".to_string(),
        marks: marks(input),
        ended: 0.0,
    }
}

fn marks(input: &Input) -> Vec<Mark> {
    let marks = input.plan.groups.iter().enumerate().filter_map(|(number, group)| match &group.trigger {
        Trigger::Breakpoint(breakpoint) => Some(Mark {
            name: format!("of group {number}"),
            at: seconds(breakpoint.at),
            until: seconds(group.at),
            text: trigger(input, group),
        }),
        Trigger::Launch | Trigger::With(_) => None,
    });
    marks.collect()
}

/// The trigger of a group's prefetch, in words.
fn trigger(input: &Input, group: &Group) -> String {
    let Trigger::Breakpoint(breakpoint) = &group.trigger else {
        return match group.trigger {
            Trigger::With(earlier) => format!("with group {earlier}"),
            _ => "start of the program".to_string(),
        };
    };
    let name = |file: u32| input.plan.files.get(file as usize);
    let Some(file) = name(breakpoint.file) else { return String::new() };
    let place = format!("{}+{:#x}", String::from_utf8_lossy(&file.path), breakpoint.offset);
    let symbol = (input.symbol)(file, breakpoint.offset).map_or(String::new(), |symbol| format!(" ({symbol})"));
    let process = match name(breakpoint.process) {
        Some(process) if breakpoint.process != breakpoint.file => {
            format!(" in {}", String::from_utf8_lossy(&process.path))
        }
        _ => String::new(),
    };
    format!("{place}{symbol}{process}")
}

/// The replacement of the trigger where there are no breakpoints, in words.
fn library(input: &Input, group: &Group) -> String {
    let file = group.library.and_then(|library| input.plan.files.get(library.file as usize));
    file.map_or(String::new(), |file| format!(", or the load of {}", String::from_utf8_lossy(&file.path)))
}

/// How long it takes to fetch a group, seconds.
fn fetch(input: &Input, group: &Group) -> f64 {
    let requests = (group.opens.len() + group.extents.len()) as f64;
    input.plan.bytes(group) as f64 / input.speed.bytes_per_second + requests * input.speed.access
}

/// For each group: when its fetch ends, from its trigger on. Groups of one trigger are fetched one
/// after the other.
fn fetched(input: &Input) -> Vec<f64> {
    let mut ends: Vec<f64> = Vec::new();
    let mut before = 0.0;
    for group in &input.plan.groups {
        if !matches!(group.trigger, Trigger::With(_)) {
            before = 0.0;
        }
        before += fetch(input, group);
        ends.push(before);
    }
    ends
}

fn leads(input: &Input) -> String {
    let LaunchPlan { groups, .. } = input.plan;
    let rows = groups.iter().zip(fetched(input)).enumerate().take(ROWS_MAX).map(|(number, (group, takes))| Lead {
        label: format!("group {number}"),
        ahead: input.plan.lead(number).as_secs_f64(),
        takes,
        text: text::bytes(input.plan.bytes(group) as f64),
    });
    let leads = Leads {
        title: "Lead of each group, and how long it takes to fetch".to_string(),
        axis: "time before and after its burst begins".to_string(),
        rows: rows.collect(),
    };
    if leads.rows.is_empty() {
        return String::new();
    }
    let (rate, access) = (text::bytes(input.speed.bytes_per_second), text::seconds(input.speed.access));
    let more = match groups.len().saturating_sub(ROWS_MAX) {
        0 => String::new(),
        more => format!(" {more} later groups are in the table only."),
    };
    format!(
        "<p>The frame is the lead: from the trigger to the burst, as in the learning run. The bar is the fetch on a disk of {} a \
         second and {} for each request and each file that is opened; groups of one trigger are fetched one after the other. The launch \
         group has no lead: it is fetched while the program already runs.{}</p>\n{}",
        escape(&rate),
        escape(&access),
        escape(&more),
        leads.html()
    )
}

fn groups(input: &Input) -> String {
    let mut table =
        Table::new(&["group", "trigger", "burst at", "lead", "opens", "extents", "bytes", "fetched after"]).words(2);
    for (number, (group, takes)) in input.plan.groups.iter().zip(fetched(input)).enumerate() {
        table.row([
            number.to_string(),
            trigger(input, group) + &library(input, group),
            text::seconds(seconds(group.at)),
            text::seconds(input.plan.lead(number).as_secs_f64()),
            text::count(group.opens.len() as f64),
            text::count(group.extents.len() as f64),
            text::bytes(input.plan.bytes(group) as f64),
            text::seconds(takes),
        ]);
    }
    if table.is_empty() { "<p>Nothing was read often enough to be fetched.</p>\n".to_string() } else { table.html() }
}

#[cfg(test)]
mod tests;
