//! Why the server, or one request to it, failed.

use std::net::SocketAddr;

use store::StoreError;
use wire::ErrorCode;

/// Why the server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The store cannot be opened.
    #[error("{}{}", .0, store_hint(.0))]
    Store(#[from] StoreError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// A limit of the configuration makes no sense.
    #[error("{what} is {found}, but must be at least {min}")]
    Config {
        /// The setting.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The least that works.
        min: u64,
    },
    /// Strangers could push images.
    #[error(
        "on {address} anyone could replace the images: give --tls-cert, --tls-key and --client-ca (and --push-ca for those \
         who may push), or --access, or --read-only, or --allow-anonymous-push if every machine that can connect is trusted"
    )]
    Exposed {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// Whoever is on the way to a device could read and change what it writes.
    #[error(
        "on {address} others on the way could read and change what devices write to volume {name}: give --tls-cert and \
         --tls-key, or serve it with `ro`, or give --insecure in a network that you trust"
    )]
    ExposedVolume {
        /// The first volume that may be written.
        name: String,
        /// The address to listen on.
        address: SocketAddr,
    },
    /// A certificate or key is of no use.
    #[error("{}: {reason}", path.display())]
    Tls {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of access rules or tokens is of no use.
    #[error(transparent)]
    Access(#[from] crate::AccessError),
    /// The key of timestamps is of no use.
    #[error("{}: {reason}", path.display())]
    TimestampKey {
        /// Its file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The audit log cannot be begun.
    #[error("{}: the audit log cannot be opened: {source}", path.display())]
    Audit {
        /// Its file.
        path: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A volume cannot be served.
    #[error("volume {name}: {reason}")]
    VolumeConfig {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A volume cannot be opened.
    #[error("volume {name} of {}: {}", folder.display(), opening(error))]
    Volume {
        /// Its name.
        name: String,
        /// Its folder.
        folder: std::path::PathBuf,
        /// The cause; part of the text.
        error: volume::VolumeError,
    },
    /// What the server does not need cannot be given up.
    #[error(transparent)]
    Confine(std::io::Error),
    /// The operating system refuses threads, signals or timers.
    #[error("cannot start the server: {0}")]
    Runtime(std::io::Error),
}

impl ServerError {
    /// A file of ours is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, ServerError::Volume { error: volume::VolumeError::Corrupt { .. }, .. })
    }

    /// What was asked for makes no sense.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            ServerError::Config { .. }
                | ServerError::Access(_)
                | ServerError::TimestampKey { .. }
                | ServerError::VolumeConfig { .. }
                | ServerError::Exposed { .. }
                | ServerError::ExposedVolume { .. }
        )
    }
}

/// Why one request failed: what goes to the client in an error frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// For people: names the thing and, where there is one, the next step.
    pub text: String,
}

impl Failure {
    /// A failure with this code and text, in which names may be that steer a terminal.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Failure {
        let text = text.into();
        Failure { code, text: units::printable_line(text.as_bytes()).into_owned() }
    }

    /// The request asks for something that cannot be.
    pub fn bad_request(text: impl Into<String>) -> Failure {
        Failure::new(ErrorCode::BadRequest, text)
    }

    /// What is stored or was sent does not match its hashes.
    pub fn corrupt(text: impl Into<String>) -> Failure {
        Failure::new(ErrorCode::Corrupt, text)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let code = match &error {
            StoreError::NotFound { .. } => ErrorCode::NotFound,
            StoreError::Full { .. } => ErrorCode::NoSpace,
            StoreError::ReadOnly { .. } => ErrorCode::Forbidden,
            StoreError::Truncated { .. } => ErrorCode::Corrupt,
            StoreError::Changed { .. } => ErrorCode::Conflict,
            // It will be back, or the next open finds the new one.
            StoreError::Away { .. } | StoreError::Replaced { .. } => {
                return Failure::new(ErrorCode::Busy, error.to_string());
            }
            // Others will close theirs.
            StoreError::Io { source, .. } if has_no_descriptors(source) => ErrorCode::Busy,
            _ => ErrorCode::Storage,
        };
        let hint = match code {
            ErrorCode::Busy => "; try again later, or raise the server's limit of open files (ulimit -n, LimitNOFILE=)",
            _ => "",
        };
        Failure::new(code, format!("{error}{hint}"))
    }
}

/// What to do about a store that cannot be opened.
fn store_hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            "; if the folder is not there, make it for the user that runs the server: `install -d -o USER FOLDER` as \
             root; else give that user the right to read it (`ls -ld` shows owner and mode)"
        }
        _ => "",
    }
}

/// Why a volume cannot be opened. That its folder cannot be read is another thing than a change
/// that is refused.
fn opening(error: &volume::VolumeError) -> String {
    match error {
        volume::VolumeError::Denied { source, .. } => format!(
            "it cannot be opened: {source}; give the user that runs the server the right to read the folder, and to write \
             there if the volume is `rw`"
        ),
        other => other.to_string(),
    }
}

/// What to do about an address that cannot be listened on.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; another program listens there, perhaps another server: choose another port",
        std::io::ErrorKind::AddrNotAvailable => "; no interface of this machine has this address",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 are for root",
        _ => "",
    }
}

/// Whether the process, or the machine, has as many files open as it may.
pub(crate) fn has_no_descriptors(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    error.raw_os_error().is_some_and(|code| [Errno::MFILE, Errno::NFILE].contains(&Errno::from_raw_os_error(code)))
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
