//! The method of Huang et al. (FAST '26): a graph of chunks that share features, cut into blocks by
//! METIS.
//!
//! A feature is the maximum of a hash over the sampled windows of a chunk. Several hashes give
//! several features, and two chunks share each with a probability that is their resemblance. An
//! edge weighs as much as its chunks share. Neighbours in a file have an edge too; without it,
//! chunks that resemble nothing are scattered. Inside a block, the chunk that shares most with
//! those before it comes first. The windows are those of the shingles; the paper rolls a gear hash.
//!
//! This is the baseline that the default method is measured against.

use std::sync::{Mutex, PoisonError};

use metis::Graph;
use metis::option::{Seed, UFactor};

use super::index::Index;
use super::{Config, Group, rests};

/// Features of a chunk.
const FEATURES: u64 = 12;
/// Chunks that an edge joins to each of those that share a feature: a chain, since all pairs would
/// be too many.
const CHAIN: usize = 8;
/// Weight of the edge between neighbours in a file, in shared features.
const NEIGHBOUR: i32 = 4;
/// Parts may be larger than the mean by so many thousandths; blocks are planned smaller by as much.
const IMBALANCE: i32 = 30;

/// METIS draws from the random numbers of the C library, which are one sequence for the whole
/// process.
static RANDOM: Mutex<()> = Mutex::new(());

/// The blocks of a group.
pub(super) fn fill(group: Group<'_>, config: &Config) -> Vec<Vec<u32>> {
    let bytes: Vec<i32> = group.members.iter().map(|member| group.items[*member as usize].bytes as i32).collect();
    let total: u64 = bytes.iter().map(|bytes| *bytes as u64).sum();
    let parts = (total * (1000 + IMBALANCE as u64)).div_ceil(u64::from(config.block_bytes) * 1000);
    let edges = Edges::new(group, config.locality);
    let mut part = vec![0; group.members.len()];
    if !edges.weights.is_empty() && parts > 1 {
        let alone = RANDOM.lock().unwrap_or_else(PoisonError::into_inner);
        let graph = Graph::new(1, parts as i32, &edges.starts, &edges.ends).expect("a well-formed graph");
        let graph = graph.set_vwgt(&bytes).set_adjwgt(&edges.weights);
        let graph = graph.set_option(Seed(config.seed as i32)).set_option(UFactor(IMBALANCE));
        graph.part_kway(&mut part).expect("METIS has memory enough");
        drop(alone);
    }
    let mut lists = vec![Vec::new(); parts as usize];
    part.iter().enumerate().for_each(|(member, part)| lists[*part as usize].push(member));
    let mut blocks = Vec::new();
    let mut rest = Vec::new();
    for list in lists {
        let order: Vec<u32> = edges.order(list).into_iter().map(|member| group.members[member]).collect();
        // What is over the size of a block goes to the end.
        let mut cut = rests::cut(&order, group.items, config.block_bytes).into_iter();
        blocks.extend(cut.next());
        rest.extend(cut.flatten());
    }
    blocks.extend(rests::cut(&rest, group.items, config.block_bytes));
    blocks
}

/// The graph, in the compressed form that METIS takes.
struct Edges {
    starts: Vec<i32>,
    ends: Vec<i32>,
    weights: Vec<i32>,
}

impl Edges {
    fn new(group: Group<'_>, locality: u32) -> Edges {
        let mut pairs = Vec::new();
        for (number, member) in group.members.iter().enumerate() {
            for hash in 0..FEATURES {
                let hashes = group.features.of(*member).iter().map(|shingle| mix(hash << 32 | u64::from(*shingle)));
                pairs.extend(hashes.max().map(|feature| feature << 32 | number as u64));
            }
        }
        let index = Index::of(pairs, group.members.len());
        let mut edges: Vec<(u32, u32, i32)> = Vec::new();
        let mut join = |a: u32, b: u32, weight: i32| edges.extend([(a, b, weight), (b, a, weight)]);
        for feature in 0..index.len() {
            let holders = index.chunks.list(feature);
            for (at, a) in holders.iter().enumerate() {
                holders[at + 1..].iter().take(CHAIN).for_each(|b| join(*a, *b, 1));
            }
        }
        let weight = (NEIGHBOUR * locality as i32).div_euclid(100);
        for member in
            (1..group.members.len()).filter(|member| weight > 0 && group.file(*member) == group.file(member - 1))
        {
            join(member as u32 - 1, member as u32, weight);
        }
        edges.sort_unstable();
        let mut graph = Edges { starts: vec![0], ends: Vec::new(), weights: Vec::new() };
        for same in edges.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            graph.starts.resize(same[0].0 as usize + 1, graph.ends.len() as i32);
            graph.ends.push(same[0].1 as i32);
            graph.weights.push(same.iter().map(|edge| edge.2).sum());
        }
        graph.starts.resize(group.members.len() + 1, graph.ends.len() as i32);
        graph
    }

    /// The members of a part, always next the one that shares most with those before it.
    fn order(&self, mut part: Vec<usize>) -> Vec<usize> {
        let mut shared = vec![0i64; part.len()];
        for at in 0..part.len() {
            let best = (at..part.len()).max_by_key(|next| (shared[*next], std::cmp::Reverse(part[*next])));
            let best = best.unwrap_or(at);
            part.swap(at, best);
            shared.swap(at, best);
            let edges = self.starts[part[at]] as usize..self.starts[part[at] + 1] as usize;
            for next in at + 1..part.len() {
                let found = self.ends[edges.clone()].binary_search(&(part[next] as i32));
                shared[next] += found.map_or(0, |edge| i64::from(self.weights[edges.start + edge]));
            }
        }
        part
    }
}

/// A hash of a number, good in all bits.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}
