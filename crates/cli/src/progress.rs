//! The output of commands: lines on standard output, progress bars on standard error when it is a
//! terminal.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` bytes; a spinner while the total is unknown (0).
pub fn bytes(total: u64, what: &'static str) -> ProgressBar {
    let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
    let template = if total == 0 {
        "{spinner} {msg} {pos}"
    } else {
        "{msg:12} [{bar:40}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// A number of bytes as people read it.
pub fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// A number of things, in words: `1 group`, `2 groups`.
pub fn counted(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Writes lines to standard error (`tell!`).
pub fn told(text: std::fmt::Arguments<'_>) {
    let text = format!("{}\n", units::printable_text(&text.to_string()));
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Writes one line to standard output; what steers a terminal is escaped on a terminal only, so
/// that programs get it as it is.
///
/// # Errors
/// It is closed or full.
pub fn line(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    all(&format!("{text}\n"))
}

/// Writes lines to standard output, as [`line`].
///
/// # Errors
/// It is closed or full.
pub fn all(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let shown = if out.is_terminal() { units::printable_text(text) } else { text.into() };
    out.write_all(shown.as_bytes()).and_then(|()| out.flush()).context("standard output")
}
