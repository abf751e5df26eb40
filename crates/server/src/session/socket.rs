//! Reads and writes of the socket, and how many bytes they take.

use std::io::IoSlice;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::outgoing::{Outgoing, WRITE_PARTS};

/// Bytes taken from the socket at a time: room for a few requests at first, more as long as a read
/// fills it.
pub(super) const READ_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=64 << 10;

/// Makes the room for the next read follow what the last one brought.
pub(super) fn fit_reads(input: &mut Vec<u8>, read: usize) {
    let bytes = match input.len() {
        room if read == room => (4 * room).min(*READ_BYTES.end()),
        room if read < room / 8 => (room / 4).max(*READ_BYTES.start()),
        room => room,
    };
    if bytes != input.len() {
        *input = vec![0; bytes];
    }
}

/// Writes some of the bytes; without any, sees to it that the earlier ones leave.
pub(super) async fn write_on<S: AsyncWrite + Unpin>(writer: &mut S, outgoing: &Outgoing) -> std::io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); WRITE_PARTS];
    let count = outgoing.unwritten(&mut slices);
    if count == 0 {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write_vectored(&slices[..count]).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

/// Sends the last bytes and waits for the peer to close: closing first, with unread bytes, would
/// discard them.
pub(crate) async fn send_last<S>(mut stream: S, bytes: &[u8])
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if stream.write_all(bytes).await.is_err() || stream.shutdown().await.is_err() {
        return;
    }
    // Not on the stack, which each connection has from the start.
    let mut rest = vec![0; 4096];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}
