//! Flipped bits between the client and the real server: each connection gets one, anywhere in the
//! stream of either direction. Readers get right bytes or an error, the page cache gets right bytes
//! or nothing, the store gets the image that was sent under the name that was meant, or none.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use store::{Listed, Memory, Store};
use units::{PageId, Rng, SplitMix64, Token};

use super::fake_sink::FakeSink;
use super::real_server::Rig;
use super::tree::Tree;
use super::{HANG, read_page};
use crate::upload::upload;
use crate::{Config, Granularity, Session};
use connection::{Target, Waiting};

/// Flips of each test.
const FLIPS: u64 = 2000;

/// Clients at once: most of their time they wait to connect again.
const CLIENTS: u64 = 24;

/// Silence after which the proxy ends a connection that it damaged. A flipped length makes the
/// receiver wait for bytes that never come, which its deadlines end much later.
const SILENCE: Duration = Duration::from_millis(200);

/// Stands between clients and a server.
struct Proxy {
    address: SocketAddr,
    flips: Arc<AtomicU64>,
}

/// One flip that lies ahead: the direction, the offset in its stream, the bit.
#[derive(Clone, Copy)]
struct Flip {
    to_server: bool,
    offset: u64,
    bit: u32,
}

impl Proxy {
    /// A proxy for `server`. Offsets are log-uniform below `2^bits_max`: as many in the hello as in
    /// all data.
    fn start(server: SocketAddr, seed: u64, bits_max: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let flips = Arc::new(AtomicU64::new(0));
        let count = flips.clone();
        std::thread::spawn(move || {
            let mut rng = SplitMix64(seed);
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { return };
                let below = 1 << rng.below(bits_max + 1);
                let flip = Flip { to_server: rng.below(2) == 0, offset: rng.below(below), bit: rng.below(8) as u32 };
                for (from, to, to_server) in [(&client, &server, true), (&server, &client, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (flip, count) = ((to_server == flip.to_server).then_some(flip), count.clone());
                    std::thread::spawn(move || carry(from, to, flip, &count));
                }
            }
        });
        Proxy { address, flips }
    }

    fn target(&self, name: &str) -> Target {
        Target::parse(&format!("runnel://{}/{name}", self.address)).unwrap()
    }
}

/// Carries one direction until either side closes, or is silent after the flip.
fn carry(mut from: TcpStream, mut to: TcpStream, flip: Option<Flip>, count: &AtomicU64) {
    let mut bytes = vec![0; 64 << 10];
    let mut at = 0;
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(flip) = flip.filter(|flip| (at..at + read as u64).contains(&flip.offset)) {
            bytes[(flip.offset - at) as usize] ^= 1 << flip.bit;
            count.fetch_add(1, Ordering::SeqCst);
            from.set_read_timeout(Some(SILENCE)).unwrap();
        }
        at += read as u64;
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // They may be closed already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A server with the image as "app", another one under each name that a flip can make of it, and a
/// proxy before it.
fn server(tree: &Tree, seed: u64) -> (Rig, Proxy) {
    let store = Memory::new();
    let other = Tree::scattered();
    for at in 0..3 {
        for bit in 0..8 {
            let mut name = *b"app";
            name[at] ^= 1 << bit;
            if let Some(name) =
                std::str::from_utf8(&name).ok().filter(|name| name.bytes().all(|c| c.is_ascii_alphanumeric()))
            {
                store.put_atomic(&format!("{name}.rnl"), &other.bytes).unwrap();
            }
        }
    }
    store.put_atomic("app.rnl", &tree.bytes).unwrap();
    let rig = Rig::start(&store);
    let proxy = Proxy::start(rig.address, seed, 19);
    (rig, proxy)
}

/// A start of a program: pages in an order that no readahead guesses.
fn order() -> impl Iterator<Item = u32> {
    (0..90).map(|i| i * 37 % 101)
}

/// One start through `target`: how many pages were read, and how many came by a push. What could
/// not be read counts as neither.
fn start(target: &Target, tree: &Tree, token: u128, push: bool) -> (usize, usize) {
    let waiting = Waiting::Soft(Duration::from_secs(5));
    let granularity = Granularity::Page;
    let connection = connection::Config { push, ..connection::Config::default() };
    let config = Config { waiting, connection, granularity, connections: 1, ..Config::default() };
    let Ok(session) = Session::open(target, config) else { return (0, 0) };
    assert_eq!(session.metadata().id(), tree.metadata.id(), "another image was opened");
    let sink = Arc::new(FakeSink::default());
    session.attach(sink.clone());
    let mut right = 0;
    for index in order() {
        let page = PageId::new(tree.big(), index);
        if sink.page(page).is_some() {
            continue;
        }
        if let Ok(bytes) = read_page(&session, token, page.inode, index).wait() {
            assert!(bytes == tree.page(page), "wrong bytes of {page}");
            right += 1;
        }
    }
    session.end(Token(token));
    let stored = sink.pages();
    for page in &stored {
        assert!(sink.page(*page).unwrap() == tree.page(*page), "wrong bytes of {page} in the page cache");
    }
    (right, stored.len())
}

/// Starts until all flips were made; then one whole start without any.
fn starts(push: bool, seed: u64) {
    let tree = Tree::plain();
    let (rig, proxy) = server(&tree, seed);
    let direct = Target::parse(&format!("runnel://{}/app", rig.address)).unwrap();
    let mut random = SplitMix64(seed);
    if push {
        // The server needs a few starts to learn one, and a moment.
        let begun = Instant::now();
        while start(&direct, &tree, u128::from(random.next_u64()), true).1 == 0 {
            assert!(begun.elapsed() < HANG, "nothing was ever pushed");
        }
    }
    let totals = Mutex::new((0, 0));
    std::thread::scope(|scope| {
        for client in 1..=CLIENTS {
            let (proxy, tree, totals) = (&proxy, &tree, &totals);
            scope.spawn(move || {
                for run in 0.. {
                    if proxy.flips.load(Ordering::SeqCst) >= FLIPS {
                        return;
                    }
                    let token = u128::from(client) << 64 | run;
                    let (right, pushed) = start(&proxy.target("app"), tree, token, push);
                    let mut totals = totals.lock().unwrap();
                    *totals = (totals.0 + right, totals.1 + pushed);
                }
            });
        }
    });
    let (right, pushed) = totals.into_inner().unwrap();
    let all = start(&direct, &tree, 1 << 100, push);
    assert!(all.0 + all.1 >= order().count(), "the server still serves: {all:?}");
    assert!(right > 0 && (pushed > 0) == push, "{right} pages read, {pushed} pushed");
}

#[test]
fn flips_of_demanded_pages_reach_nobody() {
    starts(false, 1);
}

#[test]
fn flips_of_pushed_pages_reach_nobody() {
    starts(true, 2);
}

/// What the store holds is whole, and only "up" names something.
fn check_store(store: &Memory, sent: &Tree, done: bool) {
    let image = format!("images/{}.rnl", sent.metadata.id());
    let tag = Listed::Folder("tags/up".to_owned());
    for listed in store.list("images").unwrap() {
        assert_eq!(listed, Listed::Object(image.clone()));
        assert!(store.get(&image, u64::MAX >> 1).unwrap() == sent.bytes, "{image} is not what was sent");
    }
    let tags = store.list("tags").unwrap();
    assert!(tags.iter().all(|listed| *listed == tag), "{tags:?}");
    assert!(!done || tags == [tag]);
}

#[test]
fn flips_of_uploads_are_found() {
    let flips = AtomicU64::new(0);
    let tree = Tree::plain();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("up.rnl");
    std::fs::write(&path, &tree.bytes).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (flips, tree, path) = (&flips, &tree, &path);
            scope.spawn(move || {
                for run in 0.. {
                    if flips.load(Ordering::SeqCst) >= FLIPS {
                        return;
                    }
                    let store = Memory::new();
                    let rig = Rig::start(&store);
                    let proxy = Proxy::start(rig.address, client << 32 | run, 19);
                    let Target::Remote(target) = proxy.target("up") else { panic!("remote") };
                    let sent = upload(path, &target, &Config::default(), &mut |_| ());
                    assert!(sent.as_ref().ok().is_none_or(|id| *id == tree.metadata.id()));
                    check_store(&store, tree, sent.is_ok());
                    flips.fetch_add(proxy.flips.load(Ordering::SeqCst), Ordering::SeqCst);
                }
            });
        }
    });
}
