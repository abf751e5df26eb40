//! Pushes of data blocks over a socket: they follow the profile, the stages' shares, and the ways
//! that a program takes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use profile::flow::{self, BlockRange, FlowGraph, Layout, Share, Stage, Updates};
use store::{Memory, Store};
use tempfile::TempDir;
use units::{InodeId, PageId, Rng, SplitMix64, Token};
use wire::volume::{VolumeAsk, VolumePiece, VolumeReply};
use wire::{ClientConfig, Notice, PushEncoding, Reply};

use super::client::{Client, Stream};
use super::learning::{actions, teach};
use super::rig::{Rig, config, image, program, without_time};
use super::volumes::{Data, create, decoded, noise, pull, serve, serve_with, valid_bytes, write};
use crate::volumes::profile_key;
use crate::{Provider, StoreAt, VolumeConfig};

const TOKEN: Token = Token(77);

/// The runs of a binary search over so many blocks, one for each target.
fn searches(blocks: u32) -> Vec<Vec<u32>> {
    let run = |target: u32| {
        let (mut low, mut high, mut run) = (0, blocks, Vec::new());
        while low < high {
            let middle = low + (high - low) / 2;
            run.push(middle);
            match middle.cmp(&target) {
                std::cmp::Ordering::Equal => break,
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        run
    };
    (0..blocks).map(run).collect()
}

fn search_graph(blocks: u32) -> FlowGraph {
    let layout = Layout::new(4096, u64::from(blocks) * 4096).unwrap();
    let runs = searches(blocks);
    let mut graph = FlowGraph::from_runs(layout, runs.iter().map(Vec::as_slice)).unwrap();
    graph.updates = Updates::Static;
    graph
}

/// A server with the file `f` of so many blocks of noise, and this profile of it.
fn rig(folder: &TempDir, blocks: u32, graph: Option<&FlowGraph>) -> (Rig, Memory) {
    std::fs::write(folder.path().join("f"), noise(1, blocks as usize * 4096)).unwrap();
    let store = Memory::new();
    if let Some(graph) = graph {
        store.put_atomic(&profile_key("data", b"f"), &graph.encode()).unwrap();
    }
    (without_time(|| serve_with(&store, folder.path(), |_| {})), store)
}

/// Blocks that were pushed, in their order.
fn pushed(client: &Client) -> Vec<u32> {
    client.streams.values().flat_map(|stream| stream.pages()).map(|page| page.index).collect()
}

fn open(data: &mut Data) -> (InodeId, bool) {
    match data.ask(VolumeAsk::FileOpen { token: TOKEN, path: b"f".into() }) {
        VolumeReply::FileOpened { file, profiled, .. } => (file, profiled),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_profile_arrives_in_its_order_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    // Every second search only, so that not all blocks are used.
    let layout = Layout::new(4096, 64 * 4096).unwrap();
    let runs: Vec<_> = searches(64).into_iter().step_by(5).collect();
    let mut graph = FlowGraph::from_runs(layout, runs.iter().map(Vec::as_slice)).unwrap();
    graph.updates = Updates::Static;
    let expected = graph.traversal();
    assert!(expected.len() < 60);
    let (rig, store) = rig(&folder, 64, Some(&graph));
    let before = store.get(&profile_key("data", b"f"), 1 << 20).unwrap();
    let mut data = Data::open(&rig, 1);
    let (file, profiled) = open(&mut data);
    assert!(profiled);
    data.client.until(|client| pushed(client).len() >= expected.len());
    assert_eq!(pushed(&data.client), expected);
    // Its bytes are those of the file.
    let content = noise(1, 64 * 4096);
    let stream = data.client.streams.values().next().unwrap();
    assert_eq!(
        (stream.push.encoding, stream.push.token, stream.push.image),
        (PushEncoding::Volume, TOKEN, data.volume)
    );
    for piece in &stream.pieces {
        let held = VolumePiece::parse(piece.bytes.clone()).unwrap();
        let indexes = piece.pages.iter().map(|page| page.index);
        let raw = decoded(held.codec, &held.bytes, valid_bytes(held.size, 4096, indexes));
        let wanted: Vec<u8> =
            piece.pages.iter().flat_map(|page| content[page.index as usize * 4096..][..4096].to_vec()).collect();
        assert!(raw == wanted && piece.pages.iter().all(|page| page.inode == file));
    }
    // What the program touches has come, and comes no second time.
    for block in &runs[3] {
        data.client.touch(data.volume, TOKEN, &[PageId::new(file, *block)]);
    }
    let status = data.client.status();
    assert_eq!(status["metrics"]["volume_blocks_pushed"], expected.len() as u64);
    data.client.end(data.volume, TOKEN);
    data.client.until(|client| client.streams.values().all(|stream| stream.end.is_some()));
    rig.stop();
    assert_eq!(store.get(&profile_key("data", b"f"), 1 << 20).unwrap(), before, "a static graph is never changed");
}

/// Programs without number make blocks wait that nobody takes.
#[test]
fn regress_blocks_that_wait_take_their_share_of_memory_and_no_more() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), noise(1, 8192 * 512)).unwrap();
    let store = Memory::new();
    let rig = serve_with(&store, folder.path(), |volume| volume.block_bytes = 512);
    let share = config(StoreAt::Open(Arc::new(store))).shares().devices as u64;
    let mut data = Data::open(&rig, 1);
    data.client.credits = false;
    let (file, _) = open(&mut data);
    let blocks: Vec<PageId> = (0..8192).map(|index| PageId::new(file, index)).collect();
    let (mut most, mut hinted) = (0, 0);
    for program in 0..128 {
        for some in blocks.chunks(1024) {
            data.client.hint(data.volume, Token(100 + program), some);
        }
        let status = data.client.status();
        most = most.max(status["memory"]["devices_bytes"].as_u64().unwrap());
        hinted = status["metrics"]["pages_hinted"].as_u64().unwrap();
    }
    assert!(most <= share && most > share / 32, "{most} of {share}");
    assert!(hinted > 1000 && hinted * 16 < share, "{hinted} blocks were taken");
    let status = Client::connect(rig.address, 2).status();
    assert!(status["memory"]["devices_bytes"].as_u64().unwrap() > 0);
    drop(data);
    Client::connect(rig.address, 2).status_until(|status| status["memory"]["devices_bytes"] == 0);
}

/// The memory of blocks that waited is given back once they were pushed, and not with the
/// connection's end.
#[test]
fn regress_blocks_that_were_pushed_take_no_memory() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), noise(1, 8192 * 512)).unwrap();
    let rig = serve_with(&Memory::new(), folder.path(), |volume| volume.block_bytes = 512);
    let mut data = Data::open(&rig, 1);
    let (file, _) = open(&mut data);
    let blocks: Vec<PageId> = (0..8192).map(|index| PageId::new(file, index)).collect();
    for some in blocks.chunks(1024) {
        data.client.hint(data.volume, TOKEN, some);
    }
    data.client.until(|client| pushed(client).len() > 2048);
    let status = data.client.status_until(|status| {
        let metrics = &status["metrics"];
        metrics["volume_blocks_pushed"] == metrics["pages_hinted"]
    });
    let held = status["memory"]["devices_bytes"].as_u64().unwrap();
    assert!(held < 16 << 10, "{held} bytes");
}

#[test]
fn another_way_takes_the_place_of_what_was_foreseen() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = rig(&folder, 255, Some(&search_graph(255)));
    let mut data = Data::open(&rig, 1);
    data.client.credits = false;
    let (file, _) = open(&mut data);
    // The window is small as long as the link is unknown: two frames, and one that stands ready.
    data.client.until(|client| pushed(client).len() >= 2);
    assert_eq!(data.stat("f").size, 255 * 4096);
    assert_eq!(pushed(&data.client).len(), 2, "{:?}", pushed(&data.client));
    let root = pushed(&data.client)[0];
    data.client.touch(data.volume, TOKEN, &[PageId::new(file, root)]);
    // The left half, by a block that was not sent yet.
    let left = searches(255)[3][2];
    let VolumeReply::Blocks { .. } = data.ask(pull(TOKEN, file, [left])) else { panic!("it was not on its way") };
    let before = pushed(&data.client).len();
    data.client.credits = true;
    data.client.credit_all();
    // What lies below the block, on both of its sides.
    let wanted: Vec<u32> = (0..63).filter(|block| *block != left).collect();
    data.client.until(|client| {
        let came: BTreeSet<u32> = pushed(client).into_iter().collect();
        wanted.iter().all(|block| came.contains(block))
    });
    assert!(data.client.closed.is_none());
    let after = pushed(&data.client).split_off(before);
    // One piece was being built, one was handed out in part.
    let strangers = after.iter().filter(|block| !wanted.contains(block)).count();
    assert!(strangers <= 2, "{strangers} of another way: {after:?}");
    assert!(!after.contains(&left), "{after:?}");
}

#[test]
fn a_demand_for_what_is_on_the_way_waits_for_it() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = rig(&folder, 64, Some(&search_graph(64)));
    let mut data = Data::open(&rig, 1);
    data.client.credits = false;
    let (file, _) = open(&mut data);
    data.client.until(|client| !pushed(client).is_empty());
    let first = pushed(&data.client)[0];
    let reply = data.reply(pull(TOKEN, file, [first]));
    assert!(matches!(reply, Reply::OnTheWay { .. }), "{reply:?}");
    let forced = VolumeAsk::PullBlocks { token: TOKEN, blocks: vec![PageId::new(file, first)], force: true };
    assert!(matches!(data.ask(forced), VolumeReply::Blocks { .. }));
}

fn staged(shares: &[(u32, u32, Share)]) -> FlowGraph {
    let blocks = shares.iter().map(|(_, last, _)| last + 1).max().unwrap();
    let layout = Layout::new(4096, u64::from(blocks) * 4096).unwrap();
    let path: Vec<u32> = (0..blocks).collect();
    let mut graph = FlowGraph::from_path(layout, &path).unwrap();
    let stages = shares.iter().enumerate().map(|(number, (first, last, share))| {
        Stage::new(&format!("scene {number}"), &[BlockRange { first: *first, last: *last }], *share).unwrap()
    });
    graph.set_stages(stages.collect()).unwrap();
    graph
}

#[test]
fn stages_get_their_shares() {
    let folder = TempDir::new().unwrap();
    let graph = staged(&[(0, 399, Share::Percent(70)), (400, 799, Share::Percent(30)), (800, 899, Share::Rest)]);
    let (rig, _) = rig(&folder, 900, Some(&graph));
    let mut data = Data::open(&rig, 1);
    let _ = open(&mut data);
    data.client.until(|client| pushed(client).len() >= 900);
    let order = pushed(&data.client);
    let first_through = order.iter().rposition(|block| *block < 400).unwrap();
    let second = order[..first_through].iter().filter(|block| (400..800).contains(*block)).count();
    // 30 of 70 of 400; pieces hold up to 32 blocks.
    assert!(second.abs_diff(171) <= 40, "{second}");
    assert!(!order[..first_through].iter().any(|block| *block >= 800), "the rest came too early");
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 900, "each block once");
}

#[test]
fn the_device_overrules_the_profile_and_hints_are_background() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("g"), noise(2, 300 * 4096)).unwrap();
    let (rig, _) = rig(&folder, 300, Some(&staged(&[(0, 299, Share::Percent(100))])));
    let mut data = Data::open(&rig, 1);
    data.client.credits = false;
    let (g, _) = data.file("g", Token(5));
    data.client
        .wire
        .notify(Notice::FileShare { volume: data.volume, file: g, share: wire::volume::Share::Percent(100) })
        .unwrap();
    let all: Vec<PageId> = (0..300).map(|index| PageId::new(g, index)).collect();
    data.client.hint(data.volume, Token(5), &all);
    let (f, _) = open(&mut data);
    data.client.credits = true;
    data.client.credit_all();
    data.client.until(|client| pushed(client).len() >= 600);
    let order: Vec<PageId> = {
        let mut pieces: Vec<_> = data.client.streams.values().flat_map(|stream| &stream.pieces).collect();
        pieces.sort_by_key(|piece| piece.stream.0);
        pieces.iter().flat_map(|piece| piece.pages.clone()).collect()
    };
    assert_eq!(order.iter().filter(|page| page.inode == f).count(), 300);
    assert_eq!(order.iter().filter(|page| page.inode == g).count(), 300);
    let status = data.client.status();
    assert_eq!(status["metrics"]["pages_hinted"], 300);
}

#[test]
fn without_a_profile_files_are_read_ahead_and_what_was_used_is_learned() {
    let folder = TempDir::new().unwrap();
    let (rig, store) = rig(&folder, 200, None);
    let mut data = Data::open(&rig, 1);
    let (file, profiled) = open(&mut data);
    assert!(!profiled);
    let mut demanded = 0;
    for block in 0..200 {
        if pushed(&data.client).contains(&block) {
            data.client.touch(data.volume, TOKEN, &[PageId::new(file, block)]);
            // The answer says that the server knows of the touch, whichever side is faster.
            data.stat("f");
            continue;
        }
        match data.reply(pull(TOKEN, file, [block])) {
            Reply::OnTheWay { .. } => data.client.until(|client| pushed(client).contains(&block)),
            Reply::Volume(VolumeReply::Blocks { .. }) => demanded += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(demanded <= 30, "{demanded} of 200 blocks in order were demanded");
    data.client.end(data.volume, TOKEN);
    data.stat("f");
    drop(data);
    rig.stop();
    let graph = flow::decode(&store.get(&profile_key("data", b"f"), 1 << 20).unwrap()).unwrap();
    assert_eq!((graph.updates, graph.used().len()), (Updates::Live, 200));
    // It comes by itself then.
    let rig = without_time(|| serve_with(&store, folder.path(), |_| {}));
    let mut data = Data::open(&rig, 2);
    assert!(open(&mut data).1);
    data.client.until(|client| pushed(client).len() >= 200);
    assert_eq!(pushed(&data.client), (0..200).collect::<Vec<_>>());
}

#[test]
fn other_block_sizes_follow_the_same_profile() {
    for (block_bytes, blocks) in [(512, 64 * 8), (16384, 16)] {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("f"), noise(1, 64 * 4096)).unwrap();
        let store = Memory::new();
        let layout = Layout::new(4096, 64 * 4096).unwrap();
        let path: Vec<u32> = (0..64).rev().collect();
        store.put_atomic(&profile_key("data", b"f"), &FlowGraph::from_path(layout, &path).unwrap().encode()).unwrap();
        let rig = serve_with(&store, folder.path(), |volume| volume.block_bytes = block_bytes);
        let mut data = Data::open(&rig, 1);
        open(&mut data);
        data.client.until(|client| pushed(client).len() >= blocks);
        let order = pushed(&data.client);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), blocks);
        assert!(order[0] as usize * block_bytes as usize >= 63 * 4096 - 12288, "{order:?}");
    }
}

#[test]
fn a_file_that_changes_while_it_is_pushed_says_its_version() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = rig(&folder, 64, Some(&search_graph(64)));
    let (mut data, mut other) = (Data::open(&rig, 1), Data::open(&rig, 2));
    data.client.credits = false;
    let (file, _) = open(&mut data);
    data.client.until(|client| !pushed(client).is_empty());
    let after = other.commit(1, vec![write("f", None, 5, b"changed")])[0];
    data.client.credits = true;
    data.client.credit_all();
    data.client.until(|client| pushed(client).len() >= 40);
    let pieces = data.client.streams.values().flat_map(|stream| &stream.pieces);
    let last = VolumePiece::parse(pieces.last().unwrap().bytes.clone()).unwrap();
    assert_eq!(last.version, after.version);
    // Gone: the push ends, and nothing else does.
    other.commit(2, vec![wire::volume::Change::Unlink { path: b"f".into(), base: None }, create("g")]);
    data.refused(pull(TOKEN, file, [1]), wire::ErrorCode::Stale);
    assert_eq!(data.stat("g").size, 0);
}

#[test]
fn a_device_caps_what_is_sent_to_it() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), noise(1, 128 * 4096)).unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut data = Data::with(Client::with(rig.address, ClientConfig { device: 1, ..ClientConfig::default() }));
    let (file, _) = data.file("f", Token(0));
    let rate = 1_000_000;
    let before = data.client.wire.traffic().bytes_received;
    let begun = Instant::now();
    data.client.wire.notify(Notice::RateLimit { bytes_per_second: rate }).unwrap();
    let content: Vec<u8> = (0..4).flat_map(|part| data.pull(file, part * 32..(part + 1) * 32).1).collect();
    assert_eq!(Bytes::from(content), Bytes::from(noise(1, 128 * 4096)));
    let received = data.client.wire.traffic().bytes_received - before;
    let allowed = rate as f64 * begun.elapsed().as_secs_f64() + rate as f64 / 10.0;
    assert!(received >= 128 * 4096 && received as f64 <= allowed, "{received} bytes of {allowed}");
    data.client.wire.notify(Notice::RateLimit { bytes_per_second: 0 }).unwrap();
    data.pull(file, 0..32);
}

/// Whatever a device does in whatever order, what is pushed are right bytes of files that were
/// open.
#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn sim_any_order_of_wishes_is_survived() {
    let folder = TempDir::new().unwrap();
    let contents = [noise(1, 64 * 4096), noise(2, 90 * 4096 + 7), noise(3, 40 * 4096 + 1)];
    let store = Memory::new();
    let names = ["f", "g", "h"];
    for (name, content) in names.iter().zip(&contents) {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let scenes = staged(&[(0, 29, Share::Percent(60)), (30, 59, Share::Rate(100_000)), (60, 89, Share::Rest)]);
    for (name, graph) in [("f", search_graph(64)), ("g", scenes)] {
        store.put_atomic(&profile_key("data", name.as_bytes()), &graph.encode()).unwrap();
    }
    let rig = serve_with(&store, folder.path(), |_| {});
    let mut rng = SplitMix64(17);
    for device in 1..4 {
        let mut data = Data::open(&rig, device);
        let mut open: HashMap<InodeId, usize> = HashMap::new();
        for _ in 0..400 {
            let (which, token) = (rng.below(3) as usize, Token(1 + u128::from(rng.below(4))));
            // Some of these are not open, or not any more.
            let file = InodeId(2 + rng.below(open.len() as u64 + 2) as u32);
            let blocks: Vec<PageId> = (0..1 + rng.below(9)).map(|_| PageId::new(file, rng.below(100) as u32)).collect();
            let volume = data.volume;
            match rng.below(12) {
                0 | 1 => {
                    let (number, _) = data.file(names[which], token);
                    open.insert(number, which);
                }
                2 => {
                    let _ = data.client.wire.notify(Notice::FileClose { volume, file });
                }
                3 => data.client.end(volume, token),
                4 => {
                    let shares =
                        [wire::volume::Share::Rest, wire::volume::Share::Percent(30), wire::volume::Share::Rate(5000)];
                    data.client.wire.notify(Notice::FileShare { volume, file, share: shares[which] }).unwrap();
                }
                5 => data.client.hint(volume, Token(50), &blocks),
                6 => {
                    let streams: Vec<_> =
                        data.client.streams.iter().filter(|(_, stream)| stream.end.is_none()).collect();
                    if let Some(stream) = streams.first().map(|(stream, _)| **stream) {
                        data.client.stop_push(stream);
                    }
                }
                7 => {
                    data.client.credits = !data.client.credits;
                    if data.client.credits {
                        data.client.credit_all();
                    }
                }
                8 => {
                    let ask = VolumeAsk::PullBlocks { token, blocks, force: rng.below(2) == 0 };
                    let reply = data.reply(ask);
                    let right = matches!(
                        reply,
                        Reply::Volume(VolumeReply::Blocks { .. }) | Reply::OnTheWay { .. } | Reply::Error { .. }
                    );
                    assert!(right, "{reply:?}");
                }
                _ => data.client.touch(volume, token, &blocks),
            }
        }
        data.stat("f");
        assert!(data.client.closed.is_none());
        for piece in data.client.streams.values().flat_map(|stream| &stream.pieces) {
            let held = VolumePiece::parse(piece.bytes.clone()).unwrap();
            let content = &contents[open[&piece.pages[0].inode]];
            let raw = decoded(
                held.codec,
                &held.bytes,
                valid_bytes(held.size, 4096, piece.pages.iter().map(|page| page.index)),
            );
            let wanted: Vec<u8> = piece
                .pages
                .iter()
                .flat_map(|page| content[page.index as usize * 4096..].iter().take(4096).copied())
                .collect();
            assert!(raw == wanted && held.size == content.len() as u64);
        }
    }
}

#[test]
fn data_that_are_read_go_before_pages_that_nobody_asked_for() {
    const BLOCKS: u32 = 60;
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), noise(1, BLOCKS as usize * 4096)).unwrap();
    let bytes = image(4);
    let program = program(&bytes, 5, 100);
    let (rig, store) = Rig::with_image(&bytes, |config| {
        config.learning.provider = Provider::NvAsync;
        config.volumes = vec![VolumeConfig::new("data", folder.path())];
    });
    let path: Vec<u32> = (0..BLOCKS).collect();
    let graph = FlowGraph::from_path(Layout::new(4096, u64::from(BLOCKS) * 4096).unwrap(), &path).unwrap();
    store.put_atomic(&profile_key("data", b"f"), &graph.encode()).unwrap();
    let (mut first, _) = teach(&rig, 1, &program);
    first.status_until(|status| actions(status) == 1);

    let mut data = Data::open(&rig, 2);
    data.client.credits = false;
    let handle = data.client.open("app");
    data.client.pull(handle, Token(2), program[0]);
    let of = |client: &Client, volume: bool| -> Vec<PageId> {
        let wanted = |stream: &&Stream| (stream.push.encoding == PushEncoding::Volume) == volume;
        client.streams.values().filter(wanted).flat_map(Stream::pages).collect()
    };
    // One piece is under way as long as the link is unknown, then the blocks.
    data.client.until(|client| !of(client, false).is_empty());
    let begun = of(&data.client, false).len();
    assert!(begun <= 32, "{begun}");
    open(&mut data);
    data.client.until(|client| of(client, true).len() >= 2);
    data.client.credits = true;
    data.client.credit_all();
    data.client.until(|client| of(client, true).len() >= BLOCKS as usize);
    let meanwhile = of(&data.client, false).len() - begun;
    assert!(meanwhile <= 32, "{meanwhile} pages came before the data");
    // Then they come, without a further touch.
    data.client.until(|client| of(client, false).len() >= program.len() - 1);
}
