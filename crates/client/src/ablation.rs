//! The I/O path without one of its parts, to measure what the part is worth (Figure 7a of SYSFLOW).
//! For benchmarks only.
//!
//! *Short connections*: every demand gets a connection of its own, which is used once and closed.
//! That takes two round trips instead of one, as with any protocol over TCP: the handshake, then
//! the demand. Hello and open, which only a protocol like ours has (an image handle belongs to a
//! connection), take none: a demand goes over the connection that the demand before it dialled,
//! and waits for the handshake of the one that it dials for the next. Only the first demand waits
//! for hello and open too. The thread waits for the answer, so it has one demand under way at a
//! time. Touches, metadata and readahead still go over the connection of the thread. A demand that
//! fails takes that connection down, so that back-off, replay and waiting are the usual ones. Only
//! connections to a server of ours can be short.
//!
//! *Allocated pages*: see [`crate::allocator`].

use connection::{Connection, ConnectionError, Dialer};
use units::{Moment, RequestId};
use wire::{ClientConfig, Reply, Request, Traffic};

use crate::shared::Shared;

/// The short connections of one thread.
#[derive(Default)]
pub(crate) struct ShortConnections {
    /// Dialled by the last demand, for the next one.
    ahead: Option<Opening>,
}

impl ShortConnections {
    /// Asks for `ask`, whose answer has about `bytes`, over a connection that is then closed. The
    /// bytes moved are told in any case.
    pub fn ask(
        &mut self,
        shared: &Shared,
        dialer: &Dialer,
        ask: Request,
        bytes: u64,
    ) -> (Result<Reply, ConnectionError>, Traffic) {
        let next = || Opening::begin(shared, dialer);
        let mut opening = match self.ahead.take().map_or_else(next, Ok) {
            Ok(opening) => opening,
            Err(error) => return (Err(error), Traffic::default()),
        };
        let answer = match next() {
            Ok(ahead) => {
                self.ahead = Some(ahead);
                opening.exchange(shared, ask, bytes)
            }
            Err(error) => Err(error),
        };
        (answer, opening.connection.machine.traffic())
    }
}

/// A connection on which hello and open are under way.
struct Opening {
    connection: Connection,
    open: RequestId,
    until: Moment,
}

impl Opening {
    /// Dials, and sends hello and open without waiting for their answers.
    fn begin(shared: &Shared, dialer: &Dialer) -> Result<Opening, ConnectionError> {
        let time = shared.config.connection.open_deadline;
        // A push needs a connection that stays.
        let config = ClientConfig { push_bytes_max: 0, ..shared.config.connection.wire(shared.device) };
        let mut connection = Connection::connect(dialer, config, shared.clock, time)?;
        let (now, name) = (shared.clock.now(), format!("@{}", shared.metadata.id()));
        let until = now.after(time);
        let open = connection.machine.request_until(now, Request::Open { name }, until);
        let open = open.map_err(|why| connection.refused(why))?;
        connection.turn(None, now);
        Ok(Opening { connection, open, until })
    }

    fn exchange(&mut self, shared: &Shared, ask: Request, bytes: u64) -> Result<Reply, ConnectionError> {
        let id = shared.metadata.id();
        match self.answer(self.open, self.until)? {
            Reply::Opened { image, id: found, .. } if found == id => {
                let now = shared.clock.now();
                let until = now.after(shared.config.connection.answer_time(bytes));
                let request = self.connection.machine.request_until(now, ask.with_image(image), until);
                let request = request.map_err(|why| self.connection.refused(why))?;
                self.answer(request, until)
            }
            // No answer to the demand, and taken for a refusal of it.
            other => Ok(other),
        }
    }

    /// The answer to a request; an error of the server is an answer too.
    fn answer(&mut self, request: RequestId, until: Moment) -> Result<Reply, ConnectionError> {
        match self.connection.answer(request, until) {
            Err(ConnectionError::Refused { code, text, .. }) => Ok(Reply::Error { code, text }),
            answer => answer,
        }
    }
}
