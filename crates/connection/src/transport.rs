//! TCP, or TLS over it, as one non-blocking socket.
//!
//! A [`Dialer`] makes connections to one server. Certificates and keys are read when a session
//! opens and when their files change, and shared by its connections. The TLS handshake is part of
//! dialling, so a server that cannot be trusted is an error with a reason and not a lost
//! connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use wire::Bearer;

use crate::error::ConnectionError;
use crate::poll::{wait, wait_until};
use crate::target::Server;
#[cfg(feature = "tls")]
use crate::tls::{TlsConnector, TlsStream};
use crate::trust::Trust;

/// Makes connections to one server.
#[derive(Clone)]
pub struct Dialer {
    /// The server.
    pub server: Server,
    /// What tells it who we are.
    pub(crate) bearer: Option<Bearer>,
    #[cfg(feature = "tls")]
    connector: Option<TlsConnector>,
}

/// A connection. Reading and writing never block.
pub enum Transport {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

/// Why a token does not leave this machine in the clear.
const BARE_TOKEN: &str =
    "a token would travel in the clear: use runnels:// (TLS), or leave --token-file and RUNNEL_TOKEN away";

impl Dialer {
    /// Reads the certificates that are needed to trust the server.
    ///
    /// # Errors
    /// [`ConnectionError`]: certificates or a key cannot be used, or there is no TLS in this build.
    pub fn new(server: &Server, trust: &Trust) -> Result<Dialer, ConnectionError> {
        let bearer = trust.bearer.clone().filter(|_| !server.scheme.is_http());
        if bearer.is_some() && !server.scheme.is_secure() && !server.is_this_machine() {
            return Err(ConnectionError::Tls { server: server.clone(), reason: BARE_TOKEN.into() });
        }
        #[cfg(feature = "tls")]
        {
            let connector = server.scheme.is_secure().then(|| TlsConnector::new(server, trust)).transpose()?;
            Ok(Dialer { server: server.clone(), bearer, connector })
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = trust;
            if server.scheme.is_secure() {
                let reason = "this runnel was built without TLS (cargo feature `tls`)".into();
                return Err(ConnectionError::Tls { server: server.clone(), reason });
            }
            Ok(Dialer { server: server.clone(), bearer })
        }
    }

    /// Connects, trying each address of the host in turn; each may take `time`.
    ///
    /// # Errors
    /// [`ConnectionError`]: no address, no connection, or no server that can be trusted.
    pub fn dial(&self, time: Duration) -> Result<Transport, ConnectionError> {
        let socket = self.connect(time)?;
        #[cfg(feature = "tls")]
        if let Some(connector) = &self.connector {
            return connector.handshake(socket, time).map(|stream| Transport::Tls(Box::new(stream)));
        }
        Ok(Transport::Plain(socket))
    }

    fn connect(&self, time: Duration) -> Result<TcpStream, ConnectionError> {
        let server = &self.server;
        let resolve = |source| ConnectionError::Resolve { server: server.clone(), source };
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in (server.host.as_str(), server.port).to_socket_addrs().map_err(resolve)? {
            match TcpStream::connect_timeout(&address, time).and_then(prepare) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(ConnectionError::Connect { server: server.clone(), source: failure })
    }

    /// An error of a connection that was dialled here: TLS may have found something worth telling
    /// only later.
    pub fn explain(&self, source: io::Error) -> ConnectionError {
        #[cfg(feature = "tls")]
        if let Some(connector) = &self.connector {
            return connector.explain(source);
        }
        ConnectionError::Lost { server: self.server.clone(), source }
    }
}

impl Transport {
    /// Where it leads.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Transport::Plain(stream) => stream.peer_addr(),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.address(),
        }
    }

    /// Whether it is encrypted, to a server whose certificate was checked.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Transport::Plain(_))
    }

    /// Whether bytes that were taken by `write` still wait for the socket.
    pub fn has_unsent(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Sleeps until there is something to read, room to write (if `writing`), `other` is readable
    /// or the time is over.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self, writing: bool, other: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<bool> {
        wait(self.as_fd(), writing || self.has_unsent(), other, time)
    }

    /// As [`Transport::wait`], for callers with nothing else to do.
    ///
    /// # Errors
    /// `TimedOut` when the time is over, or the system refuses to wait.
    pub fn wait_until(&self, writing: bool, until: Instant) -> io::Result<()> {
        wait_until(self.as_fd(), writing || self.has_unsent(), until)
    }
}

impl Read for Transport {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.read(bytes),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    /// Hands the socket as much as it takes of what waits; no error if something stays.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(_) => Ok(()),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Plain(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Transport::Tls(stream) => stream.as_fd(),
        }
    }
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    // A demand is one small frame: it must not wait for company.
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
