//! How bytes reach a server: plain TCP, or TLS over it, behind one small enum with the manners of a non-blocking socket.
//!
//! A [`Dialer`] makes connections to one server; what it needs to trust that server is read once,
//! when a session opens, and shared by its connections. The TLS handshake is part of dialling, so
//! that a server that cannot be trusted is an error with a reason and not a lost connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::ConnectionError;
use crate::target::Server;
#[cfg(feature = "tls")]
use crate::tls::{TlsStream, Truster};

/// Where Debian and most others keep the authorities they trust.
pub(crate) const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Whom to trust over TLS, and who we are. Of no use to connections that are not encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// A PEM file of authorities to trust instead of the system's.
    pub authorities: Option<PathBuf>,
    /// Our own certificate and its key, for servers that ask for one.
    pub identity: Option<Identity>,
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
    /// The files that are read before the first connection to `server`.
    pub fn files(&self, server: &Server) -> Vec<PathBuf> {
        if !server.scheme.is_secure() {
            return Vec::new();
        }
        let authorities = self.authorities.clone().unwrap_or_else(|| SYSTEM_AUTHORITIES.into());
        let identity = self.identity.iter().flat_map(|identity| [identity.certificate.clone(), identity.key.clone()]);
        std::iter::once(authorities).chain(identity).collect()
    }
}

/// Makes connections to one server.
#[derive(Clone)]
pub struct Dialer {
    /// The server.
    pub server: Server,
    #[cfg(feature = "tls")]
    truster: Option<Truster>,
}

/// A connection. Reading and writing never block.
pub enum Transport {
    /// TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Dialer {
    /// Reads what is needed to trust the server.
    pub fn new(server: &Server, trust: &Trust) -> Result<Dialer, ConnectionError> {
        #[cfg(feature = "tls")]
        {
            let truster = server.scheme.is_secure().then(|| Truster::new(server, trust)).transpose()?;
            Ok(Dialer { server: server.clone(), truster })
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = trust;
            if server.scheme.is_secure() {
                let reason = "this runnel was built without TLS (cargo feature `tls`)".into();
                return Err(ConnectionError::Tls { server: server.clone(), reason });
            }
            Ok(Dialer { server: server.clone() })
        }
    }

    /// Connects, trying each address of the host in turn; each may take `time`.
    pub fn dial(&self, time: Duration) -> Result<Transport, ConnectionError> {
        let socket = self.connect(time)?;
        #[cfg(feature = "tls")]
        if let Some(truster) = &self.truster {
            return truster.handshake(socket, time).map(|stream| Transport::Tls(Box::new(stream)));
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

    /// An error of a connection that was dialled here: TLS may have found something worth telling only later.
    pub fn explain(&self, source: io::Error) -> ConnectionError {
        #[cfg(feature = "tls")]
        if let Some(truster) = &self.truster {
            return truster.explain(source);
        }
        ConnectionError::Lost { server: self.server.clone(), source }
    }
}

impl Transport {
    /// Where it leads.
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

    /// See [`wait`].
    pub fn wait(&self, writing: bool, other: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<bool> {
        wait(self.as_fd(), writing || self.has_unsent(), other, time)
    }

    /// See [`wait_until`].
    pub fn wait_until(&self, writing: bool, until: Instant) -> io::Result<()> {
        wait_until(self.as_fd(), writing || self.has_unsent(), until)
    }
}

/// Sleeps until there is something to read, there is room to write (if that is asked for), `other` becomes readable or
/// the time is over. True if reading is worth a try; an error of the connection is found by reading.
fn wait(
    socket: BorrowedFd<'_>,
    writing: bool,
    other: Option<BorrowedFd<'_>>,
    time: Option<Duration>,
) -> io::Result<bool> {
    let mut interest = PollFlags::IN;
    interest.set(PollFlags::OUT, writing);
    let mut descriptors = vec![PollFd::from_borrowed_fd(socket, interest)];
    descriptors.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
    match poll(&mut descriptors, time.map(timespec).as_ref()) {
        Ok(_) => Ok(descriptors[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// As [`wait`], for callers with nothing else to do; `TimedOut` when the time is over.
pub(crate) fn wait_until(socket: BorrowedFd<'_>, writing: bool, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    wait(socket, writing, None, Some(left)).map(drop)
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

pub(crate) fn timespec(time: Duration) -> Timespec {
    // A year at most, so that no conversion can overflow; callers look at their clock again anyway.
    let time = time.min(Duration::from_secs(365 * 24 * 3600)) + Duration::from_micros(1);
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}
