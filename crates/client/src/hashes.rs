//! The chunk hashes of a remote image, fetched after the mount.
//!
//! They are three quarters of the metadata, and a mount works without them: blocks have hashes of
//! their own. Only single pages need chunk hashes, that is pushes. So the first connection requests
//! them piece by piece, one request in flight, while programs start already; no demand waits for
//! more than one piece. The first piece is small, and the size follows the time that a piece takes.
//! Pieces that came are kept when the connection is lost, and the next one goes on from there.
//!
//! [`HashFetch`] is the state of it, without a socket; `handler` sends its requests.

use std::io;
use std::ops::Range;
use std::time::Duration;

use image::ReadAt;
use units::{Moment, RequestId};
use wire::Reply;

/// The first piece: a quarter of a second on a link of 1 Mbit/s.
const PIECE_BYTES_FIRST: u32 = 32 << 10;

/// Pieces at most and at least.
const PIECE_BYTES: std::ops::RangeInclusive<u32> = 8 << 10..=256 << 10;

/// A piece that takes at most so much longer than the quickest one is followed by one of twice its
/// size: on a far link round trips are what costs, and on a thin one, time that demands stand
/// behind the piece.
const PIECE_TIME_SHORT: Duration = Duration::from_millis(100);

/// A piece that takes so much longer is followed by one of half its size.
const PIECE_TIME_LONG: Duration = Duration::from_millis(400);

/// Times that the server may refuse a piece, or that the hashes may turn out damaged, before we do
/// without until the next connection, which may lead to another server.
const FAILURES_MAX: u32 = 3;

/// The hashes as far as they came.
#[derive(Debug)]
pub(crate) struct HashFetch {
    /// Where they lie in the image file.
    section: Range<u64>,
    bytes: Vec<u8>,
    /// The piece under way.
    asked: Option<Asked>,
    piece_bytes: u32,
    /// Time of the quickest piece.
    quickest: Option<Duration>,
    failures: u32,
}

#[derive(Debug)]
struct Asked {
    request: RequestId,
    sent: Moment,
}

/// The state after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More is to be asked for.
    Going,
    /// All bytes are here: they can be read through [`ReadAt`], and checked.
    Complete,
    /// There is no use in asking again.
    Failed,
}

impl HashFetch {
    /// The section, and the bytes of it that came with the rest of the metadata.
    pub fn new(section: Range<u64>, begun: &[u8]) -> HashFetch {
        let mut bytes = Vec::with_capacity((section.end - section.start) as usize);
        bytes.extend_from_slice(begun);
        HashFetch { section, bytes, asked: None, piece_bytes: PIECE_BYTES_FIRST, quickest: None, failures: 0 }
    }

    /// The next piece to request, offset in the file and bytes; `None` while an answer is awaited.
    pub fn next(&self) -> Option<(u64, u32)> {
        let start = self.section.start + self.bytes.len() as u64;
        let left = self.section.end.saturating_sub(start).min(self.piece_bytes.into()) as u32;
        (self.asked.is_none() && left > 0).then_some((start, left))
    }

    /// It was asked for.
    pub fn sent(&mut self, request: RequestId, now: Moment) {
        self.asked = Some(Asked { request, sent: now });
    }

    /// Whether an answer belongs here.
    pub fn owns(&self, request: RequestId) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.request == request)
    }

    /// The connection is gone, and the piece under way with it.
    pub fn lost(&mut self) {
        self.asked = None;
    }

    /// The answer to the piece under way.
    pub fn take(&mut self, now: Moment, reply: &Reply) -> Step {
        let Some(asked) = self.asked.take() else { return Step::Going };
        // The state machine lets only an answer of the right place and length through.
        let Reply::MetaData { bytes, .. } = reply else { return self.fail() };
        self.bytes.extend_from_slice(bytes);
        let took = now.since(asked.sent);
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        if took - quickest <= PIECE_TIME_SHORT {
            self.piece_bytes = (self.piece_bytes * 2).min(*PIECE_BYTES.end());
        } else if took - quickest > PIECE_TIME_LONG {
            self.piece_bytes = (self.piece_bytes / 2).max(*PIECE_BYTES.start());
        }
        let missing = self.section.start + (self.bytes.len() as u64) < self.section.end;
        if missing { Step::Going } else { Step::Complete }
    }

    /// The bytes are wrong, all of them for all we know.
    pub fn damaged(&mut self) -> Step {
        self.bytes.clear();
        self.fail()
    }

    fn fail(&mut self) -> Step {
        self.failures += 1;
        if self.failures < FAILURES_MAX { Step::Going } else { Step::Failed }
    }
}

impl ReadAt for HashFetch {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = offset.checked_sub(self.section.start).and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(buf.len())?));
        let found = range.and_then(|range| self.bytes.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.section.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(offset: u64, bytes: u32) -> Reply {
        Reply::MetaData { offset, bytes: vec![offset as u8; bytes as usize].into() }
    }

    #[test]
    fn pieces_follow_the_time_they_take_and_end_with_the_section() {
        let mut fetch = HashFetch::new(1000..1_001_000, &[7; 500]);
        let (mut now, mut sizes) = (Moment(0), Vec::new());
        loop {
            let (offset, bytes) = fetch.next().expect("more is missing");
            assert_eq!(offset, 1000 + fetch.bytes.len() as u64);
            sizes.push(bytes >> 10);
            fetch.sent(RequestId(1), now);
            assert!(fetch.owns(RequestId(1)) && !fetch.owns(RequestId(2)) && fetch.next().is_none());
            // Fast at first, then slow.
            now = now.after(Duration::from_millis(if sizes.len() < 5 { 20 } else { 500 }));
            if fetch.take(now, &reply(offset, bytes)) == Step::Complete {
                break;
            }
        }
        assert_eq!(sizes[..7], [32, 64, 128, 256, 256, 128, 64]);
        assert_eq!(fetch.bytes.len(), 1_000_000);
        let mut some = [0; 600];
        fetch.read_exact_at(1000, &mut some).unwrap();
        assert_eq!((some[499], some[500]), (7, 1500u64 as u8));
        assert!(fetch.read_exact_at(999, &mut some).is_err() && fetch.read_exact_at(1_000_999, &mut some).is_err());
    }

    #[test]
    fn a_lost_piece_is_asked_for_again_and_refusals_end_it() {
        let mut fetch = HashFetch::new(0..100, &[]);
        fetch.sent(RequestId(1), Moment(0));
        fetch.lost();
        assert_eq!(fetch.next(), Some((0, 100)));
        let steps = [(); 3].map(|()| {
            fetch.sent(RequestId(2), Moment(0));
            fetch.take(Moment(1), &Reply::error(wire::ErrorCode::Storage, "no"))
        });
        assert_eq!(steps, [Step::Going, Step::Going, Step::Failed]);
    }
}
