//! The time, which comes into the engine with every event, and the effects that come out of it.

use connection::VolumeMessage;
use units::Moment;

use crate::StreamError;
use crate::call::{Done, Finish};
use crate::job::Job;

/// Now, and what clocks on walls say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    pub now: Moment,
    /// Nanoseconds since 1970.
    pub wall_ns: i64,
}

/// The effects of an event, to be carried out by the threads of the volume.
#[derive(Default)]
pub(crate) struct Effects {
    /// Each for the connection of a generation.
    pub messages: Vec<(u64, VolumeMessage)>,
    pub jobs: Vec<Job>,
    pub finished: Vec<Finish>,
}

impl Effects {
    /// Completes a call.
    pub fn finish<T: Send + 'static>(&mut self, done: Done<T>, outcome: Result<T, StreamError>) {
        self.finished.push(Box::new(move || done(outcome)));
    }
}
