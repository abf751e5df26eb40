//! A trace as text: one line a record, stable, for people and for golden tests.

use std::fmt::{self, Write};

use crate::{Event, Trace, VERSION};

/// Writes `trace` as text. Times are seconds; names show bytes outside printable ASCII as escapes.
pub fn dump(trace: &Trace, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "trace version {VERSION} source {} image {}", trace.header.source, trace.header.image)?;
    for event in &trace.events {
        let at = event.at().0;
        write!(out, "{}.{:06} {} ", at / 1_000_000, at % 1_000_000, event.token())?;
        match event {
            Event::Start { name, .. } => writeln!(out, "start \"{}\"", name.escape_ascii())?,
            Event::Touch { page, how, .. } => writeln!(out, "touch {page} {how}")?,
            Event::End { .. } => writeln!(out, "end")?,
        }
    }
    writeln!(out, "events {} tail {}", trace.events.len(), trace.tail)
}
