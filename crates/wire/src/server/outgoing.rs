//! The queued frames of a server's connection, except pushes, and the order of sending.

use units::{Moment, RequestId};

use super::push::PushQueue;
use crate::coding::{Frame, Output};
use crate::encode;
use crate::error::{Refused, WireError};
use crate::format::{CONTROL_FRAMES_MAX, REPLY_QUEUE_BYTES_MAX};
use crate::message::ServerMessage;
use crate::outbox::{CurrentFrame, FrameQueue};
use crate::traffic::Traffic;

/// Queued frames. They are sent in this order: control, replies that somebody waits for, replies to
/// speculative requests, pushes. A frame that was sent in part is finished first. Control frames
/// that a client provokes are at most `CONTROL_FRAMES_MAX`.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    control: FrameQueue,
    replies: FrameQueue,
    speculative: FrameQueue,
    current: CurrentFrame,
}

impl Outgoing {
    pub fn push_control(&mut self, message: &ServerMessage) {
        self.control.push(None, encode::server(message));
    }

    /// Queues a control frame that the client provoked.
    pub fn answer(&mut self, message: &ServerMessage) -> Result<(), WireError> {
        if self.control.len() >= CONTROL_FRAMES_MAX {
            return Err(WireError::TooMany { what: "answers the client did not read", max: CONTROL_FRAMES_MAX as u64 });
        }
        self.push_control(message);
        Ok(())
    }

    /// An error if the client reads so little that nothing should be begun for it.
    pub fn check_control_room(&self) -> Result<(), Refused> {
        let max = CONTROL_FRAMES_MAX / 2;
        let what = "control frames the client did not read";
        if self.control.len() >= max { Err(Refused::Full { what, max }) } else { Ok(()) }
    }

    pub fn push_reply(&mut self, request: RequestId, frame: Frame, speculative: bool) {
        let queue = if speculative { &mut self.speculative } else { &mut self.replies };
        queue.push(Some(request), frame);
    }

    /// Queues what nobody asked for, ahead of the answers and pushes that are queued after it.
    pub fn push_unasked(&mut self, frame: Frame) {
        self.replies.push(None, frame);
    }

    /// Moves a speculative reply to those that somebody waits for.
    pub fn hurry(&mut self, request: RequestId) {
        if let Some(frame) = self.speculative.take(request) {
            self.replies.push(Some(request), frame);
        }
    }

    /// Drops the replies to a request; whether there were any.
    pub fn take_back(&mut self, request: RequestId) -> bool {
        self.replies.remove(request) | self.speculative.remove(request)
    }

    /// Drops everything but the rest of a frame that was sent in part.
    pub fn clear_queues(&mut self) {
        *self = Outgoing { current: std::mem::take(&mut self.current), ..Outgoing::default() };
    }

    /// Writes up to `max` bytes to `out`. Pushes are taken as their window lets them go.
    pub fn drain(
        &mut self,
        now: Moment,
        out: &mut impl Output,
        max: usize,
        push: &mut PushQueue,
        traffic: &mut Traffic,
    ) -> usize {
        self.current.drain(out, max, || {
            if let Some((_, frame)) = self.control.pop() {
                return Some(frame);
            }
            if let Some((_, frame)) = self.replies.pop().or_else(|| self.speculative.pop()) {
                traffic.reply_bytes += frame.bytes() as u64;
                return Some(frame);
            }
            let taken = push.take(now)?;
            traffic.push_bytes += taken.frame.bytes() as u64;
            if let Some(end) = taken.end {
                self.control.push(None, encode::server(&end));
            }
            Some(taken.frame)
        })
    }

    /// Whether there is room for replies of which nobody knows how many come.
    pub fn has_reply_room(&self) -> bool {
        self.replies.bytes() < REPLY_QUEUE_BYTES_MAX
    }

    /// Bytes of queued replies.
    pub fn reply_bytes(&self) -> usize {
        self.replies.bytes() + self.speculative.bytes()
    }

    /// Bytes that may be sent at any time.
    pub fn bytes(&self) -> usize {
        self.control.bytes() + self.reply_bytes() + self.current.bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}
