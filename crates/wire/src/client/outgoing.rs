//! The queued frames of a client's connection, and the order of sending.

use units::RequestId;

use crate::coding::Frame;
use crate::encode;
use crate::error::Refused;
use crate::format::{PUT_QUEUE_BYTES_MAX, REQUEST_QUEUE_BYTES_MAX};
use crate::message::ClientMessage;
use crate::outbox::{CurrentFrame, FrameQueue};

/// Queued frames. They are sent in this order: control and credits, then requests and notices as
/// they were made, then the data of uploads. A frame that was sent in part is finished first.
/// `uploading` is set exactly while that frame holds data of an upload.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    control: FrameQueue,
    requests: FrameQueue,
    data: FrameQueue,
    current: CurrentFrame,
    uploading: Option<RequestId>,
}

/// The result of [`Outgoing::drain`].
pub(super) struct Drained {
    pub bytes: usize,
    /// The upload whose data was the last that was written.
    pub upload: Option<RequestId>,
}

impl Outgoing {
    pub fn push_control(&mut self, message: &ClientMessage) {
        self.control.push(None, encode::client(message));
    }

    /// Queues a request, or what belongs to one, or a notice.
    pub fn push_request(&mut self, request: Option<RequestId>, message: &ClientMessage) {
        self.requests.push(request, encode::client(message));
    }

    /// Queues data of a request.
    pub fn push_data(&mut self, request: RequestId, message: &ClientMessage) {
        self.data.push(Some(request), encode::client(message));
    }

    /// An error if no more requests and notices can be queued.
    pub fn check_request_room(&self) -> Result<(), Refused> {
        let max = REQUEST_QUEUE_BYTES_MAX;
        if self.requests.bytes() >= max { Err(Refused::Full { what: "queued request bytes", max }) } else { Ok(()) }
    }

    /// Whether more data can be queued.
    pub fn has_data_room(&self) -> bool {
        self.data.bytes() < PUT_QUEUE_BYTES_MAX
    }

    /// Drops the queued data of an upload.
    pub fn drop_data(&mut self, request: RequestId) {
        self.data.remove(request);
    }

    /// Drops the queued frames of a request. Returns whether the request itself was among them, so
    /// that the server has not seen it.
    pub fn take_back(&mut self, request: RequestId, is_upload: bool) -> bool {
        // The data of an upload is behind its request, a commit is one frame of data.
        let unsent = self.data.remove(request) && !is_upload;
        self.requests.remove(request) || unsent
    }

    /// Writes up to `max` bytes to `out`. Credits come from `credit`.
    pub fn drain(&mut self, out: &mut Vec<u8>, max: usize, mut credit: impl FnMut() -> Option<Frame>) -> Drained {
        let (control, requests, data) = (&mut self.control, &mut self.requests, &mut self.data);
        let before = self.uploading;
        let uploading = &mut self.uploading;
        let bytes = self.current.drain(out, max, || {
            *uploading = None;
            let control = control.pop().map(|(_, frame)| frame).or_else(&mut credit);
            control.or_else(|| requests.pop().map(|(_, frame)| frame)).or_else(|| {
                let (request, frame) = data.pop()?;
                *uploading = request;
                Some(frame)
            })
        });
        let upload = uploading.or(before).filter(|_| bytes > 0);
        self.uploading.take_if(|_| self.current.is_empty());
        Drained { bytes, upload }
    }

    pub fn is_empty(&self) -> bool {
        self.current.is_empty() && self.control.is_empty() && self.requests.is_empty() && self.data.is_empty()
    }
}
