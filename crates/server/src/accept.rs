//! The server as a whole: it accepts connections, looks after what they share, and ends in good
//! order.

use std::future::Future;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use wire::{ErrorCode, ServerConnection};

#[cfg(feature = "tls")]
use crate::access::certificate;
use crate::access::{Access, Guard, LOOK_EVERY, PushAccess};
use crate::admission::{Admission, ConnectionSlot, Full, REFUSALS_MAX};
use crate::audit::Audit;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::panics::caught;
use crate::peer::{Owner, Peer};
use crate::processor::{Processor, Sharing, Slices, TASKS_BETWEEN_EVENTS, Turns};
use crate::session::{self, Client, Rights, send_last};
use crate::shared::Shared;
#[cfg(feature = "tls")]
use crate::tls::Unwelcome;
use crate::tls::{Acceptor, Channel, Greeting};
use crate::{ServerError, descriptors, warm};

/// Time that a client that is refused has to read why.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);

/// Time connections have to end when the server does.
const END_DEADLINE: Duration = Duration::from_secs(3);

/// Pause after a failed accept: with no file descriptors left it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who may connect, and who is connected.
///
/// Invariant: each connection that is served holds a slot of `admission`, and has a number of its
/// own.
struct Connections {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    acceptor: Acceptor,
    /// Rules of access, if there are any.
    access: Option<Arc<Access>>,
    audit: Option<Arc<Audit>>,
    /// Turns of the tasks that serve connections.
    processor: Processor,
    /// Connections so far.
    count: AtomicU64,
}

impl Connections {
    /// None yet. Reads the files of TLS.
    fn new(shared: Arc<Shared>) -> Result<Connections, ServerError> {
        let config = &shared.config;
        let audit = config.access.audit.clone();
        let audit = audit.map(|audit| Audit::start(audit, shared.metrics.clone(), config.log.clone()));
        let audit = audit.transpose()?.map(Arc::new);
        let rules = config.access.rules.clone();
        let access = rules.map(|file| Access::open(file, config.log.clone(), audit.clone(), shared.clock));
        let access = access.transpose()?.map(Arc::new);
        let acceptor = Acceptor::new(config.tls.as_ref(), config.uploads.from, access.is_some())?;
        let wanted = config.connections.max;
        let max = wanted.min(descriptors::connections_max(config));
        if max < wanted {
            config.log.warning(format_args!(
                "only {max} connections are taken, not {wanted}: the limit of open files is too low (ulimit -n, LimitNOFILE=)"
            ));
        }
        let admission = Arc::new(Admission::new(max, config.connections.per_address(max)));
        let (processor, count) = (Processor::default(), AtomicU64::new(0));
        Ok(Connections { admission, acceptor, access, audit, processor, count, shared })
    }
}

/// Reads certificates, keys, authorities and rules of access again while the server runs.
#[derive(Clone)]
pub struct Reloader(Arc<Connections>);

impl Reloader {
    /// Reads the files of [`crate::TlsFiles`] again, for connections from now on. Of those that are
    /// open, the ones end whose certificate was revoked. Reads the rules of access again, for all
    /// connections. Says in the log what came of it. Begins a new audit log if the old one was
    /// moved away. Blocks.
    ///
    /// # Errors
    /// [`ServerError::Tls`] or [`ServerError::Access`] if a file is of no use; what was read before
    /// stays in use.
    pub fn reload(&self) -> Result<(), ServerError> {
        self.0.audit.iter().for_each(|audit| audit.reopen());
        let rules = self.0.access.as_ref().map_or(Ok(()), |access| access.reload());
        self.reload_tls()?;
        Ok(rules?)
    }

    fn reload_tls(&self) -> Result<(), ServerError> {
        let log = &self.0.shared.log;
        match self.0.acceptor.reload() {
            Ok(true) => log.info("certificates and keys were read again; new connections use them"),
            Ok(false) => log.info("there is no certificate to read again: this server does not speak TLS"),
            Err(error) => {
                log.warning(format_args!("the old certificates and keys stay in use: {error}"));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A server that listens.
pub struct Server {
    connections: Arc<Connections>,
    listener: StdListener,
    address: SocketAddr,
}

impl Server {
    /// Opens the store, starts to listen, and makes ready what is served most. Clients may connect
    /// from now on and are served once [`Server::run_until`] runs.
    ///
    /// # Errors
    /// [`ServerError`]: the store cannot be opened, the address is in use, a setting makes no
    /// sense.
    pub fn bind(config: Config) -> Result<Server, ServerError> {
        Server::bind_confined(config, || Ok(()))
    }

    /// The same, but `confine` gives up what the process does not need from then on: it runs when
    /// the socket listens, before a file is read and before a thread starts. What the server does
    /// then: it reads and writes the store, volumes and TLS files of `config`, and accepts
    /// connections.
    ///
    /// # Errors
    /// As [`Server::bind`], and what `confine` returns.
    pub fn bind_confined(config: Config, confine: impl FnOnce() -> std::io::Result<()>) -> Result<Server, ServerError> {
        config.check()?;
        let address = config.listen;
        let listen = |source| ServerError::Listen { address, source };
        let listener = StdListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        confine().map_err(ServerError::Confine)?;
        let connections = Arc::new(Connections::new(Arc::new(Shared::new(config)?))?);
        // Elsewhere each image is a request.
        if !connections.shared.store().is_shared() {
            connections.shared.catalog.names().warn_of_unusable();
        }
        // Before the first device asks.
        let shared = &connections.shared;
        shared.catalog.signed.keep_fresh(shared.now(), shared.clock.utc());
        warm::warm(&connections.shared);
        Ok(Server { connections, listener, address })
    }

    /// The address clients connect to, with the port the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The counters, which stay readable while the server runs.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.connections.shared.metrics.clone()
    }

    /// Renews certificates while the server runs.
    pub fn reloader(&self) -> Reloader {
        Reloader(self.connections.clone())
    }

    /// Serves until `shutdown` is ready, then tells all clients and saves what was learned.
    ///
    /// # Errors
    /// [`ServerError::Listen`] if the socket cannot be handed to the runtime.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Server { connections, listener, address } = self;
        let shared = connections.shared.clone();
        let listener = TcpListener::from_std(listener).map_err(|source| ServerError::Listen { address, source })?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut upkeep = tokio::spawn(upkeep(shared.clone(), stopped.clone()));
        tokio::spawn(renew(Reloader(connections.clone()), stopped.clone()));
        let looking = connections.access.clone().map(|access| tokio::spawn(look(access)));
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => match connections.admission.admit(Peer::at(peer), shared.now()) {
                        Ok(slot) => {
                            tasks.spawn(connections.clone().take(stream, peer, slot, stopped.clone()));
                        }
                        Err(full) => connections.clone().refuse(stream, peer, full, &refusals),
                    },
                    Err(error) => {
                        shared.log.warning(format_args!("a connection cannot be accepted: {error}"));
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
            }
        }
        drop(listener);
        looking.iter().for_each(|task| task.abort());
        stop.send_replace(true);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(END_DEADLINE, ended).await.is_err() {
            tasks.shutdown().await;
        }
        // It ends by itself; a panic there is a bug that the hook reported.
        let _ = (&mut upkeep).await;
        let _ = tokio::task::spawn_blocking(move || shared.finish()).await;
        Ok(())
    }
}

/// Serves in the calling thread until SIGTERM or SIGINT, then saves what was learned. SIGHUP has
/// certificates and rules of access read again. `on_ready` gets the address; `confine` is as for
/// [`Server::bind_confined`].
///
/// # Errors
/// As [`Server::bind_confined`], or [`ServerError::Runtime`].
pub fn serve_blocking(
    config: Config,
    confine: impl FnOnce() -> std::io::Result<()>,
    on_ready: impl FnOnce(SocketAddr),
) -> Result<(), ServerError> {
    use tokio::signal::unix::{SignalKind, signal};
    descriptors::raise_limit();
    host::memory::limit_heaps();
    let server = Server::bind_confined(config, confine)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("server")
        .event_interval(TASKS_BETWEEN_EVENTS)
        .build()
        .map_err(ServerError::Runtime)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(ServerError::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServerError::Runtime)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(ServerError::Runtime)?;
        let reloader = server.reloader();
        // Ends with the runtime.
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                let reloader = reloader.clone();
                // What failed is in the log.
                let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
            }
        });
        on_ready(server.local_addr());
        let (metrics, log) = (server.metrics(), server.connections.shared.log.clone());
        let (told, end) = tokio::sync::oneshot::channel();
        let counts = metrics.clone();
        server
            .run_until(async move {
                let signal = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                let _ = told.send((signal, counts.connections.get(), counts.learned_saved.get()));
            })
            .await?;
        if let Ok((signal, connections, before)) = end.await {
            let saved = metrics.learned_saved.get() - before;
            log.info(format_args!(
                "ended by {signal}: connections closed: {connections}, files of what was learned saved: {saved}"
            ));
        }
        Ok(())
    })
}

/// Reads the files of TLS again when they change, until the server ends.
async fn renew(reloader: Reloader, mut stopped: watch::Receiver<bool>) {
    while reloader.0.acceptor.has_files() {
        tokio::select! {
            _ = stopped.changed() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let reloader = reloader.clone();
        let look = move || reloader.0.acceptor.is_outdated().then(|| reloader.reload());
        // What failed is in the log. It is tried again when a file changes once more.
        let _ = tokio::task::spawn_blocking(look).await;
    }
}

/// Has the rules of access follow their files.
async fn look(access: Arc<Access>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let access = access.clone();
        // A panic there is a bug that the hook reported; the next look tries again.
        let _ = tokio::task::spawn_blocking(move || access.look()).await;
    }
}

/// Connections that come and go, fewer of which leave no memory worth giving back.
const STORM: u64 = 64;

/// Looks after images, volumes and uploads until the server ends.
pub(crate) async fn upkeep(shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    // The most connections since memory was given back last, and whether that was a round ago.
    let (mut most, mut again) = (0, false);
    // Those accepted until then: many may come and go between two rounds.
    let mut accepted = 0;
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            () = tokio::time::sleep(shared.config.upkeep_every) => {}
        }
        let open = shared.metrics.connections.get();
        let came = shared.metrics.connections_accepted.get() - accepted;
        most = open.max(most).max(if came >= STORM { came } else { 0 });
        // After each halving, so that a storm that ends takes few rounds, and the usual coming and
        // going none. And once more: the tasks of the last connections may not have been freed yet.
        let fell = open * 2 < most;
        if fell || again {
            most = open;
            accepted = shared.metrics.connections_accepted.get();
            let _ = tokio::task::spawn_blocking(host::memory::give_back).await;
        }
        again = fell;
        let worker = shared.clone();
        // A panic there is a bug that the hook reported; the next round tries again.
        let _ = tokio::task::spawn_blocking(move || worker.upkeep()).await;
    }
}

impl Connections {
    /// Serves one connection. A panic ends it, with a line of log, and nothing else.
    async fn take(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        slot: ConnectionSlot,
        stopped: watch::Receiver<bool>,
    ) {
        let shared = &self.shared;
        shared.metrics.connections.one();
        shared.metrics.connections_accepted.one();
        let turns = self.processor.turns(Peer::at(peer));
        let serving = caught(self.serve(stream, peer, slot, turns.clone(), stopped));
        if let Err(reason) = Sharing::new(turns, serving).await {
            shared.metrics.connections_failed.one();
            shared.log.warning(format_args!("{peer}: connection closed: the server failed: {reason}"));
        }
        shared.metrics.connections.less_one();
    }

    async fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        slot: ConnectionSlot,
        turns: Arc<Turns>,
        stopped: watch::Receiver<bool>,
    ) {
        let shared = self.shared.clone();
        let connection = self.count.fetch_add(1, Ordering::Relaxed);
        // Small replies must not wait for more data (Nagle).
        let _ = stream.set_nodelay(true);
        let mut ending = stopped.clone();
        let greeting = tokio::select! {
            biased;
            greeting = self.acceptor.greet(stream, shared.config.wire.hello_deadline) => Some(greeting),
            _ = ending.changed() => None,
            () = slot.displaced() => None,
        };
        match greeting {
            // In mid-handshake nothing can be said.
            None => {}
            Some(Greeting::Welcome(Channel::Plain(stream), access)) => {
                let owner = Owner { peer: Peer::at(peer), connection };
                let rights = self.rights(access, Vec::new);
                let client = Client::new(peer.to_string(), owner, (rights, self.audit.clone()), slot);
                Box::pin(session::run(shared, Slices::new(turns, stream), client, stopped)).await;
            }
            #[cfg(feature = "tls")]
            Some(Greeting::Welcome(Channel::Tls(stream, standing), access)) => {
                let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let known = certificate.map_or(Peer::at(peer), |certificate| Peer::with_certificate(certificate));
                let owner = Owner { peer: known, connection };
                let names = || certificate.map_or_else(Vec::new, certificate::names);
                let rights = self.rights(access, names);
                let client = Client::new(peer.to_string(), owner, (rights, self.audit.clone()), slot);
                let client = client.with_standing(standing);
                Box::pin(session::run(shared, Slices::new(turns, *stream), client, stopped)).await;
            }
            #[cfg(feature = "tls")]
            Some(Greeting::Refused { stream, reason }) => {
                shared.metrics.connections_failed.one();
                shared.log.warning(format_args!("{peer}: connection closed: {reason}"));
                if let Some(Unwelcome { socket, is_stranger }) = stream {
                    // A handshake that failed has said why; a client that speaks our protocol in
                    // the clear is told here.
                    let frames =
                        if is_stranger { error_frames(&shared, ErrorCode::Protocol, USE_TLS) } else { Vec::new() };
                    let _ = tokio::time::timeout(REFUSAL_DEADLINE, send_last(socket, &frames)).await;
                }
            }
        }
    }

    /// What a client with a certificate of these names may do.
    fn rights(&self, access: PushAccess, names: impl FnOnce() -> Vec<String>) -> Rights {
        match &self.access {
            Some(rules) => Rights::Guarded(Box::new(Guard::new(rules, names()))),
            None => Rights::Open(access),
        }
    }

    /// Tells a client that there are too many.
    fn refuse(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, full: Full, refusals: &Arc<Semaphore>) {
        self.shared.metrics.connections_refused.one();
        let Ok(permit) = refusals.clone().try_acquire_owned() else { return };
        self.shared.log.warning(format_args!("{peer}: refused, {full}"));
        let text = format!("{full}; try again later, or have that limit raised");
        let frames = error_frames(&self.shared, ErrorCode::Busy, &text);
        tokio::spawn(async move {
            let told = async {
                match self.acceptor.greet(stream, REFUSAL_DEADLINE).await {
                    Greeting::Welcome(Channel::Plain(stream), _) => send_last(stream, &frames).await,
                    #[cfg(feature = "tls")]
                    Greeting::Welcome(Channel::Tls(stream, _), _) => send_last(*stream, &frames).await,
                    #[cfg(feature = "tls")]
                    Greeting::Refused { stream: Some(stream), .. } => send_last(stream.socket, &[]).await,
                    #[cfg(feature = "tls")]
                    Greeting::Refused { stream: None, .. } => {}
                }
            };
            let _ = tokio::time::timeout(REFUSAL_DEADLINE, told).await;
            drop(permit);
        });
    }
}

/// What a client without TLS gets to read from a server with it.
#[cfg(feature = "tls")]
const USE_TLS: &str = "the server speaks TLS: use runnels://";

/// The frames of a connection that is closed before it began.
fn error_frames(shared: &Shared, code: ErrorCode, text: &str) -> Vec<u8> {
    let mut wire = ServerConnection::new(shared.config.wire.clone(), shared.now());
    wire.shut_down(code, text);
    let mut out = Vec::new();
    wire.transmit(shared.now(), &mut out, usize::MAX);
    out
}
