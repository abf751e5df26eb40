//! The trace: which pages a program touched, in which order, recorded anywhere and read everywhere.
//!
//! A trace is a list of [`Event`]s about one image, or about the files of one machine ([`LOCAL`]).
//! Before the first touch of a file, a file record has its path, so that the trace can be applied
//! to other images and plain trees. The mount, the server and the recorder of local programs write
//! the same format, so packing, prediction, launch plans and coverage all start from one kind of
//! file.
//!
//! A record costs two to four bytes, because it has only the difference to the record before (time)
//! and to the same token's last touch (page). Every [`SECTION_RECORDS`] records a *seal* follows: a
//! hash over all bytes so far. So a writer can die at any moment and the file is still readable up
//! to its last whole record; [`Tail`] then says how it ended. A changed byte before a seal is
//! always an error.
//!
//! Nothing here opens a file: [`Writer`] makes bytes, [`read`] takes them. Units: moments are
//! microseconds.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

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
