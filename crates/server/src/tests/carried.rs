//! What a new image takes over: of the version before it, and of other images.

use std::sync::Arc;

use image::fixture::{Body, Fixture, Node, Part};
use image::{Limits, Metadata};
use profile::{ActionSet, MergeConfig};
use serde_json::Value;
use store::{Memory, Store};
use units::{ImageId, PageId, Rng, SplitMix64, Token};
use wire::Reply;

use super::client::Client;
use super::learning::{actions, set, teach, without_bundles};
use super::rig::{Rig, config, image, nodes, program};
use crate::{Config, StoreAt};

fn opened(bytes: &[u8]) -> Metadata {
    Metadata::open(&bytes, &Limits::default()).unwrap()
}

/// The usual tree after an update: one library has other contents, another has some new pages in
/// front, and a file more shifts the numbers of all others.
fn updated(files: u64) -> Vec<Node> {
    let mut rng = SplitMix64(77);
    let mut noise = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| rng.below(250) as u8).collect() };
    let mut nodes = nodes(files);
    for node in &mut nodes {
        let Body::File(parts) = &mut node.body else { continue };
        match (&node.path[..], parts.first_mut()) {
            (b"lib/m1.so", Some(Part::Data(bytes))) => *bytes = noise(bytes.len()),
            (b"lib/m2.so", Some(Part::Data(bytes))) => {
                bytes.splice(8 * 4096..8 * 4096, noise(3 * 4096));
            }
            _ => {}
        }
    }
    nodes.insert(0, Node::file(b"a-new-file", &noise(5000)));
    nodes
}

/// The same program after the update.
fn moved(program: &[PageId], old: &Metadata, new: &Metadata) -> Vec<PageId> {
    let page = |page: &PageId| {
        let path = old.path(page.inode).unwrap();
        let shift = if path == b"/lib/m2.so" && page.index >= 8 { 3 } else { 0 };
        PageId::new(new.resolve(&path).unwrap(), page.index + shift)
    };
    program.iter().map(page).collect()
}

fn store_config(store: &Memory) -> Config {
    let mut config = config(StoreAt::Open(Arc::new(store.clone())));
    without_bundles(&mut config);
    config
}

/// Starts a program of which nothing was learned; its pages are pushed after one demand.
fn is_pushed_at_once(rig: &Rig, name: &str, program: &[PageId]) {
    let mut client = Client::connect(rig.address, 9);
    let handle = client.open(name);
    client.status_until(|status| actions(status) >= 1);
    assert!(matches!(client.pull(handle, Token(9), program[0]), Reply::Block { .. }));
    client.until(|client| set(program).is_subset(&client.have));
}

#[test]
fn an_update_under_the_same_tag_starts_as_if_learned() {
    let (old, new) = (image(4), Fixture::default().pack(&updated(4)).unwrap());
    let program = program(&old, 5, 100);
    let store = Memory::new();
    let rig = Rig::start(store_config(&store));
    let mut uploader = Client::connect(rig.address, 7);
    uploader.upload("app", &old);
    let (mut client, _) = teach(&rig, 1, &program);
    client.status_until(|status| status["metrics"]["learned_saved"].as_u64() > Some(0));
    uploader.upload("app", &new);
    let (old, new) = (opened(&old), opened(&new));
    assert!(store.get(&crate::learned::key(new.id()), 1 << 20).is_ok(), "before anybody opens it");
    rig.stop();
    let rig = Rig::start(store_config(&store));
    let program = moved(&program, &old, &new);
    is_pushed_at_once(&rig, "app", &program);
    assert_eq!(rig.metrics.pages_pushed.get(), program.len() as u64 - 1, "and nothing else");
}

#[test]
fn an_update_has_its_bundle_before_anybody_opens_it() {
    let (old, new) = (image(4), Fixture::default().pack(&updated(4)).unwrap());
    let program = program(&old, 5, 100);
    let rig = Rig::start(config(StoreAt::Open(Arc::new(Memory::new()))));
    let mut client = Client::connect(rig.address, 7);
    client.upload("app", &old);
    drop(teach(&rig, 1, &program));
    client.status_until(|status| status["images"][0]["bundles"] == 1);
    client.upload("app", &new);
    let (old, new) = (opened(&old), opened(&new));
    let id = new.id().to_string();
    let images = |status: &Value| status["images"].as_array().cloned().unwrap_or_default();
    client.status_until(|status| images(status).iter().any(|image| image["id"] == *id && image["bundles"] == 1));
    let before = rig.metrics.pushes_from_bundle.get();
    is_pushed_at_once(&rig, "app", &moved(&program, &old, &new));
    assert_eq!(rig.metrics.pushes_from_bundle.get(), before + 1);
}

#[test]
fn regress_an_update_has_the_bundles_of_all_programs_that_begin_alike() {
    let (old, new) = (image(24), Fixture::default().pack(&updated(24)).unwrap());
    let all = program(&old, 5, 400);
    let store = Memory::new();
    store.put_atomic("app.rnl", &old).unwrap();
    let mut actions = ActionSet::new(opened(&old).id());
    for program in all[1..].chunks(80) {
        let run = [&all[..1], program].concat();
        let action = actions.learn(&run, &MergeConfig::default()).action.unwrap();
        // A second start.
        actions.credit(action);
    }
    store.put_atomic(&crate::learned::key(actions.image()), &actions.encode()).unwrap();
    let rig = Rig::start(config(StoreAt::Open(Arc::new(store))));
    let mut client = Client::connect(rig.address, 7);
    client.upload("app", &new);
    let id = opened(&new).id().to_string();
    let images = |status: &Value| status["images"].as_array().cloned().unwrap_or_default();
    client.status_until(|status| images(status).iter().any(|image| image["id"] == *id && image["bundles"] == 5));
}

#[test]
fn an_update_has_the_actions_that_travel_with_it_beside_those_of_the_version_before() {
    let old = image(4);
    let rig = Rig::start(store_config(&Memory::new()));
    let mut uploader = Client::connect(rig.address, 7);
    uploader.upload("app", &old);
    let (mut client, _) = teach(&rig, 1, &program(&old, 5, 100));
    client.status_until(|status| status["metrics"]["learned_saved"].as_u64() > Some(0));
    let new = opened(&Fixture::default().pack(&updated(4)).unwrap());
    let other = moved(&program(&old, 6, 100), &opened(&old), &new);
    let mut packed = ActionSet::new(ImageId::default());
    packed.learn(&other, &MergeConfig::default());
    let fixture = Fixture { profile: Some(packed.encode()), ..Fixture::default() };
    uploader.upload("app", &fixture.pack(&updated(4)).unwrap());
    is_pushed_at_once(&rig, "app", &other);
}

#[test]
fn an_image_with_the_same_files_starts_as_the_other_did() {
    let (old, new) = (image(4), Fixture::default().pack(&updated(4)).unwrap());
    let program = program(&old, 5, 100);
    let (rig, store) = Rig::with_image(&old, without_bundles);
    let (mut client, _) = teach(&rig, 1, &program);
    client.status_until(|status| actions(status) == 1);
    drop(client);
    rig.stop();
    store.put_atomic("other.rnl", &new).unwrap();
    let stranger = Fixture::default().pack(&[Node::dir(b"lib"), Node::file(b"lib/m1.so", &[9; 9000])]).unwrap();
    store.put_atomic("stranger.rnl", &stranger).unwrap();
    let rig = Rig::start(store_config(&store));
    let (old, new) = (opened(&old), opened(&new));
    is_pushed_at_once(&rig, "other", &moved(&program, &old, &new));
    let mut client = Client::connect(rig.address, 3);
    client.open("stranger");
    let status = client.status();
    let images = status["images"].as_array().unwrap();
    let fitting = images.iter().filter(|image| image["actions"].as_u64() > Some(0)).count();
    assert_eq!((images.len(), fitting), (3, 2), "a stranger has next to nothing in common with the others");
}

#[test]
fn regress_images_that_do_not_fit_leave_room_for_one_that_does() {
    let store = Memory::new();
    let learned = |bytes: &[u8], pages: &[PageId]| {
        let mut actions = ActionSet::new(opened(bytes).id());
        actions.learn(pages, &MergeConfig::default());
        store.put_atomic(&crate::learned::key(actions.image()), &actions.encode()).unwrap();
    };
    for stranger in b'a'..b'n' {
        let bytes = Fixture::default().pack(&[Node::file(&[stranger], &[stranger; 40 * 4096])]).unwrap();
        store.put_atomic(&format!("{}.rnl", stranger as char), &bytes).unwrap();
        learned(&bytes, &program(&bytes, 5, 40));
    }
    let (old, new) = (image(4), Fixture::default().pack(&updated(4)).unwrap());
    store.put_atomic("old.rnl", &old).unwrap();
    store.put_atomic("new.rnl", &new).unwrap();
    let program = program(&old, 5, 100);
    learned(&old, &program);
    let rig = Rig::start(store_config(&store));
    is_pushed_at_once(&rig, "new", &moved(&program, &opened(&old), &opened(&new)));
}
