//! Moves bytes between sockets as the lanes say: one thread, one poll loop, deadlines instead of
//! sleeps.
//!
//! Each half of a connection reads chunks while its lane's queue has room, keeps them until they
//! are due, and writes them out. One thread serves all connections: the machine that is measured
//! has few cores.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Flow, Lane, Link};

/// Socket buffers of the proxy: small, so that the queue that counts is the modelled one. The
/// kernel doubles it.
const SOCKET_BUFFER_BYTES: usize = 32 * 1024;

/// Connections at a time; more are closed at once. Every client here uses fewer than 20.
const CONNECTIONS_MAX: usize = 64;

/// Where the server behind the link listens.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket, for servers that cannot choose a free port themselves.
    Unix(PathBuf),
}

/// What passed the link since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes from clients to the server.
    pub up_bytes: u64,
    /// Bytes from the server to clients.
    pub down_bytes: u64,
    /// Round trips, approximately: how often a connection turned from answers (or silence) to a
    /// request.
    pub turns: u64,
    /// Connections opened.
    pub connections: u64,
    /// Segments lost, both ways.
    pub segments_lost: u64,
}

impl Traffic {
    /// What passed between `earlier` and this reading.
    pub fn since(self, earlier: Traffic) -> Traffic {
        Traffic {
            up_bytes: self.up_bytes - earlier.up_bytes,
            down_bytes: self.down_bytes - earlier.down_bytes,
            turns: self.turns - earlier.turns,
            connections: self.connections - earlier.connections,
            segments_lost: self.segments_lost - earlier.segments_lost,
        }
    }
}

/// A running proxy; dropping it closes every connection and ends its thread.
#[derive(Debug)]
pub struct ShapedLink {
    address: SocketAddr,
    traffic: Arc<Mutex<Traffic>>,
    /// Closing it wakes and ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl ShapedLink {
    /// Starts a proxy on a free local port in front of `upstream`. `seed` decides which segments
    /// are lost.
    pub fn start(link: &Link, upstream: Upstream, seed: u64) -> anyhow::Result<ShapedLink> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("shaped link: cannot listen")?;
        listener.set_nonblocking(true)?;
        // Set on the listener: the window scale is fixed when a connection is accepted.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, SOCKET_BUFFER_BYTES)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&listener, SOCKET_BUFFER_BYTES)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let traffic = Arc::new(Mutex::new(Traffic::default()));
        let engine = Engine {
            lanes: [Lane::new(link, seed), Lane::new(link, seed ^ 0x5eed)],
            link: link.clone(),
            listener,
            upstream,
            stopped,
            started: Instant::now(),
            traffic: Arc::clone(&traffic),
            connections: Vec::new(),
            scratch: vec![0; link.chunk_bytes() as usize],
        };
        let thread = std::thread::Builder::new().name("shaped-link".into()).spawn(move || engine.run())?;
        Ok(ShapedLink { address, traffic, stop: Some(stop), thread: Some(thread) })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What passed so far.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ShapedLink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(upstream: &Upstream) -> io::Result<Socket> {
        let socket = match upstream {
            Upstream::Tcp(address) => Socket::Tcp(TcpStream::connect(address)?),
            Upstream::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        };
        rustix::net::sockopt::set_socket_recv_buffer_size(socket.as_fd(), SOCKET_BUFFER_BYTES)?;
        rustix::net::sockopt::set_socket_send_buffer_size(socket.as_fd(), SOCKET_BUFFER_BYTES)?;
        socket.prepare()?;
        Ok(socket)
    }

    fn prepare(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nodelay(true).and(stream.set_nonblocking(true)),
            Socket::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => { stream }.read(buffer),
            Socket::Unix(stream) => { stream }.read(buffer),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => { stream }.write(bytes),
            Socket::Unix(stream) => { stream }.write(bytes),
        }
    }

    fn finish(&self) {
        // The peer may have closed already; then there is nothing left to say.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A chunk on its way.
#[derive(Debug)]
struct Chunk {
    due: Duration,
    bytes: Vec<u8>,
    sent: usize,
}

/// One direction of one connection.
#[derive(Debug, Default)]
struct Half {
    flow: Flow,
    chunks: VecDeque<Chunk>,
    /// The source said that nothing more comes.
    ended: bool,
    /// The sink was told so.
    finished: bool,
    /// The sink took less than it was offered; wait until it is writable.
    blocked: bool,
}

/// `sockets[0]` is the client, `sockets[1]` the server; `halves[0]` carries client to server.
#[derive(Debug)]
struct Connection {
    sockets: [Socket; 2],
    halves: [Half; 2],
    /// True while the last bytes seen were a request.
    asking: bool,
    broken: bool,
}

impl Connection {
    fn is_over(&self) -> bool {
        self.broken || self.halves.iter().all(|half| half.finished)
    }

    /// Writes what is due; returns when more will be.
    fn deliver(&mut self, now: Duration) -> Option<Duration> {
        let mut next = None;
        for way in 0..2 {
            let sink = &self.sockets[1 - way];
            let half = &mut self.halves[way];
            half.blocked = false;
            while let Some(chunk) = half.chunks.front_mut() {
                if chunk.due > now {
                    next = Some(next.map_or(chunk.due, |time: Duration| time.min(chunk.due)));
                    break;
                }
                match sink.send(&chunk.bytes[chunk.sent..]) {
                    Ok(count) => chunk.sent += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        half.blocked = true;
                        break;
                    }
                    Err(_) => {
                        self.broken = true;
                        return None;
                    }
                }
                if chunk.sent == chunk.bytes.len() {
                    half.chunks.pop_front();
                }
            }
            if half.ended && half.chunks.is_empty() && !half.finished {
                sink.finish();
                half.finished = true;
            }
        }
        next
    }
}

struct Engine {
    link: Link,
    lanes: [Lane; 2],
    listener: TcpListener,
    upstream: Upstream,
    stopped: UnixStream,
    started: Instant,
    traffic: Arc<Mutex<Traffic>>,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
}

/// What a polled descriptor was polled for.
#[derive(Clone, Copy)]
enum Interest {
    Stop,
    Accept,
    Read { connection: usize, way: usize },
    Write,
}

impl Engine {
    fn run(mut self) {
        while let Ok(ready) = self.wait() {
            let mut readable = Vec::new();
            for interest in ready {
                match interest {
                    Interest::Stop => return,
                    Interest::Accept => self.accept(),
                    Interest::Read { connection, way } => readable.push((connection, way)),
                    Interest::Write => {}
                }
            }
            // One chunk per readable half and round: connections share the line fairly.
            for (connection, way) in readable {
                self.read_chunk(connection, way);
            }
        }
    }

    /// Delivers what is due, then waits for a socket or for the next chunk; returns what is ready.
    fn wait(&mut self) -> io::Result<Vec<Interest>> {
        let now = self.started.elapsed();
        let mut next: Option<Duration> = None;
        let mut soonest = |time: Duration| next = Some(next.map_or(time, |other| other.min(time)));
        for connection in &mut self.connections {
            connection.deliver(now).map(&mut soonest);
        }
        self.connections.retain(|connection| !connection.is_over());

        let mut interests = vec![Interest::Stop, Interest::Accept];
        let mut polled = vec![PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for (index, connection) in self.connections.iter().enumerate() {
            for way in 0..2 {
                let half = &connection.halves[way];
                if half.blocked {
                    interests.push(Interest::Write);
                    polled.push(PollFd::from_borrowed_fd(connection.sockets[1 - way].as_fd(), PollFlags::OUT));
                }
                // A sink that does not take its bytes must not let the proxy hoard them.
                if half.ended || half.blocked {
                    continue;
                }
                if self.lanes[way].has_room(now) {
                    interests.push(Interest::Read { connection: index, way });
                    polled.push(PollFd::from_borrowed_fd(connection.sockets[way].as_fd(), PollFlags::IN));
                } else {
                    soonest(self.lanes[way].room_at());
                }
            }
        }
        let timeout = next.map(|time| to_timespec(time.saturating_sub(self.started.elapsed())));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = polled.iter().zip(interests).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, interest)| interest).collect())
    }

    fn accept(&mut self) {
        let Ok((client, _)) = self.listener.accept() else { return };
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        // If the server is gone the client sees its connection closed, as it would without the
        // proxy.
        let Ok(server) = Socket::connect(&self.upstream) else { return };
        let client = Socket::Tcp(client);
        if client.prepare().is_err() {
            return;
        }
        let mut halves = [Half::default(), Half::default()];
        // The client may send after one round trip (handshake); its first byte takes half of one
        // more.
        let opened = self.started.elapsed() + self.link.rtt;
        halves[0].flow.not_before = opened + self.link.rtt / 2;
        halves[1].flow.not_before = opened;
        self.connections.push(Connection { sockets: [client, server], halves, asking: false, broken: false });
        self.count(|traffic| traffic.connections += 1);
    }

    fn read_chunk(&mut self, index: usize, way: usize) {
        let now = self.started.elapsed();
        if !self.lanes[way].has_room(now) {
            return;
        }
        let Some(connection) = self.connections.get_mut(index) else { return };
        let count = match connection.sockets[way].receive(&mut self.scratch) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(_) => {
                connection.broken = true;
                return;
            }
        };
        if count == 0 {
            connection.halves[way].ended = true;
            return;
        }
        let half = &mut connection.halves[way];
        let due = self.lanes[way].admit(now, count as u64, &mut half.flow);
        half.chunks.push_back(Chunk { due, bytes: self.scratch[..count].to_vec(), sent: 0 });
        let turned = way == 0 && !connection.asking;
        connection.asking = way == 0;
        let lost = self.lanes.iter().map(Lane::segments_lost).sum();
        self.count(|traffic| {
            let bytes = if way == 0 { &mut traffic.up_bytes } else { &mut traffic.down_bytes };
            *bytes += count as u64;
            traffic.turns += u64::from(turned);
            traffic.segments_lost = lost;
        });
    }

    fn count(&self, change: impl FnOnce(&mut Traffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn to_timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
