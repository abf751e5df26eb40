//! A server with one volume, and mounts of it as values that clean up after themselves.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use connection::{Scheme, Waiting};
use mount::{VolumeMount, VolumeOptions};
use server::{Config, Logger, Server, StoreAt, VolumeConfig};
use store::Memory;
use stream::{Options, RemoteVolume};
use tokio::sync::oneshot;

/// Why real mounts cannot be tested here, if so.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err().then_some("no /dev/fuse")
}

macro_rules! need_fuse {
    () => {
        if let Some(why) = crate::world::obstacle() {
            eprintln!("skipped: {why}");
            return;
        }
    };
}
pub(crate) use need_fuse;

/// A server that can be stopped and started again at the same address.
pub struct World {
    /// The files on the server.
    pub folder: tempfile::TempDir,
    store: Memory,
    config: VolumeConfig,
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl World {
    /// Serves the volume `data`, which may be written.
    pub fn new() -> World {
        World::with(|_| {})
    }

    /// The same, changed.
    pub fn with(change: impl FnOnce(&mut VolumeConfig)) -> World {
        let folder = tempfile::tempdir().expect("tempdir");
        let mut config = VolumeConfig { writable: true, ..VolumeConfig::new("data", folder.path()) };
        change(&mut config);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut world = World { folder, store: Memory::new(), config, address, running: None };
        world.start();
        world
    }

    /// Starts the server, at the address it had before.
    pub fn start(&mut self) {
        let config = Config {
            log: Logger::silent(),
            volumes: vec![self.config.clone()],
            ..Config::new(StoreAt::Open(Arc::new(self.store.clone())), self.address)
        };
        let server = Server::bind(config).expect("binds");
        self.address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(server.run_until(async { drop(stopped.await) })).expect("served");
        });
        self.running = Some((stop, thread));
    }

    /// Stops it in good order.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().expect("the server ended in good order");
        }
    }

    /// A path on the server.
    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Opens the volume as a new device.
    fn open(address: SocketAddr, options: Options) -> Arc<RemoteVolume> {
        let server = connection::Server { scheme: Scheme::Runnel, host: "127.0.0.1".into(), port: address.port() };
        RemoteVolume::open(&server, connection::Config::default(), "data", options).expect("opens")
    }

    /// Mounts the volume as a new device that believes nothing for longer than 40 ms.
    pub fn mount(&self) -> Mount {
        self.mount_with(Options::default(), |_| {})
    }

    /// The same, changed.
    pub fn mount_with(&self, options: Options, change: impl FnOnce(&mut VolumeOptions)) -> Mount {
        World::mount_at(self.address, options, change)
    }

    /// The same as [`World::mount`], over connections that can be cut.
    pub fn mount_through(&self, proxy: &Proxy) -> Mount {
        World::mount_at(proxy.address, Options::default(), |_| {})
    }

    fn mount_at(address: SocketAddr, options: Options, change: impl FnOnce(&mut VolumeOptions)) -> Mount {
        let volume = World::open(address, Options { names_ttl: TTL, ..options });
        let place = tempfile::tempdir().expect("tempdir");
        let mut options = VolumeOptions { control: false, names_ttl: TTL, ..VolumeOptions::default() };
        change(&mut options);
        let mounted = VolumeMount::start(volume.clone(), place.path(), options).expect("mounts");
        Mount { mounted, volume, place }
    }
}

/// How long names are believed, by the kernel and by the volume each.
const TTL: Duration = Duration::from_millis(20);

/// Fails after a second instead of waiting for a server.
pub fn soft() -> Options {
    Options { waiting: Waiting::Soft(Duration::from_secs(1)), ..Options::default() }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// Connections to a server that can be cut, and kept away.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Both ends of all connections.
    streams: Mutex<Vec<TcpStream>>,
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

impl Proxy {
    pub fn new(world: &World) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let (address, server) = (listener.local_addr().expect("an address"), world.address);
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let mut streams = accepting.streams.lock().expect("no panic");
                if accepting.is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let far = TcpStream::connect(server).expect("the server listens");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                    std::thread::spawn(move || {
                        // An error is the end of the connection, as its end is.
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.extend([near, far]);
            }
        });
        Proxy { address, shared }
    }

    /// Ends all connections and lets none through.
    pub fn cut(&self) {
        let mut streams = self.shared.streams.lock().expect("no panic");
        self.shared.is_cut.store(true, Ordering::SeqCst);
        streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Lets connections through again.
    pub fn restore(&self) {
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        self.cut();
    }
}

/// A mounted volume.
pub struct Mount {
    pub mounted: VolumeMount,
    pub volume: Arc<RemoteVolume>,
    place: tempfile::TempDir,
}

impl Mount {
    /// A path in the mount.
    pub fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    pub fn root(&self) -> &Path {
        self.place.path()
    }

    /// A file for reading and writing, which is there.
    pub fn open(&self, path: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.at(path)).expect("opens")
    }

    /// A new file.
    pub fn open_created(&self, path: &str) -> File {
        File::create(self.at(path)).expect("created")
    }

    /// A file for appending.
    pub fn append(&self, path: &str) -> File {
        OpenOptions::new().append(true).create(true).open(self.at(path)).expect("opens")
    }
}

/// Closes a file and tells what close(2) says, which dropping it does not.
pub fn close(file: File) -> io::Result<()> {
    nix::unistd::close(std::os::fd::OwnedFd::from(file)).map_err(io::Error::from)
}

/// The number of an error.
#[track_caller]
pub fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.raw_os_error().expect("an error of the system"),
    }
}

/// Bytes that tell where they are.
pub fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| ((at.wrapping_add(seed)).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
