//! What was learned, from one run of the server to the next. Counts, never times.

use std::sync::Arc;

use image::fixture::Fixture;
use image::{Limits, Superblock};
use profile::{ActionSet, MergeConfig};
use serde_json::Value;
use store::{Listed, Memory, Store};
use units::{ActionId, ImageId, InodeId, PageId, Token};
use wire::PushEndReason;

use super::bundles::wants_lz4;
use super::client::Client;
use super::hooked::Hooked;
use super::learning::{actions, bundles, set, teach, without_bundles};
use super::rig::{Rig, config, image, nodes, program};
use crate::bundle::Bundle;
use crate::speed::PushCodec;
use crate::{Provider, StoreAt};

#[test]
fn what_was_learned_and_its_bundle_survive_a_restart() {
    let bytes = image(4);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("app.rnl"), &bytes).unwrap();
    let at = || config(StoreAt::Folder(folder.path().to_owned()));
    let program = program(&bytes, 5, 100);
    let rig = Rig::start(at());
    let (mut client, _) = teach(&rig, 1, &program);
    client.status_until(|status| bundles(status) == 1);
    drop(client);
    rig.stop();

    let rig = Rig::start(at());
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    let ready = |status: &Value| bundles(status) == 1 && status["memory"]["held_blocks_bytes"].as_u64() > Some(0);
    client.status_until(ready);
    assert_eq!(rig.metrics.bundles_built.get(), 0);
    client.pull(handle, Token(2), program[0]);
    client.until(|client| client.have == set(&program));
    assert_eq!((rig.metrics.blocks_demanded.get(), rig.metrics.pushes_from_bundle.get()), (1, 1));
}

#[test]
fn what_was_learned_last_is_saved_by_an_orderly_end() {
    let bytes = image(4);
    let store = Memory::new();
    store.put_atomic("app.rnl", &bytes).unwrap();
    let at = || {
        let mut config = config(StoreAt::Open(Arc::new(store.clone())));
        // Upkeep never comes: only the end saves.
        config.upkeep_every = std::time::Duration::from_secs(3600);
        config.learning.provider = Provider::NvAsync;
        config
    };
    let program = program(&bytes, 5, 100);
    let rig = Rig::start(at());
    let (mut client, _) = teach(&rig, 1, &program);
    client.status_until(|status| actions(status) == 1);
    assert_eq!(rig.metrics.learned_saved.get(), 0);
    rig.stop();
    let rig = Rig::start(at());
    let mut client = Client::connect(rig.address, 2);
    client.open("app");
    assert_eq!(actions(&client.status()), 1);
}

/// A store with images of which much was learned: some of them fill the memory for it.
fn much_learned(images: &[&str]) -> (Memory, Vec<String>) {
    let (store, mut keys) = (Memory::new(), Vec::new());
    for (files, name) in (4..).zip(images) {
        let bytes = image(files);
        store.put_atomic(&format!("{name}.rnl"), &bytes).unwrap();
        let mut actions = ActionSet::new(Superblock::read(&bytes.as_slice(), &Limits::default()).unwrap().id);
        for inode in (2..6).map(InodeId) {
            let pages: Vec<PageId> = (0..9_000).map(|index| PageId::new(inode, index)).collect();
            actions.learn(&pages, &MergeConfig::default());
        }
        keys.push(crate::learned::key(actions.image()));
        store.put_atomic(&keys[keys.len() - 1], &actions.encode()).unwrap();
    }
    (store, keys)
}

#[test]
fn regress_a_server_that_starts_forgets_nothing_for_want_of_memory() {
    let (store, keys) = much_learned(&["one", "two", "three"]);
    let read = || keys.iter().map(|key| store.get(key, 1 << 20).unwrap()).collect::<Vec<_>>();
    let before = read();
    let mut config = config(StoreAt::Open(Arc::new(store.clone())));
    without_bundles(&mut config);
    config.memory_bytes_max = 32 << 20;
    let rig = Rig::start(config);
    let status = Client::connect(rig.address, 1).status();
    assert_eq!(status["images"].as_array().unwrap().len(), 1, "there is room for one");
    rig.stop();
    assert!(read() == before);
}

#[test]
fn a_damaged_learned_file_costs_what_was_learned_and_nothing_else() {
    let bytes = image(4);
    let program = program(&bytes, 5, 100);
    let (rig, store) = Rig::with_image(&bytes, without_bundles);
    let (mut client, _) = teach(&rig, 1, &program);
    // The end of the run must have come before the server ends.
    client.status_until(|status| actions(status) == 1);
    drop(client);
    rig.stop();
    let Listed::Object(key) = store.list("learned").unwrap().remove(0) else { panic!("no learned file") };
    let mut file = store.get(&key, 1 << 20).unwrap();
    let middle = file.len() / 2;
    file[middle] ^= 0x10;
    store.put_atomic(&key, &file).unwrap();

    let rig = Rig::start(config(StoreAt::Open(Arc::new(store.clone()))));
    let (mut client, _) = teach(&rig, 2, &program);
    client.status_until(|status| actions(status) == 1);
}

#[test]
fn a_damaged_bundle_is_noticed_replaced_and_harms_nobody() {
    let bytes = image(4);
    let program = program(&bytes, 5, 100);
    let (rig, store) = Rig::with_image(&bytes, |_| {});
    let (mut client, handle) = teach(&rig, 1, &program);
    client.status_until(|status| bundles(status) == 1);
    let image = client.metadata(handle).id();
    let pieces = || {
        let bundle = Bundle::open(&store, image, ActionId(1)).unwrap().unwrap();
        assert_eq!(*bundle.pages, *program);
        let all =
            (0..bundle.piece_count()).flat_map(|index| [PushCodec::Zstd, PushCodec::Lz4].map(|codec| (index, codec)));
        all.map(|(index, codec)| bundle.piece(index, codec).unwrap()).collect::<Vec<_>>()
    };
    let whole = pieces();
    let folder = format!("bundles/{image}");
    let Listed::Object(key) = store.list(&folder).unwrap().remove(0) else { panic!("no bundle") };
    rig.stop();
    let mut damaged = store.get(&key, 1 << 24).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    store.put_atomic(&key, &damaged).unwrap();

    let rig = Rig::start(config(StoreAt::Open(Arc::new(store.clone()))));
    let mut client = Client::connect(rig.address, 2);
    let handle = client.open("app");
    client.status_until(|status| bundles(status) == 1);
    wants_lz4(&mut client);
    client.run(handle, Token(2), &program);
    client.until(|client| client.streams.values().any(|stream| stream.end.is_some()));
    assert_eq!(client.streams.values().next().unwrap().end, Some(PushEndReason::Failed));
    client.status_until(|status| status["metrics"]["bundles_built"] == 1 && bundles(status) == 1);
    // Whether it has pages uncompressed, too, depends on the link, which a push may have measured.
    assert!(pieces() == whole, "the same pages give the same pieces");
}

#[test]
fn the_actions_that_travel_with_an_image_are_pushed_before_anything_was_learned() {
    let program = program(&image(4), 5, 100);
    let mut actions = ActionSet::new(ImageId::default());
    actions.learn(&program, &MergeConfig::default());
    let packed = |profile: Vec<u8>| Fixture { profile: Some(profile), ..Fixture::default() }.pack(&nodes(4)).unwrap();
    let (rig, _) = Rig::with_image(&packed(actions.encode()), without_bundles);
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    client.pull(handle, Token(1), program[0]);
    client.until(|client| client.have == set(&program));
    assert_eq!(rig.metrics.blocks_demanded.get(), 1);

    // What cannot be read costs only that.
    let mut damaged = actions.encode();
    *damaged.last_mut().unwrap() ^= 1;
    for profile in [damaged, Vec::new(), vec![7; 5 << 20]] {
        let (rig, _) = Rig::with_image(&packed(profile), without_bundles);
        teach(&rig, 1, &program);
    }
}

/// Servers on one store, each of which learns another program.
#[test]
fn servers_of_one_store_push_what_the_others_learned() {
    let bytes = image(24);
    let store = Memory::new();
    store.put_atomic("app.rnl", &bytes).unwrap();
    let start = || {
        let mut shared = Hooked::new(store.clone(), |_, _| ());
        shared.shared = true;
        let mut config = config(StoreAt::Open(Arc::new(shared)));
        config.learning.look_every = std::time::Duration::ZERO;
        Rig::start(config)
    };
    let servers: Vec<Rig> = (0..3).map(|_| start()).collect();
    // Of different pages, so that none is taken for another one.
    let programs: Vec<Vec<PageId>> = program(&bytes, 5, 600).chunks(200).map(<[PageId]>::to_vec).collect();
    let mut clients: Vec<Client> = Vec::new();
    for (rig, program) in servers.iter().zip(&programs) {
        let mut client = Client::connect(rig.address, 1);
        let handle = client.open("app");
        client.run(handle, Token(1), program);
        client.end(handle, Token(1));
        clients.push(client);
    }
    for client in &mut clients {
        client.status_until(|status| actions(status) == 3);
    }
    for rig in &servers {
        for (device, program) in (10..).zip(&programs) {
            let mut client = Client::connect(rig.address, device);
            let handle = client.open("app");
            client.pull(handle, Token(2), program[0]);
            client.until(|client| set(program).is_subset(&client.have));
        }
    }
    drop(clients);
    servers.into_iter().for_each(Rig::stop);
    let Listed::Object(key) = store.list("learned").unwrap().remove(0) else { panic!("a file") };
    let saved = profile::decode(&store.get(&key, 1 << 20).unwrap(), &profile::Limits::default()).unwrap();
    let firsts: std::collections::HashSet<PageId> = saved.iter().map(profile::Action::first_page).collect();
    assert_eq!((saved.len(), firsts), (3, programs.iter().map(|program| program[0]).collect()));
}
