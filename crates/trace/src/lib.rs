//! The trace: which pages a program touched, in which order, recorded anywhere and read everywhere.
//!
//! A trace is a list of [`Event`]s about one image, or about the files of one machine ([`LOCAL`]); a file record before the first
//! touch of a file says its path, so that the trace can be applied to other images and plain trees. The mount, the server and the ptrace recorder write the same format,
//! so that packing, prediction, launch plans and coverage all start from one kind of file.
//!
//! The idea of the format: a record costs two to four bytes, because it says only what differs from the record before
//! (time) and from the same token's last touch (page). Every [`SECTION_RECORDS`] records a *seal* follows: a hash over
//! all bytes so far. So a writer can die at any moment and the file is still readable up to its last whole record; the
//! reader then says how it ended in [`Tail`]. A changed byte before a seal is always an error.
//!
//! Nothing here opens a file: [`Writer`] hands out bytes, [`read`] takes them. Units: moments are microseconds.
//! Callers: `record`, `client` and `server` write; `profile`, `launch`, `specialise` and `cli` read.

mod dump;
mod error;
mod event;
pub mod format;
mod reader;
pub mod varint;
mod writer;

pub use dump::dump;
pub use error::TraceError;
pub use event::{Event, Found, Header, How, LOCAL, Source, path_fault};
pub use format::{NAME_BYTES_MAX, PATH_BYTES_MAX, SECTION_RECORDS, TOKENS_OPEN_MAX, VERSION};
pub use reader::{Limits, Tail, Trace, read};
pub use writer::Writer;

#[cfg(test)]
mod tests;
