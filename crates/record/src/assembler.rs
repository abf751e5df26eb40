//! Puts what the sources saw, in the order of time, into the events of a trace.
//!
//! The assembler keeps the token and the mappings of each process, the touched pages of each file,
//! and a list of events. Only first touches make events, so however long a program runs, the list
//! is no longer than its files. Events of files that changed are taken out at the end, when the
//! changes are known. The assembler asks the file system about files, and nothing else of the
//! machine.

mod output;

use std::collections::{HashMap, HashSet};

use probe::perf::{Map, What};
use trace::{Event, Found, How, Source, TraceError};
use units::{Moment, PAGE_BYTES, PageId, Token};

use crate::files::{self, FileIndex, Files, Identity};
use crate::raw::{Did, Raw};
use crate::request::CandidatesChoice;
use crate::space::{Area, Space};

pub use output::Summary;

use output::Output;

/// What the kernel maps around a page that was asked for, if it is in memory: 64 KiB, aligned by
/// address (`fault_around_bytes`).
const FAULT_AROUND_BYTES: u64 = 64 << 10;

/// Events of a recording at most: what readers take by default.
const EVENTS_MAX: usize = 16 << 20;

/// Instructions of a process seen by the clock that are kept: what runs later runs all the time or
/// hardly at all.
const RUNNING_MAX: usize = 16 << 10;

/// `PROT_EXEC`.
const PROTECTION_EXECUTE: u32 = 4;

#[derive(Debug)]
struct Process {
    token: Token,
    name: Vec<u8>,
    space: Space,
    threads: u32,
    /// Its token has not started: the name of the executable comes with the first mapping.
    is_unnamed: bool,
    /// Pages whose code ran.
    code: HashSet<(FileIndex, u32)>,
    /// Instructions that the clock found it at.
    running: HashSet<(FileIndex, u64)>,
}

impl Process {
    fn new(name: Vec<u8>, space: Space, is_unnamed: bool) -> Process {
        let (code, running) = (HashSet::new(), HashSet::new());
        Process { token: new_token(), name, space, threads: 1, is_unnamed, code, running }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Assembler {
    files: Files,
    processes: HashMap<u32, Process>,
    /// Touched pages, 64 in each word.
    touched: HashMap<(FileIndex, u32), u64>,
    /// Paths looked up, with what was found.
    looked_up: HashSet<(Vec<u8>, Found)>,
    events: Vec<Event>,
    /// Nanoseconds of the monotonic clock when the recording began.
    began: u64,
    source: Source,
    candidates: CandidatesChoice,
    /// Events of calls, by where they return to, and which of them came to be no longer true.
    called: HashMap<(Token, u64), usize>,
    revoked: HashSet<usize>,
    full: bool,
    lost: u64,
    started: usize,
    preloaded: usize,
}

impl Assembler {
    /// Nothing seen yet; `began` is now, in nanoseconds of the monotonic clock. `source` says which
    /// of what comes counts as a touch.
    pub(crate) fn new(files: Files, source: Source, candidates: CandidatesChoice, began: u64) -> Assembler {
        Assembler {
            files,
            processes: HashMap::new(),
            touched: HashMap::new(),
            looked_up: HashSet::new(),
            events: Vec::new(),
            began,
            source,
            candidates,
            called: HashMap::new(),
            revoked: HashSet::new(),
            full: false,
            lost: 0,
            started: 0,
            preloaded: 0,
        }
    }

    /// Processes that are known to run.
    pub(crate) fn running(&self) -> usize {
        self.processes.len()
    }

    /// Adds what was dropped before it came here.
    pub(crate) fn lose(&mut self, records: u64) {
        self.lost += records;
    }

    /// Takes in what came next. Times may go backwards where a source was late.
    pub(crate) fn push(&mut self, raw: Raw) {
        let at = Moment(raw.at.saturating_sub(self.began) / 1000);
        let id = raw.process;
        match raw.what {
            Did::Perf(What::Fault { address, instruction, major }) => self.fault(at, id, address, instruction, major),
            Did::Perf(What::Runs { instruction }) => self.runs(at, id, instruction),
            Did::Perf(What::Map(map)) => self.map(at, id, &map),
            Did::Perf(What::Exec) => self.exec(at, id),
            Did::Perf(What::Fork { parent }) => self.fork(at, id, parent),
            Did::Perf(What::Exit) => self.exit(at, id),
            Did::Perf(What::Lost(records)) => self.lost += records,
            Did::Exact(range) => self.process(at, id).space.make_exact(&range),
            Did::Opened { identity, path, directory } => self.opened(at, id, identity, &path, directory),
            Did::Missed { path } => self.missed(at, id, &path),
            Did::Range { identity, offset, bytes, missing } => self.range(at, id, identity, offset, bytes, missing),
            Did::Called { address, again } => self.called(at, id, address, again),
            Did::Hello { path } => self.hello(at, id, path),
        }
    }

    /// The process, made up if it was not announced: its announcement was lost, or the source
    /// announces none.
    fn process(&mut self, at: Moment, id: u32) -> &mut Process {
        if !self.processes.contains_key(&id) {
            use std::os::unix::ffi::OsStringExt;
            let link = std::fs::read_link(format!("/proc/{id}/exe"));
            let name = link.map(|path| path.into_os_string().into_vec()).unwrap_or_default();
            self.begin(at, id, name, Space::default());
        }
        self.processes.get_mut(&id).expect("it was just made")
    }

    /// The token of a process, started by now even if the mapping that names its executable was
    /// lost.
    fn running_token(&mut self, at: Moment, id: u32) -> Token {
        let process = self.process(at, id);
        let token = process.token;
        if std::mem::take(&mut process.is_unnamed) {
            self.start(at, token, b"");
        }
        token
    }

    fn begin(&mut self, at: Moment, id: u32, name: Vec<u8>, space: Space) {
        let process = Process::new(name, space, false);
        self.start(at, process.token, &process.name);
        self.processes.insert(id, process);
    }

    fn start(&mut self, at: Moment, token: Token, name: &[u8]) {
        let mut name = name.to_vec();
        name.truncate(trace::NAME_BYTES_MAX);
        self.started += 1;
        self.add(Event::Start { token, at, name });
    }

    fn exec(&mut self, at: Moment, id: u32) {
        match self.processes.get_mut(&id) {
            Some(process) => {
                let ended = (!process.is_unnamed).then_some(process.token);
                process.token = new_token();
                (process.is_unnamed, process.threads) = (true, 1);
                process.space.clear();
                process.code.clear();
                process.running.clear();
                if let Some(token) = ended {
                    self.add(Event::End { token, at });
                }
            }
            None => {
                self.processes.insert(id, Process::new(Vec::new(), Space::default(), true));
            }
        }
    }

    fn fork(&mut self, at: Moment, id: u32, parent: u32) {
        if id == parent {
            self.process(at, id).threads += 1;
            return;
        }
        let parent = self.process(at, parent);
        let (name, mut space) = (parent.name.clone(), parent.space.clone());
        space.make_inexact();
        self.begin(at, id, name, space);
    }

    fn exit(&mut self, at: Moment, id: u32) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.threads = process.threads.saturating_sub(1);
        if process.threads > 0 {
            return;
        }
        let ended = (!process.is_unnamed).then_some(process.token);
        self.processes.remove(&id);
        if let Some(token) = ended {
            self.add(Event::End { token, at });
        }
    }

    fn hello(&mut self, at: Moment, id: u32, path: Vec<u8>) {
        self.preloaded += 1;
        if !self.processes.contains_key(&id) {
            self.begin(at, id, path, Space::default());
        }
    }

    fn map(&mut self, at: Moment, id: u32, map: &Map) {
        let file = self.files.find(&map.path, Identity::new(map.device, map.inode));
        let process = self.process(at, id);
        process.space.insert(Area {
            start: map.start,
            end: map.start.saturating_add(map.bytes),
            file,
            offset: map.offset,
            executable: map.protection & PROTECTION_EXECUTE != 0,
            exact: false,
        });
        // The kernel maps the executable before its interpreter.
        let names_it = process.is_unnamed && map.path.starts_with(b"/");
        let token = process.token;
        if names_it {
            process.is_unnamed = false;
            process.name.clone_from(&map.path);
            self.start(at, token, &map.path);
        }
        let Some(file) = file else { return };
        if names_it && self.source != Source::Residency {
            // It read the ELF header.
            self.touch(at, token, file, 0, How::Local);
        }
        self.lookup_of(at, token, file);
    }

    fn fault(&mut self, at: Moment, id: u32, address: u64, instruction: u64, major: bool) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(area) = process.space.at(address).copied() else { return };
        let Some(file) = area.file else { return };
        let token = process.token;
        let offset = area.offset + (address - area.start);
        let first = address.max(area.start) & !(FAULT_AROUND_BYTES - 1);
        let (first, last) = (first.max(area.start), (first + FAULT_AROUND_BYTES).min(area.end));
        let page = page_of(offset);
        // The instruction was to be fetched itself. One that goes on from the page before has
        // another address.
        let is_fetch = instruction == address && area.executable && self.candidates == CandidatesChoice::Faults;
        let is_code = is_fetch && process.code.insert((file, page));
        let window = page_of(area.offset + (first - area.start))..page_of(area.offset + (last - 1 - area.start)) + 1;
        let pages = match self.source {
            // The trace points report ranges themselves, but not reads of the disk.
            Source::Filemap if !major => 0..0,
            Source::Filemap => page..page + 1,
            Source::Residency => 0..0,
            _ if area.exact => page..page + 1,
            _ => window,
        };
        for index in pages {
            let how = if major && index == page { How::Demand } else { How::Local };
            self.touch(at, token, file, index, how);
        }
        if is_code && page < self.files.get(file).pages() {
            self.add(Event::Code { token, at, inode: file.inode(), offset });
        }
    }

    /// Inner loops of what a program does while it reads nothing: the first look at one is near its
    /// first run.
    fn runs(&mut self, at: Moment, id: u32, instruction: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(area) = process.space.at(instruction).filter(|area| area.executable).copied() else { return };
        let Some(file) = area.file else { return };
        let (token, offset) = (process.token, area.offset + (instruction - area.start));
        if process.is_unnamed || process.running.len() >= RUNNING_MAX || !process.running.insert((file, offset)) {
            return;
        }
        if offset < self.files.get(file).size {
            self.add(Event::Code { token, at, inode: file.inode(), offset });
        }
    }

    /// A place is a candidate as long as it was reached once.
    fn called(&mut self, at: Moment, id: u32, address: u64, again: bool) {
        let token = self.running_token(at, id);
        if again {
            self.revoked.extend(self.called.get(&(token, address)));
            return;
        }
        let Some(area) = self.processes[&id].space.at(address).filter(|area| area.executable).copied() else { return };
        let Some(file) = area.file else { return };
        let offset = area.offset + (address - area.start);
        self.called.insert((token, address), self.events.len());
        self.add(Event::Code { token, at, inode: file.inode(), offset });
    }

    fn range(&mut self, at: Moment, id: u32, identity: Identity, offset: u64, bytes: u64, missing: bool) {
        let Some(file) = self.files.by_identity(identity) else { return };
        if bytes == 0 || self.source == Source::Residency {
            return;
        }
        let end = offset.saturating_add(bytes).min(self.files.get(file).size);
        let token = self.running_token(at, id);
        let how = if missing { How::Demand } else { How::Local };
        for index in page_of(offset)..page_of(end + PAGE_BYTES as u64 - 1) {
            self.touch(at, token, file, index, how);
        }
    }

    fn opened(&mut self, at: Moment, id: u32, identity: Identity, path: &[u8], directory: bool) {
        let token = self.running_token(at, id);
        if directory {
            self.lookup(at, token, Found::Directory, path);
        } else if let Some(file) = self.files.find(path, identity) {
            self.lookup_of(at, token, file);
        }
    }

    fn missed(&mut self, at: Moment, id: u32, path: &[u8]) {
        let token = self.running_token(at, id);
        self.lookup(at, token, Found::Nothing, path);
    }

    fn lookup_of(&mut self, at: Moment, token: Token, file: FileIndex) {
        let path = self.files.get(file).path.clone();
        self.lookup(at, token, Found::File, &path);
    }

    /// Each path and finding once: a plan opens it once. What the kernel makes up is on no disk.
    fn lookup(&mut self, at: Moment, token: Token, found: Found, path: &[u8]) {
        if files::is_left_out(path) {
            return;
        }
        let Some(path) = path.strip_prefix(b"/") else { return };
        if trace::path_fault(path).is_some() || !self.looked_up.insert((path.to_vec(), found)) {
            return;
        }
        self.add(Event::Lookup { token, at, found, path: path.to_vec() });
    }

    fn touch(&mut self, at: Moment, token: Token, file: FileIndex, index: u32, how: How) {
        if index >= self.files.get(file).pages() {
            return;
        }
        let word = self.touched.entry((file, index / 64)).or_default();
        let bit = 1_u64 << (index % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.add(Event::Touch { token, at, page: PageId::new(file.inode(), index), how });
        }
    }

    fn add(&mut self, event: Event) {
        // Ends are always taken, so that tokens of a long recording do not pile up.
        self.full |= self.events.len() >= EVENTS_MAX;
        if !self.full {
            self.events.push(event);
        }
    }

    /// The trace: all events but those of files that changed, and each file before its first touch.
    ///
    /// # Errors
    /// More processes run at one time than a trace can hold.
    pub(crate) fn finish(mut self, ended: u64) -> Result<(Vec<u8>, Summary), TraceError> {
        let at = Moment(ended.saturating_sub(self.began) / 1000);
        if self.source == Source::Residency {
            self.add_resident(at);
        }
        let summary =
            Summary { lost: self.lost, preloaded: self.preloaded, processes: self.started, ..Summary::default() };
        let mut output = Output::new(&self.files, self.source, summary);
        let events = self.events.iter().enumerate();
        for (_, event) in events.filter(|(index, _)| !self.revoked.contains(index)) {
            output.write(event)?;
        }
        output.finish(at)
    }

    /// What is in memory now, in the order of files and offsets, as touched by a last process with
    /// the first one's name.
    fn add_resident(&mut self, at: Moment) {
        let first = self.events.iter().find_map(|event| match event {
            Event::Start { name, .. } => Some(name.clone()),
            _ => None,
        });
        let token = new_token();
        self.start(at, token, &first.unwrap_or_default());
        let files: Vec<FileIndex> = self.files.iter().map(|(index, _)| index).collect();
        for file in files {
            for (first, end) in self.files.resident(file).unwrap_or_default() {
                for index in page_of(first)..page_of(end + PAGE_BYTES as u64 - 1) {
                    self.touch(at, token, file, index, How::Local);
                }
            }
        }
    }

    /// Files of which the kernel would not say what is in memory.
    pub(crate) fn unknown(&self) -> usize {
        match self.source {
            Source::Residency => self.files.iter().filter(|(index, _)| self.files.resident(*index).is_none()).count(),
            _ => 0,
        }
    }

    /// Whether a limit ended the recording before the program.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }
}

/// The page that a byte lies in. Files over 16 TiB have pages that no trace can number.
fn page_of(offset: u64) -> u32 {
    u32::try_from(offset / PAGE_BYTES as u64).unwrap_or(u32::MAX - 1)
}

/// A random number, as for every start of a program.
fn new_token() -> Token {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel gives random numbers");
    Token(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
