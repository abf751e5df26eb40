//! Requests of the command line that need no mount. They block, on one connection each.

use std::time::Duration;

use connection::{Clock, Connection, ConnectionError, Dialer, Server, Trust};
use trust::{Known, Stapled};
use wire::format::{FEATURE_MANAGE, FEATURE_SIGNED_NAMES};
use wire::{ClientConfig, ManageAsk, Reply, Request};

use crate::error::ClientError;
use crate::signed;

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

/// Changes what a server keeps; the JSON document that it answers with.
///
/// # Errors
/// As [`list`]; the server is too old.
pub fn manage(
    server: &Server,
    trust: &Trust,
    name: &str,
    what: ManageAsk,
    time: Duration,
) -> Result<String, ClientError> {
    ask(server, trust, Request::Manage { name: name.into(), ask: what }, time)
}

/// The files of signed names of a server that speak of `name`; with an empty name, those that come
/// before names. Nothing in them is verified.
///
/// # Errors
/// As [`list`]; the server has no signed names.
pub fn read_signed(
    server: &Server,
    trust: &Trust,
    name: &str,
    known: &Known,
    time: Duration,
) -> Result<Stapled, ClientError> {
    let request = Request::TrustRead { name: name.into(), known: known.encode().into() };
    match exchange(server, trust, request, time)? {
        Reply::TrustFiles { codec, raw_bytes, bytes } => {
            let what = "files of signed names";
            signed::unpack(codec, raw_bytes, &bytes).ok_or_else(|| ClientError::Contradiction {
                server: server.clone(),
                what: "answer",
                expected: what.into(),
                found: "other bytes".into(),
            })
        }
        _ => Err(no_answer(server, time)),
    }
}

/// Publishes files of signed names.
///
/// # Errors
/// As [`read_signed`]; the server refuses them.
pub fn write_signed(
    server: &Server,
    trust: &Trust,
    name: &str,
    files: &Stapled,
    time: Duration,
) -> Result<(), ClientError> {
    let too_many = |error: trust::CodingError| ClientError::Contradiction {
        server: server.clone(),
        what: "files of signed names",
        expected: "what one message holds".into(),
        found: error.to_string(),
    };
    let files = files.encode().map_err(too_many)?.into();
    match exchange(server, trust, Request::TrustWrite { name: name.into(), files }, time)? {
        Reply::TrustWritten => Ok(()),
        _ => Err(no_answer(server, time)),
    }
}

fn ask(server: &Server, trust: &Trust, request: Request, time: Duration) -> Result<String, ClientError> {
    match exchange(server, trust, request, time)? {
        Reply::Listing { json } | Reply::Status { json } | Reply::Managed { json } => {
            let not_text = |_| ClientError::Contradiction {
                server: server.clone(),
                what: "encoding of the answer",
                expected: "UTF-8".into(),
                found: "other bytes".into(),
            };
            String::from_utf8(json.into()).map_err(not_text)
        }
        _ => Err(no_answer(server, time)),
    }
}

fn no_answer(server: &Server, waited: Duration) -> ClientError {
    ConnectionError::NoAnswer { server: server.clone(), waited }.into()
}

/// One request on a connection of its own.
fn exchange(server: &Server, trust: &Trust, request: Request, time: Duration) -> Result<Reply, ClientError> {
    let clock = Clock::start();
    // No push: nothing is opened here.
    let config = ClientConfig { push_bytes_max: 0, hello_deadline: time, ..ClientConfig::default() };
    let mut connection = Connection::connect(&Dialer::new(server, trust)?, config, clock, time)?;
    let until = clock.now().after(time);
    let needed = match &request {
        Request::TrustRead { .. } | Request::TrustWrite { .. } => FEATURE_SIGNED_NAMES,
        Request::Manage { .. } => FEATURE_MANAGE,
        _ => 0,
    };
    // An older server would take the request for a broken rule.
    while needed != 0 && connection.machine.hello().is_none() {
        connection.event(until)?;
    }
    if connection.machine.hello().is_some_and(|hello| hello.features & needed != needed) {
        let server = server.to_string();
        return Err(if needed == FEATURE_MANAGE {
            ClientError::Unmanaged { server }
        } else {
            ClientError::Unsigned { server }
        });
    }
    let request = connection.machine.request_until(clock.now(), request, until);
    let request = request.map_err(|why| connection.refused(why))?;
    Ok(connection.answer(request, until)?)
}
