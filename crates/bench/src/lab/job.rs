//! One slice of a plan: guests are started until every row of it was measured or has failed.
//!
//! A guest that dies takes with it only the row in progress; that row is tried once more in the
//! next guest. What a guest says is followed by [`Queue`], which knows nothing of machines.

use std::collections::BTreeMap;
use std::path::Path;

use super::machine::{self, End};
use super::plan::{Entry, Row};
use super::record::{Event, Record};
use super::world::World;

/// How often a row, or a guest that does not come up, is tried.
const TRIES_MAX: u32 = 2;

/// What a slice has to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The kernel of the guest.
    Kernel(String),
    /// A run was measured.
    Record(Record),
    /// All runs of a row were measured, or an error.
    Finished(Row, Result<(), String>),
}

/// Rows that are still to be measured, and the one in progress.
#[derive(Debug, Default)]
pub struct Queue {
    pending: Vec<Entry>,
    /// The row in progress and how many of its runs were measured.
    current: Option<(Row, u32)>,
    died: BTreeMap<Row, u32>,
    never_up: u32,
}

impl Queue {
    /// A queue of `entries`.
    pub fn new(entries: Vec<Entry>) -> Queue {
        Queue { pending: entries, ..Queue::default() }
    }

    /// The plan of the next guest; none if everything is done.
    pub fn plan(&self) -> Option<String> {
        (!self.pending.is_empty()).then(|| self.pending.iter().map(|entry| format!("{entry}\n")).collect())
    }

    /// Follows an event.
    pub fn note(&mut self, event: Event) -> Vec<News> {
        match event {
            Event::Up { kernel } => vec![News::Kernel(kernel)],
            Event::Begin { row } => {
                let news = self.end_current();
                self.current = Some((row, 0));
                news.into_iter().collect()
            }
            Event::Record { record } => {
                if let Some((row, count)) = &mut self.current {
                    *count += u32::from(*row == record.row);
                }
                vec![News::Record(record)]
            }
            Event::Failed { row, reason } => {
                self.current = None;
                self.take(&row).map(|_| News::Finished(row, Err(reason))).into_iter().collect()
            }
            Event::Done => {
                let mut news: Vec<News> = self.end_current().into_iter().collect();
                // Rows that the guest did not speak of would be tried for ever.
                let left = std::mem::take(&mut self.pending).into_iter();
                news.extend(left.map(|entry| News::Finished(entry.row, Err("the guest did not try it".into()))));
                news
            }
        }
    }

    /// The guest ended before it was done.
    pub fn note_death(&mut self, reason: &str) -> Vec<News> {
        let Some((row, _)) = self.current.take() else {
            self.never_up += 1;
            if self.never_up < TRIES_MAX {
                return Vec::new();
            }
            let left = std::mem::take(&mut self.pending).into_iter();
            return left.map(|entry| News::Finished(entry.row, Err(reason.to_string()))).collect();
        };
        let died = self.died.entry(row.clone()).or_default();
        *died += 1;
        if *died < TRIES_MAX {
            return Vec::new();
        }
        self.take(&row).map(|_| News::Finished(row, Err(reason.to_string()))).into_iter().collect()
    }

    fn take(&mut self, row: &Row) -> Option<Entry> {
        let index = self.pending.iter().position(|entry| entry.row == *row)?;
        Some(self.pending.remove(index))
    }

    /// The row in progress is over: well if all its runs came.
    fn end_current(&mut self) -> Option<News> {
        let (row, count) = self.current.take()?;
        let entry = self.take(&row)?;
        let outcome = match count >= entry.runs {
            true => Ok(()),
            false => Err(format!("{count} of {} runs were reported", entry.runs)),
        };
        Some(News::Finished(row, outcome))
    }
}

/// Measures `entries` in guests of `world`; everything is told to `tell`, whose error ends the job.
/// `folder` keeps the logs.
pub fn run(
    world: &World,
    entries: Vec<Entry>,
    folder: &Path,
    tell: &mut dyn FnMut(News) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut queue = Queue::new(entries);
    while let Some(plan) = queue.plan() {
        let mut on_event = |event| queue.note(event).into_iter().try_for_each(&mut *tell);
        if let End::Died(reason) = machine::run(world, &plan, folder, &mut on_event)? {
            crate::stream::say(&format!("lab: {reason}"));
            queue.note_death(&reason).into_iter().try_for_each(&mut *tell)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan;

    fn queue() -> anyhow::Result<(Queue, Vec<Row>)> {
        let entries = plan::parse("start - local perl 2\nstart wifi nfs perl 1\n")?;
        let rows = entries.iter().map(|entry| entry.row.clone()).collect();
        Ok((Queue::new(entries), rows))
    }

    fn begin(row: &Row) -> Event {
        Event::Begin { row: row.clone() }
    }

    fn record(row: &Row) -> Event {
        Event::Record { record: Record { row: row.clone(), run: 1, ..Record::default() } }
    }

    #[test]
    fn rows_are_finished_when_all_their_runs_came() -> anyhow::Result<()> {
        let (mut queue, rows) = queue()?;
        queue.note(begin(&rows[0]));
        assert!(matches!(queue.note(record(&rows[0]))[..], [News::Record(_)]));
        let news = queue.note(begin(&rows[1]));
        assert!(matches!(&news[..], [News::Finished(row, Err(why))] if *row == rows[0] && why.contains("1 of 2")));
        queue.note(record(&rows[1]));
        assert_eq!(queue.note(Event::Done), [News::Finished(rows[1].clone(), Ok(()))]);
        assert_eq!(queue.plan(), None);
        Ok(())
    }

    #[test]
    fn a_failed_row_is_not_tried_again() -> anyhow::Result<()> {
        let (mut queue, rows) = queue()?;
        queue.note(begin(&rows[0]));
        let news = queue.note(Event::Failed { row: rows[0].clone(), reason: "no disk".into() });
        assert_eq!(news, [News::Finished(rows[0].clone(), Err("no disk".into()))]);
        assert_eq!(queue.note(begin(&rows[1])), []);
        assert_eq!(queue.plan().as_deref(), Some("start wifi nfs perl 1\n"));
        Ok(())
    }

    #[test]
    fn a_row_whose_guest_died_is_tried_once_more() -> anyhow::Result<()> {
        let (mut queue, rows) = queue()?;
        queue.note(begin(&rows[0]));
        assert_eq!(queue.note_death("hung"), []);
        assert_eq!(queue.plan().as_deref(), Some("start - local perl 2\nstart wifi nfs perl 1\n"));
        queue.note(begin(&rows[0]));
        assert_eq!(queue.note_death("hung"), [News::Finished(rows[0].clone(), Err("hung".into()))]);
        assert_eq!(queue.plan().as_deref(), Some("start wifi nfs perl 1\n"), "the rest goes on");
        Ok(())
    }

    #[test]
    fn guests_that_never_come_up_end_the_slice() -> anyhow::Result<()> {
        let (mut queue, rows) = queue()?;
        assert_eq!(queue.note_death("no kernel"), []);
        assert_eq!(queue.note_death("no kernel").len(), rows.len());
        assert_eq!(queue.plan(), None);
        Ok(())
    }
}
