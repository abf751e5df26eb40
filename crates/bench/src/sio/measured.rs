//! Records by case and system.

use report::statistic::Summary;

use crate::lab::data::EXPERIMENT;
use crate::lab::data::case::{CASES, Case};
use crate::lab::link::Link;
use crate::lab::record::{Record, measurement};
use crate::sio::limit::{Limit, Needed};

/// Every system, in the order of the tables: as plans name it, as people read it.
pub const SYSTEMS: [(&str, &str); 7] = [
    ("runnel", "Runnel"),
    ("runnel:mount", "Runnel, mounted"),
    ("runnel:program", "Runnel, program only"),
    ("download", "download"),
    ("nfs", "NFS 4.2"),
    ("sshfs", "sshfs"),
    ("rclone", "rclone mount"),
];

/// What people call a system.
pub fn label(system: &str) -> &str {
    SYSTEMS.iter().find(|(name, _)| *name == system).map_or(system, |(_, label)| label)
}

/// The records of a run.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    records: &'a [Record],
}

impl<'a> Measured<'a> {
    /// Of `records`; those of other experiments do not count.
    pub fn new(records: &'a [Record]) -> Measured<'a> {
        Measured { records }
    }

    /// Records of `case` on `system`, a name with its mode.
    pub fn records(self, case: &'a str, system: &'a str) -> impl Iterator<Item = &'a Record> {
        let (name, mode) = system.split_once(':').unwrap_or((system, ""));
        let is_wanted = move |record: &&Record| {
            let row = &record.row;
            row.experiment == EXPERIMENT && row.program == case && row.system == name && row.mode == mode
        };
        self.records.iter().filter(is_wanted)
    }

    /// Median and spread of a value.
    pub fn summary(self, case: &str, system: &str, value: &str) -> Option<Summary> {
        let values = self.records(case, system).filter_map(|record| measurement(*record.values.get(value)?));
        Summary::of(&values.collect::<Vec<f64>>())
    }

    /// Median of a value.
    pub fn median(self, case: &str, system: &str, value: &str) -> Option<f64> {
        self.summary(case, system, value).map(|summary| summary.median)
    }

    /// How often `ours` fits into the time of `other`.
    pub fn faster(self, case: &str, ours: &str, other: &str) -> Option<f64> {
        let time = |system| self.median(case, system, "seconds");
        time(ours).filter(|ours| *ours > 0.0).zip(time(other)).map(|(ours, other)| other / ours)
    }

    /// Cases that were measured on any system, in the order of the table.
    pub fn cases(self) -> Vec<&'static Case> {
        CASES.iter().filter(|case| !self.systems(case.name).is_empty()).collect()
    }

    /// Systems on which `case` was measured.
    pub fn systems(self, case: &str) -> Vec<&'static str> {
        let has = |system: &&str| self.median(case, system, "seconds").is_some();
        SYSTEMS.into_iter().map(|(name, _)| name).filter(has).collect()
    }

    /// The link over which a case was measured.
    pub fn link(self, case: &str) -> Option<Link> {
        let is_wanted = |record: &&Record| record.row.experiment == EXPERIMENT && record.row.program == case;
        Link::named(&self.records.iter().find(is_wanted)?.row.link).ok()
    }

    /// The limits of a case. They are the same for every system: what the work needs does not
    /// depend on who delivers it.
    pub fn limit(self, case: &Case) -> Option<Limit> {
        let systems = self.systems(case.name);
        let value = |name: &str| systems.iter().find_map(|system| self.median(case.name, system, name));
        let needed = Needed { bytes: value("needed_bytes").unwrap_or(0.0), compute: value("compute").unwrap_or(0.0) };
        Some(Limit::of(case, &self.link(case.name)?, needed))
    }

    /// A series of the run whose time is nearest to the median.
    pub fn series(self, case: &'a str, system: &'a str, name: &str) -> Option<&'a [f64]> {
        let median = self.median(case, system, "seconds")?;
        let distance = |record: &&Record| (record.values.get("seconds").copied().unwrap_or(f64::MAX) - median).abs();
        let nearest = self.records(case, system).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        nearest.series.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lab::data::game::SCENES;
    use crate::lab::plan::Entry;

    /// A record of a row with these values.
    pub fn record(row: &str, run: u32, values: &[(&str, f64)]) -> Record {
        let entry: Entry = format!("data {row} 1").parse().expect("a row");
        let values = values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        Record { row: entry.row, run, values, ..Record::default() }
    }

    /// A small run.
    pub fn canned() -> Vec<Record> {
        let bytes = ("needed_bytes", 1_048_576.0);
        let mut records = vec![
            record("thin runnel seq", 1, &[("seconds", 68.6), bytes]),
            record("thin runnel seq", 2, &[("seconds", 68.8), bytes]),
            record("thin runnel seq", 3, &[("seconds", 68.7), bytes]),
            record("thin download seq", 1, &[("seconds", 68.7), bytes]),
            record("thin nfs seq", 1, &[("seconds", 103.05), bytes]),
            record("thin nfs stat-0.5", 1, &[("seconds", 70.0), ("compute", 32.8), bytes]),
            record("thin runnel stat-0.5", 1, &[("seconds", 69.0), ("compute", 32.8), bytes]),
            record("thin runnel game", 1, &[("seconds", 22.0), ("total", 122.0)]),
            record("thin download game", 1, &[("seconds", 103.0), ("total", 203.0)]),
            record("wan nfs files1000", 1, &[("seconds", 94.0), ("needed_bytes", 35e6)]),
        ];
        records[0].series.insert("first".into(), vec![0.3, 68.6]);
        records[2].series.insert("first".into(), (1..=256).map(|index| f64::from(index) * 0.268).collect());
        records[7].series.insert("scenes".into(), (0..SCENES).map(|scene| 22.0 + 25.0 * scene as f64).collect());
        records
    }

    #[test]
    fn medians_and_limits_are_found_by_name() {
        let records = canned();
        let measured = Measured::new(&records);
        assert_eq!(measured.median("seq", "runnel", "seconds"), Some(68.7));
        assert_eq!(measured.median("seq", "runnel:mount", "seconds"), None);
        assert!((measured.faster("seq", "runnel", "nfs").unwrap_or(0.0) - 1.5).abs() < 1e-9);
        assert_eq!(measured.systems("seq"), ["runnel", "download", "nfs"]);
        let seq = Case::named("seq").expect("it is there");
        assert!((measured.limit(seq).expect("it was measured").payload - 65.576).abs() < 1e-6);
        assert_eq!(measured.series("seq", "runnel", "first").map(<[f64]>::len), Some(256), "of the middle run");
        assert_eq!(measured.cases().len(), 4);
    }
}
