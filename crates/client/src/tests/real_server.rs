//! The client against the real server: what one run teaches, the next one need not ask for.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use cache::Cache;
use server::{Logger, Server, StoreAt};
use store::{Memory, Store};
use tokio::sync::oneshot;
use units::{PAGE_BYTES, PageId, Token};

use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{HANG, read_page};
use crate::upload::{News, Progress, upload};
use crate::{ClientError, Config, Session, admin};
use connection::{Target, Trust};

pub(super) struct Rig {
    pub address: std::net::SocketAddr,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "certificates are what is read again"))]
    pub reloader: server::Reloader,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    pub fn start(store: &Memory) -> Rig {
        Rig::start_with(store, |_| ())
    }

    pub fn start_with(store: &Memory, change: impl FnOnce(&mut server::Config)) -> Rig {
        let listen = ([127, 0, 0, 1], 0).into();
        let mut config = server::Config {
            log: Logger::silent(),
            ..server::Config::new(StoreAt::Open(Arc::new(store.clone())), listen)
        };
        change(&mut config);
        let server = Server::bind(config).unwrap();
        let (address, reloader) = (server.local_addr(), server.reloader());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(server.run_until(async { drop(stopped.await) })).unwrap();
        });
        Rig { address, reloader, stop: Some(stop), thread: Some(thread) }
    }

    pub fn open(&self, config: Config) -> (Arc<Session>, Arc<FakeSink>) {
        open_at(self.address, config, None).unwrap()
    }
}

/// Opens the image of a server that may be gone.
pub(super) fn open_at(
    address: std::net::SocketAddr,
    config: Config,
    cache: Option<&Arc<Cache>>,
) -> Result<(Arc<Session>, Arc<FakeSink>), ClientError> {
    let target = Target::parse(&format!("runnel://{address}/app")).unwrap();
    let session = Session::open_cached(&target, config, cache)?;
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    Ok((session, sink))
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the server ended in good order");
        }
    }
}

/// A program start: 90 pages, in an order that no readahead guesses.
pub(super) fn order() -> Vec<u32> {
    (0..90).map(|i| i * 37 % 101).collect()
}

/// Reads what the kernel does not have yet, as a program would fault it in.
pub(super) fn run(session: &Session, sink: &FakeSink, tree: &Tree, token: u128) {
    for index in order() {
        let page = PageId::new(tree.big(), index);
        if let Some(bytes) = sink.page(page) {
            assert!(bytes == tree.page(page), "{page} is wrong in the page cache");
            continue;
        }
        assert!(read_page(session, token, page.inode, index).wait().unwrap() == tree.page(page), "{page}");
    }
    session.end(Token(token));
}

#[test]
fn a_learned_start_is_pushed_by_the_real_server() {
    let tree = Arc::new(Tree::plain());
    let store = Memory::new();
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let rig = Rig::start(&store);
    let began = Instant::now();
    let mut token = 1 << 80;
    let mut first_misses = None;
    // Each run is a device of its own with a cold cache. The server needs a few of them, and a
    // moment.
    loop {
        assert!(began.elapsed() < HANG, "nothing was ever pushed");
        token += 1;
        let config = Config { granularity: crate::Granularity::Page, connections: 2, ..Config::default() };
        let (session, sink) = rig.open(config);
        run(&session, &sink, &tree, token);
        let counters = session.counters();
        assert_eq!((counters.reads.read_errors, counters.demand.verify_failures), (0, 0));
        let misses = counters.demand.pages_demanded;
        let first = *first_misses.get_or_insert(misses);
        assert_eq!(first, order().len() as u64, "the first run demands every page");
        if counters.pushes.pages_pushed > 0 && misses < first {
            break;
        }
    }
}

#[test]
fn upload_list_and_status_work_with_the_real_server() {
    let tree = Arc::new(Tree::scattered());
    let store = Memory::new();
    let rig = Rig::start(&store);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    let Ok(Target::Remote(target)) = Target::parse(&format!("runnel://{}/app", rig.address)) else { panic!("remote") };
    for already in [0, tree.metadata.block_count()] {
        let mut last = Progress::default();
        let id = upload(&path, &target, &Config::default(), &mut |news| {
            if let News::Progress(progress) = news {
                last = progress;
            }
        })
        .unwrap();
        assert_eq!((id, last.blocks_present), (tree.metadata.id(), already));
    }
    let listing = admin::list(&target.server, &Trust::default(), HANG).unwrap();
    assert!(listing.contains(&tree.metadata.id().to_string()), "{listing}");
    assert!(admin::status(&target.server, &Trust::default(), HANG).unwrap().contains('{'));
    let (session, _) = rig.open(Config::default());
    for (inode, contents) in &tree.files {
        let bytes = contents.len().next_multiple_of(PAGE_BYTES) as u32;
        assert_eq!(super::read(&session, 5, *inode, 0, bytes).wait().as_ref(), Ok(contents));
    }
}
