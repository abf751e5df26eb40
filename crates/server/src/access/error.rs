//! Why an access file, or its file of tokens, is of no use.

use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a file of access rules or tokens, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessError {
    path: PathBuf,
    /// From 1; 0 if it is about the file as a whole.
    line: usize,
    reason: String,
}

impl AccessError {
    /// It is about the file as a whole.
    pub(crate) fn whole(path: &Path, reason: impl Into<String>) -> AccessError {
        AccessError { path: path.into(), line: 0, reason: reason.into() }
    }

    /// It is about the line with this byte of the text.
    pub(crate) fn at(path: &Path, text: &str, byte: usize, reason: impl Into<String>) -> AccessError {
        let line = text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1;
        AccessError { path: path.into(), line, reason: reason.into() }
    }

    /// The text is not TOML, or has other fields.
    pub(crate) fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> AccessError {
        AccessError::at(path, text, error.span().map_or(0, |span| span.start), error.message())
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.line {
            0 => write!(f, "{path}: {}", self.reason),
            line => write!(f, "{path}:{line}: {}", self.reason),
        }
    }
}

impl std::error::Error for AccessError {}
