//! A server in this process: honest by default, and whatever a test makes of it.
//!
//! Each connection has a thread that owns its state machine and one that reads its socket. A test
//! may install a policy, which sees every event first and may handle it in its own way, and may run
//! code on a connection's thread. Everything that arrives is logged, and tests wait for the log,
//! never for time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;
use units::{Moment, PageId, StreamId, Token};
use wire::format::{FEATURE_PROOFS, FEATURES};
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{
    ClientConfig, ClientConnection, ErrorCode, ImageHandle, Notice, PushEncoding, PushEndReason, PushHeader, PushPiece,
    Reply, Request, ServerConfig, ServerConnection, ServerEvent,
};

use super::HANG;
use super::tree::Tree;
use connection::Clock;

/// The handle under which every connection knows the image.
pub(crate) const HANDLE: ImageHandle = ImageHandle(5);

/// The handle of its volume.
pub(crate) const VOLUME: ImageHandle = ImageHandle(6);

type Script = Box<dyn FnOnce(&mut ServerConnection) + Send>;
type Policy = Box<dyn FnMut(usize, &mut ServerConnection, &ServerEvent) -> bool + Send>;

enum Input {
    Bytes(Vec<u8>),
    Script(Script),
    Gone,
}

/// Shared by all threads of the server.
struct Inner {
    tree: Arc<Tree>,
    state: Mutex<State>,
    changed: Condvar,
    policy: Mutex<Option<Policy>>,
    clock: Clock,
    /// Features of connections from now on.
    features: AtomicU64,
}

#[derive(Default)]
struct State {
    log: Vec<(usize, ServerEvent)>,
    connections: Vec<Option<(Sender<Input>, TcpStream)>>,
    closed: bool,
    /// Connections that came to their end.
    ended: usize,
}

pub(crate) struct FakeServer {
    inner: Arc<Inner>,
    address: SocketAddr,
    /// Owns the listening socket.
    accepting: Option<JoinHandle<()>>,
}

impl FakeServer {
    /// A server that sends no proofs of chunk hashes.
    pub fn start(tree: &Arc<Tree>) -> FakeServer {
        FakeServer::start_with(tree, FEATURES & !FEATURE_PROOFS)
    }

    pub fn start_with(tree: &Arc<Tree>, features: u64) -> FakeServer {
        let inner = Inner {
            tree: Arc::clone(tree),
            state: Mutex::default(),
            changed: Condvar::new(),
            policy: Mutex::default(),
            clock: Clock::start(),
            features: features.into(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = FakeServer { inner: Arc::new(inner), address, accepting: None };
        server.accept(listener);
        server
    }

    fn accept(&mut self, listener: TcpListener) {
        self.inner.lock().closed = false;
        let inner = Arc::clone(&self.inner);
        self.accepting = Some(std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if inner.lock().closed {
                    return;
                }
                stream.set_nodelay(true).unwrap();
                Inner::serve(&inner, stream);
            }
        }));
    }

    /// Connections from now on have these features.
    pub fn set_features(&self, features: u64) {
        self.inner.features.store(features, Ordering::SeqCst);
    }

    pub fn url(&self, image: &str) -> String {
        format!("runnel://{}/{image}", self.address)
    }

    pub fn policy(&self, policy: impl FnMut(usize, &mut ServerConnection, &ServerEvent) -> bool + Send + 'static) {
        *self.inner.policy.lock().unwrap() = Some(Box::new(policy));
    }

    pub fn be_honest(&self) {
        *self.inner.policy.lock().unwrap() = None;
    }

    /// Runs code on the thread of a connection.
    pub fn run(&self, connection: usize, script: impl FnOnce(&mut ServerConnection) + Send + 'static) {
        let sender = {
            let state = self.inner.lock();
            state.connections[connection].as_ref().map(|(sender, _)| sender.clone())
        };
        let sent = sender.map(|sender| sender.send(Input::Script(Box::new(script))).is_ok());
        assert_eq!(sent, Some(true), "the connection is gone");
    }

    /// Runs code on the thread of a connection and gives what it returns.
    pub fn ask<T: Send + 'static>(
        &self,
        connection: usize,
        script: impl FnOnce(&mut ServerConnection) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = channel();
        self.run(connection, move |machine| drop(sender.send(script(machine))));
        receiver.recv_timeout(HANG).expect("the connection is gone")
    }

    /// Waits until the log satisfies a condition, and returns what it then gives.
    pub fn wait<T>(&self, mut look: impl FnMut(&[(usize, ServerEvent)]) -> Option<T>) -> T {
        let mut state = self.inner.lock();
        loop {
            if let Some(found) = look(&state.log) {
                return found;
            }
            let (next, waited) = self.inner.changed.wait_timeout(state, HANG).unwrap();
            state = next;
            assert!(!waited.timed_out(), "never happened; log: {:#?}", state.log);
        }
    }

    /// Waits for the `count`th request that satisfies a condition; all up to it.
    pub fn requests(&self, count: usize, wanted: impl Fn(&Request) -> bool) -> Vec<(usize, units::RequestId, Request)> {
        self.wait(|log| {
            let found: Vec<_> = log
                .iter()
                .filter_map(|(connection, event)| match event {
                    ServerEvent::Request { request, ask } if wanted(ask) => Some((*connection, *request, ask.clone())),
                    _ => None,
                })
                .collect();
            (found.len() >= count).then_some(found)
        })
    }

    /// Pull requests so far, without waiting.
    pub fn pulls(&self) -> Vec<Request> {
        self.requests(0, is_pull).into_iter().map(|(_, _, ask)| ask).collect()
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.inner.lock().connections.len()
    }

    /// Waits until there were so many connections; how many there were.
    pub fn wait_connections(&self, count: usize) -> usize {
        let state = self.inner.lock();
        let few = |state: &mut State| state.connections.len() < count;
        self.inner.changed.wait_timeout_while(state, HANG, few).unwrap().0.connections.len()
    }

    /// Pages of all touches of a token so far, in order.
    pub fn touched(&self, token: u128) -> Vec<PageId> {
        self.wait(|log| Some(touched(log, token)))
    }

    pub fn wait_touched(&self, token: u128, pages: &[PageId]) {
        self.wait(|log| (touched(log, token).len() >= pages.len()).then_some(()));
        assert_eq!(self.touched(token), pages);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        let mut state = self.inner.lock();
        for connection in &mut state.connections {
            if let Some((sender, stream)) = connection.take() {
                let _ = stream.shutdown(Shutdown::Both);
                let _ = sender.send(Input::Gone);
            }
        }
    }

    /// Goes away: no connections, nobody listens.
    pub fn kill(&mut self) {
        self.inner.lock().closed = true;
        if let Some(accepting) = self.accepting.take() {
            // Wakes the thread. Once it is over the socket is closed, and nobody gets as far as its
            // backlog.
            let _ = TcpStream::connect(self.address);
            accepting.join().unwrap();
        }
        self.cut();
    }

    /// Comes back at the same address.
    pub fn restart(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.accept(listener);
    }

    /// Waits until so many connections have come to their end.
    pub fn wait_ended(&self, connections: usize) {
        let state = self.inner.lock();
        let (state, waited) =
            self.inner.changed.wait_timeout_while(state, HANG, |state| state.ended < connections).unwrap();
        assert!(!waited.timed_out(), "{} connections ended", state.ended);
    }

    /// Starts a push stream on a connection.
    pub fn push_start(&self, connection: usize, token: u128, encoding: PushEncoding, audit: bool) -> StreamId {
        self.push_start_of(connection, token, units::ActionId(1), encoding, audit)
    }

    /// Starts a push stream of an action.
    pub fn push_start_of(
        &self,
        connection: usize,
        token: u128,
        action: units::ActionId,
        encoding: PushEncoding,
        audit: bool,
    ) -> StreamId {
        let window_log = if encoding == PushEncoding::Stored { 0 } else { 17 };
        let push = PushHeader { image: HANDLE, token: Token(token), action, encoding, window_log, audit };
        self.ask(connection, move |machine| machine.push_start(push).unwrap())
    }

    /// Pushes pages of a segment as stored bytes, honest ones unless `spoil` changes them.
    pub fn push(
        &self,
        connection: usize,
        stream: StreamId,
        segment: u32,
        pages: &[PageId],
        spoil: impl Fn(&mut Vec<u8>),
    ) {
        let mut bytes: Vec<u8> = pages.iter().flat_map(|page| self.inner.tree.page(*page).to_vec()).collect();
        spoil(&mut bytes);
        self.push_bytes(connection, stream, segment, pages, bytes);
    }

    pub fn push_bytes(&self, connection: usize, stream: StreamId, segment: u32, pages: &[PageId], bytes: Vec<u8>) {
        let segment = units::SegmentIndex(segment);
        let piece = PushPiece { stream, segment, pages: pages.to_vec(), bytes: bytes.into() };
        // Refused if the client has stopped the stream meanwhile; what a test expects of a piece it
        // sees at the client.
        self.ask(connection, move |machine| _ = machine.push(piece));
    }

    /// Sends the chunk hashes of pages with a proof, unless `spoil` changes it.
    pub fn prove(&self, connection: usize, pages: &[PageId], spoil: impl Fn(&mut Vec<u8>)) {
        let mut proof = self.inner.tree.proof(pages);
        spoil(&mut proof);
        self.ask(connection, move |machine| machine.hashes(HANDLE, proof.into()).unwrap());
    }

    pub fn push_end(&self, connection: usize, stream: StreamId) {
        self.ask(connection, move |machine| _ = machine.push_end(stream, PushEndReason::Complete));
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a server says first.
pub(crate) fn greeting() -> Vec<u8> {
    let (now, mut hello, mut greeting) = (Moment(0), Vec::new(), Vec::new());
    ClientConnection::new(ClientConfig::default(), now).transmit(now, &mut hello, usize::MAX);
    let mut server = ServerConnection::new(ServerConfig::default(), now);
    server.receive(now, &hello).unwrap();
    server.transmit(now, &mut greeting, usize::MAX);
    greeting
}

pub(crate) fn is_pull(ask: &Request) -> bool {
    matches!(ask, Request::PullBlock { .. } | Request::PullPages { .. })
}

fn touched(log: &[(usize, ServerEvent)], token: u128) -> Vec<PageId> {
    let pages = log.iter().filter_map(|(_, event)| match event {
        ServerEvent::Notice(Notice::Touch { token: found, pages, .. }) if found.0 == token => Some(pages.clone()),
        _ => None,
    });
    pages.flatten().collect()
}

impl Inner {
    fn serve(inner: &Arc<Inner>, stream: TcpStream) {
        let (sender, inputs) = channel();
        let mut reader = stream.try_clone().unwrap();
        let bytes = sender.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if bytes.send(Input::Bytes(buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
            let _ = bytes.send(Input::Gone);
        });
        let index = {
            let mut state = inner.lock();
            state.connections.push(Some((sender, stream.try_clone().unwrap())));
            inner.changed.notify_all();
            state.connections.len() - 1
        };
        let inner = Arc::clone(inner);
        std::thread::spawn(move || {
            let features = inner.features.load(Ordering::SeqCst);
            let config = ServerConfig { features, ..ServerConfig::default() };
            let mut machine = ServerConnection::new(config, inner.clock.now());
            for input in inputs {
                match input {
                    Input::Bytes(bytes) => drop(machine.receive(inner.clock.now(), &bytes)),
                    Input::Script(script) => script(&mut machine),
                    Input::Gone => break,
                }
                while let Some(event) = machine.poll_event() {
                    inner.take(index, &mut machine, event);
                }
                let mut out = Vec::new();
                machine.transmit(inner.clock.now(), &mut out, usize::MAX);
                if (&stream).write_all(&out).is_err() || machine.is_finished() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Both);
            inner.lock().ended += 1;
            inner.changed.notify_all();
        });
    }

    /// A test that failed under the lock must not hide behind a second panic.
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn take(&self, connection: usize, machine: &mut ServerConnection, event: ServerEvent) {
        let handled = self.policy.lock().unwrap().as_mut().is_some_and(|policy| policy(connection, machine, &event));
        if let ServerEvent::Request { request, ask } = &event
            && !handled
        {
            if let Request::PullBlock { block, .. } = ask
                && machine.takes_proofs()
            {
                machine.hashes(HANDLE, self.tree.block_proof(*block).into()).unwrap();
            }
            let reply = honest_reply(&self.tree, ask);
            if let Some(reply) = reply {
                machine.reply(*request, reply).unwrap();
            }
        }
        self.lock().log.push((connection, event));
        self.changed.notify_all();
    }
}

/// What a good server answers; nothing to a put.
pub(crate) fn honest_reply(tree: &Tree, ask: &Request) -> Option<Reply> {
    let metadata = &tree.metadata;
    Some(match ask {
        Request::Open { name } if *name == "app:latest" || *name == format!("@{}", metadata.id()) => opened(tree),
        Request::Open { name } => Reply::error(ErrorCode::NotFound, format!("no image {name}")),
        Request::MetaRead { offset, bytes, .. } => {
            let data = Bytes::copy_from_slice(&tree.bytes[*offset as usize..][..*bytes as usize]);
            Reply::MetaData { offset: *offset, bytes: data }
        }
        Request::PullBlock { block, .. } => {
            Reply::Block { block: *block, bytes: Bytes::copy_from_slice(tree.stored(*block)) }
        }
        Request::PullPages { pages, .. } => {
            let bytes: Vec<u8> = pages.iter().flat_map(|page| tree.page(*page).to_vec()).collect();
            Reply::Pages { codec: 0, bytes: bytes.into() }
        }
        Request::List => Reply::Listing { json: Bytes::from_static(b"{\"images\":[]}") },
        Request::Status => Reply::Status { json: Bytes::from_static(b"{\"pulls\":0}") },
        Request::TrustRead { .. } | Request::TrustWrite { .. } | Request::Manage { .. } => {
            Reply::error(ErrorCode::BadRequest, "not in this test")
        }
        Request::PutOpen { .. } => return None,
        // One volume, in which every path is a link to itself.
        Request::VolumeOpen { .. } => {
            Reply::VolumeOpened { volume: VOLUME, id: 1, block_bytes: 4096, writable: false, nonce: 1 }
        }
        Request::Volume { ask: VolumeAsk::LinkRead { path }, .. } => {
            Reply::Volume(VolumeReply::LinkTarget(path.clone().into()))
        }
        Request::Volume { .. } => Reply::error(ErrorCode::BadRequest, "not in this test"),
    })
}

pub(crate) fn opened(tree: &Tree) -> Reply {
    let region = tree.metadata.metadata_region();
    Reply::Opened {
        image: HANDLE,
        id: tree.metadata.id(),
        file_bytes: tree.metadata.file_bytes(),
        metadata_offset: region.start,
        metadata_bytes: region.end - region.start,
    }
}
