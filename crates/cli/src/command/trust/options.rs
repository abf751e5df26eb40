//! The TLS options of every command that may connect to a server.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use connection::{Identity, Trust};
use wire::Bearer;

use crate::failure;

/// Variable that names a file of authorities, for commands without `--ca`.
const AUTHORITIES: &str = "RUNNEL_CA";

/// Variable that holds a token, for commands without `--token-file`.
const TOKEN: &str = "RUNNEL_TOKEN";

/// Longest file with a token: the longest text that is sent as one, and a line end.
const TOKEN_FILE_BYTES_MAX: u64 = 257;

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

    /// File with our token, for servers that know us by one (also: RUNNEL_TOKEN); sent over TLS, or
    /// within this machine
    #[arg(long, value_name = "FILE", value_parser = token_of)]
    token_file: Option<Bearer>,
}

/// The token in a file.
fn token_of(path: &str) -> Result<Bearer, String> {
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut text = String::new();
    file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(Bearer::parse(&text)?)
}

/// The token in the variable.
fn token_of_variable() -> anyhow::Result<Option<Bearer>> {
    let Some(text) = std::env::var_os(TOKEN).filter(|text| !text.is_empty()) else { return Ok(None) };
    // What is no text is no token either. It is not repeated: it may be most of one.
    let token = Bearer::parse(&text.to_string_lossy());
    token.map(Some).map_err(|what| failure::usage(format!("{TOKEN}: {what}")))
}

impl TrustArgs {
    /// The variable of the authorities that were given, for commands that this one starts.
    pub fn variable(&self) -> Option<(&'static str, OsString)> {
        // Also the file is found from another folder.
        self.ca.as_ref().map(|file| (AUTHORITIES, std::path::absolute(file).unwrap_or_else(|_| file.clone()).into()))
    }

    /// As a connection takes them.
    ///
    /// # Errors
    /// As [`TrustArgs::trust`].
    pub fn connection(&self) -> anyhow::Result<connection::Config> {
        Ok(connection::Config { trust: self.trust()?, ..connection::Config::default() })
    }

    /// Whom to trust, and who we are.
    ///
    /// # Errors
    /// The variable holds no token.
    pub fn trust(&self) -> anyhow::Result<Trust> {
        let from_environment = || std::env::var_os(AUTHORITIES).filter(|file| !file.is_empty()).map(PathBuf::from);
        let bearer = match &self.token_file {
            Some(token) => Some(token.clone()),
            None => token_of_variable()?,
        };
        let identity = self.cert.clone().zip(self.key.clone());
        Ok(Trust {
            authorities: self.ca.clone().or_else(from_environment),
            identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            revocations: self.crl.clone(),
            bearer,
        })
    }
}
