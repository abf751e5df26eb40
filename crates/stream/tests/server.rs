//! A volume over a socket, with the real server on the other side.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use connection::target::Scheme;
use server::{Config, Logger, Server, StoreAt, VolumeConfig};
use store::Memory;
use stream::{ErrorKind, FileKind, LeaseKind, OpenHow, Options, RemoteVolume, Room, StreamError, Waiting};
use tempfile::TempDir;
use tokio::sync::oneshot;
use units::{Rng, SplitMix64, Token};

/// Time after which a call that does not end is a failure.
const HANG: Duration = Duration::from_secs(30);

const TOKEN: Token = Token(77);

const WRITE: OpenHow = OpenHow {
    read: true,
    write: true,
    append: false,
    create: Some(0o644),
    owner: None,
    exclusive: false,
    truncate: false,
};

/// A server with the volume `data`, until it is dropped.
struct Rig {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    fn start(folder: &Path, port: u16, change: impl FnOnce(&mut VolumeConfig)) -> Rig {
        let mut volume = VolumeConfig { writable: true, ..VolumeConfig::new("data", folder) };
        change(&mut volume);
        let store = StoreAt::Open(Arc::new(Memory::new()));
        let config = Config {
            upkeep_every: Duration::from_millis(5),
            log: Logger::silent(),
            volumes: vec![volume],
            ..Config::new(store, SocketAddr::from(([127, 0, 0, 1], port)))
        };
        let server = Server::bind(config).unwrap();
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(server.run_until(async { drop(stopped.await) })).unwrap();
        });
        Rig { address, stop: Some(stop), thread: Some(thread) }
    }

    fn at(&self) -> connection::Server {
        connection::Server { scheme: Scheme::Runnel, host: "127.0.0.1".to_owned(), port: self.address.port() }
    }

    fn open(&self, options: Options) -> Arc<RemoteVolume> {
        RemoteVolume::open(&self.at(), connection::Config::default(), "data", options).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Calls that wait.
trait Blocking {
    fn file(&self, path: &str, how: OpenHow) -> Result<stream::Opened, StreamError>;
    fn get(&self, handle: stream::Handle, offset: u64, bytes: u32) -> Result<Bytes, StreamError>;
    fn put(&self, handle: stream::Handle, offset: u64, bytes: &[u8]) -> Result<(), StreamError>;
    fn done(&self, handle: stream::Handle) -> Result<(), StreamError>;
    fn flush(&self, handle: stream::Handle) -> Result<(), StreamError>;
}

impl Blocking for Arc<RemoteVolume> {
    fn file(&self, path: &str, how: OpenHow) -> Result<stream::Opened, StreamError> {
        self.wait(HANG, |volume, done| volume.open_file(path.as_bytes(), how, TOKEN, done))
    }

    fn get(&self, handle: stream::Handle, offset: u64, bytes: u32) -> Result<Bytes, StreamError> {
        self.wait(HANG, |volume, done| volume.read(handle, TOKEN, offset, bytes, done))
    }

    fn put(&self, handle: stream::Handle, offset: u64, bytes: &[u8]) -> Result<(), StreamError> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.wait(HANG, |volume, done| volume.write(handle, offset, bytes, done))
    }

    fn done(&self, handle: stream::Handle) -> Result<(), StreamError> {
        self.wait(HANG, |volume, done| volume.close(handle, done))
    }

    fn flush(&self, handle: stream::Handle) -> Result<(), StreamError> {
        self.wait(HANG, |volume, done| volume.sync(handle, done))
    }
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..bytes).map(|_| b"0123456789abcdef"[rng.below(16) as usize]).collect()
}

#[test]
fn files_are_read_block_by_block_and_budgets_hold() {
    let folder = TempDir::new().unwrap();
    let whole = content(1, 700_001);
    std::fs::write(folder.path().join("big"), &whole).unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    for memory_bytes in [0, 64 << 10, 16 << 20] {
        let volume = rig.open(Options { memory_bytes, ..Options::default() });
        let opened = volume.file("big", OpenHow::READ).unwrap();
        assert_eq!(opened.info.size, 700_001);
        let mut rng = SplitMix64(5);
        for _ in 0..200 {
            let offset = rng.below(720_000);
            let most = if rng.below(8) == 0 { 300_000 } else { 9000 };
            let bytes = 1 + rng.below(most);
            let found = volume.get(opened.handle, offset, bytes as u32).unwrap();
            let from = (offset as usize).min(whole.len());
            assert!(found == whole[from..(from + bytes as usize).min(whole.len())], "{offset} {bytes}");
            let status = volume.status();
            assert!(status.blocks.memory_bytes <= memory_bytes as u64, "{status:?}");
        }
        volume.done(opened.handle).unwrap();
        assert_eq!(volume.get(opened.handle, 0, 1).unwrap_err().kind(), ErrorKind::BadHandle);
        let again = volume.file("big", OpenHow::READ).unwrap();
        assert!(again.unchanged);
    }
}

#[test]
fn what_is_written_and_synced_is_there() {
    let folder = TempDir::new().unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let volume = rig.open(Options::default());
    let on_disk = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let file = volume.file("a", WRITE).unwrap();
    assert_eq!((file.info.seen.file, file.info.size), (0, 0));
    let whole = content(2, 3 << 20);
    volume.put(file.handle, 0, &whole).unwrap();
    assert_eq!(volume.get(file.handle, 100_000, 5000).unwrap(), whole[100_000..105_000]);
    assert!(!folder.path().join("a").exists());
    volume.flush(file.handle).unwrap();
    assert!(on_disk("a") == whole);
    assert!(volume.status().committed >= 3, "a large file takes several transactions");
    volume.put(file.handle, 7, b"hello").unwrap();
    volume.wait(HANG, |volume, done| volume.set_size(file.handle, 20, done)).unwrap();
    volume.done(file.handle).unwrap();
    assert_eq!(on_disk("a"), [&whole[..7], b"hello", &whole[12..20]].concat());

    let append = OpenHow { append: true, ..WRITE };
    let log = volume.file("log", append).unwrap();
    volume.put(log.handle, 0, b"one\n").unwrap();
    volume.put(log.handle, 0, b"two\n").unwrap();
    volume.flush(log.handle).unwrap();
    std::fs::write(folder.path().join("log"), b"one\ntwo\nthree\n").unwrap();
    volume.put(log.handle, 0, b"four\n").unwrap();
    volume.done(log.handle).unwrap();
    assert_eq!(on_disk("log"), b"one\ntwo\nthree\nfour\n");
    let log = volume.file("log", OpenHow::READ).unwrap();
    assert_eq!(volume.get(log.handle, 0, 100).unwrap(), &b"one\ntwo\nthree\nfour\n"[..]);
    assert!(volume.shutdown().is_empty());
    assert_eq!(volume.get(log.handle, 0, 1).unwrap_err().kind(), ErrorKind::Shutdown);
}

#[test]
fn names_are_listed_made_moved_and_removed() {
    let folder = TempDir::new().unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let volume = rig.open(Options::default());
    let wait = |call: &dyn Fn(&RemoteVolume, stream::Done<()>)| volume.wait(HANG, |volume, done| call(volume, done));
    wait(&|volume, done| volume.make_folder(b"dir", 0o755, None, done)).unwrap();
    let error = wait(&|volume, done| volume.make_folder(b"dir", 0o755, None, done)).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Exists, 17));
    let file = volume.file("dir/new", WRITE).unwrap();
    volume.put(file.handle, 0, b"data").unwrap();
    let names = |path: &str| {
        let entries = volume.wait(HANG, |volume, done| volume.list(path.as_bytes(), done)).unwrap();
        entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names("dir"), ["new"], "before it is on the server");
    assert_eq!(names(""), ["dir"]);
    wait(&|volume, done| volume.rename(b"dir/new", b"dir/old", true, done)).unwrap();
    assert_eq!(names("dir"), ["old"]);
    volume.put(file.handle, 4, b" more").unwrap();
    volume.done(file.handle).unwrap();
    assert_eq!(std::fs::read(folder.path().join("dir/old")).unwrap(), b"data more");
    let info = volume.wait(HANG, |volume, done| volume.stat(&b"dir/old"[..], done)).unwrap();
    assert_eq!((info.kind, info.size), (FileKind::File, 9));
    wait(&|volume, done| volume.set_mode(&b"dir/old"[..], 0o600, done)).unwrap();
    wait(&|volume, done| volume.set_time(&b"dir/old"[..], 1_000_000_000, done)).unwrap();
    let info = volume.wait(HANG, |volume, done| volume.stat(&b"dir/old"[..], done)).unwrap();
    assert_eq!((info.mode, info.mtime_ns), (0o600, 1_000_000_000));
    let held = volume.wait(HANG, |volume, done| {
        volume.lease(&b"dir/old"[..], Some(LeaseKind::Exclusive), Duration::from_secs(5), done);
    });
    assert_eq!(held.unwrap(), Duration::from_secs(5));
    assert_eq!(wait(&|volume, done| volume.remove_folder(b"dir", done)).unwrap_err().errno(), 39);
    wait(&|volume, done| volume.remove(b"dir/old", done)).unwrap();
    wait(&|volume, done| volume.remove_folder(b"dir", done)).unwrap();
    let error = volume.wait(HANG, |volume, done| volume.stat(&b"dir"[..], done)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    std::os::unix::fs::symlink("there", folder.path().join("link")).unwrap();
    let target = volume.wait(HANG, |volume, done| volume.read_link(b"link", done)).unwrap();
    assert_eq!(target, &b"there"[..]);
    let error = volume.file("nowhere/x", OpenHow::READ).unwrap_err();
    assert_eq!(error.errno(), 2);
    let error = volume.file("a/../b", OpenHow::READ).unwrap_err();
    assert_eq!(error.errno(), 22);
}

#[test]
fn two_writers_conflict_and_readers_see_the_new_version() {
    let folder = TempDir::new().unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let (one, two) = (rig.open(Options::default()), rig.open(Options::default()));
    let file = one.file("f", WRITE).unwrap();
    one.put(file.handle, 0, &content(3, 9000)).unwrap();
    one.flush(file.handle).unwrap();
    let other = two.file("f", WRITE).unwrap();
    assert_eq!(two.get(other.handle, 0, 9000).unwrap(), content(3, 9000));
    two.put(other.handle, 0, b"two").unwrap();
    one.put(file.handle, 0, b"one").unwrap();
    one.flush(file.handle).unwrap();
    let error = two.flush(other.handle).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Stale, 116), "{error}");
    assert_eq!(two.get(other.handle, 0, 3).unwrap(), &b"two"[..], "still readable");
    assert_eq!(two.status().lost.len(), 1);
    let fresh = two.file("f", OpenHow::READ).unwrap();
    assert!(!fresh.unchanged);
    assert_eq!(two.get(fresh.handle, 0, 4).unwrap(), [b"one", &content(3, 4)[3..]].concat());
    assert!(two.done(other.handle).is_err());
    assert_eq!(two.get(fresh.handle, 8990, 100).unwrap(), content(3, 9000)[8990..]);
    one.done(file.handle).unwrap();
}

#[test]
fn changes_made_while_the_server_is_away_come_from_the_outbox_after_a_restart() {
    let (folder, outbox) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let rig = Rig::start(folder.path(), 0, |_| {});
    let port = rig.address.port();
    let room = Some(Room { folder: outbox.path().to_owned(), bytes: 1 << 20 });
    let options = Options {
        outbox: room,
        waiting: Waiting::Soft(Duration::from_secs(3)),
        dirty_bytes: 64 << 10,
        ..Options::default()
    };
    let volume = rig.open(options.clone());
    let file = volume.file("kept", WRITE).unwrap();
    volume.put(file.handle, 0, b"before ").unwrap();
    volume.flush(file.handle).unwrap();
    drop(rig);
    volume.put(file.handle, 7, b"and after").unwrap();
    let error = volume.flush(file.handle).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    volume.put(file.handle, 0, b"B").unwrap();
    assert!(volume.shutdown().is_empty(), "the outbox has it");
    drop(volume);
    assert_eq!(std::fs::read(folder.path().join("kept")).unwrap(), b"before ");
    let rig = Rig::start(folder.path(), port, |_| {});
    let volume = rig.open(options);
    let file = volume.file("kept", OpenHow::READ).unwrap();
    assert_eq!(volume.get(file.handle, 0, 100).unwrap(), &b"Before and after"[..]);
    assert_eq!(std::fs::read(folder.path().join("kept")).unwrap(), b"Before and after");
    volume.wait(HANG, |volume, done| volume.sync_all(done)).unwrap();
    volume.shutdown();
    drop(volume);
    let left: Vec<_> = std::fs::read_dir(outbox.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".txn")), "{left:?}");
}

#[test]
fn a_volume_that_is_not_there_is_said() {
    let folder = TempDir::new().unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let error =
        RemoteVolume::open(&rig.at(), connection::Config::default(), "other", Options::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let at = rig.at();
    drop(rig);
    let options = Options { open_deadline: Duration::from_millis(200), ..Options::default() };
    let error = RemoteVolume::open(&at, connection::Config::default(), "data", options).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn the_disk_cache_serves_after_a_restart() {
    let (folder, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let whole = content(4, 300_000);
    std::fs::write(folder.path().join("f"), &whole).unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let room = Some(Room { folder: cache.path().to_owned(), bytes: 1 << 20 });
    let options = Options { memory_bytes: 0, cache: room, ..Options::default() };
    for round in 0..3 {
        let volume = rig.open(options.clone());
        let file = volume.file("f", OpenHow::READ).unwrap();
        assert!(volume.get(file.handle, 0, 1 << 20).unwrap() == whole);
        let status = volume.status();
        assert_eq!(round > 0, status.blocks.disk_hits > 0, "{status:?}");
        volume.shutdown();
        drop(volume);
        if round == 1 {
            // Damage is a miss.
            let path = cache.path().join("blocks.cache");
            let mut bytes = std::fs::read(&path).unwrap();
            (10_000..bytes.len()).step_by(9000).for_each(|at| bytes[at] ^= 1);
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn a_small_outbox_keeps_what_fits_and_refuses_the_rest() {
    let (folder, outbox) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let room = Room { folder: outbox.path().to_owned(), bytes: 64 << 10 };
    let options =
        || Options { outbox: Some(room.clone()), waiting: Waiting::Soft(Duration::from_secs(1)), ..Options::default() };
    let rig = Rig::start(folder.path(), 0, |_| {});
    let port = rig.address.port();
    let volume = rig.open(options());
    let opened = volume.file("log", WRITE).unwrap();
    volume.put(opened.handle, 0, b"begun").unwrap();
    volume.flush(opened.handle).unwrap();
    drop(rig);
    while volume.status().connected {
        std::thread::yield_now();
    }
    let taken = (0..40u64).take_while(|block| volume.put(opened.handle, block * 4096, &content(*block, 4096)).is_ok());
    let taken = taken.count() as u64;
    assert!((4..=16).contains(&taken), "{taken} blocks of 4 KiB in 64 KiB");
    assert!(volume.flush(opened.handle).is_err(), "there is no server");
    assert_eq!(volume.shutdown(), Vec::new(), "all that was taken is kept");
    drop(volume);
    let rig = Rig::start(folder.path(), port, |_| {});
    let volume = rig.open(options());
    volume.wait(HANG, |volume, done| volume.sync_all(done)).unwrap();
    let found = std::fs::read(folder.path().join("log")).unwrap();
    let expected: Vec<u8> = (0..taken).flat_map(|block| content(block, 4096)).collect();
    assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
}

#[test]
fn a_file_that_another_device_made_is_found_after_it_was_missed() {
    let folder = TempDir::new().unwrap();
    let rig = Rig::start(folder.path(), 0, |_| {});
    let volume = rig.open(Options { names_ttl: Duration::from_secs(3600), ..Options::default() });
    let looked = |volume: &Arc<RemoteVolume>| volume.wait(HANG, |volume, done| volume.stat(&b"later"[..], done));
    assert_eq!(looked(&volume).unwrap_err().kind(), ErrorKind::NotFound);
    let other = rig.open(Options::default());
    let opened = other.file("later", WRITE).unwrap();
    other.done(opened.handle).unwrap();
    assert_eq!(looked(&volume).unwrap().kind, FileKind::File);
}
