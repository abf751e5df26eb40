//! Counters of one connection.

/// Bytes and frames of one connection since its start. Bytes are those of whole frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes given to the transport.
    pub bytes_sent: u64,
    /// Of these, what left in writes that ended with data of an upload.
    pub put_bytes_sent: u64,
    /// Bytes taken from the transport.
    pub bytes_received: u64,
    /// Complete frames taken from the transport.
    pub frames_received: u64,
    /// Bytes of replies: sent by a server, received by a client.
    pub reply_bytes: u64,
    /// Bytes of Push frames: sent by a server, received by a client.
    pub push_bytes: u64,
    /// Bytes of Push frames that were credited.
    pub push_bytes_credited: u64,
    /// Bytes of Push frames that were dropped: before they left a server, or after a client had
    /// stopped the stream.
    pub push_bytes_dropped: u64,
}
