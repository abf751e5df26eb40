//! One learning run: the trace of a local program, in order of time and by path.
//!
//! A trace has tokens and file numbers of its recorder, and its moments may go back a little where
//! several threads recorded. A [`Run`] has *process images* (one program in one process, from its
//! start or `exec` to its end or next `exec`) and paths, and its moments count from the start of
//! the program. It holds only the first touch of each page and path: all later ones come from
//! memory, whatever the disk is.

use std::collections::{HashMap, HashSet};

use trace::{Event, Found, Source, Trace, path_fault};
use units::{InodeId, Moment, PAGE_BYTES, Token};

use super::RunError;

/// A learning run of one program and all that it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Absolute path of the program, as it was started.
    pub program: Vec<u8>,
    /// Who recorded.
    pub source: Source,
    /// Every path of the run, each once.
    pub files: Vec<RunFile>,
    /// Process images in the order of their starts.
    pub images: Vec<ProcessImage>,
    /// The first touch of each page, in order of time.
    pub touches: Vec<Touch>,
    /// The first look-up of each path, in order of time.
    pub lookups: Vec<Lookup>,
    /// First executions of code, in order of time.
    pub codes: Vec<Code>,
    /// When the last thing happened.
    pub ended: Moment,
    /// Touches behind the end of their file, which were left out: the file grew while it was read.
    pub beyond: usize,
}

/// A path of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFile {
    /// From the root, without a leading slash.
    pub path: Vec<u8>,
    /// Length in bytes if the trace says it: it does for every file that was read.
    pub size: Option<u64>,
}

/// One program in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessImage {
    /// Position in [`Run::files`] of its executable, if the recorder knew it.
    pub executable: Option<u32>,
    /// When it started.
    pub began: Moment,
}

/// The first touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// When.
    pub at: Moment,
    /// Position in [`Run::images`].
    pub image: u32,
    /// Position in [`Run::files`].
    pub file: u32,
    /// Index of the page.
    pub page: u32,
}

/// The first look-up of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// When.
    pub at: Moment,
    /// Position in [`Run::files`].
    pub file: u32,
    /// What was there.
    pub found: Found,
}

/// Code that a process image runs for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// When.
    pub at: Moment,
    /// Position in [`Run::images`].
    pub image: u32,
    /// Position in [`Run::files`].
    pub file: u32,
    /// Where in that file the instruction starts, in bytes.
    pub offset: u64,
}

impl Run {
    /// The learning run that a trace recorded. The program is what started first.
    ///
    /// Where the trace holds what was in memory afterwards ([`Source::Residency`]), times of
    /// touches mean nothing: all are taken to be at the start, which makes one launch group of
    /// them.
    ///
    /// # Errors
    /// The trace is of an image; nothing starts in it, or its name is no path; it touches a file
    /// without naming it.
    pub fn from_trace(trace: &Trace) -> Result<Run, RunError> {
        if !trace.header.is_local() {
            return Err(RunError::Image { image: trace.header.image });
        }
        let start = trace.events.iter().find_map(|event| match event {
            Event::Start { at, name, .. } => Some((*at, name)),
            _ => None,
        });
        let (start, name) = start.filter(|(_, name)| !name.is_empty()).ok_or(RunError::NoProgram)?;
        let path = name.strip_prefix(b"/").unwrap_or(name);
        if let Some(fault) = path_fault(path) {
            return Err(RunError::Program { name: name.escape_ascii().to_string(), fault });
        }
        let mut builder = Builder::new(trace.header.source, start);
        builder.run.program = [b"/", path].concat();
        trace.events.iter().try_for_each(|event| builder.event(event))?;
        Ok(builder.finish())
    }

    /// Pages touched.
    pub fn pages(&self) -> usize {
        self.touches.len()
    }
}

struct Builder {
    run: Run,
    start: Moment,
    by_path: HashMap<Vec<u8>, u32>,
    by_inode: HashMap<InodeId, u32>,
    images: HashMap<Token, u32>,
}

impl Builder {
    fn new(source: Source, start: Moment) -> Builder {
        let run = Run {
            program: Vec::new(),
            source,
            files: Vec::new(),
            images: Vec::new(),
            touches: Vec::new(),
            lookups: Vec::new(),
            codes: Vec::new(),
            ended: Moment(0),
            beyond: 0,
        };
        Builder { run, start, by_path: HashMap::new(), by_inode: HashMap::new(), images: HashMap::new() }
    }

    fn event(&mut self, event: &Event) -> Result<(), RunError> {
        let at = Moment(event.at().map_or(0, |at| at.0.saturating_sub(self.start.0)));
        self.run.ended = self.run.ended.max(at);
        match event {
            Event::Start { token, name, .. } => {
                let path = name.strip_prefix(b"/").unwrap_or(name);
                let executable = path_fault(path).is_none().then(|| self.file(path));
                self.images.insert(*token, self.run.images.len() as u32);
                self.run.images.push(ProcessImage { executable, began: at });
            }
            Event::File { inode, size, path } => {
                let file = self.file(path);
                // A file that was replaced while the program ran has two numbers; its last length
                // is what is there now.
                self.run.files[file as usize].size = Some(*size);
                self.by_inode.insert(*inode, file);
            }
            Event::Touch { token, page, .. } => {
                let (file, Some(image)) = (self.named(page.inode)?, self.image(token)) else { return Ok(()) };
                let at = if self.run.source == Source::Residency { Moment(0) } else { at };
                self.run.touches.push(Touch { at, image, file, page: page.index });
            }
            Event::Lookup { found, path, .. } => {
                let file = self.file(path);
                self.run.lookups.push(Lookup { at, file, found: *found });
            }
            Event::Code { token, inode, offset, .. } => {
                let (file, Some(image)) = (self.named(*inode)?, self.image(token)) else { return Ok(()) };
                self.run.codes.push(Code { at, image, file, offset: *offset });
            }
            Event::End { token, .. } => {
                self.images.remove(token);
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8]) -> u32 {
        if let Some(file) = self.by_path.get(path) {
            return *file;
        }
        let file = self.run.files.len() as u32;
        self.by_path.insert(path.to_vec(), file);
        self.run.files.push(RunFile { path: path.to_vec(), size: None });
        file
    }

    fn named(&self, inode: InodeId) -> Result<u32, RunError> {
        self.by_inode.get(&inode).copied().ok_or(RunError::Unnamed { inode })
    }

    fn image(&self, token: &Token) -> Option<u32> {
        self.images.get(token).copied()
    }

    /// Sorts by time, keeping the order of what happened at once, and leaves first touches.
    fn finish(self) -> Run {
        let mut run = self.run;
        run.touches.sort_by_key(|touch| touch.at);
        run.lookups.sort_by_key(|lookup| lookup.at);
        run.codes.sort_by_key(|code| code.at);
        let (files, before) = (&run.files, run.touches.len());
        run.touches.retain(|touch| {
            let size = files[touch.file as usize].size.unwrap_or(0);
            u64::from(touch.page) < size.div_ceil(PAGE_BYTES as u64)
        });
        run.beyond = before - run.touches.len();
        let mut seen = HashSet::new();
        run.touches.retain(|touch| seen.insert((touch.file, touch.page)));
        let mut seen = HashSet::new();
        run.lookups.retain(|lookup| seen.insert(lookup.file));
        run
    }
}
