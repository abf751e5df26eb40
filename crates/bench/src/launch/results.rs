//! What was measured, and what follows from it: savings, shares of the perfect prefetch,
//! over-fetch, rows.

use report::row::{Row, rounded};
use report::statistic::Summary;

use super::place::Run;
use super::product;
use super::program::{PROGRAMS, Program};
use super::run::Mode;

/// Name of this bench in rows.
const BENCH: &str = "launch";

/// Mode of the rows with the best perfect prefetch.
pub const PERFECT: &str = "perfect";

/// The runs of one program in one mode on one disk.
#[derive(Clone, Debug)]
pub struct Case {
    /// The program.
    pub program: &'static Program,
    /// Name of the disk.
    pub disk: &'static str,
    /// How it was started.
    pub mode: Mode,
    /// The runs.
    pub runs: Vec<Run>,
}

/// What a program was learned to touch.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Name of the program.
    pub program: &'static str,
    /// Files.
    pub files: usize,
    /// Touched pages, bytes.
    pub touched: u64,
    /// What the disk gave, metadata included, bytes: as little as possible.
    pub disk: u64,
}

/// What learning cost.
#[derive(Clone, Debug)]
pub struct Learning {
    /// Name of the program.
    pub program: &'static str,
    /// The recorded runs, the last on a warm cache.
    pub runs: Vec<Run>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cases.
    pub cases: Vec<Case>,
    /// What programs touch.
    pub facts: Vec<Facts>,
    /// What learning cost.
    pub learning: Vec<Learning>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

impl Case {
    /// Median and spread of what `value` takes from each run.
    pub fn summary(&self, value: impl Fn(&Run) -> f64) -> Option<Summary> {
        Summary::of(&self.runs.iter().map(value).collect::<Vec<_>>())
    }

    /// Median of the times that are compared, seconds.
    pub fn median(&self) -> Option<f64> {
        self.summary(Run::measured).map(|summary| summary.median)
    }
}

impl Results {
    /// The case, if it was measured.
    pub fn case(&self, program: &str, disk: &str, mode: Mode) -> Option<&Case> {
        let same = |case: &&Case| case.program.name == program && case.disk == disk && case.mode == mode;
        self.cases.iter().find(same).filter(|case| !case.runs.is_empty())
    }

    /// The perfect prefetch: the fastest of its variants.
    pub fn perfect(&self, program: &str, disk: &str) -> Option<&Case> {
        let variants = Mode::PERFECT.into_iter().filter_map(|mode| self.case(program, disk, mode));
        variants.min_by(|a, b| a.median().unwrap_or(f64::MAX).total_cmp(&b.median().unwrap_or(f64::MAX)))
    }

    /// Share of the cold time that `mode` saves.
    pub fn saved(&self, program: &str, disk: &str, mode: Mode) -> Option<f64> {
        let time = self.case(program, disk, mode)?.median()?;
        Some(1.0 - time / self.case(program, disk, Mode::Cold)?.median()?)
    }

    /// What the perfect prefetch saves.
    pub fn bound(&self, program: &str, disk: &str) -> Option<f64> {
        self.saved(program, disk, self.perfect(program, disk)?.mode)
    }

    /// Share of what the perfect prefetch saves that `mode` saves; nothing where there is nothing
    /// to save.
    pub fn share_of_perfect(&self, program: &str, disk: &str, mode: Mode) -> Option<f64> {
        let bound = self.bound(program, disk).filter(|bound| *bound > 0.0)?;
        Some(self.saved(program, disk, mode)? / bound)
    }

    /// Bytes from the disk beyond those of a run that reads only what it touches, as a share of
    /// these.
    pub fn overfetch(&self, case: &Case) -> Option<f64> {
        let facts = self.facts.iter().find(|facts| facts.program == case.program.learned_as())?;
        let read = case.summary(|run| run.disk.bytes as f64)?.median;
        (facts.disk > 0).then(|| read / facts.disk as f64 - 1.0)
    }

    /// CPU time of the recorded warm run relative to that of a warm start.
    pub fn learning_cpu(&self, program: &str, disk: &str) -> Option<f64> {
        let learned = self.learning.iter().find(|learning| learning.program == program)?.runs.last()?.cpu;
        Some(learned / self.case(program, disk, Mode::Warm)?.summary(|run| run.cpu)?.median)
    }

    /// Stops of the launched program, if the launcher tells.
    pub fn stops(&self, program: &str, disk: &str) -> Option<f64> {
        let case = self.case(program, disk, Mode::Runnel)?;
        let stops = |run: &Run| product::told(&run.said)?.traced?.stops.map(|stops| stops as f64);
        case.runs.iter().filter_map(stops).reduce(f64::max)
    }

    /// Names of the disks that were measured.
    pub fn disks(&self) -> Vec<&'static str> {
        let all = disk::MODELS.iter().map(|model| model.name);
        all.filter(|name| self.cases.iter().any(|case| case.disk == *name)).collect()
    }

    /// The programs that were measured.
    pub fn programs(&self) -> Vec<&'static Program> {
        let measured = |program: &&Program| self.cases.iter().any(|case| case.program.name == program.name);
        PROGRAMS.iter().filter(measured).collect()
    }

    /// One JSON line per metric.
    ///
    /// # Errors
    /// A row cannot be written, which does not happen to numbers.
    pub fn rows(&self, commit: &str) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        for case in self.cases.iter().filter(|case| !case.runs.is_empty()) {
            self.rows_of(case, case.mode.name(), commit, &mut lines)?;
        }
        for (program, disk) in
            self.programs().iter().flat_map(|program| self.disks().into_iter().map(move |disk| (program, disk)))
        {
            if let Some(case) = self.perfect(program.name, disk) {
                self.rows_of(case, PERFECT, commit, &mut lines)?;
            }
        }
        Ok(lines)
    }

    fn rows_of(&self, case: &Case, mode: &str, commit: &str, lines: &mut Vec<String>) -> anyhow::Result<()> {
        let (program, disk) = (case.program.name, case.disk);
        let one = |value: f64| Summary { median: value, min: value, max: value, count: case.runs.len() };
        let metrics = [
            ("wall", "s", case.summary(Run::measured)),
            ("whole", "s", case.summary(|run| run.wall).filter(|_| case.program.lead.is_some())),
            ("cpu", "s", case.summary(|run| run.cpu)),
            ("bytes", "B", case.summary(|run| run.disk.bytes as f64)),
            ("requests", "count", case.summary(|run| run.disk.requests as f64)),
            ("seeks", "count", case.summary(|run| run.disk.seeks as f64)),
            ("late", "s", case.summary(|run| run.late)),
            ("saved", "share", self.saved(program, disk, case.mode).map(one)),
            ("share_of_perfect", "share", self.share_of_perfect(program, disk, case.mode).map(one)),
            ("overfetch", "share", self.overfetch(case).map(one)),
            ("stops", "count", self.stops(program, disk).filter(|_| case.mode == Mode::Runnel).map(one)),
        ];
        for (metric, unit, summary) in metrics {
            let Some(summary) = summary else { continue };
            let row = Row {
                bench: BENCH,
                case: program,
                peer: if case.mode.is_ours() { "runnel" } else { "system" },
                mode,
                link: disk,
                metric,
                unit,
                median: rounded(summary.median),
                min: rounded(summary.min),
                max: rounded(summary.max),
                n: summary.count,
                commit,
            };
            lines.push(row.to_json()?);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A case with runs of these times, each of which reads `bytes`.
    pub fn case(program: &str, disk: &'static str, mode: Mode, walls: &[f64], bytes: u64) -> Case {
        let program = Program::named(program).expect("a program");
        let run = |wall: &f64| {
            let loads = if program.lead.is_some() { vec![wall / 2.0, wall / 2.0] } else { Vec::new() };
            let disk = disk::Counters { requests: 10, bytes, seeks: 5, busy: 1 };
            let said = if mode.is_ours() {
                r#"{"fetched":{"groups":1,"bytes":1},"traced":{"stops":125}}"#.to_string()
            } else {
                String::new()
            };
            Run { wall: *wall, cpu: 1.0, loads, disk, late: 5e-5, said }
        };
        Case { program, disk, mode, runs: walls.iter().map(run).collect() }
    }

    /// Python on a hard disk: cold 10 s, perfect 4 s, ours 5 s.
    pub fn canned() -> Results {
        Results {
            cases: vec![
                case("python", "hdd", Mode::Cold, &[9.0, 10.0, 12.0], 1000),
                case("python", "hdd", Mode::Gate, &[4.0, 4.0, 4.0], 1100),
                case("python", "hdd", Mode::Overlap, &[6.0, 5.0, 5.0], 1100),
                case("python", "hdd", Mode::Runnel, &[5.0, 5.0, 5.0], 1150),
                case("python", "hdd", Mode::Warm, &[1.0], 0),
                case("python", "hdd", Mode::RunnelWarm, &[1.01], 0),
                case("later-2", "hdd", Mode::Cold, &[10.0], 1000),
                case("later-2", "hdd", Mode::Runnel, &[3.0], 1000),
            ],
            facts: vec![Facts { program: "python", files: 3, touched: 900, disk: 1000 }],
            learning: vec![Learning { program: "python", runs: vec![Run { cpu: 1.1, ..Run::default() }] }],
            notes: Vec::new(),
        }
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    #[test]
    fn savings_refer_to_cold_and_shares_to_the_best_perfect_prefetch() {
        let results = canned();
        assert_eq!(results.perfect("python", "hdd").map(|case| case.mode), Some(Mode::Gate));
        assert!(close(results.saved("python", "hdd", Mode::Runnel), 0.5));
        assert!(close(results.share_of_perfect("python", "hdd", Mode::Runnel), 0.5 / 0.6));
        assert!(close(results.learning_cpu("python", "hdd"), 1.1));
        let ours = results.case("python", "hdd", Mode::Runnel).expect("case");
        assert!(close(results.overfetch(ours), 0.15));
        assert_eq!(results.stops("python", "hdd"), Some(125.0));
        assert_eq!(results.saved("python", "sata", Mode::Runnel), None);
    }

    #[test]
    fn rows_have_the_keys_of_all_benches() -> anyhow::Result<()> {
        let lines = canned().rows("abc")?;
        let share = r#"{"bench":"launch","case":"python","peer":"runnel","mode":"runnel","link":"hdd","metric":"share_of_perfect","unit":"share","median":0.833333,"min":0.833333,"max":0.833333,"n":3,"commit":"abc"}"#;
        assert!(lines.iter().any(|line| line == share), "{lines:#?}");
        assert!(
            lines
                .iter()
                .any(|line| line.contains(r#""mode":"perfect","link":"hdd","metric":"wall","unit":"s","median":4,"#))
        );
        assert!(lines.iter().any(|line| line.contains(r#""case":"later-2""#) && line.contains(r#""metric":"whole""#)));
        Ok(())
    }
}
