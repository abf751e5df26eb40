//! What uploads of strangers can cost: images with two contents, memory of metadata, work for other
//! images' blocks.

use std::sync::Arc;

use image::fixture::{Fixture, Node};
use image::{Limits, Metadata};
use store::{Fault, FaultPlan, Memory, Store};
use units::{PageId, Token};
use wire::{ErrorCode, Reply, Request};

use super::client::Client;
use super::rig::{Rig, config, without_time};
use crate::catalog::image_key;
use crate::upload::{UPLOADS_AT_WORK, UPLOADS_MAX};
use crate::{Server, StoreAt};

/// An image whose file `two` has one content in its block and another in its chunk hashes.
fn two_faced(derive: bool) -> Vec<u8> {
    let mut fixture = Fixture { block_bytes: 4096, ..Fixture::default() };
    fixture.params.derive_hashes = derive;
    fixture.pretended = Some((vec![b'a'; 4096], vec![b'b'; 4096]));
    fixture.pack(&[Node::file(b"one", &[b'1'; 4096]), Node::file(b"two", &[b'a'; 4096])]).unwrap()
}

fn corrupt(reply: Reply) {
    let Reply::Error { code: ErrorCode::Corrupt, text } = reply else { panic!("{reply:?}") };
    assert!(text.contains("contradicts itself"), "{text}");
}

#[test]
fn regress_an_image_with_two_contents_is_refused() {
    for derive in [false, true] {
        let bytes = two_faced(derive);
        let store = Memory::new();
        let rig = Rig::start(config(StoreAt::Open(Arc::new(store.clone()))));
        let mut client = Client::connect(rig.address, 1);
        corrupt(client.upload("app", &bytes).0);
        assert_eq!(store.list("images").unwrap(), []);
        assert_eq!(store.list("tags/app").unwrap(), []);
        assert_eq!(client.status()["uploads_interrupted"], 0, "nor is it kept");

        // One that was put into the folder by hand: nothing is answered of it once a block says
        // otherwise.
        store.put_atomic("app.rnl", &bytes).unwrap();
        let image = client.open("app");
        let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
        let page = |path: &[u8]| PageId::new(metadata.resolve(path).unwrap(), 0);
        let pages = |path| Request::PullPages { image, token: Token(1), pages: vec![page(path)], force: true };
        if derive {
            let hashes = metadata.chunk_hash_region();
            let bytes = (hashes.end - hashes.start) as u32;
            corrupt(client.ask(Request::MetaRead { image, offset: hashes.start, bytes }));
        } else {
            corrupt(client.ask(pages(b"two")));
        }
        for path in [&b"one"[..], b"two"] {
            corrupt(client.ask(pages(path)));
        }
    }
}

/// An image that decodes to megabytes of metadata, told from others by `number`.
fn heavy(number: u64) -> Vec<u8> {
    let mut nodes: Vec<Node> = (0..30_000).map(|i| Node::file(format!("f{i:06}").as_bytes(), b"")).collect();
    nodes.push(Node::file(b"own", &[&number.to_le_bytes()[..], &[7; 9000]].concat()));
    Fixture::default().pack(&nodes).unwrap()
}

#[test]
fn regress_metadata_stays_within_the_memory_and_closed_images_are_opened_again() {
    const IMAGES: u64 = 12;
    let store = Memory::new();
    let mut config = config(StoreAt::Open(Arc::new(store)));
    config.memory_bytes_max = 32 << 20;
    let all = config.shares().metadata as u64;
    // However slow the host is, no run ends and is learned, so that a push brings the page.
    let rig = without_time(|| Rig::start(config));
    let images: Vec<Vec<u8>> = (0..IMAGES).map(heavy).collect();
    let held = Metadata::open(&images[0], &Limits::default()).unwrap().memory_bytes() as u64;
    assert!(IMAGES * held > all + all / 4, "the images of this test are larger than the memory");
    // Each has a connection of its own, all stay.
    let mut clients = Vec::new();
    for (number, bytes) in images.iter().enumerate() {
        assert!(bytes.len() as u64 * 4 < held, "a small upload");
        let name = format!("app{number}");
        let mut client = Client::connect(rig.address, number as u128);
        assert!(matches!(client.upload(&name, bytes).0, Reply::PutDone { .. }));
        let image = client.open(&name);
        let status = client.status();
        assert!(status["memory"]["metadata_bytes"].as_u64().unwrap() <= all, "{}", status["memory"]);
        clients.push((client, image));
    }
    let open = clients[0].0.status()["images"].as_array().unwrap().len() as u64;
    assert!(open < IMAGES, "{open} images are open");
    for _ in 0..2 {
        for (client, image) in &mut clients {
            let page = PageId::new(client.metadata(*image).resolve(b"own").unwrap(), 1);
            let reply = client.pull(*image, Token(1), page);
            assert!(matches!(reply, Reply::Block { .. }), "{reply:?}");
            let status = client.status();
            assert!(status["memory"]["metadata_bytes"].as_u64().unwrap() <= all, "{}", status["memory"]);
        }
    }
}

#[test]
fn regress_uploads_that_lost_their_connection_make_room() {
    let mut config = config(StoreAt::Open(Arc::new(Memory::new())));
    config.memory_bytes_max = 32 << 20;
    let all = config.shares().metadata as u64;
    let rig = Rig::start(config);
    for number in 0..8 {
        let bytes = heavy(number);
        let mut client = Client::connect(rig.address, 1);
        client.put_open("app", &bytes);
        assert!(!client.needed().is_empty());
        drop(client);
        let mut client = Client::connect(rig.address, 2);
        let status = client.status_until(|status| status["metrics"]["uploads_failed"].as_u64() == Some(number + 1));
        assert!(status["memory"]["metadata_bytes"].as_u64().unwrap() <= all, "{}", status["memory"]);
    }
    let bytes = heavy(99);
    assert!(matches!(Client::connect(rig.address, 1).upload("app", &bytes).0, Reply::PutDone { .. }));
}

/// An image of one small file, told from others by `number`.
fn small(number: u64) -> Vec<u8> {
    Fixture::default().pack(&[Node::file(b"f", &number.to_le_bytes())]).unwrap()
}

/// Uploads from addresses of their own, all with their metadata: each waits for its client.
fn idle_uploads(rig: &Rig, count: usize) -> Vec<Client> {
    let begin = |number: u8| {
        let mut client = Client::connect_from([127, 0, 1, number + 1], rig.address, number.into());
        client.put_open(&format!("idle{number}"), &small(number.into()));
        assert!(!client.needed().is_empty());
        client
    };
    (0..count as u8).map(begin).collect()
}

#[test]
fn regress_idle_uploads_keep_nobody_from_pushing() {
    let rig = Rig::start(config(StoreAt::Open(Arc::new(Memory::new()))));
    // More than work at once.
    let mut idle = idle_uploads(&rig, 2 * UPLOADS_AT_WORK);
    let mut next = Client::connect_from([127, 0, 2, 1], rig.address, 100);
    let (reply, _) = next.upload("app", &small(100));
    assert!(matches!(reply, Reply::PutDone { .. }), "{reply:?}");
    // Nobody had to give way for it.
    assert_eq!(next.status()["metrics"]["uploads_failed"], 0);
    assert_eq!(next.status()["uploads_interrupted"], 0);
    for (number, client) in idle.iter_mut().enumerate() {
        let (reply, _) = client.upload(&format!("again{number}"), &small(number as u64));
        assert!(matches!(reply, Reply::PutDone { .. }), "{reply:?}");
    }
}

/// Uploads whose clients send nothing more have all slots. They end when somebody waits, long
/// before their own deadline, and can be gone on with.
#[test]
fn regress_uploads_that_stand_still_give_their_places_to_others() {
    let rig = Rig::start(config(StoreAt::Open(Arc::new(Memory::new()))));
    let idle = idle_uploads(&rig, UPLOADS_MAX);
    let mut next = Client::connect_from([127, 0, 2, 1], rig.address, 100);
    let (reply, _) = next.upload("app", &small(100));
    assert!(matches!(reply, Reply::PutDone { .. }), "{reply:?}");
    next.status_until(|status| status["uploads_interrupted"].as_u64() > Some(0));
    drop(idle);
}

/// The same with all memory for uploads, which few with much metadata take.
#[test]
fn regress_uploads_that_stand_still_give_their_memory_to_others() {
    let mut config = config(StoreAt::Open(Arc::new(Memory::new())));
    config.memory_bytes_max = 32 << 20;
    let rig = Rig::start(config);
    // Each takes most of it.
    let mut idle = Vec::new();
    for number in 0..4 {
        let mut client = Client::connect_from([127, 0, 1, number + 1], rig.address, number.into());
        let request = client.put_open("app", &heavy(number.into()));
        assert!(!client.has_reply(request), "{:?}", client.reply(request));
        assert!(!client.needed().is_empty());
        idle.push(client);
    }
}

#[test]
fn regress_metadata_of_idle_uploads_leaves_memory_for_images() {
    let mut config = config(StoreAt::Open(Arc::new(Memory::new())));
    config.memory_bytes_max = 64 << 20;
    let rig = Rig::start(config);
    let app = heavy(1000);
    assert!(matches!(Client::connect(rig.address, 1).upload("app", &app).0, Reply::PutDone { .. }));
    let mut refused = 0;
    let _idle: Vec<Client> = (0..20)
        .map(|number| {
            let mut client = Client::connect_from([127, 0, 1, 1], rig.address, number);
            let request = client.put_open("idle", &heavy(number as u64));
            refused += u32::from(client.has_reply(request));
            client
        })
        .collect();
    assert!((10..20).contains(&refused), "{refused} of 20 were refused");
    Client::connect_from([127, 0, 2, 1], rig.address, 100).open("app");
    let (reply, _) = Client::connect_from([127, 0, 2, 1], rig.address, 101).upload("new", &heavy(1001));
    assert!(matches!(reply, Reply::PutDone { .. }), "{reply:?}");
}

#[test]
fn regress_a_small_upload_looks_at_few_other_images() {
    let inner = Memory::new();
    for number in 0..300 {
        let bytes = small(number);
        let id = Metadata::open(&bytes, &Limits::default()).unwrap().id();
        inner.put_atomic(&image_key(id), &bytes).unwrap();
    }
    let fault = Fault::new(Arc::new(inner), FaultPlan::default());
    let mut config = config(StoreAt::Open(Arc::new(fault.clone())));
    config.learning.enabled = false;
    let rig = Rig::start(config);
    let mut client = Client::connect(rig.address, 1);
    let before = fault.operations();
    assert!(matches!(client.upload("app", &small(1000)).0, Reply::PutDone { .. }));
    let operations = fault.operations() - before;
    assert!(operations < 300, "{operations} operations of the store");
}

#[test]
fn regress_two_servers_on_one_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = || config(StoreAt::Folder(folder.path().to_owned()));
    let reader = || {
        let mut config = at();
        (config.uploads.from, config.learning.enabled) = (crate::Uploads::Refused, false);
        config
    };
    let first = Server::bind(at()).unwrap();
    for second in [at(), reader()] {
        let error = Server::bind(second).err().expect("refused").to_string();
        assert!(error.contains(&format!("is served by process {}", std::process::id())), "{error}");
    }
    drop(first);
    let readers = [Server::bind(reader()).unwrap(), Server::bind(reader()).unwrap()];
    assert!(Server::bind(at()).is_err());
    drop(readers);
    drop(Server::bind(at()).unwrap());
}
