//! Requests of the command line that need no mount. They block, on one connection each.

use std::time::Duration;

use connection::{Clock, Connection, ConnectionError, Dialer, Server, Trust};
use wire::{ClientConfig, Reply, Request};

use crate::error::ClientError;

/// The images a server publishes, as the JSON document it sends.
///
/// # Errors
/// No server, none that `trust` trusts, no answer within `time`, a refusal.
pub fn list(server: &Server, trust: &Trust, time: Duration) -> Result<String, ClientError> {
    ask(server, trust, Request::List, time)
}

/// The counters of a server, as the JSON document it sends.
///
/// # Errors
/// As [`list`].
pub fn status(server: &Server, trust: &Trust, time: Duration) -> Result<String, ClientError> {
    ask(server, trust, Request::Status, time)
}

fn ask(server: &Server, trust: &Trust, request: Request, time: Duration) -> Result<String, ClientError> {
    let clock = Clock::start();
    // No push: nothing is opened here.
    let config = ClientConfig { push_bytes_max: 0, hello_deadline: time, ..ClientConfig::default() };
    let mut connection = Connection::connect(&Dialer::new(server, trust)?, config, clock, time)?;
    let until = clock.now().after(time);
    let request = connection.machine.request_until(clock.now(), request, until);
    let request = request.map_err(|why| connection.refused(why))?;
    match connection.answer(request, until)? {
        Reply::Listing { json } | Reply::Status { json } => {
            let not_text = |_| ClientError::Contradiction {
                server: server.clone(),
                what: "encoding of the answer",
                expected: "UTF-8".into(),
                found: "other bytes".into(),
            };
            String::from_utf8(json.into()).map_err(not_text)
        }
        // The state machine lets no other answer through.
        _ => Err(ConnectionError::NoAnswer { server: server.clone(), waited: time }.into()),
    }
}
