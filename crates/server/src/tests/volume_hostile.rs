//! Requests to a volume that no client means well with.

use std::sync::Mutex;

use bytes::Bytes;
use tempfile::TempDir;
use units::{InodeId, Moment, PageId, Rng, SplitMix64, Token};
use volume::{Options, Volume};
use wire::ClientConfig;
use wire::volume::{Change, LeaseKind, Seen, VolumeAsk, XattrHow};

use super::client::Client;
use super::volumes::{Data, serve};
use crate::volumes::{Caller, OpenFiles, answer};

fn some_path(rng: &mut SplitMix64) -> Vec<u8> {
    const PARTS: [&[u8]; 10] =
        [b"a", b"b", b"..", b".", b"", b".runnel", b"\0", b"/", &[0xff; 300], b"a/../../../etc/passwd"];
    let parts: Vec<_> = (0..rng.below(4)).map(|_| PARTS[rng.below(10) as usize]).collect();
    parts.join(&b'/')
}

fn some_number(rng: &mut SplitMix64) -> u64 {
    [0, 1, 4095, 4096, 1 << 32, 1 << 42, i64::MAX as u64, u64::MAX - 1, u64::MAX, rng.next_u64()]
        [rng.below(10) as usize]
}

fn some_ask(rng: &mut SplitMix64) -> VolumeAsk {
    let (path, token) = (some_path(rng), Token(1));
    let base = (rng.below(3) == 0).then(|| Seen { file: some_number(rng), version: some_number(rng) });
    match rng.below(9) {
        8 => VolumeAsk::XattrsRead { path },
        0 => VolumeAsk::FileOpen { token, path },
        1 => VolumeAsk::FileStat { path },
        2 => VolumeAsk::FolderList { path, after: some_path(rng), limit: some_number(rng) as u16 },
        3 => VolumeAsk::LinkRead { path },
        4 => {
            let blocks = (0..rng.below(70))
                .map(|_| PageId::new(InodeId(rng.below(4) as u32), some_number(rng) as u32))
                .collect();
            VolumeAsk::PullBlocks { token, blocks, force: true }
        }
        5 => VolumeAsk::Lease { file: some_number(rng), kind: Some(LeaseKind::Exclusive), duration_ms: u32::MAX },
        _ => {
            let bytes = Bytes::from(vec![7; rng.below(100) as usize]);
            let (to, mode, number) = (some_path(rng), some_number(rng) as u16, some_number(rng));
            let name = [&b"user.a"[..], b"user.runnel.inode", b"trusted.a", b"", b"user.a\0b"][rng.below(5) as usize];
            let change = match rng.below(12) {
                10 => Change::SetXattr { path, base, name: name.into(), value: bytes, how: XattrHow::Any },
                11 => Change::RemoveXattr { path, base, name: name.into() },
                0 => Change::Write { path, base, offset: number, bytes },
                1 => Change::Append { path, base, bytes },
                2 => Change::Truncate { path, base, size: number },
                3 => Change::Create { path, mode, exclusive: false, owner: None },
                4 => Change::MakeFolder { path, mode, owner: None },
                5 => Change::Rename { from: path, base, to, replace: true },
                6 => Change::Unlink { path, base },
                7 => Change::RemoveFolder { path },
                8 => Change::SetTime { path, base, mtime_ns: number as i64 },
                _ => Change::SetMode { path, base, mode },
            };
            VolumeAsk::Commit { number: some_number(rng), mtime_ns: number as i64, changes: vec![change] }
        }
    }
}

/// Nothing that a client says makes the answer panic, or leaves the folder.
#[test]
fn hostile_requests_stay_inside() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("volume");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(outer.path().join("secret"), b"secret").unwrap();
    std::os::unix::fs::symlink("../secret", folder.join("a")).unwrap();
    let volume = Volume::open(&folder, None, Options { quota_bytes: Some(1 << 20), ..Options::default() }).unwrap();
    let files = Mutex::new(OpenFiles::default());
    let mut rng = SplitMix64(5);
    for round in 0..4000 {
        let ask = some_ask(&mut rng);
        let caller = Caller::new(u128::from(round % 3), Moment(round));
        let _ = answer(&volume, &files, &caller, &ask);
    }
    let outside: Vec<_> = std::fs::read_dir(outer.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside.len(), 2);
    assert_eq!(std::fs::read(outer.path().join("secret")).unwrap(), b"secret");
    drop(volume);
    // And over the wire, as far as it lets such requests through.
    let (rig, _) = serve(&folder, |volume| volume.quota_bytes = Some(1 << 20));
    let mut data = Data::with(Client::with(rig.address, ClientConfig { device: 3, ..ClientConfig::default() }));
    for _ in 0..500 {
        let ask = data.request(some_ask(&mut rng));
        let now = data.client.now();
        if let Ok(request) = data.client.wire.request(now, ask) {
            data.client.reply(request);
        }
    }
    assert!(data.client.closed.is_none());
}
