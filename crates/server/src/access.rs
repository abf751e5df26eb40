//! Who may do what.
//!
//! Without an access file there is one question: who may push images ([`PushAccess`]). With one,
//! `rules` says which principals there are, by which certificates and tokens (`tokens`) the server
//! knows them, and what each may do. `live` reads the files again when they change. Each connection
//! has a `guard`, which remembers who its client is and what it has open, and looks again at every
//! request whether the rules have changed. `usage` counts what all connections of a principal have
//! and do, against its `limits`.

#[cfg(feature = "tls")]
pub(crate) mod certificate;
mod error;
mod guard;
mod limits;
mod live;
mod rules;
mod served;
mod stamp;
mod tokens;
mod usage;

use wire::ErrorCode;

pub use error::AccessError;
use guard::Shown;
pub(crate) use guard::{Guard, Opening};
pub(crate) use live::{Access, LOOK_EVERY, Rules};
pub(crate) use rules::{Principal, Right};
pub use tokens::{IssuedToken, TokenFile, TokenInfo};
pub(crate) use usage::Usage;

use crate::error::Failure;

/// Whether the client of a connection may push. Settled when the connection begins;
/// [`crate::Reloader`] changes it for later connections only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Without TLS there are no certificates.
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) enum PushAccess {
    /// It may.
    Allowed,
    /// The server asks for certificates, and knows of none that may push.
    NobodyMay,
    /// The client showed no certificate.
    NoCertificate,
    /// None of the authorities issued the client's certificate.
    OtherCertificate,
}

impl PushAccess {
    /// Refuses a client that may not.
    pub fn check(self) -> Result<(), Failure> {
        let reason = match self {
            PushAccess::Allowed => return Ok(()),
            PushAccess::NobodyMay => {
                "nobody may push to this server: it has --client-ca, and no --push-ca that says whose certificates may"
            }
            PushAccess::NoCertificate => {
                "only certificates of this server's --push-ca may push: give yours with --cert FILE and --key FILE"
            }
            PushAccess::OtherCertificate => {
                "your certificate may not push: no authority of this server's --push-ca issued it"
            }
        };
        Err(Failure::new(ErrorCode::Forbidden, reason))
    }
}
