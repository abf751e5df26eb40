//! Any message of a client as a frame, whether it is allowed now or not. For tests of servers.

pub use crate::message::ClientMessage;

/// The frame of a message, as [`crate::ClientConnection`] would send it.
pub fn encode(message: &ClientMessage) -> Vec<u8> {
    let frame = crate::encode::client(message);
    let mut bytes = Vec::new();
    frame.write_from(0, usize::MAX, &mut bytes);
    bytes
}
