//! The TLS options of every command that may connect to a server.

use std::ffi::OsString;
use std::path::PathBuf;

use connection::{Identity, Trust};

/// Variable that names a file of authorities, for commands without `--ca`.
const AUTHORITIES: &str = "RUNNEL_CA";

/// Whom to trust, and who we are. The files may be renewed while the command runs.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Encryption (runnels://, https://)")]
pub struct TrustArgs {
    /// Trust the authorities in this PEM file instead of the system's (also: RUNNEL_CA)
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Our certificate (PEM), for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Refuse servers whose certificate stands in a list of revoked ones in this file (PEM); can be
    /// given several times
    #[arg(long, value_name = "FILE")]
    crl: Vec<PathBuf>,
}

impl TrustArgs {
    /// The variable of the authorities that were given, for commands that this one starts.
    pub fn variable(&self) -> Option<(&'static str, OsString)> {
        // Also the file is found from another folder.
        self.ca.as_ref().map(|file| (AUTHORITIES, std::path::absolute(file).unwrap_or_else(|_| file.clone()).into()))
    }

    /// As a connection takes them.
    pub fn connection(&self) -> connection::Config {
        connection::Config { trust: self.trust(), ..connection::Config::default() }
    }

    /// Whom to trust, and who we are.
    pub fn trust(&self) -> Trust {
        let from_environment = || std::env::var_os(AUTHORITIES).filter(|file| !file.is_empty()).map(PathBuf::from);
        let identity = self.cert.clone().zip(self.key.clone());
        Trust {
            authorities: self.ca.clone().or_else(from_environment),
            identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            revocations: self.crl.clone(),
        }
    }
}
