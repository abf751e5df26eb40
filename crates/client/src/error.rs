//! What can go wrong: once for opening and administration ([`ClientError`]), once for a single READ ([`ReadError`]).

use std::path::PathBuf;
use std::time::Duration;

use units::ImageId;

use crate::target::{HttpFile, Server, TargetError};

/// Why an image could not be opened, uploaded or asked about.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The target cannot be parsed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A volume where an image is needed.
    #[error("{target} is a volume, and this needs an image; volumes are for `mount` and for `run --data`")]
    NoImage {
        /// What was given.
        target: String,
    },
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
    /// The server broke the protocol, or said goodbye.
    #[error("{server}: {source}")]
    Wire {
        /// The server.
        server: Server,
        /// What it did.
        source: wire::WireError,
    },
    /// What listens there is no Runnel server.
    #[error("{server}: what listens there does not speak Runnel's protocol: {found}; {}", check(server))]
    OtherProtocol {
        /// The address.
        server: Server,
        /// What it sent instead.
        found: String,
    },
    /// What listens there never greeted us: a server that hangs or ends, or another service.
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
    /// The name stands for another image than the one that is mounted.
    #[error("{server}: image {expected} is no longer served{}", now(found))]
    StaleImage {
        /// The server.
        server: Server,
        /// The image that is mounted.
        expected: ImageId,
        /// What the server has now, if anything.
        found: Option<ImageId>,
    },
    /// The server announces more metadata than this client accepts.
    #[error("{server}: the image has {found} bytes of metadata, at most {max} are accepted")]
    MetadataTooLarge {
        /// The server.
        server: Server,
        /// What it announces.
        found: u64,
        /// What we accept.
        max: u64,
    },
    /// What the server says of the image contradicts the image itself.
    #[error("{server}: {what}: expected {expected}, found {found}")]
    Contradiction {
        /// The server.
        server: Server,
        /// Which statement.
        what: &'static str,
        /// What the first statement says.
        expected: String,
        /// What the second one says.
        found: String,
    },
    /// The image's superblock or metadata is damaged or hostile.
    #[error("{name}: {source}")]
    Image {
        /// The target.
        name: String,
        /// What is wrong, with its offset.
        source: image::ImageError,
    },
    /// A local image file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Uploads go from a file to a server; tags are names, ids cannot be chosen.
    #[error("{0} cannot be pushed to; write runnel://host/name[:tag]")]
    NotATag(String),
    /// The server asks for a block the image does not have.
    #[error("{server}: it asks for block {block} of an image of {blocks} blocks")]
    NoSuchBlock {
        /// The server.
        server: Server,
        /// The block.
        block: u64,
        /// Blocks of the image.
        blocks: u32,
    },
    /// The server confirms another image than the one that was uploaded.
    #[error("{server}: it published image {found} where {expected} was uploaded")]
    WrongUpload {
        /// The server.
        server: Server,
        /// Id of the file.
        expected: ImageId,
        /// Id in the server's confirmation.
        found: ImageId,
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
    /// A web server does not serve the file in the way that is needed.
    #[error("{file}: {reason}")]
    Http {
        /// The file.
        file: HttpFile,
        /// What it answers, and what was expected.
        reason: String,
    },
    /// A web server does not have the file.
    #[error("{file}: there is no such file")]
    NoSuchFile {
        /// The file.
        file: HttpFile,
    },
    /// The system refused a thread, an event descriptor or randomness.
    #[error("cannot start the client: {0}")]
    System(std::io::Error),
}

impl ClientError {
    /// The connection ended before a greeting came.
    pub(crate) fn no_greeting(server: Server, source: &std::io::Error) -> ClientError {
        use std::io::ErrorKind;
        let found = match source.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "the connection was closed".to_owned()
            }
            _ => format!("the connection was lost: {source}"),
        };
        ClientError::NoGreeting { server, found }
    }

    pub(crate) fn no_greeting_within(server: Server, time: Duration) -> ClientError {
        ClientError::NoGreeting { server, found: format!("none came within {time:?}") }
    }
}

/// What to look at when nobody answers.
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

/// Why one READ failed. The mount turns it into an error number; wrong bytes or zeros are never an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReadError {
    /// Soft mode: no answer within the stated time.
    #[error("no answer from the server in time")]
    Timeout,
    /// The bytes do not match the image's hashes, also after asking again.
    #[error("the bytes do not match the image")]
    Corrupt,
    /// The session is closing.
    #[error("the mount is going away")]
    Shutdown,
    /// The server serves another image by now, or answers what was not asked.
    #[error("the server no longer serves this image")]
    Protocol,
    /// The server, or the local file, cannot deliver the bytes; or the range is none of this image's.
    #[error("the bytes cannot be read")]
    Io,
}

/// What became of the name of a [`ClientError::StaleImage`].
fn now(found: &Option<ImageId>) -> String {
    found.map_or_else(String::new, |id| format!("; its name stands for {id} now, which a new mount gets"))
}
