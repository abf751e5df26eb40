//! The results file: one record per line, appended as runs are measured, so that an interrupted lab
//! goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::plan::{Entry, Row};
use super::record::Record;

/// Records by row and run; of a run that was measured again the last one counts.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    records: BTreeMap<(Row, u32), Record>,
}

impl Results {
    /// Opens the file of `key` in `cache`, or begins it.
    pub fn open(cache: &Path, key: &str) -> anyhow::Result<Results> {
        let path = cache.join(format!("results-{key}.jsonl"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        // A last line without an end was being written when the lab was stopped.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let records = parse(whole).with_context(|| format!("{}; remove it to begin again", path.display()))?;
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        file.set_len(whole.len() as u64).with_context(|| format!("cannot mend {}", path.display()))?;
        Ok(Results { path, file, records })
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if all runs of the row are there.
    pub fn has(&self, entry: &Entry) -> bool {
        (1..=entry.runs).all(|run| self.records.contains_key(&(entry.row.clone(), run)))
    }

    /// Keeps a record.
    pub fn add(&mut self, record: Record) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&record).context("a record is always JSON")?;
        line.push('\n');
        // One call, so that a record is there as a whole or not at all.
        self.file.write_all(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.records.insert((record.row.clone(), record.run), record);
        Ok(())
    }

    /// Forgets the rows of `entries`, in the file too, with the first starts that they bring along.
    pub fn forget(&mut self, entries: &[Entry]) -> anyhow::Result<()> {
        let rows: BTreeSet<Row> = entries.iter().flat_map(rows_of).collect();
        self.records.retain(|(row, _), _| !rows.contains(row));
        let new = super::world::stage::unfinished(&self.path)?;
        let mut text = String::new();
        for record in self.records.values() {
            text.push_str(&serde_json::to_string(record).context("a record is always JSON")?);
            text.push('\n');
        }
        fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
        super::world::stage::finish(&self.path)?;
        let file = File::options().append(true).open(&self.path);
        self.file = file.with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(())
    }

    /// The records of the rows of `entries`, in the order of the plan, each with the first start
    /// that it brings along.
    pub fn of(&self, entries: &[Entry]) -> Vec<Record> {
        let runs = |row: Row| {
            let (first, last) = ((row.clone(), 0), (row, u32::MAX));
            self.records.range(first..=last).map(|(_, record)| record.clone()).collect::<Vec<_>>()
        };
        entries.iter().flat_map(rows_of).flat_map(runs).collect()
    }
}

/// The row of an entry, and that of its first start.
fn rows_of(entry: &Entry) -> impl Iterator<Item = Row> + use<> {
    std::iter::once(entry.row.clone()).chain(entry.first())
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<(Row, u32), Record>> {
    let mut records = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let record: Record = serde_json::from_str(line).with_context(|| format!("line {} is no record", index + 1))?;
        records.insert((record.row.clone(), record.run), record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan;

    fn record(entry: &Entry, run: u32, cold: f64) -> Record {
        let values = BTreeMap::from([("cold".to_string(), cold)]);
        Record { row: entry.row.clone(), run, values, series: BTreeMap::new() }
    }

    #[test]
    fn a_row_is_there_when_all_its_runs_are_and_the_last_measurement_counts() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let plan = plan::parse("start - local perl 2\nstart wifi nfs perl 1\n")?;
        let mut results = Results::open(folder.path(), "k")?;
        results.add(record(&plan[0], 1, 1.0))?;
        assert!(!results.has(&plan[0]));
        results.add(record(&plan[0], 2, 2.0))?;
        results.add(record(&plan[0], 1, 3.0))?;
        let again = Results::open(folder.path(), "k")?;
        assert!(again.has(&plan[0]) && !again.has(&plan[1]));
        let cold: Vec<f64> = again.of(&plan).iter().map(|record| record.values["cold"]).collect();
        assert_eq!(cold, [3.0, 2.0]);
        assert!(Results::open(folder.path(), "other")?.of(&plan).is_empty());
        Ok(())
    }

    #[test]
    fn a_line_that_was_cut_off_is_dropped_and_a_broken_one_refused() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let plan = plan::parse("start - local perl 1\nstart wifi nfs perl 1\n")?;
        let mut results = Results::open(folder.path(), "k")?;
        results.add(record(&plan[0], 1, 1.0))?;
        results.file.write_all(b"{\"experi")?;
        let mut mended = Results::open(folder.path(), "k")?;
        mended.add(record(&plan[1], 1, 2.0))?;
        assert_eq!(Results::open(folder.path(), "k")?.of(&plan).len(), 2);
        mended.file.write_all(b"nonsense\n")?;
        let error = Results::open(folder.path(), "k").expect_err("line 3");
        assert!(format!("{error:#}").contains("line 3"), "{error:#}");
        Ok(())
    }

    #[test]
    fn first_starts_come_and_go_with_their_row() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let plan = plan::parse("start wifi nfs perl 2\nstart wifi nfs gcc 1\n")?;
        let mut results = Results::open(folder.path(), "k")?;
        plan.iter().try_for_each(|entry| results.add(record(entry, 1, 1.0)))?;
        let first = plan[0].first().expect("it has several runs");
        results.add(Record { row: first.clone(), ..record(&plan[0], 1, 2.0) })?;
        assert_eq!((results.of(&plan[..1]).len(), results.of(&plan).len()), (2, 3));
        assert_eq!((first.experiment.as_str(), plan[1].first()), ("first", None));
        results.forget(&plan[..1])?;
        assert_eq!(results.of(&plan).len(), 1);
        Ok(())
    }

    #[test]
    fn rows_can_be_forgotten() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let plan = plan::parse("start - local perl 1\nstart wifi nfs perl 1\n")?;
        let mut results = Results::open(folder.path(), "k")?;
        plan.iter().try_for_each(|entry| results.add(record(entry, 1, 1.0)))?;
        results.forget(&plan[..1])?;
        results.add(record(&plan[0], 1, 9.0))?;
        let again = Results::open(folder.path(), "k")?;
        assert_eq!(again.of(&plan).iter().map(|record| record.values["cold"]).collect::<Vec<_>>(), [9.0, 1.0]);
        Ok(())
    }
}
