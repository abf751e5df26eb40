//! A connection of this bench: the client half of the wire over a socket that never blocks for
//! longer than it is told.
//!
//! Good devices and bad peers use the same. Good ones let the state machine have every byte; bad
//! ones may also send bytes of their own, read without looking, slowly, or not at all.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use units::{Moment, RequestId};
use wire::{ClientConfig, ClientConnection, ClientEvent, Reply, Request, WireError};

/// Bytes read or queued at a time.
const PART_BYTES: usize = 64 << 10;

/// What is done with bytes of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The state machine gets all of them.
    Events,
    /// So many are read and thrown away.
    Discard(usize),
    /// They stay in the socket.
    Nothing,
}

/// A connection.
pub(super) struct Connection {
    /// The client's half of the protocol.
    pub wire: ClientConnection,
    stream: TcpStream,
    begun: Instant,
    /// Bytes for the server that found no room yet.
    out: Vec<u8>,
    /// Held while bytes are sent or received.
    gate: Option<&'static Mutex<()>>,
}

/// Connects from `source`, an address of this machine, so that the server takes the caller for a
/// machine of its own.
///
/// # Errors
/// What the system says; [`io::ErrorKind::TimedOut`] at the deadline.
pub(super) fn dial(
    source: Ipv4Addr,
    server: SocketAddr,
    receive_bytes: Option<usize>,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    // Ports of connections that ended lately may be used again: there are not enough others.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if let Some(bytes) = receive_bytes {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    bind(&socket, &SocketAddr::from((source, 0)))?;
    match connect(&socket, &server) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            if !wait(&socket, PollFlags::OUT, deadline)?.contains(PollFlags::OUT) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(TcpStream::from(socket))
}

/// What happened to a socket; nothing at the deadline.
fn wait(socket: &impl std::os::fd::AsFd, wanted: PollFlags, deadline: Instant) -> io::Result<PollFlags> {
    let left = deadline.saturating_duration_since(Instant::now());
    let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut polled = [PollFd::new(socket, wanted)];
    match poll(&mut polled, Some(&time)) {
        Ok(_) => Ok(polled[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}

impl Connection {
    /// Connects; the Hello is queued.
    ///
    /// # Errors
    /// As [`dial`].
    pub fn open(
        source: Ipv4Addr,
        server: SocketAddr,
        config: ClientConfig,
        receive_bytes: Option<usize>,
        deadline: Instant,
    ) -> io::Result<Connection> {
        let stream = dial(source, server, receive_bytes, deadline)?;
        let wire = ClientConnection::new(config, Moment(0));
        Ok(Connection { wire, stream, begun: Instant::now(), out: Vec::new(), gate: None })
    }

    /// The present moment, as its state machine counts it.
    pub fn now(&self) -> Moment {
        Moment(self.begun.elapsed().as_micros() as u64)
    }

    /// Sends and receives one at a time with all connections of this gate, however many threads
    /// they have.
    pub fn through(mut self, gate: &'static Mutex<()>) -> Connection {
        self.gate = Some(gate);
        self
    }

    /// Queues bytes that the state machine knows nothing of, behind what it has to send.
    pub fn queue(&mut self, bytes: &[u8]) {
        self.fill();
        self.out.extend_from_slice(bytes);
    }

    /// Bytes that found no room yet.
    pub fn queued_bytes(&self) -> usize {
        self.out.len()
    }

    /// Sends what there is room for, reads what is there, and waits for either at most until
    /// `until`. Bytes that were read.
    ///
    /// # Errors
    /// The connection is over.
    pub fn turn(&mut self, until: Instant, reading: Reading) -> io::Result<usize> {
        if self.wire.is_closed() {
            return Err(io::Error::other("the connection is closed"));
        }
        self.fill();
        let mut wanted = PollFlags::RDHUP;
        wanted.set(PollFlags::IN, reading != Reading::Nothing);
        wanted.set(PollFlags::OUT, !self.out.is_empty());
        let due = self.wire.deadline().filter(|_| reading == Reading::Events);
        let due = due.map_or(until, |due| until.min(self.begun + Duration::from_micros(due.0)));
        let happened = wait(&self.stream, wanted, due)?;
        let _turn = self.gate.map(|gate| gate.lock().unwrap_or_else(PoisonError::into_inner));
        if happened.contains(PollFlags::OUT) {
            self.write()?;
        }
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        match reading {
            Reading::Nothing if happened.intersects(gone) => Err(io::ErrorKind::ConnectionReset.into()),
            Reading::Nothing => Ok(0),
            _ if happened.intersects(PollFlags::IN | gone) => self.read(reading),
            Reading::Events => {
                // An error comes as an event too.
                let _ = self.wire.tick(self.now());
                Ok(0)
            }
            Reading::Discard(_) => Ok(0),
        }
    }

    fn fill(&mut self) {
        let now = self.now();
        while self.out.len() < PART_BYTES && self.wire.transmit(now, &mut self.out, PART_BYTES) > 0 {}
    }

    fn write(&mut self) -> io::Result<()> {
        match self.stream.write(&self.out) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                self.out.drain(..bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, reading: Reading) -> io::Result<usize> {
        let most = if let Reading::Discard(bytes) = reading { bytes.min(PART_BYTES) } else { PART_BYTES };
        let mut input = vec![0; most];
        match self.stream.read(&mut input) {
            Ok(0) => {
                self.wire.lost();
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Ok(bytes) => {
                if reading == Reading::Events {
                    // An error comes as an event too.
                    let _ = self.wire.receive(self.now(), &input[..bytes]);
                }
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Asks, and waits for the answer, which may be an error.
    ///
    /// # Errors
    /// The connection is over; [`io::ErrorKind::TimedOut`] at the deadline.
    pub fn ask(&mut self, ask: Request, deadline: Instant) -> io::Result<Reply> {
        let wanted = self.request(ask)?;
        loop {
            match self.event(deadline)? {
                ClientEvent::Reply { request, reply } if request == wanted => return Ok(reply),
                ClientEvent::Expired { request } if request == wanted => return Err(io::ErrorKind::TimedOut.into()),
                _ => {}
            }
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The state machine refuses it.
    pub fn request(&mut self, ask: Request) -> io::Result<RequestId> {
        let now = self.now();
        self.wire.request(now, ask).map_err(io::Error::other)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// As [`Connection::ask`]. Why the server closed is the error's text.
    pub fn event(&mut self, deadline: Instant) -> io::Result<ClientEvent> {
        loop {
            match self.wire.poll_event() {
                Some(ClientEvent::Closed(WireError::Lost)) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(ClientEvent::Closed(error)) => return Err(io::Error::other(error)),
                Some(event) => return Ok(event),
                None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                // What came before the end is still to be seen.
                None => drop(self.turn(deadline, Reading::Events).or_else(|error| match self.wire.is_closed() {
                    true => Ok(0),
                    false => Err(error),
                })?),
            }
        }
    }
}
