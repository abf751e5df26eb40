//! The bars of the project for starts of local programs, each with what was measured against it.
//!
//! An average counts as met only if every program of the bar was measured; otherwise it is "partly
//! measured".

use disk::MODELS;

use super::program::{PROGRAMS, Program};
use super::results::Results;
use super::run::Mode;
use crate::pack::bar::{Bar, Form};

/// Least average saving of starts on each disk.
const AVERAGES: [(&str, f64); 4] = [("hdd", 0.48), ("sata", 0.25), ("emmc", 0.18), ("net", 0.40)];

/// Least saving of the best start on the hard disk.
const BEST: f64 = 0.60;

/// Least saving of later loading on the hard disk, by program.
const LATER: [(&str, f64); 3] = [("later-0.5", 0.30), ("later-2", 0.62), ("later-4", 0.80)];

/// Least share of what the perfect prefetch saves.
const SHARE: f64 = 0.85;

/// Most bytes beyond what is touched.
const OVERFETCH: f64 = 0.20;

/// Most stops of a whole start.
const STOPS: f64 = 510.0;

/// Most CPU time of a learning run, relative to a warm start.
const LEARNING: f64 = 1.15;

/// Most time of a warm start that is launched, relative to one that is not.
const WARM: f64 = 1.02;

fn starts() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.iter().filter(|program| program.lead.is_none())
}

fn at_least(name: &str, demand: f64, cases: Vec<(String, Option<f64>)>) -> Bar {
    Bar { name: name.into(), demand, at_most: false, form: Form::Percent, any: false, cases }
}

fn at_most(name: &str, form: Form, demand: f64, cases: Vec<(String, Option<f64>)>) -> Bar {
    Bar { name: name.into(), demand, at_most: true, form, any: false, cases }
}

/// All bars.
pub fn all(results: &Results) -> Vec<Bar> {
    let mut bars: Vec<Bar> = AVERAGES.iter().map(|(disk, demand)| average(results, disk, *demand)).collect();
    let saved = |name: &str, disk: &str| (name.to_string(), results.saved(name, disk, Mode::Runnel));
    let best = starts().map(|program| saved(program.name, "hdd")).collect();
    bars.insert(1, Bar { any: true, ..at_least("start on hdd, best saving", BEST, best) });
    for (program, demand) in LATER {
        bars.push(at_least(&format!("{program} on hdd, saving"), demand, vec![saved(program, "hdd")]));
    }
    let pairs = || PROGRAMS.iter().flat_map(|program| MODELS.iter().map(move |model| (program.name, model.name)));
    let each = |value: &dyn Fn(&str, &str) -> Option<f64>| {
        pairs().map(|(program, disk)| (format!("{program} on {disk}"), value(program, disk))).collect::<Vec<_>>()
    };
    let share = |program: &str, disk: &str| results.share_of_perfect(program, disk, Mode::Runnel);
    bars.push(at_least("share of what a perfect prefetch saves", SHARE, each(&share)));
    let overfetch = |program: &str, disk: &str| results.overfetch(results.case(program, disk, Mode::Runnel)?);
    bars.push(at_most("bytes beyond what is touched", Form::Percent, OVERFETCH, each(&overfetch)));
    bars.push(at_most("stops of a start", Form::Number, STOPS, each(&|program, disk| results.stops(program, disk))));
    let on_hdd = |value: &dyn Fn(&str) -> Option<f64>| {
        PROGRAMS.iter().map(|program| (program.name.to_string(), value(program.name))).collect::<Vec<_>>()
    };
    let learning = on_hdd(&|program| results.learning_cpu(program, "hdd"));
    bars.push(at_most("CPU time of a learning run, relative to a warm start", Form::Times, LEARNING, learning));
    let warm = on_hdd(&|program| {
        let time = |mode| results.case(program, "hdd", mode)?.summary(|run| run.wall).map(|summary| summary.median);
        Some(time(Mode::RunnelWarm)? / time(Mode::Warm)?)
    });
    bars.push(at_most("warm start by the launcher, relative to a plain one", Form::Times, WARM, warm));
    bars
}

/// The mean over the programs that were measured, and those that were not.
fn average(results: &Results, disk: &str, demand: f64) -> Bar {
    let found: Vec<(&str, Option<f64>)> =
        starts().map(|program| (program.name, results.saved(program.name, disk, Mode::Runnel))).collect();
    let values: Vec<f64> = found.iter().filter_map(|(_, value)| *value).collect();
    let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let mut cases = vec![(format!("mean of {} programs", values.len()), mean)];
    cases.extend(found.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| (name.to_string(), None)));
    at_least(&format!("start on {disk}, average saving"), demand, cases)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{canned, case};
    use super::*;
    use crate::pack::bar::Verdict;

    fn verdict(results: &Results, name: &str) -> Verdict {
        all(results).iter().find(|bar| bar.name == name).map(Bar::verdict).expect(name)
    }

    #[test]
    fn bars_are_judged_by_what_was_measured() {
        let mut results = canned();
        assert_eq!(verdict(&results, "start on hdd, average saving"), Verdict::Partly, "one program of six");
        assert_eq!(verdict(&results, "start on hdd, best saving"), Verdict::Partly);
        assert_eq!(verdict(&results, "start on net, average saving"), Verdict::NotMeasured);
        assert_eq!(verdict(&results, "later-2 on hdd, saving"), Verdict::Met);
        assert_eq!(verdict(&results, "later-4 on hdd, saving"), Verdict::NotMeasured);
        assert_eq!(verdict(&results, "share of what a perfect prefetch saves"), Verdict::Missed, "0.833");
        assert_eq!(verdict(&results, "warm start by the launcher, relative to a plain one"), Verdict::Partly);
        for program in ["java", "gxx", "office", "gimp", "inkscape"] {
            results.cases.push(case(program, "hdd", Mode::Cold, &[10.0], 1));
            results.cases.push(case(program, "hdd", Mode::Runnel, &[5.0], 1));
        }
        assert_eq!(verdict(&results, "start on hdd, average saving"), Verdict::Met);
        assert_eq!(verdict(&results, "start on hdd, best saving"), Verdict::Missed);
    }
}
