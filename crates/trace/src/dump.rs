//! A trace as text: one line a record, stable, for people and for golden tests.

use std::fmt::{self, Write};

use crate::{Event, Trace};

/// Writes `trace` as text. Times are seconds; names show bytes outside printable ASCII as escapes.
///
/// # Errors
/// Those of `out`.
pub fn dump(trace: &Trace, out: &mut dyn Write) -> fmt::Result {
    match trace.header.is_local() {
        true => writeln!(out, "trace source {} of local files", trace.header.source)?,
        false => writeln!(out, "trace source {} image {}", trace.header.source, trace.header.image)?,
    }
    for event in &trace.events {
        if let (Some(at), Some(token)) = (event.at(), event.token()) {
            write!(out, "{}.{:06} {token} ", at.0 / 1_000_000, at.0 % 1_000_000)?;
        }
        match event {
            Event::File { inode, size, path } => {
                writeln!(out, "file {inode} size {size} \"{}\"", path.escape_ascii())?;
            }
            Event::Start { name, .. } => writeln!(out, "start \"{}\"", name.escape_ascii())?,
            Event::Lookup { found, path, .. } => writeln!(out, "lookup {found} \"{}\"", path.escape_ascii())?,
            Event::Code { inode, offset, .. } => writeln!(out, "code {inode} offset {offset:#x}")?,
            Event::Touch { page, how, .. } => writeln!(out, "touch {page} {how}")?,
            Event::End { .. } => writeln!(out, "end")?,
        }
    }
    writeln!(out, "events {} tail {}", trace.events.len(), trace.tail)
}
