use ::units::{Rng, SplitMix64};

use super::features::sampling;
use super::*;

const BLOCK: u32 = 64 << 10;

/// Chunks to be sorted, with their content.
#[derive(Default)]
struct Set {
    items: Vec<Item>,
    features: Features,
}

impl Set {
    fn push(&mut self, group: u16, file: u32, position: u32, content: &[u8]) {
        let mut out = Vec::new();
        shingles(content, 4, &mut out);
        self.features.push(&out);
        self.items.push(Item { group, file, position, bytes: content.len() as u32 });
    }

    /// Files of random sizes in three groups, cut from a few random texts, so that much repeats.
    fn random(seed: u64, files: u32) -> Set {
        let mut rng = SplitMix64(seed);
        let text = noise(&mut rng, 100_000);
        let mut set = Set::default();
        for file in 0..files {
            let chunks = rng.below(30) as u32 + 1;
            for position in 0..chunks {
                let bytes = if position + 1 < chunks { 4096 } else { rng.below(4096) as usize + 1 };
                let start = rng.below((text.len() - bytes) as u64) as usize;
                let group = [0x0001, 0x0002, 0x0101][rng.below(3) as usize];
                set.push(group, file, position, &text[start..start + bytes]);
            }
        }
        set
    }

    fn sorted(&self, config: &Config<'_>, threads: usize) -> Vec<Vec<u32>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| blocks(&self.items, &self.features, config, &|_| {}))
    }

    /// Sorts, and checks what holds for every input.
    fn check(&self, config: &Config<'_>) -> Vec<Vec<u32>> {
        let blocks = self.sorted(config, 1);
        assert_eq!(blocks, self.sorted(config, 2), "{config:?}: depends on threads");
        let mut placed: Vec<u32> = blocks.iter().flatten().copied().collect();
        placed.sort_unstable();
        assert!(placed.iter().copied().eq(0..self.items.len() as u32), "{config:?}: not every item once");
        let items = |block: &[u32]| block.iter().map(|item| self.items[*item as usize]).collect::<Vec<_>>();
        let mut mixed = 0;
        for block in blocks.iter().map(|block| items(block)) {
            assert!(!block.is_empty());
            assert!(block.iter().map(|item| item.bytes).sum::<u32>() <= config.block_bytes, "{config:?}: too large");
            assert!(block.iter().all(|item| item.group >> 8 == block[0].group >> 8), "{config:?}: mixes high bytes");
            mixed += usize::from(block.iter().any(|item| item.group != block[0].group));
        }
        let mut groups: Vec<u16> = self.items.iter().map(|item| item.group).collect();
        groups.sort_unstable();
        groups.dedup();
        assert!(mixed < groups.len().max(1), "{config:?}: {mixed} blocks mix groups");
        blocks
    }
}

fn noise(rng: &mut SplitMix64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

fn config(method: Method) -> Config<'static> {
    Config { method, block_bytes: BLOCK, hot_block_bytes: BLOCK, locality: LOCALITY_DEFAULT, sorter: None }
}

const METHODS: &[Method] = &[Method::None, Method::Files, Method::Greedy];

#[test]
fn prop_every_item_lies_in_one_block_of_its_group() {
    for seed in 0..2 {
        let set = Set::random(seed, 40);
        for &method in METHODS {
            for block_bytes in [12_288, BLOCK, 1 << 20] {
                for locality in [0, LOCALITY_DEFAULT, 1000] {
                    set.check(&Config { block_bytes, hot_block_bytes: block_bytes, locality, ..config(method) });
                }
            }
        }
    }
}

#[test]
fn degenerate_inputs_are_sorted_like_any() {
    for &method in METHODS {
        assert!(Set::default().check(&config(method)).is_empty());
        let mut one = Set::default();
        one.push(7, 0, 0, b"x");
        assert_eq!(one.check(&config(method)), [[0]]);
        let mut equal = Set::default();
        (0..3000).for_each(|file| equal.push(0, file, 0, &[7; 4096]));
        equal.check(&config(method));
        let mut tiny = Set::default();
        (0..3000).for_each(|file| tiny.push(0, file % 2, file, &file.to_le_bytes()[..1 + file as usize % 4]));
        tiny.check(&config(method));
        let mut one_file = Set::default();
        let text = noise(&mut SplitMix64(1), 4096 * 300);
        text.chunks(4096).enumerate().for_each(|(position, chunk)| one_file.push(0, 0, position as u32, chunk));
        one_file.check(&config(method));
    }
}

#[test]
fn twins_share_a_block() {
    // Each chunk of the first half of the files has a twin in the second half that differs in a few
    // bytes.
    let mut rng = SplitMix64(5);
    let mut set = Set::default();
    let contents: Vec<Vec<u8>> = (0..256).map(|_| noise(&mut rng, 4096)).collect();
    for (file, content) in contents.iter().enumerate() {
        set.push(0, file as u32, 0, content);
    }
    for (file, content) in contents.iter().enumerate() {
        let mut twin = content.clone();
        twin[100..108].fill(0);
        set.push(0, (contents.len() + file) as u32, 0, &twin);
    }
    for &method in METHODS.iter().filter(|method| **method != Method::None) {
        let blocks = set.check(&config(method));
        let block_of = |item: u32| blocks.iter().position(|block| block.contains(&item));
        let apart = (0..256).filter(|item| block_of(*item) != block_of(item + 256)).count();
        assert!(apart <= 256 / 16, "{method:?}: {apart} of 256 twins apart");
    }
}

/// The chunks in the order of their first features, a block for each two.
#[derive(Debug)]
struct Pairs;

impl Sorter for Pairs {
    fn features(&self, bytes: &[u8], out: &mut Vec<u32>) {
        out.extend(bytes.first().map(|byte| u32::from(*byte)));
    }

    fn blocks(&self, chunks: &[Sortable<'_>], _: u32) -> Vec<Vec<u32>> {
        let mut order: Vec<u32> = (0..chunks.len() as u32).collect();
        order.sort_by_key(|chunk| chunks[*chunk as usize].features.to_vec());
        order.chunks(2).map(<[u32]>::to_vec).collect()
    }
}

#[test]
fn a_sorter_of_the_caller_takes_the_place_of_ours() {
    let mut set = Set::default();
    for (file, byte) in [3, 1, 2, 0, 9].into_iter().enumerate() {
        let mut features = Vec::new();
        Describer::Given(&Pairs).describe(&[byte; 100], &mut features);
        set.features.push(&features);
        set.items.push(Item { group: 5, file: file as u32, position: 0, bytes: 100 });
    }
    let given = Config { sorter: Some(&Pairs), ..config(Method::Greedy) };
    assert_eq!(set.check(&given), [vec![3, 1], vec![2, 0], vec![4]]);
    assert_eq!(set.check(&Config { method: Method::None, ..given }), [[0, 1, 2, 3, 4]]);
}

#[test]
#[should_panic(expected = "Pairs made a block of 8192 bytes")]
fn a_sorter_that_overfills_a_block_is_found_out() {
    let mut set = Set::default();
    (0..2).for_each(|file| set.push(5, file, 0, &[7; 4096]));
    blocks(
        &set.items,
        &set.features,
        &Config { block_bytes: 4096, sorter: Some(&Pairs), ..config(Method::Greedy) },
        &|_| {},
    );
}

#[test]
fn locality_keeps_files_together() {
    let set = Set::random(9, 200);
    let spread = |locality| {
        let blocks = set.check(&Config { locality, ..config(Method::Greedy) });
        let files = |block: &Vec<u32>| {
            let mut files: Vec<u32> = block.iter().map(|item| set.items[*item as usize].file).collect();
            files.sort_unstable();
            files.dedup();
            files.len()
        };
        blocks.iter().map(files).sum::<usize>()
    };
    let (none, default, high) = (spread(0), spread(LOCALITY_DEFAULT), spread(1000));
    assert!(high < default && default < none, "{high} {default} {none}");
}

#[test]
fn sampling_bounds_the_number_of_shingles() {
    assert_eq!(sampling(0), 4);
    assert_eq!(sampling(512 << 20), 4);
    assert_eq!(sampling((512 << 20) + 1), 5);
    assert_eq!(sampling(1 << 30), 5);
    assert_eq!(sampling(1 << 32), 7);
    let mut rng = SplitMix64(3);
    let (mut dense, mut sparse) = (Vec::new(), Vec::new());
    let text = noise(&mut rng, 1 << 20);
    shingles(&text, 4, &mut dense);
    shingles(&text, 5, &mut sparse);
    assert!((60_000..70_000).contains(&dense.len()), "{}", dense.len());
    assert!((30_000..35_000).contains(&sparse.len()), "{}", sparse.len());
    shingles(&text[..7], 4, &mut dense);
    assert!(dense.is_empty(), "shorter than a window");
}

#[test]
fn ranking_finds_the_highest_key() {
    let mut rng = SplitMix64(2);
    for units in [1usize, 63, 64, 65, 5000] {
        let mut ranking = ranking::Ranking::new(units);
        let mut keys = vec![0; units];
        for _ in 0..2000 {
            let (unit, key) = (rng.below(units as u64) as usize, rng.below(20) as u32);
            keys[unit] = key;
            ranking.set(unit as u32, key);
            let highest = keys.iter().copied().max().filter(|key| *key > 0);
            let expected = highest.and_then(|highest| keys.iter().position(|key| *key == highest));
            assert_eq!(ranking.best(), expected.map(|unit| unit as u32));
        }
    }
}
