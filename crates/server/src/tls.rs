//! The beginning of a connection: plain, or a TLS 1.3 handshake.
//!
//! A server with a certificate takes encrypted connections only. It recognises a client that begins
//! without TLS by its first byte (a handshake record begins with 22, our own hello with its length,
//! 39) and tells it so in our own protocol.

use std::time::Duration;

use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
#[cfg(feature = "tls")]
use {crate::lock::locked, host::file::Stamp, std::sync::Mutex, tokio::sync::watch};

use crate::ServerError;
use crate::access::PushAccess;
use crate::config::{TlsFiles, Uploads};
#[cfg(feature = "tls")]
pub(crate) use standing::Standing;

#[cfg(feature = "tls")]
mod standing;

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
    /// Clients without a certificate are let in: rules say what they may do.
    open: bool,
    keys: watch::Sender<files::Keys>,
    /// The files as they were when they were read last, whatever came of it.
    seen: Mutex<Vec<Option<Stamp>>>,
}

/// A connection to serve.
pub(crate) enum Channel {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>, Standing),
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
    pub fn new(files: Option<&TlsFiles>, _: Uploads, _: bool) -> Result<Acceptor, ServerError> {
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

    pub fn has_files(&self) -> bool {
        false
    }

    pub fn is_outdated(&self) -> bool {
        false
    }
}

#[cfg(feature = "tls")]
impl Acceptor {
    /// Reads the certificate, the key and the authorities. `open`: clients without a certificate
    /// are let in even if there are authorities for all.
    pub fn new(files: Option<&TlsFiles>, uploads: Uploads, open: bool) -> Result<Acceptor, ServerError> {
        let tls = |files: &TlsFiles| {
            let seen = stamps(files);
            let keys = watch::Sender::new(files::read(files, open)?);
            Ok::<_, ServerError>(Tls { files: files.clone(), uploads, open, keys, seen: Mutex::new(seen) })
        };
        Ok(Acceptor { tls: files.map(tls).transpose()? })
    }

    /// Reads the files again, for handshakes from now on; connections whose certificate is refused
    /// by them end. If that fails, what was read before stays in use. False if there are none.
    /// Blocks.
    pub fn reload(&self) -> Result<bool, ServerError> {
        let Some(tls) = &self.tls else { return Ok(false) };
        let mut seen = locked(&tls.seen);
        // Before they are read: what changes meanwhile is seen at the next look.
        *seen = stamps(&tls.files);
        tls.keys.send_replace(files::read(&tls.files, tls.open)?);
        Ok(true)
    }

    /// Whether there are files that can change.
    pub fn has_files(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a file has changed since it was read. Blocks.
    pub fn is_outdated(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| *locked(&tls.seen) != stamps(&tls.files))
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
        let mut renewed = tls.keys.subscribe();
        let keys = renewed.borrow_and_update().clone();
        let accept = tokio_rustls::TlsAcceptor::from(keys.config.clone()).accept(stream).into_fallible();
        match tokio::time::timeout_at(until, accept).await {
            Ok(Ok(stream)) => {
                let shown = stream.get_ref().1.peer_certificates();
                let pushing = tls.pushing(&keys, shown);
                let standing = Standing::new(renewed, shown);
                Greeting::Welcome(Channel::Tls(Box::new(stream), standing), pushing)
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
fn stamps(files: &TlsFiles) -> Vec<Option<Stamp>> {
    files.paths().map(Stamp::of).collect()
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
    use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
    use tokio_rustls::rustls::server::danger::ClientCertVerifier;
    use tokio_rustls::rustls::server::{ClientCertVerifierBuilder, NoServerSessionStorage, WebPkiClientVerifier};
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto, version};

    use super::{ServerError, TlsFiles};

    /// What the files say.
    #[derive(Clone)]
    pub struct Keys {
        pub config: Arc<ServerConfig>,
        /// Knows the certificates of clients; `None` if clients need none.
        pub clients: Option<Arc<dyn ClientCertVerifier>>,
        /// Knows the certificates that may push; `None` if there is no file of their authorities.
        pub pushers: Option<Arc<dyn ClientCertVerifier>>,
    }

    /// Reads all files.
    pub fn read(files: &TlsFiles, open: bool) -> Result<Keys, ServerError> {
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
        let revoked = revocations(&files.revocations)?;
        let build = |paths: &[&PathBuf], is_wanted| {
            let verifier = verifier(paths, &provider)?.with_crls(revoked.iter().cloned());
            // An authority may have no list.
            let verifier = verifier.allow_unknown_revocation_status();
            let verifier = if is_wanted { verifier } else { verifier.allow_unauthenticated() };
            verifier.build().map_err(|error| failed(files.revocations.first().unwrap_or(paths[0]), error.to_string()))
        };
        let known = match ([clients, pushers].into_iter().flatten().collect::<Vec<_>>().as_slice(), revoked.first()) {
            ([], None) => None,
            ([], Some(_)) => {
                let reason = "a list of revoked certificates needs --client-ca or --push-ca";
                return Err(failed(&files.revocations[0], reason.into()));
            }
            (given, _) => Some(build(given, clients.is_some() && !open)?),
        };
        let builder = match &known {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        };
        let pushers = pushers.as_ref().map(|path| build(&[path], true)).transpose()?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            failed(&files.key, format!("does not go with {}: {error}", files.certificate.display()))
        })?;
        // Our clients keep their connections and take no tickets.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Keys { config: Arc::new(config), clients: known, pushers })
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

    /// The lists of revoked certificates in these files, each of which may hold several.
    fn revocations(paths: &[PathBuf]) -> Result<Vec<CertificateRevocationListDer<'static>>, ServerError> {
        let mut lists = Vec::new();
        for path in paths {
            let read = || CertificateRevocationListDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
            let found = read().map_err(|error| unusable(path, "list of revoked certificates", &error))?;
            if found.is_empty() {
                return Err(failed(path, "holds no list of revoked certificates in PEM form".into()));
            }
            lists.extend(found);
        }
        // The first of an authority is the one that is looked at, and the newest stands last.
        lists.reverse();
        Ok(lists)
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
