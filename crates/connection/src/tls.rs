//! TLS 1.3. rustls does no I/O: this module moves bytes between its state machine and the socket.
//!
//! A [`TlsConnector`] knows the authorities and our own certificate. Before each handshake it looks
//! whether their files have changed, and reads them again then: certificates that live for days are
//! renewed under mounts that live for months. It turns errors of rustls into errors that a user can
//! act on.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::file::Stamp;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};

use crate::error::ConnectionError;
use crate::poll::wait_until;
use crate::target::Server;
use crate::trust::Trust;

/// Plain bytes that wait for the handshake or the socket at most.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// Makes TLS connections to one server.
#[derive(Clone)]
pub(crate) struct TlsConnector {
    server: Server,
    name: ServerName<'static>,
    trust: Trust,
    /// Of all clones.
    held: Arc<Mutex<Held>>,
}

/// What the files of a [`Trust`] held when they were of use last.
struct Held {
    config: Arc<ClientConfig>,
    /// The files as they were when they were read last, whatever came of it.
    seen: Vec<Option<Stamp>>,
}

/// An encrypted connection.
pub struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
}

impl TlsConnector {
    pub fn new(server: &Server, trust: &Trust) -> Result<TlsConnector, ConnectionError> {
        let host = server.host.clone();
        let bad_name = |_| ConnectionError::Tls {
            server: server.clone(),
            reason: "its name cannot stand in a certificate".to_string(),
        };
        let name = ServerName::try_from(host).map_err(bad_name)?;
        let seen = stamps(server, trust);
        let held = Arc::new(Mutex::new(Held { config: read(server, trust)?, seen }));
        Ok(TlsConnector { server: server.clone(), name, trust: trust.clone(), held })
    }

    /// What to connect with. If the files have changed they are read again; new ones that are of no
    /// use are told once, and change nothing.
    fn config(&self) -> Arc<ClientConfig> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Before they are read: what changes meanwhile is seen next time.
        let found = stamps(&self.server, &self.trust);
        if held.seen != found {
            held.seen = found;
            match read(&self.server, &self.trust) {
                Ok(config) => held.config = config,
                Err(error) => {
                    let line = format!("warning: {}: the old certificates stay in use: {error}", self.server);
                    // Where standard error is closed, the mount goes on without the warning.
                    let _ = writeln!(io::stderr(), "{}", units::printable_line(line.as_bytes()));
                }
            }
        }
        held.config.clone()
    }

    /// Agrees on keys over a fresh connection and checks the server's certificate.
    pub fn handshake(&self, socket: TcpStream, time: Duration) -> Result<TlsStream, ConnectionError> {
        let until = Instant::now() + time;
        let mut session = ClientConnection::new(self.config(), self.name.clone())
            .map_err(|error| self.explain(io::Error::other(error)))?;
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let mut stream = TlsStream { socket, session };
        let failed = |error| match self.explain(error) {
            ConnectionError::Lost { server, source } if !server.scheme.is_http() => {
                ConnectionError::no_greeting(server, &source)
            }
            other => other,
        };
        while !stream.advance().map_err(failed)? {
            match wait_until(stream.as_fd(), stream.has_unsent(), until) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let server = self.server.clone();
                    return Err(match server.scheme.is_http() {
                        true => ConnectionError::NoAnswer { server, waited: time },
                        false => ConnectionError::no_greeting_within(server, time),
                    });
                }
                waited => waited.map_err(|error| self.explain(error))?,
            }
        }
        Ok(stream)
    }

    /// What went wrong, in words.
    pub fn explain(&self, source: io::Error) -> ConnectionError {
        let server = self.server.clone();
        let Some(error) = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return ConnectionError::Lost { server, source };
        };
        let reason = match error {
            rustls::Error::InvalidCertificate(why) => self.explain_certificate(why),
            rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
                let plain = if server.scheme.is_http() { "http" } else { "runnel" };
                format!("what listens there does not speak TLS: use {plain}://, or check the port")
            }
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "the server wants to know who asks: give --cert FILE and --key FILE".into()
            }
            rustls::Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError,
            ) => format!("the server refuses our certificate ({error})"),
            rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => "the server has no TLS 1.3".into(),
            other => format!("TLS: {other}"),
        };
        ConnectionError::Tls { server, reason }
    }

    fn explain_certificate(&self, why: &CertificateError) -> String {
        let authorities = self.trust.authorities_file();
        let authorities = authorities.display();
        match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired, or this machine's clock is wrong".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet, or this machine's clock is wrong".into()
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("no authority in {authorities} issued its certificate; name the right file with --ca FILE")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("its certificate is for another name than {}", self.server.host)
            }
            CertificateError::Revoked => "its certificate was revoked".into(),
            other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                "its certificate is an authority's own (CA:TRUE); make one for the server (CA:FALSE)".into()
            }
            other => format!("its certificate is no good: {other}"),
        }
    }
}

impl TlsStream {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    pub fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        self.flush()?;
        if taken == 0 && !bytes.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Reads what is decrypted, and when that is nothing, from the socket. So nothing decrypted is
    /// left behind when this says `WouldBlock`, and waiting for the socket waits for all there is.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.take_in()?,
                other => return other,
            }
        }
    }

    /// Goes on with the handshake; true once it is done.
    fn advance(&mut self) -> io::Result<bool> {
        self.flush()?;
        while self.session.is_handshaking() {
            match self.take_in() {
                Ok(()) => self.flush()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes bytes from the socket and decrypts them.
    fn take_in(&mut self) -> io::Result<()> {
        let bytes = self.session.read_tls(&mut self.socket)?;
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told why, if it still listens.
            let _ = self.flush();
            return Err(io::Error::other(error));
        }
        if bytes == 0 && self.session.is_handshaking() {
            let reason = "the connection was closed during the TLS handshake";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(())
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn stamps(server: &Server, trust: &Trust) -> Vec<Option<Stamp>> {
    trust.files(server).iter().map(|file| Stamp::of(file)).collect()
}

/// Reads all files.
fn read(server: &Server, trust: &Trust) -> Result<Arc<ClientConfig>, ConnectionError> {
    let unusable = |error: rustls::Error| ConnectionError::Tls { server: server.clone(), reason: error.to_string() };
    let authorities = trust.authorities_file();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(read_authorities(&authorities)?), provider.clone())
            // An authority may have no list.
            .allow_unknown_revocation_status();
    // The first of an authority is the one that is looked at, and the newest stands last.
    for file in trust.revocations.iter().rev() {
        verifier = verifier.with_crls(read_revocations(file)?.into_iter().rev());
    }
    let path = trust.revocations.first().unwrap_or(&authorities);
    let verifier =
        verifier.build().map_err(|error| ConnectionError::Trust { path: path.clone(), reason: error.to_string() })?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_webpki_verifier(verifier);
    let mut config = match &trust.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = read_certificates(&identity.certificate)?;
            let unreadable = |error| unusable_file(&identity.key, "private key", &error);
            let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(unreadable)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| ConnectionError::Trust {
                path: identity.key.clone(),
                reason: format!("does not go with {}: {error}", identity.certificate.display()),
            })?
        }
    };
    // Tickets save a signature, at the price of memory and of knowing a device again.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The authorities of a PEM file. One that rustls cannot use is no reason to refuse the others:
/// bundles hold odd ones.
fn read_authorities(path: &Path) -> Result<RootCertStore, ConnectionError> {
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(read_certificates(path)?);
    if good == 0 {
        return Err(ConnectionError::Trust { path: path.into(), reason: "holds no authority that can be used".into() });
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectionError> {
    let unreadable = |error| unusable_file(path, "certificates", &error);
    let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(ConnectionError::Trust { path: path.into(), reason: "holds no certificate in PEM form".into() });
    }
    Ok(certificates)
}

/// The lists of a PEM file.
fn read_revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, ConnectionError> {
    let unreadable = |error| unusable_file(path, "lists of revoked certificates", &error);
    let lists = CertificateRevocationListDer::pem_file_iter(path).map_err(unreadable)?;
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if lists.is_empty() {
        let reason = "holds no list of revoked certificates in PEM form".into();
        return Err(ConnectionError::Trust { path: path.into(), reason });
    }
    Ok(lists)
}

fn unusable_file(path: &Path, what: &str, error: &rustls::pki_types::pem::Error) -> ConnectionError {
    let reason = match error {
        rustls::pki_types::pem::Error::Io(error) => format!("{what} cannot be read: {error}"),
        rustls::pki_types::pem::Error::NoItemsFound => format!("{what} in PEM form were expected, none is there"),
        other => format!("{what} in PEM form were expected: {other}"),
    };
    ConnectionError::Trust { path: path.into(), reason }
}
