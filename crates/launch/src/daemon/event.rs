//! What the daemon reports of its work.

use std::fmt;

use serde::Serialize;

use crate::{Fetched, Launch, Mode};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// All programs with a plan are watched from now on.
    Ready {
        /// Program files.
        programs: usize,
        /// Plans; an interpreter has one for each script.
        plans: usize,
        /// Whether later groups can be fetched.
        probes: bool,
    },
    /// Plans or programs have changed, and were looked at again.
    Plans {
        /// Program files.
        programs: usize,
        /// Plans.
        plans: usize,
    },
    /// A program was started.
    Launch {
        /// Its process.
        process: u32,
        /// Which one, for people.
        program: String,
        /// What is done for it.
        mode: Mode,
        /// From the report of its start until the fetcher has the first group, microseconds.
        after_us: u64,
    },
    /// A program came to the code before a later group, which is fetched.
    Group {
        /// The process that was started.
        process: u32,
        /// The group, by its position in the plan.
        group: usize,
    },
    /// A launch is over, and is in the history of its plan.
    Over {
        /// The process that was started.
        process: u32,
        /// How it went.
        launch: Launch,
    },
    /// A program is not followed any longer.
    Ended {
        /// The process that was started.
        process: u32,
        /// Which one, for people.
        program: String,
        /// What was fetched for it.
        fetched: Fetched,
    },
    /// What did not go as it should.
    Note {
        /// In words.
        text: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Ready { programs, plans, probes } => {
                let without = if *probes { "" } else { ", without probes" };
                write!(f, "ready: {programs} programs, {plans} plans{without}")
            }
            Event::Plans { programs, plans } => write!(f, "plans have changed: {programs} programs, {plans} plans"),
            Event::Launch { process, program, mode, after_us } => {
                let done = match mode {
                    Mode::With => "fetching",
                    Mode::Without => "not fetching, for comparison or as it is off",
                    Mode::Warm => "all in memory",
                };
                write!(f, "{program} ({process}): {done}, after {after_us} us")
            }
            Event::Group { process, group } => write!(f, "({process}): fetching group {group}"),
            Event::Over { process, launch } => {
                write!(f, "({process}): launch took {:.3} s", launch.launch_us as f64 / 1e6)
            }
            Event::Ended { process, program, fetched } => {
                let Fetched { groups, bytes, stale, .. } = fetched;
                write!(f, "{program} ({process}): {groups} groups, {bytes} bytes fetched, {stale} files stale")
            }
            Event::Note { text } => write!(f, "note: {text}"),
        }
    }
}
