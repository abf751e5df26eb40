//! Opening, reading and demanding; names; limits.

use std::collections::BTreeSet;

use image::{Limits, Metadata};
use store::{Memory, Store};
use units::{BlockId, ImageId, InodeId, PageId, Token};
use wire::format::{FEATURE_PROOFS, FEATURES};
use wire::{ClientConfig, ErrorCode, ImageHandle, Reply, Request, WireError};

use super::client::Client;
use super::rig::{Rig, config, image, noise, program};
use crate::StoreAt;
use crate::catalog::names::{image_key, tag_key};

#[test]
fn an_image_is_opened_and_every_block_and_page_of_it_comes_as_it_is() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |config| config.learning.enabled = false);
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    assert_eq!(client.open("app:latest"), handle, "one handle for one image");
    let all: Vec<PageId> = program(&bytes, 1, 160);
    let mut blocks = BTreeSet::new();
    for page in &all {
        // `pull` checks hash and codec of the block.
        let reply = client.pull(handle, Token(1), *page);
        assert!(matches!(reply, Reply::Block { .. }), "{reply:?}");
        blocks.insert(client.block_of(handle, *page));
    }
    assert_eq!(blocks.len(), client.metadata(handle).block_count() as usize, "every block was asked for");
    for pages in all.chunks(32) {
        let reply =
            client.ask(Request::PullPages { image: handle, token: Token(1), pages: pages.to_vec(), force: false });
        let Reply::Pages { codec, bytes } = reply else { panic!("{reply:?}") };
        let lengths: Vec<usize> = pages.iter().map(|page| client.metadata(handle).page_bytes(*page).unwrap()).collect();
        let mut raw = Vec::new();
        codec::decode(codec::Codec::from_u8(codec).unwrap(), &bytes, lengths.iter().sum(), &mut raw).unwrap();
        let mut rest = raw.as_slice();
        for (page, length) in pages.iter().zip(lengths) {
            client.metadata(handle).verify_page(*page, &rest[..length]).unwrap();
            rest = &rest[length..];
        }
    }
    assert_eq!(rig.metrics.blocks_demanded.get(), 160);
    assert_eq!(rig.metrics.pages_demanded.get(), 160);
    assert_eq!(rig.metrics.pushes_started.get(), 0);
}

#[test]
fn pages_of_a_hole_and_short_pages_are_served_by_page() {
    let bytes = image(1);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let holed = client.metadata(handle).resolve(b"/holed").unwrap();
    let pages: Vec<PageId> = [1, 2, 9, 10, 11].map(|index| PageId::new(holed, index)).to_vec();
    let reply = client.ask(Request::PullPages { image: handle, token: Token(1), pages: pages.clone(), force: false });
    let Reply::Pages { codec, bytes } = reply else { panic!("{reply:?}") };
    let mut raw = Vec::new();
    let total = 4 * 4096 + 5000 - 4096;
    codec::decode(codec::Codec::from_u8(codec).unwrap(), &bytes, total, &mut raw).unwrap();
    for (page, bytes) in pages.iter().zip(raw.chunks(4096)) {
        client.metadata(handle).verify_page(*page, bytes).unwrap();
    }
}

#[test]
fn what_does_not_exist_gives_an_error_that_names_it_and_the_connection_lives_on() {
    let bytes = image(1);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let open = |name: &str| Request::Open { name: name.to_owned() };
    assert!(client.refused(open("nothing"), ErrorCode::NotFound).contains("nothing"));
    assert!(client.refused(open("app:v9"), ErrorCode::NotFound).contains("app:v9"));
    client.refused(open(&format!("@{}", ImageId([3; 32]))), ErrorCode::NotFound);
    client.refused(open("../app"), ErrorCode::BadRequest);
    client.refused(open("@12"), ErrorCode::BadRequest);

    let handle = client.open("app");
    let region = client.metadata(handle).metadata_region();
    let page = PageId::new(client.metadata(handle).resolve(b"/lib/m0.so").unwrap(), 0);
    for (offset, bytes) in [(4095, 2), (region.start - 1, 1), (region.end - 1, 2), (5000, 10)] {
        let text = client.refused(Request::MetaRead { image: handle, offset, bytes }, ErrorCode::BadRequest);
        assert!(text.contains(&offset.to_string()), "{text}");
    }
    let pull = |image, page, block| Request::PullBlock {
        image,
        token: Token(1),
        page,
        block,
        force: false,
        speculative: false,
    };
    assert!(client.refused(pull(handle, page, BlockId(9999)), ErrorCode::NotFound).contains("9999"));
    client.refused(pull(ImageHandle(7), page, BlockId(0)), ErrorCode::BadRequest);
    let outside = PageId::new(InodeId(77), 3);
    assert!(client.refused(pull(handle, outside, BlockId(0)), ErrorCode::BadRequest).contains("77:3"));
    let pages = Request::PullPages { image: handle, token: Token(1), pages: vec![outside], force: false };
    client.refused(pages, ErrorCode::BadRequest);
    assert!(matches!(client.pull(handle, Token(1), page), Reply::Block { .. }));
}

#[test]
fn files_that_cannot_be_served_are_told_once_at_the_start() {
    let store = Memory::new();
    let good = image(1);
    store.put_atomic("good.rnl", &good).unwrap();
    store.put_atomic("short.rnl", &good[..good.len() - 1]).unwrap();
    store.put_atomic("notes.txt", b"no image, and not called one").unwrap();
    store.put_atomic(&image_key(ImageId([7; 32])), b"").unwrap();
    store.put_atomic(&tag_key("app", "lost"), ImageId([9; 32]).to_string().as_bytes()).unwrap();
    store.put_atomic(&tag_key("app", "odd"), b"not an id").unwrap();
    let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = {
        let lines = lines.clone();
        crate::Logger::new(move |level, line: &str| lines.lock().unwrap().push((level, line.to_owned())))
    };
    let rig = Rig::start(crate::Config { log, ..config(StoreAt::Open(std::sync::Arc::new(store))) });
    let mut client = Client::connect(rig.address, 1);
    assert_eq!(client.listing().images.len(), 1);
    let warnings: Vec<String> = lines.lock().unwrap().iter().map(|(_, line)| line.clone()).collect();
    let about = |name: &str| warnings.iter().filter(|line| line.contains(name)).count();
    assert_eq!((about("short.rnl"), about("images/0707"), about("app:lost"), about("app:odd")), (1, 1, 1, 1));
    assert_eq!(warnings.len(), 4, "{warnings:?}");
}

#[test]
fn names_find_tags_ids_and_dropped_files_as_they_are_at_the_time() {
    let (one, two) = (image(1), image(2));
    let id = |bytes: &[u8]| image::Metadata::open(&bytes, &image::Limits::default()).unwrap().id();
    let store = Memory::new();
    let rig = Rig::start(config(StoreAt::Open(std::sync::Arc::new(store.clone()))));
    let mut client = Client::connect(rig.address, 1);
    let opened = |client: &mut Client, name: &str| match client.ask(Request::Open { name: name.to_owned() }) {
        Reply::Opened { id, .. } => id,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(client.listing().images, []);
    store.put_atomic("app.rnl", &one).unwrap();
    assert_eq!(opened(&mut client, "app"), id(&one));
    assert_eq!(opened(&mut client, &format!("@{}", id(&one))), id(&one));
    // The file is replaced while the server runs.
    store.put_atomic("app.rnl", &two).unwrap();
    assert_eq!(opened(&mut client, "app"), id(&two));
    // A tag wins over a dropped file.
    store.put_atomic(&image_key(id(&one)), &one).unwrap();
    store.put_atomic(&tag_key("app", "latest"), format!("{}\n", id(&one)).as_bytes()).unwrap();
    store.put_atomic(&tag_key("app", "v2"), id(&two).to_string().as_bytes()).unwrap();
    store.put_atomic("broken.rnl", b"no image at all").unwrap();
    assert_eq!(opened(&mut client, "app"), id(&one));
    assert_eq!(opened(&mut client, "app:v2"), id(&two), "the tag names an image that was dropped in");
    let listing = client.listing();
    let names: Vec<String> = listing.images.iter().map(|image| format!("{}:{}", image.name, image.tag)).collect();
    assert_eq!(names, ["app:latest"], "neither the broken file nor the hidden one");
    assert_eq!(listing.images[0].file_bytes, one.len() as u64);
    let text = client.refused(Request::Open { name: "broken".to_owned() }, ErrorCode::Corrupt);
    assert!(text.contains("broken"), "{text}");
    // A tag that points nowhere, or holds garbage, is reported as such.
    store.put_atomic(&tag_key("app", "lost"), ImageId([9; 32]).to_string().as_bytes()).unwrap();
    store.put_atomic(&tag_key("app", "odd"), b"not an id").unwrap();
    client.refused(Request::Open { name: "app:lost".to_owned() }, ErrorCode::Corrupt);
    client.refused(Request::Open { name: "app:odd".to_owned() }, ErrorCode::Corrupt);
}

#[test]
fn a_damaged_block_never_becomes_a_page() {
    let mut bytes = image(1);
    let metadata = image::Metadata::open(&bytes, &image::Limits::default()).unwrap();
    let entry = metadata.block(BlockId(0)).unwrap();
    bytes[entry.file_offset as usize + 100] ^= 1;
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let chunk = metadata.block_chunks(BlockId(0)).next().unwrap();
    let page = metadata.chunk_owner(chunk).unwrap();
    let ask = Request::PullPages { image: handle, token: Token(1), pages: vec![page], force: false };
    let text = client.refused(ask, ErrorCode::Corrupt);
    assert!(text.contains("block 0"), "{text}");
    // As a block it goes out as it is: the client checks the hash.
    let ask = client.pull_request(handle, Token(1), page, false);
    let Reply::Block { bytes, .. } = client.ask(ask) else { panic!("no block") };
    assert!(client.metadata(handle).verify_block(BlockId(0), &bytes).is_err());
}

#[test]
fn one_connection_too_many_is_told_that_the_server_is_busy() {
    let (rig, _) = Rig::with_image(&image(1), |config| config.connections.max = 1);
    let mut first = Client::connect(rig.address, 1);
    first.open("app");
    let mut second = Client::connect(rig.address, 2);
    second.until(|_| false);
    match second.closed.take() {
        Some(WireError::Peer { code: ErrorCode::Busy, text }) => assert!(text.contains("later"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.metrics.connections_refused.get(), 1);
    // When the first one leaves there is room again.
    drop(first);
    loop {
        let mut third = Client::connect(rig.address, 3);
        let request = third.request(Request::List);
        third.until(|client| client.has_reply(request));
        if third.closed.is_none() {
            break;
        }
    }
}

#[test]
fn a_client_that_does_not_read_holds_no_more_than_its_share_and_loses_nothing() {
    let bytes = noise(300);
    let limit = 2 << 20;
    let (rig, _) = Rig::with_image(&bytes, |config| {
        config.connections.bytes_max = limit;
        config.learning.enabled = false;
    });
    let mut slow = Client::connect(rig.address, 1);
    let handle = slow.open("app");
    let file = slow.metadata(handle).resolve(b"/noise").unwrap();
    let count = slow.metadata(handle).block_count();
    let requests: Vec<_> = (0..count)
        .map(|block| {
            let page = PageId::new(file, block * 16);
            slow.request(Request::PullBlock {
                image: handle,
                token: Token(1),
                page,
                block: BlockId(block),
                force: false,
                speculative: false,
            })
        })
        .collect();
    slow.send();
    let mut other = Client::connect(rig.address, 2);
    // The server has begun to answer; from here on it must stay within the share however often one
    // looks.
    other.status_until(|status| status["metrics"]["blocks_demanded"].as_u64().unwrap() > 0);
    for _ in 0..200 {
        let held = other.status()["memory"]["replies_bytes"].as_u64().unwrap();
        // One reply more than the limit, and the room of the status reply itself.
        assert!(held as usize <= limit + (64 << 10) + 4096 + wire::format::FRAME_BYTES_MAX_WRITTEN + 4096, "{held}");
    }
    for request in requests {
        let reply = slow.reply(request);
        assert!(matches!(reply, Reply::Block { .. }), "{reply:?}");
    }
    let held = other.status_until(|status| status["memory"]["replies_bytes"].as_u64().unwrap() < 2 << 20);
    assert_eq!(held["metrics"]["blocks_demanded"], u64::from(count));
}

#[test]
fn a_cancelled_request_harms_no_other() {
    let (rig, _) = Rig::with_image(&noise(20), |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let file = client.metadata(handle).resolve(b"/noise").unwrap();
    let ask = client.pull_request(handle, Token(1), PageId::new(file, 0), false);
    let request = client.request(ask);
    client.send();
    client.cancel(request);
    // The wire's client would close the connection on a second answer, and itself keeps the first
    // one back.
    assert!(matches!(client.pull(handle, Token(1), PageId::new(file, 100)), Reply::Block { .. }));
    client.status_until(|status| status["memory"]["replies_bytes"].as_u64().unwrap() < 2 << 20);
    assert!(!client.has_reply(request) && client.closed.is_none());
}

#[test]
fn the_end_of_the_server_is_told_to_its_clients() {
    let (rig, _) = Rig::with_image(&image(1), |_| {});
    let mut client = Client::connect(rig.address, 1);
    client.open("app");
    let waiting = std::thread::spawn(move || {
        client.until(|_| false);
        client.closed.take()
    });
    rig.stop();
    match waiting.join().unwrap() {
        Some(WireError::Peer { code: ErrorCode::Shutdown, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_without_a_word_is_dropped_after_the_deadline() {
    let deadline = std::time::Duration::from_millis(50);
    let (rig, _) = Rig::with_image(&image(1), |config| config.wire.hello_deadline = deadline);
    let mut silent = std::net::TcpStream::connect(rig.address).unwrap();
    silent.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut silent, &mut said).unwrap();
    assert!(!said.is_empty(), "it is told why");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let store = || StoreAt::Open(std::sync::Arc::new(Memory::new()));
    let bind = |change: fn(&mut crate::Config)| {
        let mut config = config(store());
        change(&mut config);
        crate::Server::bind(config).err().map(|error| error.to_string())
    };
    assert!(bind(|_| {}).is_none());
    assert!(bind(|config| config.memory_bytes_max = 1000).is_some_and(|text| text.contains("1000")));
    assert!(bind(|config| config.connections.bytes_max = 5).is_some());
    assert!(bind(|config| config.connections.max = 0).is_some());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(store());
    config.listen = taken.local_addr().unwrap();
    let error = crate::Server::bind(config).err().unwrap().to_string();
    assert!(error.contains(&taken.local_addr().unwrap().to_string()), "{error}");
}

#[test]
fn what_a_mount_needs_comes_before_the_answer_if_the_client_takes_it() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let config = ClientConfig { device: 1, features: FEATURES, ..ClientConfig::default() };
    let mut client = Client::with(rig.address, config);
    let reply = client.ask(Request::Open { name: "app".to_owned() });
    assert!(matches!(reply, Reply::Opened { .. }), "{reply:?}");
    let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
    let mut next = 0;
    for (offset, part) in &client.begun {
        assert_eq!(*offset, next);
        assert_eq!(part[..], bytes[next as usize..][..part.len()]);
        next = if next == 0 { metadata.metadata_region().start } else { next + part.len() as u64 };
    }
    assert_eq!(next, metadata.superblock().hash_region().unwrap().start);
    let superblock = &client.begun[0].1;
    assert!(bytes[superblock.len()..4096].iter().all(|byte| *byte == 0) && superblock.last() != Some(&0));
    // Without proofs, a block can only be verified by the hashes of all.
    let features = FEATURES & !FEATURE_PROOFS;
    let mut without = Client::with(rig.address, ClientConfig { device: 1, features, ..ClientConfig::default() });
    without.ask(Request::Open { name: "app".to_owned() });
    let (offset, last) = without.begun.last().unwrap();
    assert_eq!(offset + last.len() as u64, metadata.chunk_hash_region().start);
    let mut other = Client::connect(rig.address, 1);
    other.open("app");
    assert!(other.begun.is_empty());
}
