//! The trace of a recording, and what is in it in numbers.

use std::collections::HashSet;

use trace::{Event, Found, Header, LOCAL, Source, TraceError, Writer};
use units::{Moment, PAGE_BYTES};

use crate::files::{FileIndex, Files};

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Files of which at least one page was touched.
    pub files: usize,
    /// Pages touched.
    pub pages: usize,
    /// Bytes of these pages; the last page of a file counts as long as it is.
    pub bytes: u64,
    /// Processes, counted anew at each exec.
    pub processes: usize,
    /// First instructions of code: of pages, and those that the clock saw.
    pub code: usize,
    /// Paths looked up: files, directories, and paths where nothing was.
    pub lookups: usize,
    /// Of these, paths where nothing was.
    pub missed: usize,
    /// Files left out because they were written, replaced or removed while the program ran.
    pub changed: usize,
    /// Records that the kernel or the preloaded library had to drop: pages may be missing.
    pub lost: u64,
    /// Processes in which the preloaded library started.
    pub preloaded: usize,
}

/// Writes events, without those of files that changed, and puts the path of each file before its
/// first event.
pub(super) struct Output<'a> {
    files: &'a Files,
    changed: HashSet<FileIndex>,
    writer: Writer,
    summary: Summary,
}

impl<'a> Output<'a> {
    /// An empty trace. `summary` has what is not counted here.
    pub(super) fn new(files: &'a Files, source: Source, summary: Summary) -> Output<'a> {
        let changed = files.changed();
        let summary = Summary { changed: changed.len(), ..summary };
        Output { files, changed, writer: Writer::new(&Header { image: LOCAL, source }), summary }
    }

    /// Adds the next event.
    ///
    /// # Errors
    /// More processes run at one time than a trace can hold.
    pub(super) fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        let inode = match event {
            Event::Touch { page, .. } => Some(page.inode),
            Event::Code { inode, .. } => Some(*inode),
            _ => None,
        };
        if let Some(inode) = inode {
            let file = FileIndex(inode.0 - 1);
            if self.changed.contains(&file) {
                return Ok(());
            }
            if !self.writer.knows(inode) {
                let known = self.files.get(file);
                let path = known.path.strip_prefix(b"/").unwrap_or(&known.path).to_vec();
                self.writer.push(&Event::File { inode, size: known.size, path })?;
                self.summary.files += 1;
            }
        }
        self.count(event);
        self.writer.push(event)
    }

    fn count(&mut self, event: &Event) {
        let summary = &mut self.summary;
        match event {
            Event::Touch { page, .. } => {
                let size = self.files.get(FileIndex(page.inode.0 - 1)).size;
                summary.pages += 1;
                summary.bytes += (size - u64::from(page.index) * PAGE_BYTES as u64).min(PAGE_BYTES as u64);
            }
            Event::Code { .. } => summary.code += 1,
            Event::Lookup { found, .. } => {
                summary.lookups += 1;
                summary.missed += usize::from(*found == Found::Nothing);
            }
            _ => {}
        }
    }

    /// Ends all processes that still run, and the trace.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub(super) fn finish(mut self, at: Moment) -> Result<(Vec<u8>, Summary), TraceError> {
        for token in self.writer.running() {
            self.writer.push(&Event::End { token, at })?;
        }
        self.writer.finish()?;
        Ok((self.writer.take(), self.summary))
    }
}
