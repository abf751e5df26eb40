//! The I/O path without one of its parts, to measure what the part is worth (Figure 7a of SYSFLOW).
//! For benchmarks only.
//!
//! *Short connections*: every demand gets a connection of its own, which is used once and closed.
//! That takes three round trips instead of one: the handshake of TCP, hello and open together (an
//! image handle belongs to a connection), then the demand. The thread waits for the answer, so it
//! has one demand under way at a time. Touches, metadata and readahead still go over the connection
//! of the thread. A demand that fails takes that connection down, so that back-off, replay and
//! waiting are the usual ones. Only connections to a server of ours can be short.
//!
//! *Allocated pages*: see [`crate::allocator`].

use connection::{Connection, ConnectionError, Dialer};
use units::Moment;
use wire::{ClientConfig, Reply, Request, Traffic};

use crate::shared::Shared;

/// Makes a connection, asks for `ask`, whose answer has about `bytes`, and closes. The bytes moved
/// are told in any case.
pub(crate) fn ask(
    shared: &Shared,
    dialer: &Dialer,
    ask: Request,
    bytes: u64,
) -> (Result<Reply, ConnectionError>, Traffic) {
    // A push needs a connection that stays.
    let config = ClientConfig { push_bytes_max: 0, ..shared.config.connection.wire(shared.device) };
    match Connection::connect(dialer, config, shared.clock, shared.config.connection.open_deadline) {
        Ok(mut connection) => (exchange(shared, &mut connection, ask, bytes), connection.machine.traffic()),
        Err(error) => (Err(error), Traffic::default()),
    }
}

fn exchange(shared: &Shared, connection: &mut Connection, ask: Request, bytes: u64) -> Result<Reply, ConnectionError> {
    let id = shared.metadata.id();
    let until = shared.clock.now().after(shared.config.connection.open_deadline);
    match one(shared, connection, Request::Open { name: format!("@{id}") }, until)? {
        Reply::Opened { image, id: found, .. } if found == id => {
            let until = shared.clock.now().after(shared.config.connection.answer_time(bytes));
            one(shared, connection, ask.with_image(image), until)
        }
        // No answer to the demand, and taken for a refusal of it.
        other => Ok(other),
    }
}

/// One request and its answer; an error of the server is an answer too.
fn one(shared: &Shared, connection: &mut Connection, ask: Request, until: Moment) -> Result<Reply, ConnectionError> {
    let request = connection.machine.request_until(shared.clock.now(), ask, until);
    let request = request.map_err(|why| connection.refused(why))?;
    match connection.answer(request, until) {
        Err(ConnectionError::Refused { code, text, .. }) => Ok(Reply::Error { code, text }),
        answer => answer,
    }
}
