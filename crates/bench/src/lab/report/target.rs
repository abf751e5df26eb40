//! The bars of the project: what is demanded, what came out, met or missed.
//!
//! A bar holds if every measured case of it holds, so the worst case decides and is named.

use super::limit::{Limit, PAGE_BYTES};
use super::measured::{Measured, PAPER_KINDS};
use super::text;

/// Programs that need more than this are no part of the bar against a local disk: the link alone
/// takes longer. Bytes.
const SMALL_PROGRAM_BYTES: f64 = 6e6;

/// What kind of number a bar demands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Demand {
    /// Lower than the other system by at least this share.
    Lower(f64),
    /// At most this many times the other.
    AtMost(f64),
    /// Faster than the other by at least this factor.
    Faster(f64),
}

/// Whether a bar holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every measured case does.
    Met,
    /// At least one does not.
    Missed,
    /// There is no case in this run.
    NotMeasured,
}

/// One comparison of a bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Program, and what else tells it apart.
    pub label: String,
    /// A share or a factor, as the demand is.
    pub value: f64,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// In a few words.
    pub name: &'static str,
    /// What must hold.
    pub demand: Demand,
    /// What the SYSFLOW paper reports here; empty if nothing.
    pub paper: &'static str,
    /// What was measured.
    pub cases: Vec<Case>,
}

impl Target {
    /// Whether the case holds.
    pub fn holds(&self, case: &Case) -> bool {
        match self.demand {
            // Bars that only say "lower" demand 0; being equal is not lower.
            Demand::Lower(0.0) => case.value > 0.0,
            Demand::Lower(least) | Demand::Faster(least) => case.value >= least,
            Demand::AtMost(most) => case.value <= most,
        }
    }

    /// Whether all cases hold.
    pub fn verdict(&self) -> Verdict {
        match () {
            _ if self.cases.is_empty() => Verdict::NotMeasured,
            _ if self.cases.iter().all(|case| self.holds(case)) => Verdict::Met,
            _ => Verdict::Missed,
        }
    }

    /// The case that misses the bar by most, or holds by least.
    pub fn worst(&self) -> Option<&Case> {
        self.cases.iter().min_by(|a, b| self.merit(a).total_cmp(&self.merit(b)))
    }

    /// The opposite of [`Target::worst`].
    pub fn best(&self) -> Option<&Case> {
        self.cases.iter().max_by(|a, b| self.merit(a).total_cmp(&self.merit(b)))
    }

    /// The value, with a sign that makes more better.
    fn merit(&self, case: &Case) -> f64 {
        if matches!(self.demand, Demand::AtMost(_)) { -case.value } else { case.value }
    }

    /// The demand in words.
    pub fn demand(&self) -> String {
        match self.demand {
            Demand::Lower(0.0) => "lower".to_string(),
            Demand::Lower(share) => format!("at least {} % lower", text::plain(share * 100.0)),
            Demand::AtMost(factor) => format!("at most {}x", text::plain(factor)),
            Demand::Faster(factor) => format!("at least {}x faster", text::plain(factor)),
        }
    }

    /// A value of this bar in words.
    pub fn show(&self, value: f64) -> String {
        match self.demand {
            Demand::Lower(_) if value < 0.0 => format!("{} higher", text::percent(-value)),
            Demand::Lower(_) => format!("{} lower", text::percent(value)),
            Demand::AtMost(_) => text::ratio(value),
            Demand::Faster(_) => format!("{} faster", text::ratio(value)),
        }
    }
}

/// Every bar, in the order in which they were set.
pub fn all(measured: &Measured) -> Vec<Target> {
    let target = |name, demand, paper, cases| Target { name, demand, paper, cases };
    let nfs = "20 to 60.7 % lower execution";
    let card = "45.1 to 75.8 % lower per page, 14 to 36 % lower execution";
    vec![
        target("NFS, WiFi", Demand::Lower(0.75), nfs, against_nfs(measured, "wifi", true)),
        target("NFS, WiFi with 1 % loss", Demand::Lower(0.80), "", against_nfs(measured, "wifi+1%", true)),
        target(
            "NFS, 1 Gbit/s",
            Demand::Lower(0.60),
            "up to 67.7 % lower per page",
            against_nfs(measured, "lan", false),
        ),
        target("SD card, 1 Gbit/s", Demand::Lower(0.70), card, against_cards(measured, "lan")),
        target("SD card, WiFi", Demand::Lower(0.0), card, against_cards(measured, "wifi")),
        target("local disk, WiFi, needs under 6 MB", Demand::AtMost(1.6), "at best 1.23x", against_local(measured)),
        target("squashfs and Nydus, WiFi", Demand::Faster(2.0), "", against_images(measured, "wifi")),
        target("squashfs and Nydus, WAN", Demand::Faster(2.0), "", against_images(measured, "wan")),
        target(
            "limit of the link, WiFi",
            Demand::AtMost(1.25),
            "",
            against_limit(measured, |limit| Some(limit.link())),
        ),
        target("limit of link and CPU, WiFi", Demand::AtMost(1.25), "", against_limit(measured, Limit::overlapped)),
        target("I/O path", Demand::Lower(0.09), "9 to 25 % lower", io_path(measured)),
        target("NV Async against none", Demand::Lower(0.635), "63.5 to 88.9 % lower", caching(measured, "nv-async")),
    ]
}

fn against_nfs(measured: &Measured, link: &str, paper_only: bool) -> Vec<Case> {
    let programs = measured.programs("start").into_iter().filter(|name| !paper_only || PAPER_KINDS.contains(name));
    let case = |program: &str| {
        let value = measured.lower("start", link, ["runnel:learned", "nfs"], program, "cold")?;
        Some(Case { label: program.to_string(), value })
    };
    programs.filter_map(case).collect()
}

fn against_cards(measured: &Measured, link: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for program in measured.programs("start") {
        for card in ["sd:a", "sd:b"] {
            if let Some(value) = measured.lower("start", link, ["runnel:learned", card], program, "cold") {
                cases.push(Case { label: format!("{program}, {}", text::system(card)), value });
            }
        }
    }
    cases
}

fn against_local(measured: &Measured) -> Vec<Case> {
    let case = |program: &str| {
        let cold = |system| measured.value("start", "wifi", system, program, "cold");
        let pages = measured.pages_needed(program).map(|pages| pages * PAGE_BYTES);
        let needed = pages.or_else(|| Some(Limit::of(measured, "wifi", program)?.bytes))?;
        let value = cold("runnel:learned")? / cold("local").filter(|local| *local > 0.0)?;
        (needed < SMALL_PROGRAM_BYTES).then(|| Case { label: format!("{program}, {}", text::bytes(needed)), value })
    };
    measured.programs("start").into_iter().filter_map(case).collect()
}

fn against_images(measured: &Measured, link: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for program in measured.programs("start") {
        for system in ["squashfs", "nydus"] {
            let cold = |system| measured.value("start", link, system, program, "cold");
            let pair = cold(system).zip(cold("runnel:learned")).filter(|(_, ours)| *ours > 0.0);
            cases.extend(
                pair.map(|(theirs, ours)| Case { label: format!("{program}, {system}"), value: theirs / ours }),
            );
        }
    }
    cases
}

fn against_limit(measured: &Measured, floor: impl Fn(&Limit) -> Option<f64>) -> Vec<Case> {
    let case = |program: &str| {
        let cold = measured.value("start", "wifi", "runnel:learned", program, "cold")?;
        let floor = floor(&Limit::of(measured, "wifi", program)?)?;
        (floor > 0.0).then(|| Case { label: program.to_string(), value: cold / floor })
    };
    measured.programs("start").into_iter().filter_map(case).collect()
}

/// Experiments and values that tell the cost of the I/O path, the most direct first.
pub const IO_BASES: [(&str, &str); 2] = [("touch", "mean"), ("start", "cold")];

/// Experiments and values that tell what the server's caching gains, the most direct first.
pub const CACHE_BASES: [(&str, &str); 3] = [("touch", "mean"), ("cache", "stall"), ("cache", "cold")];

/// How much lower `system` is than `base`, by the first of `bases` that was measured for both.
pub fn lower_by(
    measured: &Measured,
    bases: &[(&'static str, &'static str)],
    link: &str,
    systems: [&str; 2],
    program: &str,
) -> Option<(f64, &'static str)> {
    let by = |(experiment, value): &(&'static str, &'static str)| {
        measured.lower(experiment, link, systems, program, value).map(|share| (share, *value))
    };
    bases.iter().find_map(by)
}

/// Links and programs of the experiments of `bases`.
pub fn places<'a>(measured: &'a Measured, bases: &[(&str, &str)]) -> Vec<(&'a str, &'a str)> {
    let mut places = Vec::new();
    for (experiment, _) in bases {
        for link in measured.links(experiment) {
            places.extend(measured.programs(experiment).into_iter().map(|program| (link, program)));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    places.retain(|place| seen.insert(*place));
    places
}

fn io_path(measured: &Measured) -> Vec<Case> {
    let systems = ["runnel:io-pool-long", "runnel:io-alloc-short"];
    let case = |(link, program): (&str, &str)| {
        let (value, _) = lower_by(measured, &IO_BASES, link, systems, program)?;
        Some(Case { label: format!("{program}, {link}"), value })
    };
    places(measured, &IO_BASES).into_iter().filter_map(case).collect()
}

fn caching(measured: &Measured, mode: &str) -> Vec<Case> {
    let system = format!("runnel:cache-{mode}");
    let case = |(link, program): (&str, &str)| {
        let (value, _) = lower_by(measured, &CACHE_BASES, link, [&system, "runnel:cache-none"], program)?;
        Some(Case { label: format!("{program}, {link}"), value })
    };
    places(measured, &CACHE_BASES).into_iter().filter_map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(demand: Demand, values: &[f64]) -> Target {
        let cases = values.iter().map(|value| Case { label: format!("case {value}"), value: *value }).collect();
        Target { name: "test", demand, paper: "", cases }
    }

    #[test]
    fn the_worst_case_decides() {
        let cases = [
            (Demand::Lower(0.75), vec![0.8, 0.75], Verdict::Met, 0.75),
            (Demand::Lower(0.75), vec![0.9, 0.7499], Verdict::Missed, 0.7499),
            (Demand::Lower(0.0), vec![0.0], Verdict::Missed, 0.0),
            (Demand::AtMost(1.25), vec![1.0, 1.26], Verdict::Missed, 1.26),
            (Demand::AtMost(1.25), vec![1.25], Verdict::Met, 1.25),
            (Demand::Faster(2.0), vec![3.0, 2.0], Verdict::Met, 2.0),
        ];
        for (demand, values, verdict, worst) in cases {
            let target = target(demand, &values);
            assert_eq!((target.verdict(), target.worst().map(|case| case.value)), (verdict, Some(worst)), "{demand:?}");
        }
        assert_eq!(target(Demand::Lower(0.1), &[]).verdict(), Verdict::NotMeasured);
    }
}
