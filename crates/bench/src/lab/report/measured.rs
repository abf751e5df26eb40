//! Records by row: medians, spreads and series, and in which order systems and programs are shown.
//!
//! Values that can be no measurement are dropped here, so that nothing after this has to ask. Rows
//! of `local` and of cards need no network; whichever link their row names, they are found for
//! every link.

use std::collections::{BTreeMap, BTreeSet};

use report::plot::{RESERVED_TONES, neutral_tone};
use report::statistic::Summary;

use super::PageLists;
use crate::lab::program::PROGRAMS;
use crate::lab::record::{Record, measurement};
pub use report::statistic::{quantile, thinned};

/// Programs of the SYSFLOW paper and those of the same kind; `jvm`, `python`, `perl`, `openssl` and
/// `gcc` are its five.
pub const PAPER_KINDS: [&str; 7] = ["jvm", "python", "python-imports", "python-200", "perl", "openssl", "gcc"];

/// Systems in the order in which they are shown; the position also chooses the colour.
pub const SYSTEMS: [&str; RESERVED_TONES] = [
    "local",
    "sd:a",
    "sd:b",
    "nfs",
    "runnel:none",
    "runnel:paper",
    "runnel:once",
    "runnel:learned",
    "squashfs",
    "erofs",
    "nydus",
    "casync",
    "sshfs",
    "httpdirfs",
    "rclone",
];

/// What was measured, ready to be asked.
pub struct Measured<'a> {
    /// Runs by experiment, link, system with mode, program.
    rows: BTreeMap<[String; 4], BTreeMap<u32, &'a Record>>,
    /// See [`PageLists`].
    pub pages: &'a PageLists,
}

impl<'a> Measured<'a> {
    /// Orders `records`. A run that was measured again replaces the earlier one.
    pub fn new(records: &'a [Record], pages: &'a PageLists) -> Measured<'a> {
        let mut rows: BTreeMap<[String; 4], BTreeMap<u32, &Record>> = BTreeMap::new();
        for record in records {
            let row = &record.row;
            let colon = if row.mode.is_empty() { "" } else { ":" };
            let system = format!("{}{colon}{}", row.system, row.mode);
            let key = [row.experiment.clone(), row.link.clone(), system, row.program.clone()];
            rows.entry(key).or_default().insert(record.run, record);
        }
        Measured { rows, pages }
    }

    /// Whether nothing at all was measured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Programs of an experiment, those of the lab in their order, then others.
    pub fn programs(&self, experiment: &str) -> Vec<&str> {
        let names: BTreeSet<&str> = self.keys(experiment).map(|key| key[3].as_str()).collect();
        let known = PROGRAMS.iter().map(|program| program.name).filter(|name| names.contains(name));
        let others = names.iter().copied().filter(|name| PROGRAMS.iter().all(|program| program.name != *name));
        known.chain(others).collect()
    }

    /// Links of an experiment, from fast to slow, then by loss.
    pub fn links(&self, experiment: &str) -> Vec<&str> {
        let names: BTreeSet<&str> = self.keys(experiment).map(|key| key[1].as_str()).collect();
        let mut names: Vec<&str> = names.into_iter().collect();
        let order = ["lan", "wifi", "wan", "7mbit", "300kbit", "thin"];
        let rank = |name: &str| order.iter().position(|known| *known == name).unwrap_or(order.len());
        names.sort_by(|a, b| rank(a).cmp(&rank(b)).then(loss(a).total_cmp(&loss(b))).then(a.cmp(b)));
        names
    }

    /// Systems of an experiment that are known for a link, in the order of [`SYSTEMS`], then others
    /// by name.
    pub fn systems(&self, experiment: &str, link: &str) -> Vec<&str> {
        let here = |key: &&[String; 4]| key[1] == link || is_free_of_links(&key[2]);
        let names: BTreeSet<&str> = self.keys(experiment).filter(here).map(|key| key[2].as_str()).collect();
        let known = SYSTEMS.iter().copied().filter(|name| names.contains(name));
        let others = names.iter().copied().filter(|name| !SYSTEMS.contains(name));
        known.chain(others).collect()
    }

    /// Median and spread of a value over the runs of a row.
    pub fn summary(&self, row: &Place, value: &str) -> Option<Summary> {
        let known = |record: &&Record| record.values.get(value).copied().and_then(measurement);
        let numbers: Vec<f64> = self.runs(row).iter().filter_map(known).collect();
        Summary::of(&numbers)
    }

    /// Median of a value.
    pub fn value(&self, experiment: &str, link: &str, system: &str, program: &str, value: &str) -> Option<f64> {
        self.summary(&Place { experiment, link, system, program }, value).map(|summary| summary.median)
    }

    /// Series of every run of a row, without values that are no number.
    pub fn series(&self, row: &Place, name: &str) -> Vec<Vec<f64>> {
        let known = |series: &Vec<f64>| series.iter().copied().filter_map(measurement).collect();
        let series = self.runs(row).into_iter().filter_map(|record| record.series.get(name)).map(known);
        series.filter(|series: &Vec<f64>| !series.is_empty()).collect()
    }

    /// The run whose series has the median sum: its shape is one that really happened.
    pub fn typical_series(&self, row: &Place, name: &str) -> Option<Vec<f64>> {
        let mut runs = self.series(row, name);
        runs.sort_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum()));
        let middle = runs.len().checked_sub(1)? / 2;
        Some(runs.swap_remove(middle))
    }

    /// Mean latency of a page of `program`, from the value or from the series.
    pub fn page_latency(&self, link: &str, system: &str, program: &str) -> Option<f64> {
        let row = Place { experiment: "touch", link, system, program };
        let mean = |series: Vec<f64>| series.iter().sum::<f64>() / series.len() as f64;
        self.summary(&row, "mean")
            .map(|summary| summary.median)
            .or_else(|| self.typical_series(&row, "latency").map(mean))
    }

    /// Pages that a start of `program` touches.
    pub fn pages_needed(&self, program: &str) -> Option<f64> {
        let rows = self.keys("set").filter(|key| key[3] == program);
        let counted = rows.filter_map(|key| self.value("set", &key[1], &key[2], program, "pages_needed")).next();
        counted.or_else(|| self.pages.get(program).filter(|pages| !pages.is_empty()).map(|pages| pages.len() as f64))
    }

    /// How much lower `value` of `system` is than that of `base`, as a share of it.
    pub fn lower(
        &self,
        experiment: &str,
        link: &str,
        [system, base]: [&str; 2],
        program: &str,
        value: &str,
    ) -> Option<f64> {
        let ours = self.value(experiment, link, system, program, value)?;
        let base = self.value(experiment, link, base, program, value)?;
        (base > 0.0).then(|| 1.0 - ours / base)
    }

    fn keys(&self, experiment: &str) -> impl Iterator<Item = &[String; 4]> {
        self.rows.keys().filter(move |key| key[0] == experiment)
    }

    fn runs(&self, place: &Place) -> Vec<&'a Record> {
        let key = |link: &str| [place.experiment, link, place.system, place.program].map(str::to_string);
        let exact = self.rows.get(&key(place.link));
        let found = exact.or_else(|| {
            let same = |key: &&[String; 4]| key[2] == place.system && key[3] == place.program;
            let other = self.keys(place.experiment).find(same).filter(|_| is_free_of_links(place.system));
            other.and_then(|key| self.rows.get(key))
        });
        found.map(|runs| runs.values().copied().collect()).unwrap_or_default()
    }
}

/// A row by its names; the system with its mode.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// What is done.
    pub experiment: &'a str,
    /// Over which link.
    pub link: &'a str,
    /// System and mode, `runnel:learned`.
    pub system: &'a str,
    /// What is started.
    pub program: &'a str,
}

/// Loss of a link by its name, percent.
pub fn loss(link: &str) -> f64 {
    let percent = link.split_once('+').and_then(|(_, loss)| loss.strip_suffix('%'));
    percent.and_then(|percent| percent.parse().ok()).unwrap_or(0.0)
}

/// Whether a system needs no network.
pub fn is_free_of_links(system: &str) -> bool {
    system == "local" || system.starts_with("sd:")
}

/// The colour of a system or of a mode: always the same for the same name.
pub fn tone(system: &str) -> usize {
    let known = SYSTEMS.iter().position(|name| *name == system);
    known.unwrap_or_else(|| neutral_tone(system.bytes().map(usize::from).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::Entry;

    fn record(line: &str, run: u32, cold: f64) -> anyhow::Result<Record> {
        let entry: Entry = line.parse()?;
        Ok(Record { row: entry.row, run, values: [("cold".to_string(), cold)].into(), ..Record::default() })
    }

    #[test]
    fn rows_are_found_with_their_mode_and_without_a_link() -> anyhow::Result<()> {
        let records = [
            record("start - local perl 1", 1, 0.1)?,
            record("start wifi+1% nfs perl 1", 1, 3.0)?,
            record("start wifi nfs perl 1", 1, f64::NAN)?,
            record("start wifi runnel:learned perl 3", 1, 9.0)?,
            record("start wifi runnel:learned perl 3", 1, 0.3)?,
            record("start wifi runnel:learned perl 3", 2, 0.5)?,
        ];
        let pages = PageLists::new();
        let measured = Measured::new(&records, &pages);
        assert_eq!(measured.value("start", "wifi", "runnel:learned", "perl", "cold"), Some(0.4));
        assert_eq!(measured.value("start", "wifi", "local", "perl", "cold"), Some(0.1));
        assert_eq!(measured.value("start", "wifi", "nfs", "perl", "cold"), None);
        assert_eq!(measured.systems("start", "wifi"), ["local", "nfs", "runnel:learned"]);
        assert_eq!(measured.links("start"), ["wifi", "-", "wifi+1%"]);
        Ok(())
    }

    #[test]
    fn thinning_keeps_the_ends() {
        let values: Vec<usize> = (0..1000).collect();
        let few = thinned(&values, 10);
        assert_eq!((few.len(), few[0], few[9]), (10, 0, 999));
        assert_eq!(thinned(&values[..3], 10), [0, 1, 2]);
        assert_eq!((quantile(&[1.0, 2.0, 3.0], 0.5), quantile(&[], 0.5)), (Some(2.0), None));
    }
}
