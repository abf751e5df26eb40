//! Whom to trust over TLS, and who we are.

use std::path::PathBuf;

use wire::Bearer;

use crate::target::Server;

/// Where Debian and most others keep the authorities they trust.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Whom to trust over TLS, and who we are: by files, which may be renewed at any time. They are of
/// no use to connections that are not encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// A PEM file of authorities to trust instead of the system's.
    pub authorities: Option<PathBuf>,
    /// Our own certificate and its key, for servers that ask for one.
    pub identity: Option<Identity>,
    /// PEM files with lists of the certificates of servers that these authorities have revoked.
    pub revocations: Vec<PathBuf>,
    /// Our token, for servers that know us by it. It is not for web servers.
    pub bearer: Option<Bearer>,
}

/// Two PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, then the ones that lead to an authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Trust {
    /// The file of authorities that counts.
    pub(crate) fn authorities_file(&self) -> PathBuf {
        self.authorities.clone().unwrap_or_else(|| SYSTEM_AUTHORITIES.into())
    }

    /// The files that are read before the first connection to `server`, and again before a later
    /// one if they have changed.
    pub fn files(&self, server: &Server) -> Vec<PathBuf> {
        if !server.scheme.is_secure() {
            return Vec::new();
        }
        let authorities = self.authorities_file();
        let identity = self.identity.iter().flat_map(|identity| [identity.certificate.clone(), identity.key.clone()]);
        std::iter::once(authorities).chain(identity).chain(self.revocations.iter().cloned()).collect()
    }
}
