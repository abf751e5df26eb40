//! The page of a run and its text: bars, times of every case on every system with what is possible,
//! and the figures of the paper (the first N KB of a sequential read, computing interleaved with
//! reading) and ours (the scenes of the game).

use std::fmt::Write;

use report::html::{Table, escape, head};
use report::plot::bars::{Bar as Drawn, Bars, Group};
use report::plot::lines::{Axis, Curve, Lines, Style};
use report::plot::neutral_tone;
use report::plot::scale::Unit;
use report::table::aligned;
use report::text::{bytes, count, ratio, seconds};

use super::bar::{self, Goal};
use super::limit::Limit;
use super::measured::{Measured, SYSTEMS, label};
use crate::lab::data::case::{CASES, Case, SEQUENTIAL_BYTES, Work};
use crate::lab::report::{About, measured};
use crate::pack::bar::{Bar, Verdict};
use crate::pack::report::{section, summary};

/// What each case does, for the reader.
const WORDS: [(&str, &str); 5] = [
    ("seq, seq-text", "1 MiB is read in order, 4 KiB at a time: random bytes, and text (licences and Perl modules)."),
    (
        "rand1k",
        "523 reads of 1 KiB at pseudo-random multiples of 1 KiB, some of them repeated: 39 % of the file is touched. Our \
         volume has blocks of 1 KiB; it is mounted without the page cache, which would ask for pages.",
    ),
    (
        "stat",
        "1 MiB is read in order and every 4 KiB are computed on, for 0.25, 0.5, 1 or 2 times as long as the link needs for \
         their bytes; on the processor that also runs the client, the server and the network.",
    ),
    (
        "bsearch, game",
        "A binary search for one key in a sorted table of 32,768 records of 32 bytes, another key in each run, our volume \
         with blocks of 512 bytes. A game: a program of 512 KB whose pages are executed as its scenes come up (28 of 128 \
         before the first), and four scenes of 256 KB of random bytes, each played for 25 s; time until the first is shown.",
    ),
    (
        "files1000",
        "1,000 new files of 4 to 64 KB, each written and synced before the next, of random bytes or of text, over 25 Mbit/s \
         and 20 ms; the server\u{2019}s disk is synced too.",
    ),
];

/// The whole page.
pub fn page(measured: Measured, about: &About) -> String {
    let goals = bar::all(measured);
    let bars: Vec<Bar> = goals.iter().map(|goal| goal.bar.clone()).collect();
    let mut html = head(&format!("Runnel sio, {} at {}", about.date, about.commit));
    html.push_str(&header(about));
    html.push_str(&summary(&bars));
    html.push_str("<main>\n");
    section(&mut html, "bars", "Bars", &goal_table(&goals).html());
    section(&mut html, "times", "Times", &format!("{}{}", figure(measured), times(measured).html()));
    let first = format!("{}{}", first(measured, "seq"), first(measured, "seq-text"));
    section(&mut html, "first", "The first N KB of a sequential read", &first);
    section(&mut html, "stat", "Computing between reads", &sweep(measured));
    section(&mut html, "game", "A game of four scenes", &scenes(measured));
    section(&mut html, "cases", "Cases", &cases().html());
    html.push_str("</main></body></html>\n");
    html
}

fn header(about: &About) -> String {
    let mut html = String::from("<header><h1>Runnel data file report</h1>\n<dl class=\"about\">");
    let facts = [
        ("Date", &about.date),
        ("Commit", &about.commit),
        ("Host", &about.machine()),
        ("Kernel of the guest", &about.kernel),
    ];
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    html.push_str(
        "</dl>\n<p>Times are those of a guest whose clock counts instructions, so they do not depend on the load of the \
         host. The link of the read cases is the modem of the SIO paper: 128 kbit/s, 40 ms round trip. Every run begins \
         with a mounted, cold client; the server has the files in memory. A download is the whole file over TCP in the \
         clear, then local work. All systems have their defaults. Limits: <i>payload</i> is the needed bytes by the \
         bandwidth and a round trip, <i>wire</i> adds headers of packets (4.6 %), below which only compression leads. \
         \u{201c}Possible\u{201d} is the measured peer against the wire limit. What Runnel\u{2019}s server knows \
         comes from the same work done before by another device over an open link, for a search from 200 searches for other \
         keys.</p>\n",
    );
    html.push_str(&about.notes_html());
    html.push_str("</header>\n");
    html
}

/// Bar, demand, measured, possible, verdict.
fn goal_cells(goal: &Goal) -> [String; 5] {
    let Goal { bar, possible } = goal;
    let deciding = bar.deciding().map_or("-".into(), |(case, value)| format!("{} ({case})", bar.form.show(value)));
    let possible = possible.map_or("-".into(), |value| bar.form.show(value));
    [bar.name.clone(), bar.demanded(), deciding, possible, bar.verdict().word().to_string()]
}

const GOAL_HEAD: [&str; 5] = ["bar", "demand", "measured", "possible", "verdict"];

fn goal_table(goals: &[Goal]) -> Table {
    let mut table = Table::new(&GOAL_HEAD);
    goals.iter().for_each(|goal| table.row(goal_cells(goal)));
    table
}

/// The colour of a system: the lab's where it has one. Ours is that of a server that has learned.
fn tone(system: &str) -> usize {
    match system {
        "runnel" => measured::tone("runnel:learned"),
        "runnel:mount" => neutral_tone(0),
        "runnel:program" => neutral_tone(1),
        "download" => neutral_tone(2),
        "limit" => neutral_tone(3),
        of_lab => measured::tone(of_lab),
    }
}

/// Times of all cases but those of the sweep; the mark is the wire limit.
fn figure(measured: Measured) -> String {
    let group = |case: &'static Case| {
        let mark = measured.limit(case).map(|limit| limit.wire);
        let bar = |system: &'static str| {
            let found = measured.summary(case.name, system, "seconds")?;
            let drawn = Drawn::new(label(system), tone(system), found.median, seconds(found.median));
            Some(Drawn { spread: Some((found.min, found.max)), mark, ..drawn })
        };
        let bars = measured.systems(case.name).into_iter().filter_map(bar).collect();
        // A search takes a hundredth of the others' time.
        Bars {
            title: format!("{}: seconds, with the limit of the link", case.name),
            axis: String::new(),
            unit: Unit::Seconds,
            groups: vec![Group { label: String::new(), bars }],
            legend: Vec::new(),
        }
        .html()
    };
    let is_shown = |case: &&'static Case| !matches!(case.work, Work::Interleaved(_));
    measured.cases().into_iter().filter(is_shown).map(group).collect()
}

/// One line of the table of times.
struct Time {
    case: &'static str,
    system: &'static str,
    cells: [Option<String>; 9],
}

const TIME_HEAD: [&str; 11] =
    ["case", "system", "median", "min-max", "payload", "wire", "x wire", "vs download", "vs NFS", "received", "runs"];

/// Every case on every system; of the game also the whole.
fn all_times(measured: Measured) -> Vec<Time> {
    let mut lines = Vec::new();
    for case in measured.cases() {
        let limit = measured.limit(case);
        let whole = measured.link(case.name).map(|link| Limit::of_whole_game(&link));
        for system in measured.systems(case.name) {
            lines.extend(time(measured, case, (case.name, "seconds"), system, limit));
        }
        for system in measured.systems(case.name).into_iter().filter(|_| case.work == Work::Game) {
            lines.extend(time(measured, case, ("game, whole", "total"), system, whole));
        }
    }
    lines
}

fn time(
    measured: Measured,
    case: &'static Case,
    (name, value): (&'static str, &str),
    system: &'static str,
    limit: Option<Limit>,
) -> Option<Time> {
    let found = measured.summary(case.name, system, value)?;
    let against = |other: &str| {
        let other = measured.median(case.name, other, value)?;
        (found.median > 0.0).then(|| ratio(other / found.median))
    };
    let cells = [
        Some(format!("{:.3}", found.median)),
        Some(format!("{:.3}-{:.3}", found.min, found.max)),
        limit.map(|limit| format!("{:.3}", limit.payload)),
        limit.map(|limit| format!("{:.3}", limit.wire)),
        limit.map(|limit| format!("{:.3}", found.median / limit.wire)),
        against("download"),
        against("nfs"),
        measured.median(case.name, system, "rx_bytes").map(bytes),
        Some(count(found.count as f64)),
    ];
    Some(Time { case: name, system, cells })
}

fn times(measured: Measured) -> Table {
    let mut table = Table::new(&TIME_HEAD).words(2);
    for Time { case, system, cells } in all_times(measured) {
        table.row([Some(case.to_string()), Some(label(system).to_string())].into_iter().chain(cells));
    }
    table
}

/// When the first N KB were there (figure 4 of the paper).
fn first(measured: Measured, case: &str) -> String {
    let curve = |system: &'static str| {
        let series = measured.series(case, system, "first")?;
        let place = |(index, time): (usize, &f64)| (((index + 1) * SEQUENTIAL_BYTES) as f64, *time);
        let points = series.iter().enumerate().map(place).collect();
        Some(Curve { label: label(system).to_string(), tone: tone(system), points })
    };
    let lines = Lines {
        title: format!("{case}: time until the first bytes were there"),
        x: Axis::linear("bytes from the start of the file", Unit::Bytes),
        y: Axis::linear("seconds", Unit::Seconds),
        style: Style::Line,
        curves: measured.systems(case).into_iter().filter_map(curve).collect(),
    };
    lines.html()
}

/// Time by utilisation (figure 5 of the paper).
fn sweep(measured: Measured) -> String {
    let swept = || {
        CASES.iter().filter_map(|case| match case.work {
            Work::Interleaved(utilisation) => Some((case, utilisation)),
            _ => None,
        })
    };
    let curve = |(system, label): (&'static str, &str)| {
        let point =
            |(case, utilisation): (&Case, f64)| Some((utilisation, measured.median(case.name, system, "seconds")?));
        Curve { label: label.to_string(), tone: tone(system), points: swept().filter_map(point).collect() }
    };
    let limit = swept().filter_map(|(case, utilisation)| Some((utilisation, measured.limit(case)?.wire))).collect();
    let limit = Curve { label: "limit".into(), tone: tone("limit"), points: limit };
    let lines = Lines {
        title: "stat: time by utilisation".into(),
        x: Axis::linear("computing / transfer of a block", Unit::Ratio),
        y: Axis::linear("seconds", Unit::Seconds),
        style: Style::Dotted,
        curves: SYSTEMS.into_iter().map(curve).chain([limit]).filter(|curve| !curve.points.is_empty()).collect(),
    };
    lines.html()
}

/// When each scene was shown.
fn scenes(measured: Measured) -> String {
    let curve = |system: &'static str| {
        let series = measured.series("game", system, "scenes")?;
        let points = series.iter().enumerate().map(|(index, time)| ((index + 1) as f64, *time)).collect();
        Some(Curve { label: label(system).to_string(), tone: tone(system), points })
    };
    let lines = Lines {
        title: "game: when each scene is shown".into(),
        x: Axis::linear("scene", Unit::Count),
        y: Axis::linear("seconds", Unit::Seconds),
        style: Style::Dotted,
        curves: measured.systems("game").into_iter().filter_map(curve).collect(),
    };
    lines.html()
}

fn cases() -> Table {
    let mut table = Table::new(&["case", "what is done"]).words(2);
    WORDS.iter().for_each(|(case, text)| table.row([*case, *text]));
    table
}

/// The same for a terminal: bars with their verdicts, then times.
pub fn text(measured: Measured) -> String {
    let goals = bar::all(measured);
    let mut lines = vec![GOAL_HEAD.map(str::to_string).to_vec()];
    lines.extend(goals.iter().map(|goal| goal_cells(goal).to_vec()));
    let mut text = aligned(&lines);
    let met = |verdict| goals.iter().filter(|goal| goal.bar.verdict() == verdict).count();
    let _ = writeln!(text, "  {} met, {} missed, of {}\n", met(Verdict::Met), met(Verdict::Missed), goals.len());
    let name = |case: &str, system: &str| format!("{case} {system}");
    let heading = std::iter::once("times, s").chain(TIME_HEAD.into_iter().skip(2)).map(str::to_string).collect();
    let mut lines: Vec<Vec<String>> = vec![heading];
    for Time { case, system, cells } in all_times(measured) {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into()));
        lines.push(std::iter::once(name(case, system)).chain(cells).collect());
    }
    text.push_str(&aligned(&lines));
    text
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::canned;
    use super::*;

    #[test]
    fn the_page_shows_bars_times_and_figures() {
        let records = canned();
        let measured = Measured::new(&records);
        let about = About { notes: vec!["a <note>".into()], ..About::default() };
        let html = page(measured, &about);
        for part in [
            "seq, against nfs",
            "time until the first bytes were there",
            "time by utilisation",
            "when each scene is shown",
            "a &lt;note&gt;",
            "65.576",
        ] {
            assert!(html.contains(part), "{part}");
        }
        assert!(!html.contains("http://") || html.contains("xmlns"), "nothing from outside");
        let text = text(measured);
        assert!(
            text.contains("seq runnel") && text.contains("game, whole download") && text.contains(" met,"),
            "{text}"
        );
    }
}
