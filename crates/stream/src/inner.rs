//! The engine behind one lock, for all threads of a volume, and where its effects go.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use connection::{Connected, Tag, Unanswered, VolumeConnection, VolumeHandler, VolumeMessage};
use units::{Moment, StreamId};
use wire::{PushEndReason, PushHeader, PushPiece, Reply};

use crate::Journal;
use crate::engine::{Engine, Time};
use crate::job::Order;

/// The state that the threads share.
pub(crate) struct Inner {
    guarded: Mutex<Guarded>,
    clock: Instant,
}

pub(crate) struct Guarded {
    pub engine: Engine,
    pub connection: Option<Arc<dyn VolumeConnection>>,
    /// Until the connection is known.
    early: Vec<(u64, VolumeMessage)>,
    orders: Sender<Order>,
    /// When the storage thread looks at the time next.
    wakes: Moment,
    /// What outlives this process, as long as it is whole.
    journal: Option<Journal>,
}

impl Inner {
    /// Shares an engine that has no connection yet; its records go to a journal, if there is one.
    pub fn new(engine: Engine, orders: Sender<Order>, journal: Option<Journal>) -> Inner {
        let guarded = Guarded { engine, connection: None, early: Vec::new(), orders, wakes: Moment(0), journal };
        Inner { guarded: Mutex::new(guarded), clock: Instant::now() }
    }

    /// A panic under the lock is a bug that release builds abort on; tests go on to report it.
    pub fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> Time {
        let now = Moment(self.clock.elapsed().as_micros() as u64);
        Time { now, wall_ns: i64::try_from(since_1970().as_nanos()).unwrap_or(i64::MAX) }
    }

    /// Lets the engine do something, and carries out what it wants: messages and jobs under the
    /// lock, which keeps their order, callbacks without it. Before that it is in the journal.
    pub fn run<R>(&self, call: impl FnOnce(&mut Engine, Time) -> R) -> R {
        let (result, finished) = {
            let mut guarded = self.lock();
            let result = call(&mut guarded.engine, self.time());
            guarded.record();
            let effects = guarded.engine.take_effects();
            let Guarded { engine, connection, early, orders, wakes, .. } = &mut *guarded;
            early.extend(effects.messages);
            if let Some(connection) = connection {
                early.drain(..).for_each(|(generation, message)| connection.send(generation, message));
            }
            // The storage thread is gone only after the end.
            effects.jobs.into_iter().for_each(|job| drop(orders.send(Order::Job(job))));
            if let Some(due) = engine.deadline().filter(|due| due < wakes) {
                *wakes = due;
                drop(orders.send(Order::Wake));
            }
            (result, effects.finished)
        };
        finished.into_iter().for_each(|finish| finish());
        result
    }

    /// How long the storage thread may sleep.
    pub fn sleeps(&self) -> Option<Duration> {
        let now = self.time().now;
        let mut guarded = self.lock();
        let due = guarded.engine.deadline();
        guarded.wakes = due.unwrap_or(Moment(u64::MAX));
        due.map(|due| due.since(now))
    }

    /// Looks at the time if something is due.
    pub fn tick_if_due(&self) {
        let due = self.lock().engine.deadline().is_some_and(|due| due <= self.time().now);
        if due {
            self.run(|engine, time| engine.tick(time));
        }
    }
}

impl Guarded {
    fn record(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let records = self.engine.take_records(false);
        let added = match records.is_empty() {
            true => Ok(()),
            false => journal.append(&records),
        };
        let added = added.and_then(|()| match journal.is_long() {
            true => journal.rewrite(&self.engine.take_records(true)),
            false => Ok(()),
        });
        if added.is_err() {
            // Everything goes on, and ends with this process.
            self.journal = None;
            self.engine.stop_records();
        }
    }
}

impl VolumeHandler for Inner {
    fn connected(&self, generation: u64, connected: Connected) {
        self.run(|engine, time| engine.connected(time, generation, connected));
    }

    fn lost(&self, reason: &str) {
        self.run(|engine, time| engine.lost(time, reason));
    }

    fn answered(&self, tag: Tag, answer: Result<Reply, Unanswered>) {
        self.run(|engine, time| engine.answered(time, tag, answer));
    }

    fn push_started(&self, stream: StreamId, push: PushHeader) {
        self.run(|engine, time| engine.push_started(time, stream, push));
    }

    fn pushed(&self, piece: PushPiece, credit: u32) {
        self.run(|engine, time| engine.pushed(time, piece, credit));
    }

    fn push_ended(&self, stream: StreamId, reason: PushEndReason) {
        self.run(|engine, time| engine.push_ended(time, stream, reason));
    }

    fn closed(&self) {
        self.run(|engine, time| engine.shut_down(time));
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
