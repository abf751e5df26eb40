//! What happens when time passes: soft-mode READs fail, pages that did not come by themselves are demanded, requests
//! that were put off are made, gathered touches are sent.

use super::{Schedule, Source};
use crate::error::ReadError;
use units::{Moment, PageId};

impl Schedule {
    /// Does what is due. Called at [`Schedule::deadline`] or later, by one thread of the session.
    pub fn expire(&mut self, now: Moment) {
        if self.touches.deadline().is_some_and(|due| now >= due) {
            for (token, pages) in self.touches.take_all() {
                self.send_touches(token, pages);
            }
        }
        if self.deadline.is_none_or(|due| now < due) {
            return;
        }
        self.deadline = None;
        self.expire_reads(now);
        self.expire_pushes(now);
        let (due, later) = self.delayed.iter().partition(|(at, _)| now >= *at);
        self.delayed = later;
        let due: Vec<_> = due;
        due.into_iter().for_each(|(_, key)| self.dispatch(now, key));
        if let Some(next) = self.delayed.iter().map(|(at, _)| *at).min() {
            self.wake_at(next);
        }
    }

    fn expire_reads(&mut self, now: Moment) {
        let Some(time) = self.settings.soft else { return };
        // READs are in order of their arrival.
        while let Some((id, read)) = self.reads.first_key_value() {
            let due = read.since.after(time);
            if now < due {
                self.wake_at(due);
                return;
            }
            let id = *id;
            self.fail_read(now, id, ReadError::Timeout);
        }
    }

    fn expire_pushes(&mut self, now: Moment) {
        let mut late = Vec::new();
        let mut next: Option<Moment> = None;
        for (page, wait) in &self.waits {
            let Source::OnTheWay { force_at, .. } = wait.source else { continue };
            if now >= force_at {
                late.push(PageId::from_u64(*page));
            } else {
                next = Some(next.map_or(force_at, |earlier| earlier.min(force_at)));
            }
        }
        late.into_iter().for_each(|page| self.demand_again(now, page));
        if let Some(next) = next {
            self.wake_at(next);
        }
    }
}
