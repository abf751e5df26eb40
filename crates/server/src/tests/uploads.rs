//! Uploads: the round trip, what is sent and what not, and what a failure at any point leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use image::fixture::{Fixture, Node};
use image::{Limits, Metadata};
use store::{Fault, FaultKind, FaultPlan, Listed, Memory, Store};
use units::{BlockId, ImageId, PageId, Token};
use wire::{ErrorCode, Reply, Request};

use super::client::Client;
use super::hooked::{Hooked, Operation};
use super::rig::{Rig, config, image, nodes};
use crate::StoreAt;
use crate::catalog::names::{Names, image_key, tag_key};

fn id(image: &[u8]) -> ImageId {
    Metadata::open(&image, &Limits::default()).unwrap().id()
}

/// The image that a tag of the store stands for, every byte of it checked.
fn resolve(store: &dyn Store, name: &str, tag: &str) -> ImageId {
    let text = String::from_utf8(store.get(&tag_key(name, tag), 100).unwrap()).unwrap();
    let id = ImageId::from_hex(text.trim()).unwrap();
    let bytes = store.get(&image_key(id), 1 << 30).unwrap();
    let checked = image::check(&bytes, &Limits::default(), &mut |_, _| {});
    assert!(checked.is_ok(), "image {id} is damaged: {:?}", checked.err());
    assert_eq!(Metadata::open(&bytes, &Limits::default()).unwrap().id(), id);
    id
}

fn objects(store: &dyn Store, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in store.list(folder).unwrap() {
        match entry {
            Listed::Object(key) => found.push(key),
            Listed::Folder(key) => found.extend(objects(store, &key)),
        }
    }
    found
}

fn quiet(store: Arc<dyn Store>) -> crate::Config {
    let mut config = config(StoreAt::Open(store));
    config.learning.enabled = false;
    config
}

#[test]
fn an_uploaded_image_is_published_and_served_and_sent_only_once() {
    let bytes = image(3);
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(config(StoreAt::Folder(folder.path().to_owned())));
    let mut client = Client::connect(rig.address, 1);
    let (reply, sent) = client.upload("python:v1", &bytes);
    assert_eq!(reply, Reply::PutDone { id: id(&bytes) });
    let count = Metadata::open(&bytes, &Limits::default()).unwrap().block_count();
    assert_eq!(sent.len(), count as usize);
    assert_eq!(client.progress, bytes.len() as u64, "every byte was reported as stored");
    assert_eq!(std::fs::read(folder.path().join(image_key(id(&bytes)))).unwrap(), bytes);
    assert_eq!(std::fs::read_to_string(folder.path().join("tags/python/v1")).unwrap().trim(), id(&bytes).to_string());

    let handle = client.open("python:v1");
    let page = PageId::new(client.metadata(handle).resolve(b"/lib/m1.so").unwrap(), 3);
    assert!(matches!(client.pull(handle, Token(1), page), Reply::Block { .. }));
    // A second name for the same image needs no block.
    let (reply, sent) = client.upload("python:v2", &bytes);
    assert_eq!(reply, Reply::PutDone { id: id(&bytes) });
    assert_eq!(sent, []);
    let names: Vec<String> = client.listing().images.into_iter().map(|image| image.tag).collect();
    assert_eq!(names, ["v1", "v2"]);
    assert_eq!(rig.metrics.uploads.get(), 2);
}

#[test]
fn only_blocks_that_no_other_image_holds_are_sent() {
    let store = Memory::new();
    let old = image(3);
    let mut changed = nodes(3);
    changed.push(Node::file(b"new", &[7; 9000]));
    let new = Fixture::default().pack(&changed).unwrap();
    // The old image was dropped into the folder, not uploaded.
    store.put_atomic("old.rnl", &old).unwrap();
    let rig = Rig::start(quiet(Arc::new(store.clone())));
    let mut client = Client::connect(rig.address, 1);
    let (reply, sent) = client.upload("new", &new);
    assert_eq!(reply, Reply::PutDone { id: id(&new) });
    let hashes = |bytes: &[u8]| {
        let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
        (0..metadata.block_count()).map(|block| metadata.block_hash(BlockId(block)).unwrap()).collect::<Vec<_>>()
    };
    let known = hashes(&old);
    let expected: Vec<BlockId> = hashes(&new)
        .iter()
        .enumerate()
        .filter(|(_, hash)| !known.contains(hash))
        .map(|(block, _)| BlockId(block as u32))
        .collect();
    assert_eq!(sent, expected);
    assert!(sent.len() < hashes(&new).len() / 2, "most blocks are shared");
    assert_eq!(resolve(&store, "new", "latest"), id(&new));
    assert!(rig.metrics.upload_bytes_copied.get() > 0);
}

#[test]
fn an_upload_that_lost_its_connection_goes_on_where_it_stopped() {
    let bytes = image(4);
    let store = Memory::new();
    let rig = Rig::start(quiet(Arc::new(store.clone())));
    let mut client = Client::connect(rig.address, 1);
    let request = client.put_open("app", &bytes);
    let needed = client.needed();
    client.send_blocks(request, &bytes, &needed[..3]);
    let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
    let three: u64 = needed[..3].iter().map(|block| u64::from(metadata.block(*block).unwrap().stored_bytes)).sum();
    let region = metadata.metadata_region();
    client.until(|client| client.progress == 4096 + (region.end - region.start) + three);
    drop(client);
    let mut client = Client::connect(rig.address, 1);
    client.status_until(|status| status["uploads_interrupted"] == 1);
    assert_eq!(objects(&store, ""), Vec::<String>::new(), "nothing is published");

    let (reply, sent) = client.upload("app", &bytes);
    assert_eq!(reply, Reply::PutDone { id: id(&bytes) });
    assert_eq!(sent, needed[3..]);
    assert_eq!(resolve(&store, "app", "latest"), id(&bytes));
    assert_eq!(client.status()["uploads_interrupted"], 0);
}

#[test]
fn an_interrupted_upload_is_not_kept_for_ever() {
    let bytes = image(2);
    let mut config = quiet(Arc::new(Memory::new()));
    config.uploads.kept = std::time::Duration::ZERO;
    let rig = Rig::start(config);
    let mut client = Client::connect(rig.address, 1);
    client.put_open("app", &bytes);
    let needed = client.needed().len();
    drop(client);
    let mut client = Client::connect(rig.address, 1);
    client.status_until(|status| status["metrics"]["uploads_failed"] == 1 && status["uploads_interrupted"] == 0);
    assert_eq!(client.upload("app", &bytes).1.len(), needed);
}

#[test]
fn two_servers_that_switch_a_tag_at_once_both_do() {
    let (memory, quicker) = (Memory::new(), AtomicU8::new(0));
    let other = memory.clone();
    // Three times another server is quicker.
    let store = Hooked::new(memory.clone(), move |key, operation| {
        if operation == Operation::PutIf && quicker.fetch_add(1, Ordering::SeqCst) < 3 {
            other.put_atomic(key, format!("{}\n", ImageId([1; 32])).as_bytes()).unwrap();
        }
    });
    let names = Names::new(Arc::new(store), Limits::default(), crate::Logger::silent());
    names.set_tag("app", "latest", ImageId([2; 32])).unwrap();
    assert_eq!(names.tag("app", "latest").unwrap(), Some(ImageId([2; 32])));
    // One that never gets its turn gives up.
    let other = memory.clone();
    let store = Hooked::new(memory.clone(), move |key, operation| {
        if operation == Operation::PutIf {
            other.put_atomic(key, format!("{}\n", ImageId([3; 32])).as_bytes()).unwrap();
        }
    });
    let names = Names::new(Arc::new(store), Limits::default(), crate::Logger::silent());
    assert!(names.set_tag("app", "latest", ImageId([4; 32])).is_err_and(|error| error.is_changed()));
    assert_eq!(names.tag("app", "latest").unwrap(), Some(ImageId([3; 32])));
}

/// Uploads `new` over `old` on a store that fails as planned. Returns the store as it is found
/// afterwards, the number of operations, and the server's answer.
fn upload_with_fault(old: &[u8], new: &[u8], plan: FaultPlan) -> (Memory, u64, Option<Reply>) {
    let inner = Memory::new();
    inner.put_atomic(&image_key(id(old)), old).unwrap();
    inner.put_atomic(&tag_key("app", "latest"), id(old).to_string().as_bytes()).unwrap();
    let fault = Fault::new(Arc::new(inner.clone()), plan);
    let rig = Rig::start(quiet(Arc::new(fault.clone())));
    let mut client = Client::connect(rig.address, 1);
    let request = client.put_open("app", new);
    if !client.has_reply(request) {
        let needed = client.needed();
        client.send_blocks(request, new, &needed);
        client.put_commit(request);
    }
    client.until(|client| client.has_reply(request));
    let reply = client.has_reply(request).then(|| client.reply(request));
    drop(client);
    rig.stop();
    (inner, fault.operations(), reply)
}

#[test]
fn a_fault_at_every_store_operation_of_an_upload_leaves_the_tag_on_an_intact_image() {
    let old = image(1);
    let mut changed = nodes(1);
    changed.push(Node::file(b"new", &[7; 300_000]));
    let new = Fixture::default().pack(&changed).unwrap();
    let (clean, operations, reply) = upload_with_fault(&old, &new, FaultPlan::default());
    assert_eq!(reply, Some(Reply::PutDone { id: id(&new) }));
    assert_eq!(resolve(&clean, "app", "latest"), id(&new));
    assert!(operations > 10, "{operations}");

    let kinds =
        [FaultKind::Error, FaultKind::ShortWrite, FaultKind::Full, FaultKind::CrashBefore, FaultKind::CrashAfter];
    for kind in kinds {
        let mut kept = 0;
        for operation in 0..operations {
            let plan = FaultPlan { at: Some((operation, kind)), ..FaultPlan::default() };
            let (store, _, reply) = upload_with_fault(&old, &new, plan);
            let found = resolve(&store, "app", "latest");
            let done = matches!(reply, Some(Reply::PutDone { .. }));
            assert!(!done || found == id(&new), "{kind:?} at {operation}: told done, but the tag is on {found}");
            assert!(found == id(&old) || found == id(&new), "{kind:?} at {operation}");
            kept += usize::from(found == id(&old));
            // Whatever the fault left, the next server publishes the image.
            let crashed = matches!(kind, FaultKind::CrashBefore | FaultKind::CrashAfter);
            if !done && !crashed {
                let images = objects(&store, "images");
                assert_eq!(images, [image_key(id(&old))], "{kind:?} at {operation}: something was left behind");
            }
            if kind == FaultKind::Full && !done {
                match reply {
                    Some(Reply::Error { code: ErrorCode::NoSpace, text }) => {
                        assert!(text.contains("no room"), "{text}")
                    }
                    other => panic!("full at {operation}: {other:?}"),
                }
            }
            let rig = Rig::start(quiet(Arc::new(store.clone())));
            let (reply, _) = Client::connect(rig.address, 1).upload("app", &new);
            assert_eq!(reply, Reply::PutDone { id: id(&new) }, "{kind:?} at {operation}");
            assert_eq!(resolve(&store, "app", "latest"), id(&new));
        }
        assert!(kept > operations as usize / 2, "{kind:?}: the faults came too late to prove anything");
    }
}

#[test]
fn uploads_that_cannot_become_an_image_are_refused_before_they_cost_anything() {
    let bytes = image(1);
    let (rig, _) = Rig::with_image(&bytes, |config| config.uploads.bytes_max = 1 << 20);
    let mut client = Client::connect(rig.address, 1);
    let open = |name: &str, file_bytes, metadata_offset, metadata_bytes| Request::PutOpen {
        name: name.to_owned(),
        file_bytes,
        metadata_offset,
        metadata_bytes,
    };
    client.refused(open("../x", 10_000, 4096, 5904), ErrorCode::BadRequest);
    client.refused(open(&format!("@{}", id(&bytes)), 10_000, 4096, 5904), ErrorCode::BadRequest);
    let text = client.refused(open("big", 2 << 20, 4096, (2 << 20) - 4096), ErrorCode::TooLarge);
    assert!(text.contains(&(2 << 20).to_string()), "{text}");
    client.refused(open("odd", 10_000, 4096, 100), ErrorCode::BadRequest);
    client.refused(open("odd", 10_000, 100, 9900), ErrorCode::BadRequest);

    let (rig, _) = Rig::with_image(&bytes, |config| config.uploads.from = crate::Uploads::Refused);
    let mut client = Client::connect(rig.address, 1);
    client.refused(open("app", 10_000, 4096, 5904), ErrorCode::Forbidden);
    client.open("app");
}

#[test]
fn a_wrong_block_or_wrong_metadata_ends_the_upload_and_leaves_nothing() {
    let bytes = image(1);
    let store = Memory::new();
    let rig = Rig::start(quiet(Arc::new(store.clone())));
    let mut client = Client::connect(rig.address, 1);
    let request = client.put_open("app", &bytes);
    let entry = Metadata::open(&bytes, &Limits::default()).unwrap().block(BlockId(0)).unwrap();
    client.put_block(request, BlockId(0), Bytes::from(vec![1; entry.stored_bytes as usize]));
    let reply = client.reply(request);
    let Reply::Error { code: ErrorCode::Corrupt, text } = reply else { panic!("{reply:?}") };
    assert!(text.contains("block 0"), "{text}");

    let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
    let region = metadata.metadata_region();
    let mut damaged = bytes.clone();
    damaged[region.start as usize + 50] ^= 4;
    let request = client.request(Request::PutOpen {
        name: "app".to_owned(),
        file_bytes: bytes.len() as u64,
        metadata_offset: region.start,
        metadata_bytes: region.end - region.start,
    });
    client.put_meta(request, &damaged, 0..4096);
    client.put_meta(request, &damaged, region);
    let reply = client.reply(request);
    assert!(matches!(reply, Reply::Error { code: ErrorCode::Corrupt, .. }), "{reply:?}");
    assert_eq!(objects(&store, ""), Vec::<String>::new());
    assert_eq!(client.status()["uploads_interrupted"], 0);
    // The connection is as good as before.
    assert_eq!(client.upload("app", &bytes).0, Reply::PutDone { id: id(&bytes) });
}

#[test]
fn two_uploads_at_once_do_not_mix() {
    let images = [image(2), image(3)];
    let store = Memory::new();
    let rig = Rig::start(quiet(Arc::new(store.clone())));
    let address = rig.address;
    let threads: Vec<_> = images
        .iter()
        .cloned()
        .enumerate()
        .map(|(number, bytes)| {
            std::thread::spawn(move || {
                Client::connect(address, number as u128).upload(&format!("app{number}"), &bytes).0
            })
        })
        .collect();
    for (number, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), Reply::PutDone { id: id(&images[number]) });
        assert_eq!(resolve(&store, &format!("app{number}"), "latest"), id(&images[number]));
    }
}
