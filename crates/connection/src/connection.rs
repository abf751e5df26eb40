//! One connection, plain or encrypted, with its protocol state machine. Its owner calls
//! [`Connection::turn`] in a loop and takes the events after each turn. The owner is a
//! [`crate::Driver`], or a command that needs no mount.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use units::{Moment, RequestId};
use wire::format::FEATURE_TOKENS;
use wire::{ClientConfig, ClientConnection, ClientEvent, ErrorCode, Notice, Reply, WireError};

use crate::clock::Clock;
use crate::error::ConnectionError;
use crate::target::Server;
use crate::transport::{Dialer, Transport};
use crate::volume::Connected;
use crate::waker::Waker;

/// Read from the socket at once; also what one turn sends at most.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads of one turn, so that commands are looked at while a fast server sends without a break.
const READS_PER_TURN: usize = 8;

/// Bytes of another protocol that are shown in an error.
const SHOWN_BYTES_MAX: usize = 40;

/// A connection. Once it is lost, the machine says so by its event `Closed`.
pub struct Connection {
    /// The state machine of the protocol.
    pub machine: ClientConnection,
    /// Where it leads.
    pub server: Server,
    dialer: Dialer,
    stream: Transport,
    /// Where the transport leads.
    address: SocketAddr,
    clock: Clock,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that were written.
    written: usize,
    /// Why the transport failed, if it did.
    failure: Option<io::Error>,
}

/// Bytes that one turn moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the server.
    pub received: u64,
    /// To the server.
    pub sent: u64,
}

impl Connection {
    /// Connects; `time` is for each address of the host, and for a TLS handshake.
    ///
    /// # Errors
    /// [`ConnectionError`]: no connection, or no server that can be trusted.
    pub fn connect(
        dialer: &Dialer,
        mut config: ClientConfig,
        clock: Clock,
        time: Duration,
    ) -> Result<Connection, ConnectionError> {
        let stream = dialer.dial(time)?;
        let address = stream.address().map_err(|source| dialer.explain(source))?;
        let bearer = dialer.bearer.clone();
        config.features |= bearer.as_ref().map_or(0, |_| FEATURE_TOKENS);
        let mut machine = ClientConnection::new(config, clock.now());
        if let Some(bearer) = bearer {
            // With the hello, before all requests. A new connection has room for it.
            let _ = machine.notify(Notice::Bearer(bearer));
        }
        Ok(Connection {
            machine,
            server: dialer.server.clone(),
            dialer: dialer.clone(),
            stream,
            address,
            clock,
            input: vec![0; BUFFER_BYTES],
            output: Vec::new(),
            written: 0,
            failure: None,
        })
    }

    /// The present moment, on the clock that the connection was made with.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Facts about this connection, for a volume client.
    pub fn connected(&self, features: u64) -> Connected {
        Connected { features, address: self.address, encrypted: self.stream.is_encrypted() }
    }

    /// Sends what there is to send, sleeps until something comes, `waker` wakes, a deadline of the
    /// protocol passes or `until` is reached; then receives what there is. Events wait in the
    /// machine afterwards.
    pub fn turn(&mut self, waker: Option<&Waker>, until: Moment) -> Moved {
        let mut moved = Moved::default();
        if let Err(error) = self.try_turn(waker, until, &mut moved) {
            self.failure = Some(error);
            self.machine.lost();
        }
        moved
    }

    fn try_turn(&mut self, waker: Option<&Waker>, until: Moment, moved: &mut Moved) -> io::Result<()> {
        let flushed = self.flush();
        if flushed.is_err() {
            // What came before the end, such as a greeting, or the server's reason.
            self.receive(moved)?;
        }
        moved.sent += flushed?;
        if self.machine.is_closed() {
            return Ok(());
        }
        let wake_at = self.machine.deadline().map_or(until, |deadline| deadline.min(until));
        let readable = self.sleep(waker, wake_at)?;
        if readable {
            self.receive(moved)?;
        }
        let now = self.clock.now();
        if self.machine.deadline().is_some_and(|deadline| deadline <= now) {
            // An error comes as an event too.
            let _ = self.machine.tick(now);
        }
        Ok(())
    }

    /// Whether the socket took everything the last turn had for it.
    pub fn is_flushed(&self) -> bool {
        self.written == self.output.len() && !self.stream.has_unsent()
    }

    /// Writes until the machine has nothing left or the socket takes no more.
    fn flush(&mut self) -> io::Result<u64> {
        let mut sent = 0;
        self.stream.flush()?;
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
                if self.machine.transmit(self.clock.now(), &mut self.output, BUFFER_BYTES) == 0 {
                    return Ok(sent);
                }
            }
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.written += bytes;
                    sent += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the socket is readable (or broken, which reading then tells).
    fn sleep(&self, waker: Option<&Waker>, until: Moment) -> io::Result<bool> {
        let time = (until != Moment(u64::MAX)).then(|| until.since(self.clock.now()));
        self.stream.wait(self.written < self.output.len(), waker.map(AsFd::as_fd), time)
    }

    fn receive(&mut self, moved: &mut Moved) -> io::Result<()> {
        for _ in 0..READS_PER_TURN {
            match self.stream.read(&mut self.input) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    moved.received += bytes as u64;
                    // An error comes as an event too.
                    if self.machine.receive(self.clock.now(), &self.input[..bytes]).is_err() {
                        return Ok(());
                    }
                    // A plain socket that gave less has no more. TLS gives one record at a time.
                    if bytes < BUFFER_BYTES && matches!(self.stream, Transport::Plain(_)) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next event, for callers that have nothing else to do.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection is lost, or nothing came until `until`.
    pub fn event(&mut self, until: Moment) -> Result<ClientEvent, ConnectionError> {
        let began = self.clock.now();
        loop {
            match self.machine.poll_event() {
                Some(ClientEvent::Closed(error)) => return Err(self.explain(error)),
                Some(event) => return Ok(event),
                None if self.clock.now() >= until => {
                    return Err(ConnectionError::NoAnswer { server: self.server.clone(), waited: until.since(began) });
                }
                None => {
                    self.turn(None, until);
                }
            }
        }
    }

    /// The answer to a request; other events that come meanwhile are dropped.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection is lost, the server refuses, or no answer came in time.
    pub fn answer(&mut self, request: RequestId, until: Moment) -> Result<Reply, ConnectionError> {
        let began = self.clock.now();
        loop {
            match self.event(until)? {
                ClientEvent::Reply { request: found, reply } if found == request => return self.accept(reply),
                ClientEvent::Expired { request: found } if found == request => {
                    let waited = self.clock.now().since(began);
                    return Err(ConnectionError::NoAnswer { server: self.server.clone(), waited });
                }
                _ => {}
            }
        }
    }

    /// Turns an error reply into an error.
    ///
    /// # Errors
    /// [`ConnectionError::Refused`].
    pub fn accept(&self, reply: Reply) -> Result<Reply, ConnectionError> {
        match reply {
            Reply::Error { code, text } => Err(ConnectionError::Refused { server: self.server.clone(), code, text }),
            reply => Ok(reply),
        }
    }

    /// A refusal of our own state machine, as an error: it means that the connection is gone or a
    /// limit was exceeded.
    pub fn refused(&self, refused: wire::Refused) -> ConnectionError {
        ConnectionError::Lost { server: self.server.clone(), source: io::Error::other(refused) }
    }

    /// Why the connection is over.
    pub fn explain(&mut self, error: WireError) -> ConnectionError {
        let server = self.server.clone();
        // Its hello is gone, but its time is known.
        let greeted = self.machine.round_trip().is_some();
        match (error, self.failure.take()) {
            (WireError::Lost, Some(source)) => match self.dialer.explain(source) {
                ConnectionError::Lost { source, .. } if !greeted => ConnectionError::no_greeting(server, &source),
                other => other,
            },
            (WireError::Peer { code: code @ ErrorCode::Forbidden, text }, _) => {
                ConnectionError::Refused { server, code, text }
            }
            (
                source @ (WireError::Peer { .. }
                | WireError::Version { .. }
                | WireError::Lacks { .. }
                | WireError::Lost),
                _,
            ) => ConnectionError::Wire { server, source },
            (WireError::Deadline { limit, .. }, _) if !greeted => ConnectionError::no_greeting_within(server, limit),
            (source, _) if !greeted => ConnectionError::OtherProtocol { server, found: self.described(&source) },
            (source, _) => ConnectionError::Wire { server, source },
        }
    }

    /// Describes bytes that came in place of a greeting, by those received last.
    fn described(&self, error: &WireError) -> String {
        let known: [(&[u8], &str); 3] = [
            (b"HTTP/", "it answers as a web server"),
            (b"SSH-", "it greets as an SSH server"),
            // A record of TLS: its kind (alert), and the version that all have.
            (&[21, 3], "it answers in TLS"),
        ];
        if let Some((_, what)) = known.iter().find(|(start, _)| self.input.starts_with(start)) {
            return (*what).to_owned();
        }
        let line = self.input.iter().take(SHOWN_BYTES_MAX).take_while(|byte| !byte.is_ascii_control());
        let line: Vec<u8> = line.copied().collect();
        match line.len() {
            // Too little to be the beginning of a text.
            0..4 => error.to_string(),
            _ => format!("it begins with \"{}\"", units::printable_line(&line)),
        }
    }
}
