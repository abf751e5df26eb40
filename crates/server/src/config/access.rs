//! Who may do what.

use std::path::PathBuf;

/// Who may do what, beside what [`crate::TlsFiles`] and [`crate::Uploads`] say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The file of access rules. With it, clients without a certificate are let in over TLS even if
    /// there are authorities for all: the rules say what they may do. `None`: everyone who can
    /// connect may read, and [`crate::Uploads`] says who may push.
    pub rules: Option<PathBuf>,
    /// Where it is written down who did what.
    pub audit: Option<AuditConfig>,
    /// Serve volumes for writing over any address without TLS.
    pub insecure: bool,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file; lines are only ever added.
    pub file: PathBuf,
    /// Its length at which it becomes `FILE.1`, in the place of the one before, and another file
    /// begins.
    pub bytes_max: u64,
}

impl AuditConfig {
    /// The usual limit: some hundred thousand lines.
    pub const BYTES_MAX: u64 = 64 << 20;
}
