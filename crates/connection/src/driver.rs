//! A thread that keeps one connection alive.
//!
//! The thread connects, runs the commands of other threads, moves bytes, and hands events to a
//! [`Handler`]. When the connection is lost it tells the handler why and connects again, after
//! waits that grow ([`BackOff`]).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use units::Moment;
use wire::ClientEvent;

use crate::back_off::BackOff;
use crate::clock::Clock;
use crate::config::Config;
use crate::connection::{Connection, Moved};
use crate::poll::timespec;
use crate::transport::Dialer;
use crate::waker::Waker;

/// Callbacks of a connection. Only the thread of the connection calls them; no call may block.
pub trait Handler {
    /// Commands of other threads.
    type Command;

    /// A connection was made. Generations grow. Requests that are made now leave with the Hello.
    fn connected(&mut self, connection: &mut Connection, generation: u64);

    /// A command. `Break` ends the thread.
    fn command(&mut self, connection: &mut Connection, command: Self::Command) -> ControlFlow<()>;

    /// A command while there is no connection, which is dropped. `Break` ends the thread.
    fn drop_command(&mut self, command: Self::Command) -> ControlFlow<()>;

    /// All commands were run; the thread sends what there is, and sleeps.
    fn before_turn(&mut self, connection: &mut Connection);

    /// Bytes were sent or received.
    fn moved(&mut self, _moved: Moved) {}

    /// Any event but the last one, `Closed`. `Break`: the connection is of no use any more.
    fn event(&mut self, connection: &mut Connection, event: ClientEvent) -> ControlFlow<()>;

    /// There is no connection, for this reason: it was lost, or none could be had. Returns whether
    /// it was of use, so that the next attempt is made soon.
    fn lost(&mut self, reason: &str) -> bool;

    /// The thread ends.
    fn closed(&mut self) {}
}

/// A connection that is kept alive; its thread owns this.
pub struct Driver<H: Handler> {
    /// Where to connect.
    pub dialer: Dialer,
    /// How to connect.
    pub config: Config,
    /// Names this device.
    pub device: u128,
    /// Seed of the jitter between attempts.
    pub seed: u64,
    /// The clock of all moments.
    pub clock: Clock,
    /// Commands of other threads; each wakes `waker` after it sent one.
    pub commands: Receiver<H::Command>,
    /// Ends the sleep of the thread.
    pub waker: Arc<Waker>,
    /// The callbacks.
    pub handler: H,
}

/// Why a connection is not served any more.
enum Ended {
    Lost(String),
    Closed,
}

impl<H: Handler> Driver<H> {
    /// Serves until a command ends it, beginning with the connection that is `ready`, if there is
    /// one.
    pub fn run(mut self, mut ready: Option<Connection>) {
        let mut back_off = BackOff::new(self.seed);
        for generation in 0.. {
            let connected = match ready.take() {
                Some(connection) => Ok(connection),
                None => Connection::connect(
                    &self.dialer,
                    self.config.wire(self.device),
                    self.clock,
                    self.config.open_deadline,
                ),
            };
            let ended = match connected {
                Ok(connection) => self.serve(connection, generation),
                Err(error) => Ended::Lost(error.to_string()),
            };
            let was_of_use = match &ended {
                Ended::Lost(reason) => self.handler.lost(reason),
                Ended::Closed => self.handler.lost("closed"),
            };
            if was_of_use {
                back_off.reset();
            }
            if matches!(ended, Ended::Closed) || self.wait(back_off.wait()).is_break() {
                break;
            }
        }
        self.handler.closed();
    }

    fn serve(&mut self, mut connection: Connection, generation: u64) -> Ended {
        self.handler.connected(&mut connection, generation);
        loop {
            self.waker.reset();
            while let Ok(command) = self.commands.try_recv() {
                if self.handler.command(&mut connection, command).is_break() {
                    return Ended::Closed;
                }
            }
            self.handler.before_turn(&mut connection);
            let moved = connection.turn(Some(&self.waker), Moment(u64::MAX));
            if moved.received + moved.sent > 0 {
                self.handler.moved(moved);
            }
            while let Some(event) = connection.machine.poll_event() {
                if let ClientEvent::Closed(error) = event {
                    return Ended::Lost(connection.explain(error).to_string());
                }
                if self.handler.event(&mut connection, event).is_break() {
                    return Ended::Lost("the connection to the server is lost".to_owned());
                }
            }
        }
    }

    /// Sleeps between attempts.
    fn wait(&mut self, time: Duration) -> ControlFlow<()> {
        let until = self.clock.now().after(time);
        loop {
            self.waker.reset();
            while let Ok(command) = self.commands.try_recv() {
                self.handler.drop_command(command)?;
            }
            let now = self.clock.now();
            if now >= until {
                return ControlFlow::Continue(());
            }
            let mut descriptors = [PollFd::new(&*self.waker, PollFlags::IN)];
            // Interrupted or not: the loop looks again.
            let _ = poll(&mut descriptors, Some(&timespec(until.since(now))));
        }
    }
}
