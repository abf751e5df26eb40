//! The audit log: one JSON object a line for what was published, refused, or opened for writing,
//! and for tokens that come and go.
//!
//! A thread writes it, so that no connection waits for the disk. Lines that the disk does not take,
//! or that come faster than it takes them, are counted and left out: a full disk does not keep the
//! server from serving.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use serde::Serialize;

use crate::config::AuditConfig;
use crate::error::ServerError;
use crate::log::{Logger, Time};
use crate::metrics::Metrics;

/// Lines that wait for the disk. Each has 2 KiB at most.
const WAITING_MAX: usize = 1024;

/// Something that is worth a line.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Entry<'a> {
    /// What: `push`, `sign`, `refused`, `closed`, `volume-write`, `token-added`, `token-revoked` or
    /// `token-expired`.
    pub action: &'static str,
    /// Who, as far as it is known.
    pub principal: &'a str,
    /// From where.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub address: &'a str,
    /// The image, volume or token.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'a str,
    /// The id of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `done`, or why not.
    pub outcome: &'a str,
}

/// An entry with its time.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
}

enum Message {
    Line(Vec<u8>),
    /// The file was moved away: begin another one.
    Reopen,
}

/// The audit log. When it is dropped, all lines have been written.
pub(crate) struct Audit {
    /// `None` once it is dropped.
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Opens the file.
    ///
    /// # Errors
    /// [`ServerError::Audit`]: it cannot be opened; [`ServerError::Runtime`]: no thread.
    pub fn start(config: AuditConfig, metrics: Arc<Metrics>, log: Logger) -> Result<Audit, ServerError> {
        let path = config.file.clone();
        let mut writer = Writer { config, log, file: None, bytes: 0, is_torn: false };
        writer.open().map_err(|source| ServerError::Audit { path, source })?;
        let (queue, messages) = sync_channel(WAITING_MAX);
        let counts = metrics.clone();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&messages, &counts)).map_err(ServerError::Runtime)?;
        Ok(Audit { queue: Some(queue), thread: Some(thread), metrics })
    }

    /// Has a line written. Does not wait.
    pub fn note(&self, entry: &Entry<'_>) {
        let line = Line { time: Time(SystemTime::now()).to_string(), entry };
        let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
        bytes.push(b'\n');
        self.send(Message::Line(bytes));
    }

    /// Begins a new file if the old one was moved away.
    pub fn reopen(&self) {
        self.send(Message::Reopen);
    }

    fn send(&self, message: Message) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(Message::Line(_)) | TrySendError::Disconnected(Message::Line(_))) =
            queue.try_send(message)
        {
            self.metrics.audit_lines_lost.one();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic there is a bug that the hook reported.
            let _ = thread.join();
        }
    }
}

/// Writes the lines.
struct Writer {
    config: AuditConfig,
    log: Logger,
    /// `None` if it could not be opened; the next line tries again.
    file: Option<File>,
    /// Its length.
    bytes: u64,
    /// Its last line is not whole.
    is_torn: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>, metrics: &Metrics) {
        while let Ok(message) = messages.recv() {
            let (done, lost) = match &message {
                Message::Line(line) => (self.write(line), 1),
                Message::Reopen => (self.open(), 0),
            };
            if let Err(error) = done {
                metrics.audit_lines_lost.add(lost);
                self.complain("cannot be written", &error);
            }
        }
    }

    fn complain(&self, what: &str, error: &io::Error) {
        let path = self.config.file.display();
        self.log.warning(format_args!("{path}: the audit log {what}: {error}; the server goes on"));
    }

    fn open(&mut self) -> io::Result<()> {
        self.file = None;
        let file = File::options().append(true).create(true).mode(0o640).open(&self.config.file)?;
        self.bytes = file.metadata()?.len();
        self.is_torn = false;
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.open()?;
        }
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.config.bytes_max {
            match self.rotate() {
                Err(error) if self.file.is_none() => return Err(error),
                Err(error) => self.complain("grows beyond its limit, since it cannot be rotated", &error),
                Ok(()) => {}
            }
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.is_torn {
            // Readers find the next line by it.
            file.write_all(b"\n")?;
            self.is_torn = false;
            self.bytes += 1;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    rest = &rest[bytes..];
                    self.bytes += bytes as u64;
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves the file to `FILE.1` and begins another one. If that fails, the old one is written on.
    fn rotate(&mut self) -> io::Result<()> {
        let mut old = self.config.file.clone().into_os_string();
        old.push(".1");
        std::fs::rename(&self.config.file, PathBuf::from(old))?;
        self.open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_written_and_the_file_is_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        std::fs::write(&file, "{\"before\":1}\n").unwrap();
        let config = AuditConfig { file: file.clone(), bytes_max: 400 };
        let metrics = Arc::new(Metrics::default());
        let audit = Audit::start(config, metrics.clone(), Logger::silent()).unwrap();
        for name in ["a", "b \"\n", "c", "d"] {
            audit.note(&Entry { action: "push", principal: "ci", name, outcome: "done", ..Entry::default() });
        }
        drop(audit);
        let (old, new) = (lines(&folder.path().join("audit.jsonl.1")), lines(&file));
        assert_eq!(old[0]["before"], 1);
        let all: Vec<&str> = old[1..].iter().chain(&new).map(|line| line["name"].as_str().unwrap()).collect();
        assert_eq!(all, ["a", "b \"\n", "c", "d"]);
        assert!(new.iter().all(|line| line["principal"] == "ci" && line["time"].as_str().unwrap().ends_with('Z')));
        assert!(std::fs::metadata(&file).unwrap().len() <= 400);
        assert_eq!(metrics.audit_lines_lost.get(), 0);
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        let config = AuditConfig { file: file.clone(), bytes_max: 1 << 20 };
        let audit = Audit::start(config, Arc::default(), Logger::silent()).unwrap();
        let note = |name| audit.note(&Entry { action: "push", name, ..Entry::default() });
        note("a");
        std::fs::rename(&file, folder.path().join("moved")).unwrap();
        note("b");
        audit.reopen();
        note("c");
        drop(audit);
        assert_eq!(lines(&folder.path().join("moved")).len(), 2);
        assert_eq!(lines(&file)[0]["name"], "c");
    }

    #[test]
    fn a_full_disk_is_counted_and_logged_and_nothing_waits() {
        let config = AuditConfig { file: "/dev/full".into(), bytes_max: 1 << 20 };
        let metrics = Arc::new(Metrics::default());
        let logged = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = logged.clone();
        let log = Logger::new(move |_, line| sink.lock().unwrap().push(line.to_owned()));
        let audit = Audit::start(config, metrics.clone(), log).unwrap();
        (0..3).for_each(|_| audit.note(&Entry { action: "push", ..Entry::default() }));
        drop(audit);
        assert_eq!(metrics.audit_lines_lost.get(), 3);
        assert!(logged.lock().unwrap()[0].contains("No space left"), "{logged:?}");
        let absent = AuditConfig { file: "/no/such/audit".into(), bytes_max: 1 };
        assert!(Audit::start(absent, metrics, Logger::silent()).is_err(), "at the start it is an error");
    }
}
