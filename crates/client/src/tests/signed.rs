//! Names that must be signed, with the real server and the publisher's own writer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cache::Cache;
use connection::{Server, Target, Trust};
use image::fixture::Fixture;
use signing::{Lifetimes, Repository, SigningKey, TOP_LEVEL, Target as SignedTarget};
use store::{Listed, Memory, Store};
use trust::{Kind, Known, Stapled, UnixTime};
use units::ImageId;
use wire::format::FEATURES;
use wire::{ErrorCode, Reply, Request, ServerEvent};

use super::cached::end;
use super::fake_server::FakeServer;
use super::real_server::{Rig, open_at};
use super::tree::Tree;
use super::web_server::{Act, WebServer};
use super::{HANG, plain};
use crate::admin::{read_signed, write_signed};
use crate::{ClientError, Config, Session, SignedNames, signed_without_server};

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed())
}

/// A server, its publisher, and a device that trusts the first root.
struct World {
    store: Memory,
    rig: Option<Rig>,
    address: std::net::SocketAddr,
    keys: Vec<SigningKey>,
    root: Vec<u8>,
    folder: tempfile::TempDir,
}

impl World {
    fn new(tree: &Tree) -> World {
        let store = Memory::new();
        store.put_atomic("app.rnl", &tree.bytes).unwrap();
        let rig = Rig::start(&store);
        let keys: Vec<SigningKey> = (0..4).map(|_| SigningKey::generate(None).unwrap().0).collect();
        let publics = keys.iter().map(SigningKey::public).collect::<Vec<_>>().try_into().unwrap();
        let change = Repository::create(publics, Lifetimes::default()).sign(&keys, now()).unwrap();
        let root = change.stapled.roots()[0].clone();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("root.json"), &root).unwrap();
        let world = World { address: rig.address, store, rig: Some(rig), keys, root, folder };
        world.write("", &change.stapled).unwrap();
        world
    }

    fn server(&self) -> Server {
        Server::parse(&format!("runnel://{}", self.address)).unwrap()
    }

    fn write(&self, name: &str, files: &Stapled) -> Result<(), ClientError> {
        write_signed(&self.server(), &Trust::default(), name, files, HANG)
    }

    fn change(&mut self, edit: impl FnOnce(&mut Repository, &[SigningKey])) {
        self.change_name("", edit);
    }

    fn change_name(&mut self, name: &str, edit: impl FnOnce(&mut Repository, &[SigningKey])) {
        let files = read_signed(&self.server(), &Trust::default(), name, &Known::of_root(u64::MAX), HANG).unwrap();
        let mut repository = Repository::read(&self.root, &files, Lifetimes::default()).unwrap();
        edit(&mut repository, &self.keys);
        let change = repository.sign(&self.keys, now()).unwrap();
        if let Some(root) = change.stapled.roots().last() {
            self.root.clone_from(root);
        }
        self.write(name, &change.stapled).unwrap();
    }

    fn sign(&mut self, id: ImageId) {
        let target = SignedTarget { id, bytes: 1, sha256: "00".repeat(32), fs_verity: "00".repeat(32) };
        self.change(|repository, keys| drop(repository.set_name("app:latest", &target, None, keys).unwrap()));
    }

    fn rotate(&mut self, role: &str) {
        let new = SigningKey::generate(None).unwrap().0;
        let public = new.public();
        self.keys.push(new);
        self.change(|repository, _| repository.rotate(role, &[public], 1).unwrap());
    }

    fn config(&self) -> Config {
        let servers = vec![(format!("127.0.0.1:{}", self.address.port()), self.path("root.json"))];
        Config { signed: SignedNames { given: None, servers, folder: Some(self.path("state")) }, ..plain() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> Arc<Cache> {
        Arc::new(Cache::open(&self.path("cache"), Some(4 << 20)).unwrap())
    }

    /// The image that a device gets.
    fn open(&self) -> Result<ImageId, ClientError> {
        let cache = self.cache();
        let (session, _) = open_at(self.address, self.config(), Some(&cache))?;
        let id = session.metadata().id();
        end(session, cache);
        Ok(id)
    }

    fn refusal(&self) -> Kind {
        match self.open() {
            Err(ClientError::Refused { refusal, .. }) => refusal.kind(),
            other => panic!("{other:?}"),
        }
    }

    /// The files of signed names in the store.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let listed = self.store.list("trust").unwrap();
        let keys = listed.into_iter().filter_map(|listed| match listed {
            Listed::Object(key) => Some(key),
            Listed::Folder(_) => None,
        });
        keys.map(|key| (key.clone(), self.store.get(&key, 1 << 20).unwrap())).collect()
    }

    fn restore(&self, files: &[(String, Vec<u8>)]) {
        files.iter().for_each(|(key, bytes)| self.store.put_atomic(key, bytes).unwrap());
    }
}

#[test]
fn a_device_opens_what_was_signed_and_nothing_else() {
    let (tree, other) = (Tree::plain(), Tree::of(Fixture::default(), 77));
    let mut world = World::new(&tree);
    assert_eq!(world.refusal(), Kind::NotFound);
    world.sign(tree.metadata.id());
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    let old = world.files();
    // The server's word is another image, as if somebody had taken it over; the signed one is in
    // its store.
    world.store.put_atomic(&format!("images/{}.rnl", tree.metadata.id()), &tree.bytes).unwrap();
    world.store.put_atomic("app.rnl", &other.bytes).unwrap();
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    world.sign(other.metadata.id());
    assert_eq!(world.open().unwrap(), other.metadata.id());
    world.restore(&old);
    assert_eq!(world.refusal(), Kind::Rollback);
    // Withheld files do no harm until those that the device has expire.
    world.store.delete("trust/timestamp.json").unwrap();
    assert_eq!(world.open().unwrap(), other.metadata.id());
    std::fs::remove_dir_all(world.path("state")).unwrap();
    assert_eq!(world.refusal(), Kind::Missing);
}

#[test]
fn the_name_of_a_file_on_the_device_needs_no_server() {
    let (tree, other) = (Tree::plain(), Tree::of(Fixture::default(), 77));
    let mut world = World::new(&tree);
    let target = Target::parse(&format!("runnel://{}/app", world.address)).unwrap();
    let image = world.path("device/app.rnl");
    let find = |world: &World| signed_without_server(&world.config().signed, &target, &image);
    let signed = |world: &World| find(world).unwrap().expect("its server signs").1;
    // Neither seen, nor beside the file.
    assert!(matches!(find(&world), Err(ClientError::Refused { refusal, .. }) if refusal.kind() == Kind::Missing));
    world.sign(tree.metadata.id());
    std::fs::create_dir_all(world.path("device/trust")).unwrap();
    for (key, bytes) in world.files() {
        std::fs::write(world.path("device").join(key), bytes).unwrap();
    }
    let found = signed(&world);
    assert_eq!((found.image, found.fs_verity), (tree.metadata.id(), Some([0; 32])));
    // What the server said since counts, and files that are older do not.
    world.store.put_atomic("app.rnl", &other.bytes).unwrap();
    world.sign(other.metadata.id());
    assert_eq!(signed(&world).image, tree.metadata.id());
    world.open().unwrap();
    assert_eq!(signed(&world).image, other.metadata.id());
    std::fs::remove_dir_all(world.path("device/trust")).unwrap();
    world.rig = None;
    assert_eq!(signed(&world).image, other.metadata.id());
    let nobody = SignedNames { servers: Vec::new(), ..world.config().signed };
    assert_eq!(signed_without_server(&nobody, &target, &image).unwrap(), None);
}

#[test]
fn regress_what_the_signatures_say_is_told_whichever_answer_comes_first() {
    let tree = Tree::plain();
    let world = World::new(&tree);
    for open_is_first in [true, false] {
        let server = FakeServer::start_with(&Arc::new(Tree::plain()), FEATURES);
        let mut asked = None;
        server.policy(move |_, machine, event| {
            let ServerEvent::Request { request, ask } = event else { return false };
            match ask {
                Request::TrustRead { .. } => asked = Some(*request),
                Request::Open { .. } => {
                    let no_files = Reply::TrustFiles { codec: 0, raw_bytes: 1, bytes: "x".into() };
                    let not_there = Reply::error(ErrorCode::NotFound, "no image");
                    let mut answers = [(*request, not_there), (asked.take().unwrap(), no_files)];
                    if !open_is_first {
                        answers.reverse();
                    }
                    answers.into_iter().for_each(|(request, reply)| machine.reply(request, reply).unwrap());
                }
                _ => return false,
            }
            true
        });
        let target = Target::parse(&server.url("app")).unwrap();
        let signed = SignedNames { given: Some(world.path("root.json")), ..world.config().signed };
        let error = Session::open(&target, Config { signed, ..plain() }).map(drop).unwrap_err();
        assert!(matches!(&error, ClientError::Refused { refusal, .. } if refusal.kind() == Kind::Damaged), "{error}");
    }
}

/// Files that nobody asks for any more go; those of one version before stay.
#[test]
fn old_files_of_a_store_go_and_roots_stay() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    let theirs = SigningKey::generate(None).unwrap().0;
    let delegation = signing::Delegation {
        role: "media".into(),
        patterns: vec!["media:*".into()],
        keys: vec![theirs.public()],
        threshold: 1,
    };
    world.keys.push(theirs);
    world.change(|repository, _| repository.delegate(&delegation).unwrap());
    world.rotate("root");
    let media = SignedTarget { id: ImageId([2; 32]), bytes: 1, sha256: "00".repeat(32), fs_verity: "00".repeat(32) };
    world.change_name("media:1", |repository, keys| {
        assert_eq!(repository.set_name("media:1", &media, None, keys).unwrap(), "media");
    });
    (0..3).for_each(|_| world.sign(tree.metadata.id()));
    let names = |world: &World| -> Vec<String> {
        world.files().into_iter().map(|(key, _)| key.trim_start_matches("trust/").to_owned()).collect()
    };
    let expected = [
        "1.media.json",
        "1.root.json",
        "2.root.json",
        "4.targets.json",
        "5.targets.json",
        "6.snapshot.json",
        "5.snapshot.json",
        "timestamp.json",
    ];
    let mut expected: Vec<String> = expected.map(str::to_owned).into();
    expected.sort();
    assert_eq!(names(&world), expected);
    // A server that ended before it took them away, and a write that did not get to the timestamp.
    let mut old = world.files();
    world.sign(ImageId([1; 32]));
    world.sign(tree.metadata.id());
    old.retain(|(key, _)| key != "trust/timestamp.json");
    world.restore(&old);
    world.store.put_atomic("trust/99.targets.json", b"{").unwrap();
    world.store.put_atomic("trust/README", b"ours").unwrap();
    let began = world.files();
    world.sign(tree.metadata.id());
    let left = names(&world);
    assert_eq!(left.iter().filter(|name| name.ends_with("snapshot.json")).count(), 2, "{left:?}");
    assert_eq!(left.iter().filter(|name| name.ends_with("targets.json")).count(), 2, "{left:?}");
    assert!(left.contains(&"README".into()) && !left.contains(&"99.targets.json".into()), "{left:?}");
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    // Who had read the timestamp before gets to the end.
    let timestamp = began.into_iter().find(|(key, _)| key == "trust/timestamp.json").unwrap();
    world.restore(&[timestamp]);
    std::fs::remove_dir_all(world.path("state")).unwrap();
    assert_eq!(world.open().unwrap(), tree.metadata.id());
}

#[test]
fn a_device_follows_more_roots_than_one_answer_holds() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    for _ in 0..40 {
        world.rotate("root");
    }
    TOP_LEVEL[1..].iter().for_each(|role| world.rotate(role));
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    // Its memory has the newest root: it does not ask for the others again.
    for version in 2..40 {
        world.store.delete(&format!("trust/{version}.root.json")).unwrap();
    }
    assert_eq!(world.open().unwrap(), tree.metadata.id());
}

#[test]
fn without_a_server_the_newest_name_that_was_seen_starts() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    world.rig = None;
    assert_eq!(world.open().unwrap(), tree.metadata.id());
    // Nothing is known without its memory.
    std::fs::remove_dir_all(world.path("state")).unwrap();
    assert!(matches!(world.open(), Err(ClientError::Connection(_))));
}

/// Bytes both ways until an image is open.
fn bytes_of_opening(world: &World, config: Config) -> u64 {
    let (session, _) = open_at(world.address, config, None).unwrap();
    let link = session.counters().transfer;
    link.bytes_received + link.bytes_sent
}

#[test]
fn a_signed_open_costs_at_most_2500_bytes_more() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    let plain = bytes_of_opening(&world, plain());
    let costs = |world: &World| bytes_of_opening(world, world.config()) - plain;
    let first = costs(&world);
    let again = costs(&world);
    world.change(|repository, _| repository.refresh("timestamp").unwrap());
    let refreshed = costs(&world);
    world.sign(ImageId([1; 32]));
    world.sign(tree.metadata.id());
    let pushed = costs(&world);
    println!("first {first}, unchanged {again}, new timestamp {refreshed}, after a push {pushed} bytes");
    assert!(first <= 2500 && pushed <= 2500 && refreshed <= 1000 && again <= 200);
}

#[test]
fn a_damaged_memory_is_told() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    world.open().unwrap();
    for entry in std::fs::read_dir(world.path("state")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "state") {
            std::fs::write(path, b"RnlT nonsense").unwrap();
        }
    }
    let error = world.open().expect_err("the memory is damaged").to_string();
    assert!(error.contains(".state") && error.contains("remove it"), "{error}");
}

#[test]
fn a_pin_from_before_is_not_used() {
    use crate::pin::{Claim, Pin, PinStop, pin};
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    let Ok(Target::Remote(remote)) = Target::parse(&format!("runnel://{}/app", world.address)) else { panic!() };
    let pinned = |config: &Config| {
        let (cache, stop) = (world.cache(), PinStop::new().unwrap());
        let (rate, budget, is_forced, is_checked) = (None, None, false, false);
        let wanted = Pin { remote: &remote, config, rate, budget, is_forced, is_checked, stop: &stop };
        let claim = Claim::new(&cache, &remote, "app").unwrap();
        pin(&wanted, &claim, &mut |_| ()).unwrap().id
    };
    assert_eq!(pinned(&Config::default()), tree.metadata.id());
    assert!(matches!(world.open(), Err(ClientError::UnverifiedPin { .. })));
    assert_eq!(pinned(&world.config()), tree.metadata.id());
    assert_eq!(world.open().unwrap(), tree.metadata.id());
}

#[test]
fn what_devices_would_refuse_is_not_published() {
    let tree = Tree::plain();
    let mut world = World::new(&tree);
    world.sign(tree.metadata.id());
    let files = world.files();
    // Somebody else's repository, and the same version once more.
    let stranger = World::new(&tree);
    let theirs = read_signed(&stranger.server(), &Trust::default(), "", &Known::of_root(0), HANG).unwrap();
    let error = world.write("", &theirs).expect_err("other keys").to_string();
    assert!(error.contains("signature") || error.contains("rollback"), "{error}");
    let ours = read_signed(&world.server(), &Trust::default(), "", &Known::of_root(0), HANG).unwrap();
    world.write("", &ours).expect("the same again changes nothing");
    assert_eq!(world.files(), files);
    world.sign(ImageId([1; 32]));
    let error = world.write("", &ours).expect_err("older").to_string();
    assert!(error.contains("rollback"), "{error}");
}

#[test]
fn servers_are_named_by_host_or_port() {
    let names = |server: &str| SignedNames { servers: vec![(server.into(), "/r".into())], ..SignedNames::default() };
    let anchored = |names: &SignedNames, url: &str| names.anchor(&Server::parse(url).unwrap()).is_some();
    for (server, url, is_it) in [
        ("a.example", "runnel://a.example", true),
        ("A.example", "runnels://a.example:99", true),
        ("a.example:99", "runnels://a.example:99", true),
        ("a.example:98", "runnels://a.example:99", false),
        ("b.example", "runnel://a.example", false),
        ("::1", "runnel://[::1]", true),
        ("[::1]:99", "runnel://[::1]:99", true),
        ("[::1]:99", "runnel://[::1]", false),
    ] {
        assert_eq!(anchored(&names(server), url), is_it, "{server} {url}");
    }
    let given = SignedNames { given: Some("/r".into()), ..SignedNames::default() };
    assert!(anchored(&given, "runnel://anything"));
}

/// The image of a web server, with these files of signed names beside it.
#[test]
fn images_of_web_servers_are_signed_too() {
    let (tree, other) = (Tree::plain(), Tree::of(Fixture::default(), 77));
    let mut world = World::new(&tree);
    let web = WebServer::start(&tree.bytes);
    let config = Config {
        signed: SignedNames {
            given: Some(world.path("root.json")),
            folder: Some(world.path("state")),
            servers: vec![],
        },
        ..plain()
    };
    let open = |cache: Option<&Arc<Cache>>| {
        let session = crate::Session::open_cached(&Target::parse(&web.url()).unwrap(), config.clone(), cache)?;
        Ok::<_, ClientError>(session.metadata().id())
    };
    let publish = |world: &World| {
        web.put_beside(world.files().into_iter().map(|(key, bytes)| (format!("/images/{key}"), bytes)).collect());
    };
    let refusal = || match open(None) {
        Err(ClientError::Refused { refusal, .. }) => refusal.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(), Kind::Missing);
    publish(&world);
    assert_eq!(refusal(), Kind::NotFound);
    world.sign(tree.metadata.id());
    let old = world.files();
    publish(&world);
    assert_eq!(open(None).unwrap(), tree.metadata.id());
    world.rotate("root");
    world.sign(other.metadata.id());
    publish(&world);
    assert!(matches!(open(None), Err(ClientError::NotSigned { .. })));
    web.replace(&other.bytes, "\"two\"");
    let cache = world.cache();
    assert_eq!(open(Some(&cache)).unwrap(), other.metadata.id());
    web.put_beside(old.into_iter().map(|(key, bytes)| (format!("/images/{key}"), bytes)).collect());
    assert_eq!(refusal(), Kind::Rollback);
    web.policy(|_| Act::Status(503));
    assert_eq!(open(Some(&cache)).unwrap(), other.metadata.id(), "from the cache");
}
