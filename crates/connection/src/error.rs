//! Why there is no connection, or no answer.

use std::path::PathBuf;
use std::time::Duration;

use crate::target::Server;

/// Why a server could not be connected to or asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The host name has no address.
    #[error("{server}: the host name cannot be resolved: {source}")]
    Resolve {
        /// The server.
        server: Server,
        /// The resolver's reason.
        source: std::io::Error,
    },
    /// No connection.
    #[error("{server}: cannot connect: {source}{}", hint(server))]
    Connect {
        /// The server.
        server: Server,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The connection was lost in mid-conversation.
    #[error("{server}: the connection was lost: {source}")]
    Lost {
        /// The server.
        server: Server,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("{server}: no answer within {} s", waited.as_secs())]
    NoAnswer {
        /// The server.
        server: Server,
        /// How long we waited.
        waited: Duration,
    },
    /// The server broke the protocol, or closed the connection with an error.
    #[error("{server}: {source}")]
    Wire {
        /// The server.
        server: Server,
        /// What it did.
        source: wire::WireError,
    },
    /// Another service than a Runnel server listens there.
    #[error("{server}: what listens there does not speak Runnel's protocol: {found}; {}", check(server))]
    OtherProtocol {
        /// The address.
        server: Server,
        /// What it sent instead.
        found: String,
    },
    /// No greeting came: a server that hangs or ends, or another service.
    #[error("{server}: no greeting of a Runnel server: {found}; {}", check(server))]
    NoGreeting {
        /// The address.
        server: Server,
        /// What happened instead.
        found: String,
    },
    /// The server refused a request.
    #[error("{server}: {text} ({code})")]
    Refused {
        /// The server.
        server: Server,
        /// Its reason, for programs.
        code: wire::ErrorCode,
        /// Its reason, for people.
        text: String,
    },
    /// The server cannot be trusted, or there is no common way to encrypt.
    #[error("{server}: {reason}")]
    Tls {
        /// The server.
        server: Server,
        /// What is wrong, and what to do about it.
        reason: String,
    },
    /// A file of certificates or a key is of no use.
    #[error("{}: {reason}", path.display())]
    Trust {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused a thread, an event descriptor or randomness.
    #[error("cannot start the client: {0}")]
    System(std::io::Error),
}

impl ConnectionError {
    /// The connection ended before a greeting came.
    pub fn no_greeting(server: Server, source: &std::io::Error) -> ConnectionError {
        use std::io::ErrorKind;
        let found = match source.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "the connection was closed".to_owned()
            }
            _ => format!("the connection was lost: {source}"),
        };
        ConnectionError::NoGreeting { server, found }
    }

    /// None came in this time.
    pub fn no_greeting_within(server: Server, time: Duration) -> ConnectionError {
        ConnectionError::NoGreeting { server, found: format!("none came within {time:?}") }
    }
}

/// What to look at when there is no answer.
fn hint(server: &Server) -> &'static str {
    if server.scheme.is_http() { "" } else { "; is `runnel serve` running there?" }
}

/// What to look at when something else than a Runnel server seems to listen.
fn check(server: &Server) -> String {
    let other = if server.scheme.is_secure() { "runnel:// (without TLS)" } else { "runnels:// (TLS)" };
    format!(
        "check the port {}, that `runnel serve` runs there, and whether it is {other} or http:// (image files on a web \
         server)",
        server.port
    )
}
