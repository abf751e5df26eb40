//! The beginning of a connection: plain, or a TLS 1.3 handshake.
//!
//! A server with a certificate takes encrypted connections only. It recognises a client that begins
//! without TLS by its first byte (a handshake record begins with 22, our own hello with its length,
//! 39) and tells it so in our own protocol.

use std::time::Duration;

use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use crate::ServerError;
use crate::access::PushAccess;
use crate::config::{TlsFiles, Uploads};

/// First byte of a TLS handshake record.
#[cfg(feature = "tls")]
const HANDSHAKE: u8 = 22;

/// Takes connections in.
pub(crate) struct Acceptor {
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// What TLS needs, as the files had it when they were last read in good order.
#[cfg(feature = "tls")]
struct Tls {
    files: TlsFiles,
    uploads: Uploads,
    keys: std::sync::RwLock<files::Keys>,
}

/// A connection to serve.
pub(crate) enum Channel {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// What came of a new connection.
pub(crate) enum Greeting {
    Welcome(Channel, PushAccess),
    #[cfg(feature = "tls")]
    /// `stream` is `None` if it is closed already.
    Refused {
        stream: Option<Unwelcome>,
        reason: String,
    },
}

/// A connection that is not served.
#[cfg(feature = "tls")]
pub(crate) struct Unwelcome {
    pub socket: TcpStream,
    /// It did not even begin a handshake.
    pub is_stranger: bool,
}

#[cfg(not(feature = "tls"))]
impl Acceptor {
    pub fn new(files: Option<&TlsFiles>, _: Uploads) -> Result<Acceptor, ServerError> {
        match files {
            None => Ok(Acceptor {}),
            Some(files) => Err(ServerError::Tls {
                path: files.certificate.clone(),
                reason: "this server was built without TLS (cargo feature `tls`)".into(),
            }),
        }
    }

    pub async fn greet(&self, stream: TcpStream, _: Duration) -> Greeting {
        Greeting::Welcome(Channel::Plain(stream), PushAccess::Allowed)
    }

    pub fn reload(&self) -> Result<bool, ServerError> {
        Ok(false)
    }
}

#[cfg(feature = "tls")]
impl Acceptor {
    /// Reads the certificate, the key and the authorities.
    pub fn new(files: Option<&TlsFiles>, uploads: Uploads) -> Result<Acceptor, ServerError> {
        let tls = |files: &TlsFiles| {
            let keys = std::sync::RwLock::new(files::read(files)?);
            Ok::<_, ServerError>(Tls { files: files.clone(), uploads, keys })
        };
        Ok(Acceptor { tls: files.map(tls).transpose()? })
    }

    /// Reads the files again, for handshakes from now on; if that fails, what was read before stays
    /// in use. False if there are none. Blocks.
    pub fn reload(&self) -> Result<bool, ServerError> {
        let Some(tls) = &self.tls else { return Ok(false) };
        let keys = files::read(&tls.files)?;
        *tls.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner) = keys;
        Ok(true)
    }

    /// Shakes hands, if this is a server with TLS; `time` is for all of it.
    pub async fn greet(&self, stream: TcpStream, time: Duration) -> Greeting {
        let Some(tls) = &self.tls else { return Greeting::Welcome(Channel::Plain(stream), PushAccess::Allowed) };
        let until = tokio::time::Instant::now() + time;
        let mut first = [0];
        match tokio::time::timeout_at(until, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == HANDSHAKE => {}
            Ok(Ok(1)) => return Greeting::refused(stream, true, "the client does not speak TLS"),
            Ok(_) => return Greeting::refused(stream, false, "the client left before it said anything"),
            Err(_) => return Greeting::refused(stream, true, "the client began no TLS handshake in time"),
        }
        let keys = tls.keys.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let accept = tokio_rustls::TlsAcceptor::from(keys.config.clone()).accept(stream).into_fallible();
        match tokio::time::timeout_at(until, accept).await {
            Ok(Ok(stream)) => {
                let pushing = tls.pushing(&keys, stream.get_ref().1.peer_certificates());
                Greeting::Welcome(Channel::Tls(Box::new(stream)), pushing)
            }
            // The client has been told why; it must have the time to read it.
            Ok(Err((error, stream))) => {
                let reason = format!("TLS handshake: {error}");
                Greeting::Refused { stream: Some(Unwelcome { socket: stream, is_stranger: false }), reason }
            }
            Err(_) => Greeting::Refused { stream: None, reason: "the TLS handshake took too long".into() },
        }
    }
}

#[cfg(feature = "tls")]
impl Tls {
    /// Whether a client with these certificates, which the handshake has checked, may push.
    fn pushing(&self, keys: &files::Keys, shown: Option<&[CertificateDer<'static>]>) -> PushAccess {
        let Some(pushers) = &keys.pushers else {
            let is_guarded = self.uploads == Uploads::Trusted && self.files.client_authorities.is_some();
            return if is_guarded { PushAccess::NobodyMay } else { PushAccess::Allowed };
        };
        let Some((own, between)) = shown.and_then(<[_]>::split_first) else { return PushAccess::NoCertificate };
        match pushers.verify_client_cert(own, between, UnixTime::now()) {
            Ok(_) => PushAccess::Allowed,
            Err(_) => PushAccess::OtherCertificate,
        }
    }
}

#[cfg(feature = "tls")]
impl Greeting {
    fn refused(socket: TcpStream, is_stranger: bool, reason: &str) -> Greeting {
        Greeting::Refused { stream: Some(Unwelcome { socket, is_stranger }), reason: reason.into() }
    }
}

/// Certificates and keys from their files.
#[cfg(feature = "tls")]
mod files {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use tokio_rustls::rustls::crypto::CryptoProvider;
    use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::server::danger::ClientCertVerifier;
    use tokio_rustls::rustls::server::{ClientCertVerifierBuilder, NoServerSessionStorage, WebPkiClientVerifier};
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto, version};

    use super::{ServerError, TlsFiles};

    /// What the files say.
    #[derive(Clone)]
    pub struct Keys {
        pub config: Arc<ServerConfig>,
        /// Knows the certificates that may push; `None` if there is no file of their authorities.
        pub pushers: Option<Arc<dyn ClientCertVerifier>>,
    }

    /// Reads all files.
    pub fn read(files: &TlsFiles) -> Result<Keys, ServerError> {
        let chain = certificates(&files.certificate)?;
        let key =
            PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unusable(&files.key, "private key", &error))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| failed(&files.certificate, error.to_string()))?;
        // A client that may push may connect, so the handshake accepts the authorities of both
        // files.
        let (clients, pushers) = (&files.client_authorities, &files.push_authorities);
        let builder = match [clients, pushers].into_iter().flatten().collect::<Vec<_>>().as_slice() {
            [] => builder.with_no_client_auth(),
            given @ [path, ..] => {
                let verifier = verifier(given, &provider)?;
                let verifier = if clients.is_some() { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| failed(path, error.to_string()))?)
            }
        };
        let pushers = pushers
            .as_ref()
            .map(|path| verifier(&[path], &provider)?.build().map_err(|error| failed(path, error.to_string())));
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            failed(&files.key, format!("does not go with {}: {error}", files.certificate.display()))
        })?;
        // Our clients keep their connections and take no tickets.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Keys { config: Arc::new(config), pushers: pushers.transpose()? })
    }

    /// What checks certificates by the authorities of these files.
    fn verifier(paths: &[&PathBuf], provider: &Arc<CryptoProvider>) -> Result<ClientCertVerifierBuilder, ServerError> {
        let mut roots = RootCertStore::empty();
        for path in paths {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| failed(path, format!("no authority: {error}")))?;
            }
        }
        Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()))
    }

    fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
        let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
        let found = read().map_err(|error| unusable(path, "certificate", &error))?;
        if found.is_empty() {
            return Err(failed(path, "holds no certificate in PEM form".into()));
        }
        Ok(found)
    }

    fn unusable(path: &Path, what: &str, error: &pem::Error) -> ServerError {
        let reason = match error {
            pem::Error::Io(error) => format!("cannot be read: {error}"),
            pem::Error::NoItemsFound => format!("holds no {what} in PEM form"),
            other => format!("should hold a {what} in PEM form: {other}"),
        };
        failed(path, reason)
    }

    fn failed(path: &Path, reason: String) -> ServerError {
        ServerError::Tls { path: path.into(), reason }
    }
}
