//! Which images a run makes of a tree.

use std::path::PathBuf;

use super::options::Size;
use super::packer::{Codec, Setting, Stage};
use super::peer::Peer;
use super::sorter::Way;

const K64: u64 = 64 << 10;
const K128: u64 = 128 << 10;
const M1: u64 = 1 << 20;

/// Block sizes that are compared.
pub const BLOCKS: [u64; 3] = [K64, K128, M1];

/// An image to make.
#[derive(Clone, Debug, PartialEq)]
pub enum Job {
    /// By our packer; the text is the variant in the row.
    Ours(Setting, String),
    /// By the tool of another system.
    Peer(Peer),
    /// By our packer with chunks sorted in this way.
    Sorted(Way, Codec, u64),
}

/// Settings of ours for a tree, without traces.
pub fn ours(size: Size) -> Vec<Job> {
    let settings: Vec<(Codec, u64)> = match size {
        Size::Quick => vec![(Codec::Zstd, K128), (Codec::Zstd, K64), (Codec::Lz4, K64), (Codec::Lz4, K128)],
        Size::Usual => {
            let zstd = BLOCKS.map(|block| (Codec::Zstd, block));
            let others = [(Codec::Lz4, K64), (Codec::Lz4, K128), (Codec::Xz, M1)];
            zstd.into_iter().chain(others).collect()
        }
        Size::Full => Codec::ALL.iter().flat_map(|codec| BLOCKS.map(|block| (*codec, block))).collect(),
    };
    let mut jobs: Vec<Job> =
        settings.into_iter().map(|(codec, block)| without_dictionary(Setting::plain(codec, block))).collect();
    if size > Size::Quick {
        jobs.extend([K64, K128].map(|block| {
            let plus = Some(Stage::Dictionary);
            Job::Ours(Setting { plus, ..Setting::plain(Codec::Zstd, block) }, DICTIONARY.into())
        }));
        let plus = Some(Stage::Recompress);
        let minus = Some(Stage::Dictionary);
        jobs.push(Job::Ours(Setting { plus, minus, ..Setting::plain(Codec::Zstd, M1) }, RECOMPRESS.into()));
    }
    jobs
}

/// The plain form of a setting: all that the packer chooses by itself, without dictionaries.
pub fn without_dictionary(setting: Setting) -> Job {
    Job::Ours(Setting { minus: Some(Stage::Dictionary), ..setting }, String::new())
}

/// Variant of ours with dictionaries.
pub const DICTIONARY: &str = "dictionaries";

/// Variant of ours with deflate streams encoded again.
pub const RECOMPRESS: &str = "recompress";

/// Images of other systems; `list` is the sort list of SquashFS, if there is one.
pub fn peers(size: Size, list: Option<PathBuf>) -> Vec<Job> {
    let squashfs = |codec, block, sorted| Peer::Squashfs { codec, block, sorted };
    let erofs = |codec, block, unit, packed| Peer::Erofs { codec, block, unit, packed };
    let mut peers = vec![
        Peer::Stream { codec: Codec::Zstd },
        squashfs(Codec::Zstd, K128, None),
        squashfs(Codec::Zstd, K128, list.clone()),
        squashfs(Codec::Lz4, K128, None),
        squashfs(Codec::Lz4, K128, list.clone()),
        erofs(Codec::Lz4, K64, false, false),
        erofs(Codec::Zstd, K64, false, false),
        erofs(Codec::Lz4, K128, true, false),
    ];
    if size > Size::Quick {
        peers.push(Peer::Stream { codec: Codec::Xz });
        peers.extend(pairs(size).into_iter().flat_map(|(codec, block)| {
            [squashfs(codec, block, None), squashfs(codec, block, list.clone()), erofs(codec, block, true, false)]
        }));
        peers.extend([(Codec::Zstd, M1), (Codec::Xz, M1)].map(|(codec, block)| erofs(codec, block, false, true)));
        peers.extend([K64, K128, M1].map(|block| Peer::Dwarfs { codec: Codec::Zstd, block }));
    }
    let mut jobs: Vec<Job> = Vec::new();
    for peer in peers {
        // Without a list, the sorted form would be the plain one again.
        if !jobs.contains(&Job::Peer(peer.clone())) {
            jobs.push(Job::Peer(peer));
        }
    }
    jobs
}

fn pairs(size: Size) -> Vec<(Codec, u64)> {
    if size == Size::Full {
        return Codec::ALL.iter().flat_map(|codec| BLOCKS.map(|block| (*codec, block))).collect();
    }
    BLOCKS.map(|block| (Codec::Zstd, block)).into_iter().chain([(Codec::Lz4, K64), (Codec::Xz, M1)]).collect()
}

/// Block sizes at which the stages are measured one by one.
pub fn ablation_blocks(size: Size) -> &'static [u64] {
    match size {
        Size::Quick => &[],
        Size::Usual => &[K128],
        Size::Full => &BLOCKS,
    }
}

/// The steps from nothing to everything: name and stages that are on.
pub const STEPS: [(&str, &[Stage]); 5] = [
    ("none", &[]),
    ("+ group", &[Stage::Group]),
    ("+ sort", &[Stage::Group, Stage::Sort]),
    ("+ filter", &[Stage::Group, Stage::Sort, Stage::Filter]),
    ("+ dictionary", &[Stage::Group, Stage::Sort, Stage::Filter, Stage::Dictionary]),
];

/// The packer with some stages on, all others off.
pub fn step(name: &str, stages: &[Stage], block: u64, traces: &[PathBuf]) -> Job {
    let stages = Some(stages.to_vec());
    let setting = Setting { stages, traces: traces.to_vec(), ..Setting::plain(Codec::Zstd, block) };
    Job::Ours(setting, format!("stages: {name}"))
}

/// The packer with a trace: hot chunks apart.
pub fn traced(block: u64, set: &str, trace: PathBuf) -> Job {
    let minus = Some(Stage::Dictionary);
    let setting = Setting { traces: vec![trace], minus, ..Setting::plain(Codec::Zstd, block) };
    Job::Ours(setting, format!("traced {set}"))
}

/// Block sizes at which ways to sort are compared.
const SORTED_BLOCKS: [u64; 4] = [4 << 10, K64, K128, M1];

/// Images that differ in how their chunks are sorted.
pub fn sorted() -> Vec<Job> {
    let settings = [Codec::Zstd, Codec::Lz4].into_iter().flat_map(|codec| SORTED_BLOCKS.map(|block| (codec, block)));
    settings.flat_map(|(codec, block)| Way::ALL.map(|way| Job::Sorted(way, codec, block))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_sizes_measure_more_and_nothing_twice() {
        let count = |size| {
            let jobs: Vec<Job> = ours(size).into_iter().chain(peers(size, Some("/list".into()))).collect();
            for (index, job) in jobs.iter().enumerate() {
                assert!(!jobs[..index].contains(job), "{job:?} twice");
            }
            jobs.len()
        };
        assert!(count(Size::Quick) < count(Size::Usual) && count(Size::Usual) < count(Size::Full));
        assert!(peers(Size::Quick, None).len() < peers(Size::Quick, Some("/list".into())).len());
    }
}
