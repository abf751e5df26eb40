//! What a command shows: lines on standard output, progress bars on standard error when it is a terminal.

use std::io::Write;

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

/// Writes one line to standard error, as `eprintln!`; where that is closed or full nobody wants to know, and what was worked for goes on.
#[cfg(feature = "full")]
macro_rules! tell {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}
#[cfg(feature = "full")]
pub(crate) use tell;

/// Writes one line to standard output.
///
/// # Errors
/// It is closed or full.
pub fn line(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).context("standard output")
}
