//! The queue of a disk: which request is served next, and when it is done. Pure: moments are
//! parameters.
//!
//! A flat disk serves requests in the order of their arrival. A rotating one chooses, each time it
//! has finished a request, the one with the shortest access among those that have arrived by then.
//! Time is that of the model. A server that wakes late does not make the disk slower, because the
//! next request starts when the model says that the last one was done.

use std::collections::VecDeque;

use crate::model::{Kind, Model};

/// Nanoseconds since the disk began to turn.
pub type Moment = u64;

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the caller knows it by.
    pub id: u64,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests served.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Requests that did not go on where the one before ended; on a rotating disk, those the heads
    /// moved for.
    pub seeks: u64,
    /// Time during which it worked on something, nanoseconds of the model.
    pub busy: u64,
}

impl Counters {
    /// What was done since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
            seeks: self.seeks - before.seeks,
            busy: self.busy - before.busy,
        }
    }
}

/// A disk with its queue.
#[derive(Clone, Debug)]
pub struct Timeline {
    model: Model,
    waiting: VecDeque<(Moment, Request)>,
    /// Where the last read ended.
    head: u64,
    /// When the head came by there: the disk reads on from this moment.
    passed: Moment,
    /// When the last request was done.
    free: Moment,
    /// When each of the places in a flat disk's queue is free again.
    places: Vec<Moment>,
    counters: Counters,
}

/// What serving a request would take.
#[derive(Clone, Copy)]
struct Access {
    done: Moment,
    /// When the head comes by the end of the request.
    passed: Moment,
    moved: bool,
}

impl Timeline {
    /// A disk at rest, its head at the first byte.
    pub fn new(model: Model) -> Timeline {
        let places = vec![0; model.queue.max(1)];
        let counters = Counters::default();
        Timeline { model, waiting: VecDeque::new(), head: 0, passed: 0, free: 0, places, counters }
    }

    /// A request arrives. Moments of arrival must not go back.
    pub fn arrive(&mut self, now: Moment, request: Request) {
        self.waiting.push_back((now, request));
    }

    /// The request that is done next, and when; nothing if none waits. To be asked again only when
    /// that moment has come, as a rotating disk chooses among what has arrived by then.
    pub fn next_done(&mut self) -> Option<(Moment, u64)> {
        match self.model.kind {
            Kind::Flat { latency } => self.next_flat(latency),
            Kind::Rotating { read_on, .. } => self.next_rotating(read_on),
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes another model; what was read stays counted.
    pub fn change(&mut self, model: Model) {
        let (waiting, counters) = (std::mem::take(&mut self.waiting), self.counters);
        let (free, head) = (self.free, self.head);
        *self = Timeline { waiting, counters, free, head, passed: free, ..Timeline::new(model) };
        self.places.fill(free);
    }

    fn next_flat(&mut self, latency: u64) -> Option<(Moment, u64)> {
        let (arrived, request) = self.waiting.pop_front()?;
        let place = self.places.iter_mut().min()?;
        let start = arrived.max(*place);
        let done = (start + latency).max(self.free) + self.model.transfer(request.bytes);
        *place = done;
        self.count(&request, request.offset != self.head, done - start.max(self.free));
        self.free = done;
        Some((done, request.id))
    }

    fn next_rotating(&mut self, read_on: u64) -> Option<(Moment, u64)> {
        let now = self.free.max(self.waiting.front()?.0);
        let known = self.waiting.iter().take(self.model.queue).take_while(|(arrived, _)| *arrived <= now);
        let accesses = known.map(|(_, request)| self.access(now, request, read_on));
        let (index, access) = accesses.enumerate().min_by_key(|(_, access)| access.done)?;
        let (_, request) = self.waiting.remove(index)?;
        self.count(&request, access.moved, access.done - now);
        self.passed = access.passed;
        self.free = access.done;
        Some((access.done, request.id))
    }

    /// What `request` would take if it were started at `now`.
    fn access(&self, now: Moment, request: &Request, read_on: u64) -> Access {
        let Request { offset, bytes, .. } = *request;
        let transfer = self.model.transfer(bytes);
        // Ahead of the head, within what the disk reads by itself: the data are there already or
        // come without a seek.
        if (self.head..=self.head + read_on).contains(&offset) {
            let passed = self.passed + self.model.transfer(offset + bytes - self.head);
            let done = now.max(passed);
            // It stops when its buffer is full, and goes on as data are taken.
            return Access {
                done,
                passed: passed.max(done.saturating_sub(self.model.transfer(read_on))),
                moved: false,
            };
        }
        let there = now + self.model.kind.seek(self.head.abs_diff(offset));
        let done = there + self.model.kind.turn(there, offset, self.model.rate) + transfer;
        Access { done, passed: done, moved: true }
    }

    fn count(&mut self, request: &Request, moved: bool, busy: u64) {
        self.head = request.offset + request.bytes;
        self.counters.requests += 1;
        self.counters.bytes += request.bytes;
        self.counters.seeks += u64::from(moved);
        self.counters.busy += busy;
    }
}

#[cfg(test)]
mod tests;
