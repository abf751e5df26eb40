//! The protocol between devices and servers: frames, and one state machine for each side of a
//! connection.
//!
//! Nothing here opens a socket or reads a clock. Bytes and the current time go in; events and bytes
//! come out. Servers and clients drive the two machines over TCP, tests drive them over a simulated
//! link. docs/formats/wire.md describes the bytes.
//!
//! Images are opaque: handles, block numbers, page numbers and stored bytes are not interpreted.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod bearer;
mod client;
mod code;
mod coding;
mod decode;
mod encode;
mod error;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod format;
mod inbox;
mod message;
mod outbox;
mod piece;
mod range;
mod server;
mod traffic;
pub mod volume;
mod window;

#[cfg(test)]
mod tests;

pub use bearer::Bearer;
pub use client::{ClientConfig, ClientConnection, ClientEvent, Unanswered};
pub use coding::Output;
pub use error::{Refused, WireError};
pub use message::{
    BlockRange, ErrorCode, Hello, HelloReply, ImageHandle, ManageAsk, Notice, PushEncoding, PushEndReason, PushHeader,
    PushPiece, Reply, Request,
};
pub use piece::PieceForm;
pub use server::{MEMORY_PER_BYTE, PushPosition, ServerConfig, ServerConnection, ServerEvent};
pub use traffic::Traffic;
