//! Volumes over a socket: each request, what is refused, and what is done once.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use codec::Codec;
use store::Memory;
use tempfile::TempDir;
use units::{InodeId, PageId, Rng, SplitMix64, Token};
use volume::{Mode, Options, Volume};
use wire::volume::{Change, FileInfo, FileKind, LeaseKind, Secret, Seen, VolumeAsk, VolumePiece, VolumeReply};
use wire::{ErrorCode, ImageHandle, Notice, Reply, Request};

use super::client::Client;
use super::rig::{Rig, config};
use crate::{Server, ServerError, StoreAt, VolumeConfig};

/// A server with the volume `data` in a folder, and its store.
pub fn serve(folder: &Path, change: impl FnOnce(&mut VolumeConfig)) -> (Rig, Memory) {
    let store = Memory::new();
    (serve_with(&store, folder, change), store)
}

pub fn serve_with(store: &Memory, folder: &Path, change: impl FnOnce(&mut VolumeConfig)) -> Rig {
    let mut volume = VolumeConfig { writable: true, ..VolumeConfig::new("data", folder) };
    change(&mut volume);
    let mut config = config(StoreAt::Open(Arc::new(store.clone())));
    config.volumes = vec![volume];
    Rig::start(config)
}

/// A client that has the volume `data` open.
pub struct Data {
    pub client: Client,
    pub volume: ImageHandle,
    pub block_bytes: u32,
    /// The volume's id, and what proofs are made over on this handle.
    pub id: u128,
    pub nonce: u128,
    /// Its number and secret; of no use on a volume for reading.
    pub who: (u128, Secret),
}

impl Data {
    /// A new device, which may write.
    pub fn open(rig: &Rig, device: u128) -> Data {
        Data::with(Client::connect(rig.address, device))
    }

    pub fn with(client: Client) -> Data {
        let mut data = Data::nobody(client);
        if let Reply::Volume(VolumeReply::Enrolled { number, secret }) = data.reply(VolumeAsk::Enrol) {
            data.prove((number, secret));
        }
        data
    }

    /// A device that opened the volume before.
    pub fn again(rig: &Rig, who: (u128, Secret)) -> Data {
        let mut data = Data::nobody(Client::connect(rig.address, 0));
        data.prove(who);
        data
    }

    /// A client that has not said which device it is.
    pub fn nobody(mut client: Client) -> Data {
        client.until(|client| client.wire.hello().is_some());
        let reply = client.ask(Request::VolumeOpen { name: "data".to_owned() });
        let Reply::VolumeOpened { volume, block_bytes, id, nonce, .. } = reply else { panic!("{reply:?}") };
        Data { client, volume, block_bytes, id, nonce, who: (0, Secret([0; 32])) }
    }

    fn prove(&mut self, who: (u128, Secret)) {
        let ask = self.proof(who);
        assert_eq!(self.ask(ask), VolumeReply::Proven);
        self.who = who;
    }

    /// What shows here that one is this device.
    pub fn proof(&self, (number, secret): (u128, Secret)) -> VolumeAsk {
        VolumeAsk::Prove { number, proof: secret.proof(self.id, self.nonce, number), previous: 0 }
    }

    pub fn request(&self, ask: VolumeAsk) -> Request {
        Request::Volume { volume: self.volume, ask }
    }

    pub fn reply(&mut self, ask: VolumeAsk) -> Reply {
        self.client.ask(Request::Volume { volume: self.volume, ask })
    }

    pub fn ask(&mut self, ask: VolumeAsk) -> VolumeReply {
        match self.reply(ask) {
            Reply::Volume(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub fn refused(&mut self, ask: VolumeAsk, code: ErrorCode) -> String {
        self.client.refused(Request::Volume { volume: self.volume, ask }, code)
    }

    pub fn file(&mut self, path: &str, token: Token) -> (InodeId, FileInfo) {
        match self.ask(VolumeAsk::FileOpen { token, path: path.into() }) {
            VolumeReply::FileOpened { file, info, .. } => (file, info),
            other => panic!("{other:?}"),
        }
    }

    pub fn stat(&mut self, path: &str) -> FileInfo {
        match self.ask(VolumeAsk::FileStat { path: path.into() }) {
            VolumeReply::Attributes(info) => info,
            other => panic!("{other:?}"),
        }
    }

    pub fn commit(&mut self, number: u64, changes: Vec<Change>) -> Vec<Seen> {
        match self.ask(transaction(number, changes)) {
            VolumeReply::Committed { versions } => versions,
            other => panic!("{other:?}"),
        }
    }

    /// Blocks of a file with their version; of no program.
    pub fn pull(&mut self, file: InodeId, blocks: impl IntoIterator<Item = u32>) -> (u64, Vec<u8>) {
        let blocks: Vec<u32> = blocks.into_iter().collect();
        match self.ask(pull(Token(0), file, blocks.iter().copied())) {
            VolumeReply::Blocks { version, size, codec, bytes } => {
                (version, decoded(codec, &bytes, valid_bytes(size, self.block_bytes, blocks)))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes of these blocks of a file.
pub fn valid_bytes(size: u64, block_bytes: u32, blocks: impl IntoIterator<Item = u32>) -> usize {
    let block_bytes = u64::from(block_bytes);
    let of = |block: u32| size.saturating_sub(u64::from(block) * block_bytes).min(block_bytes);
    blocks.into_iter().map(of).sum::<u64>() as usize
}

/// The bytes of a piece.
pub fn decoded(codec: u8, bytes: &[u8], size: usize) -> Vec<u8> {
    let mut raw = Vec::new();
    codec::decode(Codec::from_u8(codec).unwrap(), bytes, size, &mut raw).unwrap();
    raw
}

pub fn pull(token: Token, file: InodeId, blocks: impl IntoIterator<Item = u32>) -> VolumeAsk {
    let blocks = blocks.into_iter().map(|block| PageId::new(file, block)).collect();
    VolumeAsk::PullBlocks { token, blocks, force: false }
}

pub fn transaction(number: u64, changes: Vec<Change>) -> VolumeAsk {
    VolumeAsk::Commit { number, mtime_ns: 1_700_000_000_000_000_000, changes }
}

pub fn create(path: &str) -> Change {
    Change::Create { path: path.into(), mode: 0o644, exclusive: true, owner: None }
}

pub fn write(path: &str, base: Option<Seen>, offset: u64, bytes: &[u8]) -> Change {
    Change::Write { path: path.into(), base, offset, bytes: Bytes::copy_from_slice(bytes) }
}

pub fn append(path: &str, bytes: &[u8]) -> Change {
    Change::Append { path: path.into(), base: None, bytes: Bytes::copy_from_slice(bytes) }
}

/// Bytes that do not compress.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn every_request_is_answered() {
    let folder = TempDir::new().unwrap();
    std::os::unix::fs::symlink("f", folder.path().join("link")).unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut data = Data::open(&rig, 7);
    let text = b"a line that compresses, ".repeat(500);
    let made = vec![
        Change::MakeFolder { path: b"d".into(), mode: 0o755, owner: None },
        create("d/f"),
        write("d/f", None, 0, &text),
        Change::SetMode { path: b"d/f".into(), base: None, mode: 0o600 },
        Change::SetTime { path: b"d/f".into(), base: None, mtime_ns: 5 },
    ];
    let versions = data.commit(1, made);
    let info = data.stat("d/f");
    assert_eq!((info.seen, info.kind, info.size), (versions[4], FileKind::File, text.len() as u64));
    assert_eq!((info.mode, info.mtime_ns), (0o600, 5));
    let opened = data.ask(VolumeAsk::FileOpen { token: Token(1), path: b"d/f".into() });
    let VolumeReply::FileOpened { file, info: again, profiled, present, cut } = opened else { panic!("{opened:?}") };
    assert_eq!((again, profiled, cut, present.len()), (info, false, false, 1));
    assert_eq!((present[0].first.0, present[0].count), (0, 3));
    let reply = data.ask(pull(Token(0), file, [2, 0]));
    let VolumeReply::Blocks { version, size, codec, bytes } = reply else { panic!("{reply:?}") };
    assert_eq!((version, size, codec), (info.seen.version, text.len() as u64, Codec::Zstd as u8));
    assert_eq!(decoded(codec, &bytes, 3808 + 4096), [&text[8192..], &text[..4096]].concat());
    let listed = data.ask(VolumeAsk::FolderList { path: b"".into(), after: b"".into(), limit: 10 });
    let VolumeReply::Entries { entries, more, .. } = listed else { panic!("{listed:?}") };
    let names: Vec<_> = entries.iter().map(|entry| (&entry.name[..], entry.info.kind)).collect();
    assert_eq!((names, more), (vec![(&b"d"[..], FileKind::Folder), (b"link", FileKind::Symlink)], false));
    assert_eq!(data.ask(VolumeAsk::LinkRead { path: b"link".into() }), VolumeReply::LinkTarget(Bytes::from("f")));
    let lease = |kind| VolumeAsk::Lease { file: info.seen.file, kind, duration_ms: 60_000 };
    assert_eq!(data.ask(lease(Some(LeaseKind::Exclusive))), VolumeReply::Leased { duration_ms: 60_000 });
    let mut other = Data::open(&rig, 8);
    let appended = other.refused(transaction(1, vec![append("d/f", b"x")]), ErrorCode::Leased);
    other.file("d/f", Token(0));
    let leased = other.refused(lease(Some(LeaseKind::Shared)), ErrorCode::Leased);
    for text in [appended, leased] {
        assert_eq!(text, "d/f is leased by another device; try again later");
    }
    // What names hold does not steer the terminal of who reads the answer.
    let odd = other.refused(VolumeAsk::FileStat { path: b"\x1b]0;x\x07".into() }, ErrorCode::NotFound);
    assert_eq!(odd, r"\u001b]0;x\u0007 is not in the volume");
    assert_eq!(data.ask(lease(None)), VolumeReply::Leased { duration_ms: 0 });
    other.commit(1, vec![append("d/f", b"x")]);
    // An open file goes on under its new name, for the connection that renamed it.
    let rename = Change::Rename { from: b"d".into(), base: None, to: b"e".into(), replace: false };
    data.commit(2, vec![rename]);
    assert_eq!(data.pull(file, [2]).1, [&text[8192..], b"x"].concat());
    assert_eq!(other.file("e/f", Token(0)).0, InodeId(2), "numbers are those of a connection");
    let status = data.client.status();
    assert_eq!((&status["volumes"][0]["name"], &status["metrics"]["transactions"]), (&"data".into(), &3.into()));
}

#[test]
fn a_device_gives_no_file_the_rights_of_its_owner() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut data = Data::open(&rig, 7);
    let make = Change::Create { path: b"f".into(), mode: 0o4755, exclusive: true, owner: None };
    let make_folder = Change::MakeFolder { path: b"d".into(), mode: 0o2775, owner: None };
    data.commit(1, vec![make, make_folder]);
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o755, 0o775));
    data.commit(2, vec![Change::SetMode { path: b"f".into(), base: None, mode: 0o6711 }]);
    assert_eq!(mode("f"), 0o711);
}

#[test]
fn a_volume_for_reading_gives_no_leases() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |volume| volume.writable = false);
    let mut data = Data::open(&rig, 7);
    let lease = |kind| VolumeAsk::Lease { file: 1, kind, duration_ms: 60_000 };
    data.refused(lease(Some(LeaseKind::Exclusive)), ErrorCode::ReadOnly);
    data.refused(lease(Some(LeaseKind::Shared)), ErrorCode::ReadOnly);
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/f"), b"x").unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut data = Data::open(&rig, 1);
    data.client.refused(Request::VolumeOpen { name: "other".to_owned() }, ErrorCode::NotFound);
    let wrong = Request::Volume { volume: ImageHandle(9), ask: VolumeAsk::FileStat { path: b"d".into() } };
    data.client.refused(wrong, ErrorCode::BadRequest);
    for number in [0, 1, 2, u32::MAX] {
        data.refused(pull(Token(1), InodeId(number), [0]), ErrorCode::BadRequest);
    }
    let (file, _) = data.file("d/f", Token(1));
    data.client.wire.notify(Notice::FileClose { volume: data.volume, file }).unwrap();
    data.refused(pull(Token(1), file, [0]), ErrorCode::BadRequest);
    let open = |path: &str| VolumeAsk::FileOpen { token: Token(1), path: path.into() };
    for (path, code) in [
        ("d", ErrorCode::NotFile),
        ("no", ErrorCode::NotFound),
        ("d/f/x", ErrorCode::NotFolder),
        ("../x", ErrorCode::BadRequest),
        (".runnel/journal", ErrorCode::BadRequest),
        ("/etc/passwd", ErrorCode::BadRequest),
    ] {
        data.refused(open(path), code);
    }
    let list = VolumeAsk::FolderList { path: b"d/f".into(), after: b"".into(), limit: 1 };
    data.refused(list, ErrorCode::NotFolder);
    let removal = Change::RemoveFolder { path: b"d".into() };
    data.refused(transaction(1, vec![removal]), ErrorCode::NotEmpty);
    data.refused(transaction(1, vec![create("d/f")]), ErrorCode::Exists);
    data.refused(transaction(1, vec![create("../f")]), ErrorCode::BadRequest);
    let huge = Change::Truncate { path: b"d/f".into(), base: None, size: u64::MAX };
    data.refused(transaction(1, vec![huge]), ErrorCode::TooLarge);
    // Unknown files may be closed and shared: the device may have closed them just now.
    data.client.wire.notify(Notice::FileClose { volume: data.volume, file: InodeId(99) }).unwrap();
    data.client.wire.notify(Notice::FileClose { volume: ImageHandle(5), file: InodeId(2) }).unwrap();
    data.client
        .wire
        .notify(Notice::FileShare { volume: data.volume, file: InodeId(99), share: wire::volume::Share::Percent(3) })
        .unwrap();
    data.client.touch(data.volume, Token(1), &[PageId::new(InodeId(99), 7)]);
    assert_eq!(data.stat("d/f").size, 1);
    drop((data, rig));
    let (rig, _) = serve(folder.path(), |volume| volume.writable = false);
    Data::open(&rig, 1).refused(transaction(1, vec![create("x")]), ErrorCode::ReadOnly);
}

#[test]
fn of_two_writers_one_gets_a_conflict_and_a_reader_sees_the_file_change() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let (mut one, mut two) = (Data::open(&rig, 1), Data::open(&rig, 2));
    one.commit(1, vec![create("f"), write("f", None, 0, b"first")]);
    let (file, seen) = two.file("f", Token(0));
    one.commit(2, vec![write("f", Some(seen.seen), 0, b"FIRST")]);
    two.refused(transaction(1, vec![write("f", Some(seen.seen), 0, b"second")]), ErrorCode::Conflict);
    let (version, bytes) = two.pull(file, [0]);
    assert!(version > seen.seen.version && bytes == b"FIRST");
    // The refused number is not used up.
    let base = Some(two.stat("f").seen);
    two.commit(1, vec![write("f", base, 0, b"second")]);
    one.commit(3, vec![Change::Unlink { path: b"f".into(), base: None }, create("f")]);
    two.refused(pull(Token(0), file, [0]), ErrorCode::Stale);
    // Behind the server's back.
    std::fs::write(folder.path().join("f"), b"theirs").unwrap();
    let (file, info) = two.file("f", Token(0));
    assert_eq!(two.pull(file, [0]), (info.seen.version, b"theirs".to_vec()));
    std::fs::remove_file(folder.path().join("f")).unwrap();
    two.refused(pull(Token(0), file, [0]), ErrorCode::Stale);
}

#[test]
fn a_repeated_transaction_is_done_once_also_over_another_connection_and_server() {
    let folder = TempDir::new().unwrap();
    let (rig, store) = serve(folder.path(), |_| {});
    let mut data = Data::open(&rig, 5);
    let who = data.who;
    data.commit(1, vec![create("log")]);
    // Many at once, none of them answered when the connection is cut.
    for number in 2..=40 {
        let ask = data.request(transaction(number, vec![append("log", &[number as u8])]));
        data.client.request(ask);
    }
    data.client.send();
    drop(data);
    let mut data = Data::again(&rig, who);
    let answers: Vec<_> = (2..=40).map(|number| data.commit(number, vec![append("log", &[number as u8])])).collect();
    let expected: Vec<u8> = (2..=40).collect();
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), expected);
    drop(data);
    rig.stop();
    let rig = serve_with(&store, folder.path(), |_| {});
    let mut data = Data::again(&rig, who);
    assert_eq!(data.commit(40, vec![append("log", &[40])]), *answers.last().unwrap());
    data.commit(42, vec![append("log", &[42])]);
    data.refused(transaction(41, vec![append("log", &[41])]), ErrorCode::Outdated);
    // Another device counts by itself.
    Data::open(&rig, 6).commit(1, vec![append("log", b"6")]);
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), [&expected[..], &[42], b"6"].concat());
}

#[test]
fn transactions_of_a_connection_are_done_in_their_order() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut data = Data::open(&rig, 5);
    data.commit(1, vec![create("log")]);
    let requests: Vec<_> = (2..200u64)
        .map(|number| {
            let changes = match number % 10 {
                3 => vec![append("missing", b"x")],
                _ => vec![append("log", format!("{number} ").as_bytes())],
            };
            let ask = data.request(transaction(number, changes));
            data.client.request(ask)
        })
        .collect();
    for (number, request) in (2..).zip(requests) {
        let failed = matches!(data.client.reply(request), Reply::Error { code: ErrorCode::NotFound, .. });
        assert_eq!(failed, number % 10 == 3, "{number}");
    }
    let expected: String = (2..200).filter(|number| number % 10 != 3).map(|number| format!("{number} ")).collect();
    assert_eq!(std::fs::read_to_string(folder.path().join("log")).unwrap(), expected);
}

/// Requests without an answer take memory. A transaction that came behind them then waited for more
/// than its connection may hold, for ever.
#[test]
fn regress_a_large_transaction_behind_many_requests_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, _) = serve(folder.path(), |_| ());
    let mut data = Data::open(&rig, 1);
    data.commit(1, vec![create("f")]);
    for round in 0..20 {
        let asks: Vec<_> = (0..400).map(|_| data.client.request(data.request(VolumeAsk::SpaceStat))).collect();
        let change = append("f", &noise(round, 1_040_000));
        let large = data.client.request(data.request(transaction(2 + round, vec![change])));
        let answers = asks.into_iter().map(|ask| data.client.reply(ask)).collect::<Vec<_>>();
        assert!(answers.iter().all(|reply| matches!(reply, Reply::Volume(VolumeReply::Space(_)))));
        assert!(matches!(data.client.reply(large), Reply::Volume(VolumeReply::Committed { .. })));
    }
}

#[test]
fn a_full_volume_says_so_and_goes_on() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |volume| volume.quota_bytes = Some(10_000));
    let mut data = Data::open(&rig, 5);
    data.commit(1, vec![create("a"), write("a", None, 0, &[1; 8000])]);
    data.refused(transaction(2, vec![create("b"), write("b", None, 0, &[2; 4000])]), ErrorCode::OverQuota);
    let VolumeReply::Space(space) = data.ask(VolumeAsk::SpaceStat) else { panic!("no space") };
    assert_eq!((space.bytes, space.free_bytes), (10_000, 2000));
    assert!(space.files >= space.free_files && space.free_files > 0);
    data.refused(VolumeAsk::FileStat { path: b"b".into() }, ErrorCode::NotFound);
    data.commit(2, vec![Change::Truncate { path: b"a".into(), base: None, size: 10 }]);
    data.commit(3, vec![create("b"), write("b", None, 0, &[2; 4000])]);
}

#[test]
fn a_sparse_file_of_4_gib_is_mostly_holes() {
    let folder = TempDir::new().unwrap();
    let file = std::fs::File::create(folder.path().join("sparse")).unwrap();
    file.set_len(4 << 30).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(b"far", (3 << 30) + 5).unwrap();
    let (rig, _) = serve(folder.path(), |volume| volume.writable = false);
    let mut data = Data::open(&rig, 5);
    let opened = data.ask(VolumeAsk::FileOpen { token: Token(1), path: b"sparse".into() });
    let VolumeReply::FileOpened { file, info, present, cut, .. } = opened else { panic!("{opened:?}") };
    assert_eq!((info.size, cut), (4 << 30, false));
    let far = (3u32 << 30) / 4096;
    let held = |block| present.iter().any(|range| (range.first.0..range.first.0 + range.count).contains(&block));
    let blocks: u32 = present.iter().map(|range| range.count).sum();
    assert!(held(far) && blocks <= 32, "{present:?}");
    assert_eq!(data.pull(file, [0, (1 << 20) - 1]).1, vec![0; 8192]);
    let (_, bytes) = data.pull(file, [far, 1 << 20]);
    assert_eq!((bytes.len(), &bytes[5..8]), (4096, &b"far"[..]));
}

#[test]
fn a_volume_that_was_not_closed_is_recovered_also_for_reading() {
    let folder = TempDir::new().unwrap();
    let options = Options { mode: Mode::ReadWrite, ..Options::default() };
    let volume = Volume::open(folder.path(), None, options).unwrap();
    let create = volume::Operation::Create {
        path: volume::VolumePath::new(b"f").unwrap(),
        mode: 0o644,
        exclusive: true,
        owner: None,
    };
    volume.commit(volume::Transaction { operations: vec![create], ..Default::default() }).unwrap();
    // As a crash leaves it: a journal that is not in a checkpoint, and the file not there yet.
    let copy = TempDir::new().unwrap();
    std::fs::create_dir(copy.path().join(".runnel")).unwrap();
    for name in ["table", "journal", "lock"] {
        std::fs::copy(folder.path().join(".runnel").join(name), copy.path().join(".runnel").join(name)).unwrap();
    }
    let (rig, _) = serve(copy.path(), |volume| volume.writable = false);
    assert_eq!(Data::open(&rig, 1).stat("f").size, 0);
}

#[test]
fn volumes_that_cannot_be_are_refused_at_the_start() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::create_dir(one.path().join("in")).unwrap();
    let bind = |volumes: Vec<VolumeConfig>| {
        let mut config = config(StoreAt::Folder(two.path().to_owned()));
        config.volumes = volumes;
        Server::bind(config).err()
    };
    let read = |name: &str, folder: &Path| VolumeConfig::new(name, folder);
    let written = |name: &str, folder: &Path| VolumeConfig { writable: true, ..VolumeConfig::new(name, folder) };
    for bad in [
        vec![read("../x", one.path())],
        vec![read("", one.path())],
        vec![read("a", &one.path().join("missing"))],
        vec![read("a", one.path()), read("a", two.path())],
        vec![VolumeConfig { block_bytes: 1000, ..read("a", one.path()) }],
        vec![VolumeConfig { block_bytes: 128 << 10, ..read("a", one.path()) }],
        vec![VolumeConfig { quota_bytes: Some(5), ..read("a", one.path()) }],
        vec![written("a", one.path()), written("b", one.path())],
        vec![written("a", one.path()), read("b", &one.path().join("in"))],
        vec![written("a", two.path())],
    ] {
        let error = bind(bad.clone());
        assert!(matches!(error, Some(ServerError::VolumeConfig { .. })), "{bad:?}: {error:?}");
    }
    assert!(bind(vec![read("a", one.path()), read("b", one.path()), read("c", two.path())]).is_none());
}

#[test]
fn pieces_are_read_back() {
    let piece = VolumePiece { version: 3, size: 9, codec: 1, bytes: Bytes::from("bytes") };
    assert_eq!(VolumePiece::parse(piece.to_bytes()), Some(piece));
}
