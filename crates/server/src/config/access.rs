//! Who may do what.

use std::path::PathBuf;

/// Who may do what, beside what [`crate::TlsFiles`] and [`crate::Uploads`] say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The file of access rules. With it, clients without a certificate are let in over TLS even if
    /// there are authorities for all: the rules say what they may do. `None`: everyone who can
    /// connect may read, and [`crate::Uploads`] says who may push.
    pub rules: Option<PathBuf>,
}
