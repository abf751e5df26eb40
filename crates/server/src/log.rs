//! One line for each event worth a look, to wherever the caller of the server wants it.

use std::fmt;
use std::sync::Arc;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Normal: an image published, actions saved.
    Info,
    /// Something failed, and the server goes on.
    Warning,
}

/// Takes log lines. Called from any thread; must not block for long.
#[derive(Clone)]
pub struct Logger(Arc<Sink>);

type Sink = dyn Fn(Level, &str) + Send + Sync;

impl Logger {
    /// A logger that hands each line to `sink`.
    pub fn new(sink: impl Fn(Level, &str) + Send + Sync + 'static) -> Logger {
        Logger(Arc::new(sink))
    }

    /// Lines to standard error.
    pub fn stderr() -> Logger {
        Logger::new(|level, line| match level {
            Level::Info => eprintln!("{line}"),
            Level::Warning => eprintln!("warning: {line}"),
        })
    }

    /// No lines.
    pub fn silent() -> Logger {
        Logger::new(|_, _| {})
    }

    pub(crate) fn info(&self, line: impl fmt::Display) {
        (self.0)(Level::Info, &line.to_string());
    }

    pub(crate) fn warning(&self, line: impl fmt::Display) {
        (self.0)(Level::Warning, &line.to_string());
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logger")
    }
}
