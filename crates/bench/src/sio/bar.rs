//! The bars of the project for data files, each with what was measured and with what is possible
//! against the measured peer over this link at all.

use super::measured::Measured;
use crate::lab::data::case::{CASES, Case, Work};
use crate::pack::bar::{Bar, Form};

/// A bar and its reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The bar.
    pub bar: Bar,
    /// What a system without loss of time and without compression would reach against the measured
    /// peer, with headers of packets; for what is to be small, the smallest value. Absent for text,
    /// which arrives sooner the better it is compressed.
    pub possible: Option<f64>,
}

/// Bars of ratios: case, whom it is against, demand, and whether the mount is judged too.
const RATIOS: [(&str, &str, f64, bool); 13] = [
    ("seq", "nfs", 1.4, true),
    ("seq", "download", 1.0, true),
    ("seq-text", "nfs", 1.4, true),
    ("seq-text", "download", ABOVE_ONE, true),
    ("rand1k", "nfs", 2.5, true),
    ("rand1k", "download", 2.5, true),
    ("bsearch", "nfs", 8.0, true),
    ("bsearch", "download", 80.0, true),
    ("game", "nfs", 1.6, false),
    ("game", "download", 4.5, false),
    ("game", "runnel:program", 3.3, false),
    ("files1000", "nfs", 3.0, true),
    ("files1000-text", "nfs", 3.0, true),
];

/// The bar for compressible data says "above" that of others.
const ABOVE_ONE: f64 = 1.05;

/// Most time of a case with computing, relative to the larger of transfer and computing.
const INTERLEAVED: f64 = 1.03;

/// Our system, and what it is called in the name of a bar.
const OURS: [(&str, &str); 2] = [("runnel", ""), ("runnel:mount", " (mount)")];

/// All bars, those of the library first.
pub fn all(measured: Measured) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (ours, suffix) in OURS {
        let is_mount = !suffix.is_empty();
        let wanted = RATIOS.iter().filter(|(_, _, _, mount)| *mount || !is_mount);
        goals.extend(wanted.map(|(case, other, demand, _)| ratio(measured, case, [ours, other], *demand, suffix)));
        goals.push(interleaved(measured, ours, suffix));
    }
    goals
}

fn ratio(measured: Measured, name: &str, [ours, other]: [&str; 2], demand: f64, suffix: &str) -> Goal {
    let value = measured.faster(name, ours, other);
    let against = if other == "runnel:program" { "streaming the program only" } else { other };
    let what = if name == "game" { "game, start" } else { name };
    let bar = Bar {
        name: format!("{what}, against {against}{suffix}"),
        demand,
        at_most: false,
        form: Form::Times,
        any: false,
        cases: vec![(ours.to_string(), value)],
    };
    let case = CASES.iter().find(|case| case.name == name);
    let incompressible = case.filter(|case| !case.is_text());
    let limit = incompressible.and_then(|case| measured.limit(case)).map(|limit| limit.wire);
    let possible = limit.zip(measured.median(name, other, "seconds")).map(|(limit, other)| other / limit);
    Goal { bar, possible }
}

fn interleaved(measured: Measured, ours: &str, suffix: &str) -> Goal {
    let swept = CASES.iter().filter(|case| matches!(case.work, Work::Interleaved(_)));
    let value = |case: &Case| Some(measured.median(case.name, ours, "seconds")? / measured.limit(case)?.wire);
    let bar = Bar {
        name: format!("stat, against the larger of transfer and computing{suffix}"),
        demand: INTERLEAVED,
        at_most: true,
        form: Form::Times,
        any: false,
        cases: swept.map(|case| (case.name.to_string(), value(case))).collect(),
    };
    Goal { bar, possible: Some(1.0) }
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::canned;
    use super::*;
    use crate::pack::bar::Verdict;

    #[test]
    fn bars_are_judged_by_what_was_measured() {
        let records = canned();
        let goals = all(Measured::new(&records));
        let goal = |name: &str| goals.iter().find(|goal| goal.bar.name == name).expect(name);
        assert_eq!(goal("seq, against nfs").bar.verdict(), Verdict::Met);
        assert_eq!(goal("seq, against download").bar.verdict(), Verdict::Met);
        assert_eq!(goal("seq, against nfs (mount)").bar.verdict(), Verdict::NotMeasured);
        assert_eq!(goal("game, start, against download").bar.verdict(), Verdict::Met);
        assert_eq!(goal("stat, against the larger of transfer and computing").bar.verdict(), Verdict::Partly);
        assert_eq!(goal("files1000, against nfs").bar.verdict(), Verdict::NotMeasured);
        let possible = goal("files1000, against nfs").possible.expect("the peer was measured");
        assert!((2.8..3.2).contains(&possible), "{possible}");
    }
}
