//! Frames that wait for the transport.

use std::collections::VecDeque;

use units::RequestId;

use crate::coding::{Frame, Output};

/// Frames of one priority, first in, first out. Each may belong to a request, so that a cancel can
/// take it back. `bytes` is the sum of the frames.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    frames: VecDeque<(Option<RequestId>, Frame)>,
    bytes: usize,
}

impl FrameQueue {
    pub fn push(&mut self, request: Option<RequestId>, frame: Frame) {
        self.bytes += frame.bytes();
        self.frames.push_back((request, frame));
    }

    pub fn pop(&mut self) -> Option<(Option<RequestId>, Frame)> {
        let (request, frame) = self.frames.pop_front()?;
        self.bytes -= frame.bytes();
        Some((request, frame))
    }

    /// Takes out the oldest frame of `request`.
    pub fn take(&mut self, request: RequestId) -> Option<Frame> {
        let at = self.frames.iter().position(|(owner, _)| *owner == Some(request))?;
        let (_, frame) = self.frames.remove(at)?;
        self.bytes -= frame.bytes();
        Some(frame)
    }

    /// Drops every frame of `request`; whether there was one.
    pub fn remove(&mut self, request: RequestId) -> bool {
        let before = self.frames.len();
        self.frames.retain(|(owner, _)| *owner != Some(request));
        self.bytes = self.frames.iter().map(|(_, frame)| frame.bytes()).sum();
        self.frames.len() < before
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The frame that is being sent. The rest of it is sent before any other frame.
#[derive(Debug, Default)]
pub(crate) struct CurrentFrame {
    frame: Frame,
    done: usize,
}

impl CurrentFrame {
    /// Writes up to `max` bytes: the rest of this frame, then frames from `next` until it has none.
    pub fn drain(&mut self, out: &mut impl Output, max: usize, mut next: impl FnMut() -> Option<Frame>) -> usize {
        let mut written = 0;
        while written < max {
            if self.is_empty() {
                let Some(frame) = next() else { break };
                *self = CurrentFrame { frame, done: 0 };
            }
            let step = self.frame.write_from(self.done, max - written, out);
            self.done += step;
            written += step;
        }
        if self.is_empty() {
            // frees the bulk bytes at once, not with the next frame
            *self = CurrentFrame::default();
        }
        written
    }

    pub fn is_empty(&self) -> bool {
        self.done == self.frame.bytes()
    }

    /// Bytes that are still to send.
    pub fn bytes(&self) -> usize {
        self.frame.bytes() - self.done
    }
}
