//! A server that has no time, or whose volume has stopped, is asked again later: not at the speed
//! of the link.

use std::time::Duration;

use units::Moment;

use super::Engine;

/// How long before it is asked again.
pub(super) const BUSY_TIME: Duration = Duration::from_millis(100);

/// What a request on its way is for.
pub(super) enum AskFor {
    Volume,
    Want(u64),
    File(u64),
    Blocks { file: u64, indexes: Vec<u32> },
    Commit(u64),
    Lock(u64),
    Device,
}

impl Engine {
    /// The server had no time for a request.
    pub(super) fn ask_later(&mut self, what: AskFor) {
        self.postponed.push((self.time.now.after(BUSY_TIME), what));
    }

    /// Asks for what the server had no time for, once some has passed.
    pub(super) fn ask_again(&mut self) {
        let now = self.time.now;
        let (due, later) = std::mem::take(&mut self.postponed).into_iter().partition(|(again, _)| *again <= now);
        self.postponed = later;
        let due: Vec<(Moment, AskFor)> = due;
        for (_, what) in due {
            match what {
                AskFor::Want(id) => self.wants.get_mut(&id).into_iter().for_each(|waiting| waiting.asked = false),
                AskFor::File(key) => {
                    self.files.get_mut(&key).into_iter().for_each(|file| file.opening = false);
                    self.open_number(key);
                }
                AskFor::Lock(_) => self.pump_locks(),
                AskFor::Volume | AskFor::Blocks { .. } | AskFor::Commit(_) | AskFor::Device => {}
            }
        }
    }
}
