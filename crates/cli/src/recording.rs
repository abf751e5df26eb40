//! A trace file that grows while programs run on a recorded mount.
//!
//! The first touch of each page is written with its process, and each file's path before its first
//! touch. Bytes go to the file every few hundred records, so that a trace is readable up to there
//! even if this process is killed. An output that fails ends the recording, never the program:
//! [`Recording::finish`] tells.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::mount::record::{Answer, Recorder};
use image::Metadata;
use trace::{Event, Header, How, Source, Writer};
use units::{InodeId, Moment, PageId, Token};

use output::{Output, incomplete};

pub mod output;

/// Records between two writes to the file: a start touches thousands of pages, so this costs
/// little, and this much is lost if the process is killed.
const FLUSH_RECORDS: usize = 256;

/// Records at most: what readers take by default.
const RECORDS_MAX: usize = 16 << 20;

/// A trace file in the making.
#[derive(Debug)]
pub struct Recording {
    began: Instant,
    state: Mutex<State>,
}

/// The result of a recording.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Summary {
    /// Files of which at least one page was touched.
    pub files: usize,
    /// Pages touched.
    pub pages: usize,
    /// Bytes of these pages; the last page of a file counts as long as it is.
    pub bytes: u64,
    /// Processes that touched a page first.
    pub processes: usize,
    /// Length of the trace file in bytes.
    pub trace_bytes: u64,
}

#[derive(Debug)]
struct State {
    output: Output,
    image: Option<Arc<Metadata>>,
    /// `None` before the image is known, and after the recording ended, well or not.
    writer: Option<Writer>,
    seen: HashSet<PageId>,
    records: usize,
    summary: Summary,
    failed: Option<anyhow::Error>,
}

impl Recording {
    /// Makes the file, so that nothing runs in vain if that is impossible. One that is there is
    /// only overwritten with `force`.
    ///
    /// # Errors
    /// The file exists or cannot be made.
    pub fn create(path: &Path, force: bool) -> anyhow::Result<Recording> {
        let output = Output::create(path, force)?;
        let state = State {
            output,
            image: None,
            writer: None,
            seen: HashSet::new(),
            records: 0,
            summary: Summary::default(),
            failed: None,
        };
        Ok(Recording { began: Instant::now(), state: Mutex::new(state) })
    }

    /// Ends the recording once the mount is gone: all that still ran can touch nothing more.
    ///
    /// # Errors
    /// The file could not be written, now or before; it holds what came until then.
    pub fn finish(&self) -> anyhow::Result<Summary> {
        let mut state = self.lock();
        let at = self.now();
        for token in state.writer.as_ref().map(Writer::running).unwrap_or_default() {
            state.push(Event::End { token, at });
        }
        if let Some(mut writer) = state.writer.take() {
            let closed = writer.finish().map_err(anyhow::Error::from);
            let written = closed.and_then(|()| state.write(&writer.take())).and_then(|()| state.output.sync());
            state.failed = state.failed.take().or(written.err());
        }
        match state.failed.take() {
            None => Ok(state.summary),
            Some(error) => Err(incomplete(&state.output, error)),
        }
    }

    /// Takes the file away again if no touch was recorded: the program never came to run.
    pub fn discard(&self) {
        let state = self.lock();
        if state.summary.pages == 0 {
            state.output.discard();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_micros() as u64)
    }

    /// Tells at once that the recording broke; the program does not notice.
    fn tell(&self, state: &State) {
        if let (None, Some(error)) = (&state.writer, &state.failed) {
            let path = state.output.path().display();
            tell!("warning: {path}: {error:#}; the program goes on, unrecorded");
        }
    }
}

impl Recorder for Recording {
    fn begin(&self, metadata: &Arc<Metadata>) {
        let mut state = self.lock();
        state.image = Some(Arc::clone(metadata));
        state.writer = Some(Writer::new(&Header { image: metadata.id(), source: Source::Mount }));
        state.flush();
        self.tell(&state);
    }

    fn start(&self, token: Token, mut name: Vec<u8>) {
        // No Linux path is longer, and a name is a help for people only.
        name.truncate(trace::NAME_BYTES_MAX);
        let mut state = self.lock();
        state.summary.processes += usize::from(state.writer.is_some());
        state.push(Event::Start { token, at: self.now(), name });
    }

    fn touch(&self, token: Token, inode: InodeId, pages: Range<u32>, how: Answer) {
        let how = match how {
            Answer::AtOnce => How::Local,
            Answer::Later => How::Demand,
        };
        let at = self.now();
        let mut state = self.lock();
        let was_open = state.writer.is_some();
        for page in pages.map(|index| PageId::new(inode, index)) {
            if state.writer.is_some() && state.seen.insert(page) {
                state.name(inode);
                state.push(Event::Touch { token, at, page, how });
            }
        }
        if was_open {
            self.tell(&state);
        }
    }

    fn end(&self, token: Token) {
        self.lock().push(Event::End { token, at: self.now() });
    }
}

impl State {
    /// Writes the path of a file that was not named yet, if a trace can hold it.
    fn name(&mut self, inode: InodeId) {
        if self.writer.as_ref().is_none_or(|writer| writer.knows(inode)) {
            return;
        }
        self.summary.files += 1;
        let Some(image) = &self.image else { return };
        let (Some(path), Some(file)) = (image.path(inode), image.inode(inode)) else { return };
        let path = path.strip_prefix(b"/").map(<[u8]>::to_vec).unwrap_or(path);
        if trace::path_fault(&path).is_none() {
            self.push(Event::File { inode, size: file.size(), path });
        }
    }

    fn push(&mut self, event: Event) {
        let Some(writer) = &mut self.writer else { return };
        let pushed = match self.records < RECORDS_MAX {
            true => writer.push(&event).map_err(anyhow::Error::from),
            false => Err(anyhow::anyhow!("a trace holds at most {RECORDS_MAX} records")),
        };
        if let Err(error) = pushed {
            return self.fail(error);
        }
        self.records += 1;
        if let (Event::Touch { page, .. }, Some(image)) = (&event, &self.image) {
            self.summary.pages += 1;
            self.summary.bytes += image.page_bytes(*page).unwrap_or(0) as u64;
        }
        if self.records.is_multiple_of(FLUSH_RECORDS) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let bytes = writer.take();
        if let Err(error) = self.write(&bytes) {
            self.fail(error);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.output.write(bytes)?;
        self.summary.trace_bytes += bytes.len() as u64;
        Ok(())
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.writer = None;
        self.failed = Some(error);
    }
}

#[cfg(test)]
mod tests;
