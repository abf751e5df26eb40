//! Panics that are injected through what the server is given, its store and its log: each ends what
//! it happened in, and no more.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use image::{Limits, Metadata};
use store::{Memory, Store};
use units::{BlockId, PageId, Token};
use wire::volume::{LeaseKind, VolumeAsk, VolumeReply};
use wire::{ClientConfig, ErrorCode, PushEndReason, Reply, Request};

use super::bundles::wants_lz4;
use super::client::Client;
use super::hooked::{Hooked, Operation};
use super::learning::{bundles, teach};
use super::rig::{Rig, config, image, noise, program};
use crate::{Level, Logger, StoreAt, VolumeConfig};

/// A server whose store panics when `panics` says so.
fn rig(
    image: &[u8],
    panics: impl Fn(&str, Operation) -> bool + Send + Sync + 'static,
    change: impl FnOnce(&mut crate::Config),
) -> Rig {
    let memory = Memory::new();
    memory.put_atomic("app.rnl", image).unwrap();
    let hook = move |key: &str, operation| assert!(!panics(key, operation), "injected: {operation:?} of {key}");
    let mut config = config(StoreAt::Open(Arc::new(Hooked::new(memory, hook))));
    change(&mut config);
    Rig::start(config)
}

#[test]
fn a_panic_of_a_reader_is_an_error_of_its_request_and_gives_back_what_it_held() {
    let bytes = noise(8);
    let metadata = Metadata::open(&bytes.as_slice(), &Limits::default()).unwrap();
    let bad = metadata.block(BlockId(3)).unwrap().file_offset;
    let panics = move |key: &str, operation| key == "app.rnl" && operation == Operation::Read { offset: bad };
    let rig = rig(&bytes, panics, |config| {
        (config.work.reads_max, config.work.builds_max) = (1, 1);
        config.memory_bytes_max = 32 << 20;
    });
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let file = metadata.resolve(b"/noise").unwrap();
    // Three hundred blocks are more than all replies may hold.
    for _ in 0..300 {
        let ask = client.pull_request(handle, Token(5), PageId::new(file, 3 * 16), true);
        client.refused(ask, ErrorCode::Internal);
    }
    assert!(matches!(client.pull(handle, Token(5), PageId::new(file, 0)), Reply::Block { .. }));
    // A push of which a piece cannot be built ends, and the next one comes.
    client.hint(handle, Token(77), &(48..64).map(|index| PageId::new(file, index)).collect::<Vec<_>>());
    let wanted: Vec<PageId> = (64..96).map(|index| PageId::new(file, index)).collect();
    let deadline = std::time::Instant::now();
    while client.streams.is_empty() {
        client.hint(handle, Token(77), &wanted);
        client.status();
        assert!(deadline.elapsed().as_secs() < 60, "nothing is pushed");
    }
    assert_eq!(rig.metrics.connections.get(), 1);
}

#[test]
fn a_panic_of_a_session_ends_its_connection_and_frees_what_it_held() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (sink, armed) = (lines.clone(), Arc::new(AtomicBool::new(true)));
    // Sessions say themselves that a request failed.
    let log = Logger::new(move |level, line| {
        assert!(!(line.starts_with("a request failed") && armed.swap(false, Ordering::SeqCst)), "injected: {line}");
        if level == Level::Warning {
            sink.lock().unwrap().push(line.to_owned());
        }
    });
    let bytes = noise(8);
    let metadata = Metadata::open(&bytes.as_slice(), &Limits::default()).unwrap();
    let bad = metadata.block(BlockId(3)).unwrap().file_offset;
    let panics = move |key: &str, operation| key == "app.rnl" && operation == Operation::Read { offset: bad };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"bytes").unwrap();
    let volume = VolumeConfig { writable: true, ..VolumeConfig::new("data", folder.path()) };
    let rig = rig(&bytes, panics, |config| {
        config.log = log;
        config.volumes = vec![volume];
    });
    let anonymous = || Client::with(rig.address, ClientConfig { device: 0, ..ClientConfig::default() });
    let (mut unlucky, mut other) = (anonymous(), anonymous());
    let (handle, theirs) = (unlucky.open("app"), other.open("app"));
    let lease = |client: &mut Client| {
        let opened = client.ask(Request::VolumeOpen { name: "data".to_owned() });
        let Reply::VolumeOpened { volume, id, nonce, .. } = opened else { panic!("{opened:?}") };
        let enrolled = client.ask(Request::Volume { volume, ask: VolumeAsk::Enrol });
        let Reply::Volume(VolumeReply::Enrolled { number, secret }) = enrolled else { panic!("{enrolled:?}") };
        let ask = VolumeAsk::Prove { number, proof: secret.proof(id, nonce, number), previous: 0 };
        // Refused the second time, since the handle has its device.
        client.ask(Request::Volume { volume, ask });
        let stat = Request::Volume { volume, ask: VolumeAsk::FileStat { path: b"file".to_vec() } };
        let reply = client.ask(stat);
        let Reply::Volume(VolumeReply::Attributes(info)) = reply else { panic!("{reply:?}") };
        let kind = Some(LeaseKind::Exclusive);
        client
            .ask(Request::Volume { volume, ask: VolumeAsk::Lease { file: info.seen.file, kind, duration_ms: 600_000 } })
    };
    assert!(matches!(lease(&mut unlucky), Reply::Volume(VolumeReply::Leased { .. })));
    assert!(matches!(lease(&mut other), Reply::Error { code: ErrorCode::Leased, .. }));
    let file = metadata.resolve(b"/noise").unwrap();
    let ask = unlucky.pull_request(handle, Token(5), PageId::new(file, 3 * 16), true);
    unlucky.request(ask);
    unlucky.until(|_| false);
    assert!(unlucky.closed.is_some());
    other.status_until(|status| status["connections"] == 1 && status["metrics"]["connections_failed"] == 1);
    // The lease goes soon after its last connection.
    while !matches!(lease(&mut other), Reply::Volume(VolumeReply::Leased { .. })) {}
    assert!(matches!(other.pull(theirs, Token(5), PageId::new(file, 0)), Reply::Block { .. }));
    let lines = lines.lock().unwrap();
    let told: Vec<_> = lines.iter().filter(|line| line.contains("connection closed")).collect();
    assert!(told.len() == 1 && told[0].starts_with("127.0.0.1:") && told[0].contains("injected"), "{lines:?}");
}

#[test]
fn a_panic_of_an_upload_is_its_error_and_leaves_its_place() {
    let failing = Arc::new(AtomicBool::new(true));
    let armed = failing.clone();
    let panics = move |_: &str, operation| operation == Operation::Create && armed.load(Ordering::SeqCst);
    let rig = rig(&image(1), panics, |config| config.learning.enabled = false);
    let mut client = Client::connect(rig.address, 1);
    for _ in 0..2 * crate::upload::UPLOADS_MAX {
        let (reply, _) = client.upload("new", &image(2));
        assert!(matches!(reply, Reply::Error { code: ErrorCode::Internal, .. }), "{reply:?}");
    }
    failing.store(false, Ordering::SeqCst);
    let (reply, _) = client.upload("new", &image(2));
    assert!(matches!(reply, Reply::PutDone { .. }), "{reply:?}");
}

#[test]
fn panics_of_upkeep_and_of_the_thread_that_makes_bundles_cost_one_round_and_one_bundle() {
    let bytes = image(4);
    let (saves, opens) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (saved, opened) = (saves.clone(), opens.clone());
    let panics = move |key: &str, operation| {
        let first = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::SeqCst) == 0;
        let bundle = operation == Operation::Open && key.starts_with("bundles/");
        operation == Operation::Create && first(&saved) || bundle && first(&opened)
    };
    let rig = rig(&bytes, panics, |_| {});
    let (_client, _) = teach(&rig, 1, &program(&bytes, 3, 60));
    let mut client = Client::connect(rig.address, 2);
    client.status_until(|_| saves.load(Ordering::SeqCst) > 0);
    // What is learned next is saved, and gets its bundle.
    let mut seed = 10;
    while bundles(&client.status()) == 0 {
        seed += 1;
        assert!(seed < 60, "no bundle is made any more");
        let (learned, before) = (program(&bytes, seed, 60), opens.load(Ordering::SeqCst));
        let mut device = Client::connect(rig.address, 100 + u128::from(seed));
        let handle = device.open("app");
        device.run(handle, Token(seed.into()), &learned);
        device.end(handle, Token(seed.into()));
        client.status_until(|_| opens.load(Ordering::SeqCst) > before);
    }
}

#[test]
fn regress_a_bundle_is_not_made_anew_for_a_block_of_the_image_that_cannot_be_read() {
    let bytes = image(60);
    let metadata = Metadata::open(&bytes.as_slice(), &Limits::default()).unwrap();
    let all = program(&bytes, 5, 100);
    let block =
        |page: &PageId| metadata.chunk(metadata.page_chunks(*page).unwrap().chunks().next().unwrap()).unwrap().block;
    // One page of the second piece is not in a block that the Provider holds.
    let held: Vec<BlockId> = all[..32].iter().map(block).collect();
    let (lacks, has): (Vec<PageId>, Vec<PageId>) = all[32..64].iter().partition(|page| !held.contains(&block(page)));
    let bad = metadata.block(block(&lacks[0])).unwrap().file_offset;
    let armed = Arc::new(AtomicBool::new(false));
    let arms = armed.clone();
    let hook = move |key: &str, operation| {
        let reads = key == "app.rnl" && operation == (Operation::Read { offset: bad });
        assert!(!(reads && arms.load(Ordering::SeqCst)), "injected");
    };
    let memory = Memory::new();
    memory.put_atomic("app.rnl", &bytes).unwrap();
    let store = Hooked::new(memory, hook);
    let start = || {
        let mut config = config(StoreAt::Open(Arc::new(store.clone())));
        config.learning.provider_threshold = 1.0;
        Rig::start(config)
    };
    let rig = start();
    let (mut first, _) = teach(&rig, 1, &all);
    first.status_until(|status| bundles(status) == 1 && status["bundles_waiting"] == 0);
    rig.stop();

    let rig = start();
    armed.store(true, Ordering::SeqCst);
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    wants_lz4(&mut client);
    // The device has all others of the piece, so that this one is compressed by itself.
    client.touch(handle, Token(0), &[&has[..], &lacks[1..]].concat());
    client.pull(handle, Token(2), all[0]);
    client.until(|client| client.streams.values().any(|stream| stream.end == Some(PushEndReason::Failed)));
    assert_eq!((rig.metrics.pushes_from_bundle.get(), rig.metrics.bundles_failed.get()), (1, 0));
}
