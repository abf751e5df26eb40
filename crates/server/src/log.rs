//! One line for each event worth a look, to wherever the caller of the server wants it.
//!
//! A peer can cause as many lines as it likes, with any text. So each statement that logs writes a
//! few lines a minute and only counts the others, and the text is made harmless for terminals.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lock::locked;

/// Lines of one kind that are written in a [`PERIOD`]: enough to see what goes on.
const LINES_MAX: u64 = 20;

/// The time for which lines are counted.
const PERIOD: Duration = Duration::from_secs(60);

/// Longest line, in characters: an error of ours with a path of the greatest length fits nearly
/// always.
const LINE_CHARS_MAX: usize = 2000;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Normal: an image published, actions saved.
    Info,
    /// Something failed, and the server goes on.
    Warning,
}

/// Takes log lines. Called from any thread; must not block for long.
#[derive(Clone)]
pub struct Logger(Arc<Inner>);

type Sink = dyn Fn(Level, &str) + Send + Sync;

struct Inner {
    /// At most one for each place that logs.
    kinds: Mutex<HashMap<&'static Location<'static>, Kind>>,
    sink: Box<Sink>,
}

/// Lines of one kind in the present period.
struct Kind {
    since: Instant,
    level: Level,
    count: u64,
    /// The last one that was left out.
    last: String,
}

impl Logger {
    /// A logger that hands each line to `sink`.
    pub fn new(sink: impl Fn(Level, &str) + Send + Sync + 'static) -> Logger {
        Logger(Arc::new(Inner { kinds: Mutex::default(), sink: Box::new(sink) }))
    }

    /// Lines to standard error, each with its time. Where that is closed or full, the server goes
    /// on without them.
    pub fn stderr() -> Logger {
        Logger::new(|level, line| {
            let kind = match level {
                Level::Info => "",
                Level::Warning => "warning: ",
            };
            // One write, so that lines of other processes do not get between.
            let line = format!("{} {kind}{line}\n", Time(SystemTime::now()));
            let _ = io::stderr().write_all(line.as_bytes());
        })
    }

    /// No lines.
    pub fn silent() -> Logger {
        Logger::new(|_, _| {})
    }

    #[track_caller]
    pub(crate) fn info(&self, line: impl fmt::Display) {
        self.log(Instant::now(), Location::caller(), Level::Info, &line);
    }

    #[track_caller]
    pub(crate) fn warning(&self, line: impl fmt::Display) {
        self.log(Instant::now(), Location::caller(), Level::Warning, &line);
    }

    /// Tells how many lines were left out in periods that are over. Called now and then.
    pub(crate) fn sum_up(&self, now: Instant) {
        let mut over = Vec::new();
        locked(&self.0.kinds).retain(|_, kind| {
            let is_over = now.duration_since(kind.since) >= PERIOD;
            if is_over {
                over.extend(kind.left_out());
            }
            !is_over
        });
        over.iter().for_each(|(level, line)| (self.0.sink)(*level, line));
    }

    fn log(&self, now: Instant, place: &'static Location<'static>, level: Level, line: &dyn fmt::Display) {
        let line = harmless(&line.to_string());
        let mut kinds = locked(&self.0.kinds);
        let fresh = || Kind { since: now, level, count: 0, last: String::new() };
        let kind = kinds.entry(place).or_insert_with(fresh);
        let mut before = None;
        if now.duration_since(kind.since) >= PERIOD {
            before = std::mem::replace(kind, fresh()).left_out();
        }
        kind.count += 1;
        let written = kind.count <= LINES_MAX;
        if !written {
            kind.last.clone_from(&line);
        }
        drop(kinds);
        if let Some((level, line)) = before {
            (self.0.sink)(level, &line);
        }
        if written {
            (self.0.sink)(level, &line);
        }
    }
}

impl Kind {
    fn left_out(&self) -> Option<(Level, String)> {
        let count = self.count.saturating_sub(LINES_MAX);
        let seconds = PERIOD.as_secs();
        (count > 0).then(|| (self.level, format!("... {count} more like this in {seconds} s; the last: {}", self.last)))
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logger")
    }
}

/// The line without what would steer a terminal or change the order of what is read, and not too
/// long.
fn harmless(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{} ...", units::printable_line(&line.as_bytes()[..end])),
        None => units::printable_line(line.as_bytes()).into_owned(),
    }
}

/// A moment as RFC 3339 has it, in UTC, to the millisecond.
pub(crate) struct Time(pub SystemTime);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        // Years begin in March here, so that a leap day is the last of its year. Eras of 400 years
        // have equally many days.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = (era * 400 + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
        let mut text = String::with_capacity(24);
        write!(text, "{year:04}-{month:02}-{day:02}T{:02}:{:02}", seconds / 3600, seconds / 60 % 60)?;
        write!(text, ":{:02}.{:03}Z", seconds % 60, since.subsec_millis())?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines = Arc<Mutex<Vec<String>>>;

    fn logger() -> (Logger, Lines) {
        let lines = Lines::default();
        let sink = lines.clone();
        (Logger::new(move |_, line| locked(&sink).push(line.to_owned())), lines)
    }

    #[test]
    fn lines_of_one_kind_are_limited_and_the_rest_is_counted() {
        let (log, lines) = logger();
        for number in 0..1224 {
            log.warning(format_args!("line {number}"));
        }
        log.info("another kind");
        assert_eq!(locked(&lines).len(), 21);
        log.sum_up(Instant::now());
        assert_eq!(locked(&lines).len(), 21, "the period is not over");
        log.sum_up(Instant::now() + PERIOD);
        assert_eq!(locked(&lines)[21..], ["... 1204 more like this in 60 s; the last: line 1223"]);
    }

    #[test]
    fn text_of_peers_cannot_steer_a_terminal() {
        let (log, lines) = logger();
        log.warning("name \x1b[2J\r\n\u{202e}gpj.exe \u{9b}31m é");
        log.warning("x".repeat(100_000));
        assert_eq!(locked(&lines)[0], r"name \u001b[2J\r\n\u202egpj.exe \u009b31m é");
        assert!(locked(&lines)[1].len() < 2100);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| Time(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7)).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00.007Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }
}
