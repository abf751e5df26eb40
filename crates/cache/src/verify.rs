//! Looks for damaged records, and notes in their logs that they count for nobody.
//!
//! A log is neither made longer nor written anew: a full disk and programs that run from a pinned
//! image are no hindrance.

use std::io;

use crate::folder::{try_share, unlock};
use crate::format::Head;
use crate::log::{self, End, Entry};
use crate::sealed::LogFile;
use crate::store::{Cache, Known};

impl Cache {
    /// Reads every record. Returns how many are whole, and how many were damaged: these are
    /// forgotten, and count as little for a pin.
    ///
    /// # Errors
    /// What the disk says.
    pub fn verify(&self) -> io::Result<(usize, usize)> {
        self.close();
        let known = self.known();
        let logs: Vec<_> = known.logs.iter().map(|(at, log)| (*at, log.file.clone(), log.entries.clone())).collect();
        drop(known);
        let mut count = 0;
        for (number, file, mut entries) in logs {
            if file.metadata()?.len() == 0 {
                // Another process needed its room.
                self.known().remove(number);
                continue;
            }
            let is_damaged = |entry: &Entry| !entry.head.is_void() && entry.read(&file).is_none();
            let damaged: Vec<usize> = (0..entries.len()).filter(|at| is_damaged(&entries[*at])).collect();
            if damaged.is_empty() {
                continue;
            }
            count += damaged.len();
            make_void(&file, &mut entries, &damaged)?;
            self.known().lose(number, &damaged);
        }
        Ok((self.known().index.len(), count))
    }
}

impl Known {
    /// These records of a log are damaged.
    fn lose(&mut self, number: u64, damaged: &[usize]) {
        for at in damaged {
            let Some(entry) = self.logs.get_mut(&number).and_then(|log| log.entries.get_mut(*at)) else { continue };
            entry.head.make_void();
            let name = (entry.head.kind, entry.head.key);
            if self.index.get(&name) == Some(&(number, *at)) {
                self.forget(name);
            }
        }
    }
}

impl Head {
    /// The payload was found to be damaged.
    fn make_void(&mut self) {
        // No payload has this hash.
        self.hash.fill(0);
    }

    /// Whether it was.
    pub fn is_void(&self) -> bool {
        self.hash.iter().all(|byte| *byte == 0)
    }
}

/// Notes it in the log, unless somebody is writing that: then another `verify` does.
fn make_void(file: &LogFile, entries: &mut [Entry], damaged: &[usize]) -> io::Result<()> {
    if !try_share(file) {
        return Ok(());
    }
    let noted = match log::read(file)? {
        // Somebody went on with it since.
        Some(now) if now.entries.len() != entries.len() => Ok(()),
        None => Ok(()),
        Some(_) => note(file, entries, damaged),
    };
    unlock(file);
    noted
}

fn note(file: &LogFile, entries: &mut [Entry], damaged: &[usize]) -> io::Result<()> {
    for at in damaged {
        let entry = &mut entries[*at];
        entry.head.make_void();
        entry.write_head(file)?;
    }
    End::behind(file.form(), entries, 0).close(file, entries).map(drop)
}
