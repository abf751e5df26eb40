//! Errors: [`ClientError`] for opening and administration, [`ReadError`] for a single READ.

use std::path::PathBuf;
use std::time::Duration;

use connection::{ConnectionError, HttpFile, Server};
use units::ImageId;
use wire::ErrorCode;

/// Why an image could not be opened, uploaded or asked about.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection, or no answer.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A volume where an image is needed.
    #[error("{target} is a volume, and this needs an image; volumes are for `mount` and for `run --data`")]
    NoImage {
        /// What was given.
        target: String,
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
    /// A statement of the server contradicts the image itself.
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
    /// An upload got no further for so long, over all attempts.
    #[error(
        "{source}; the upload got no further for {time:?}\nhint: see that `runnel serve` runs there and answers, \
             then push again: what arrived is not sent again"
    )]
    NoProgress {
        /// Why the last attempt failed.
        source: Box<ClientError>,
        /// The time.
        time: Duration,
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
    /// What the server says of a name is not what its publisher has signed.
    #[error("{name} is refused: {refusal}{}", what_next(refusal))]
    Refused {
        /// The name.
        name: String,
        /// Why.
        refusal: trust::Refusal,
    },
    /// The names of the server must be signed, and it has no signed names.
    #[error(
        "{server}: its names must be signed, and it has no signed names\nhint: `runnel trust` signs them, on a server of \
         this version or later"
    )]
    Unsigned {
        /// The server.
        server: String,
    },
    /// The server cannot do what an operator asks for.
    #[error(
        "{server}: it is of a version that cannot delete, tag and collect images\nhint: install this version there"
    )]
    Unmanaged {
        /// The server.
        server: String,
    },
    /// A web server has another image than the one that was signed.
    #[error("{name} is refused: it was signed as image {signed}, and the server has {found}")]
    NotSigned {
        /// The name.
        name: String,
        /// What was signed.
        signed: ImageId,
        /// What is there.
        found: ImageId,
    },
    /// The root file that is to be trusted is none.
    #[error("{}: this is no root file to trust: {refusal}", path.display())]
    BadRoot {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        refusal: trust::Refusal,
    },
    /// There is no folder for what the device has seen.
    #[error(
        "{server}: its names must be signed, and there is no folder to remember what was seen of them\nhint: set \
         XDG_STATE_HOME or HOME, or `state` in /etc/runnel/config.toml"
    )]
    NoMemory {
        /// The server.
        server: Server,
    },
    /// A version was pinned before the names of its server had to be signed.
    #[error("{name} is pinned at a version that this device has not seen signed\nhint: `runnel pin {name}` again")]
    UnverifiedPin {
        /// The name.
        name: String,
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
}

impl ClientError {
    /// Whether the server has said that it has no such image: waiting changes nothing.
    pub fn is_gone(&self) -> bool {
        let refused =
            |error: &ConnectionError| matches!(error, ConnectionError::Refused { code: ErrorCode::NotFound, .. });
        matches!(self, ClientError::StaleImage { .. })
            || matches!(self, ClientError::Connection(error) if refused(error))
    }
}

/// Why one READ failed. The mount turns it into an error number; wrong bytes or zeros are never an
/// answer.
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
    /// The server serves another image by now, or its answer does not fit the request.
    #[error("the server no longer serves this image")]
    Protocol,
    /// The server, or the local file, cannot deliver the bytes; or the range is none of this
    /// image's.
    #[error("the bytes cannot be read")]
    Io,
}

/// What to do about a name that is refused.
fn what_next(refusal: &trust::Refusal) -> &'static str {
    match refusal.kind() {
        trust::Kind::Freeze | trust::Kind::Expired => {
            "\nhint: see that this device's clock is right; else the publisher must sign anew: `runnel trust refresh`"
        }
        trust::Kind::Missing => {
            "\nhint: `runnel trust show` tells what the server has; `runnel push --sign` signs names"
        }
        trust::Kind::Rollback | trust::Kind::Forked | trust::Kind::Mixed | trust::Kind::Signature => {
            "\nhint: do not use this server before its publisher has looked at it: `runnel trust show`"
        }
        _ => "",
    }
}

/// The image that the name of a [`ClientError::StaleImage`] stands for now.
fn now(found: &Option<ImageId>) -> String {
    found.map_or_else(String::new, |id| format!("; its name stands for {id} now, which a new mount gets"))
}
