//! Sorting by a graph of chunks that is cut into blocks by METIS, the program `gpmetis`.
//!
//! The features are those of [`super::gear`]. An edge weighs as much as its chunks share; it joins
//! a chunk to the next few that have the same feature, since all pairs would be too many.
//! Neighbours in a file may have an edge too; without it, chunks that resemble nothing are
//! scattered. Inside a block, the chunk that shares most with those before it comes first.

use std::fmt::Write;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, ensure};
use pack::{Sortable, Sorter};

use super::gear::{FEATURES, Hash, cut};
use crate::pack::measure::{self, Cost};

/// The program.
pub const PROGRAM: &str = "gpmetis";
/// Chunks behind it that an edge joins to a chunk, for each feature.
const CHAIN: usize = 8;
/// Chunks with a feature above which it says nothing (padding).
const HOLDERS_MAX: usize = 1000;
/// Weight of an edge between neighbours in a file, in shared features.
const NEIGHBOUR: u32 = 4;
/// Parts may be larger than the mean by so many thousandths; they are planned smaller by as much.
const IMBALANCE: u64 = 30;

/// The sorter. What it cost and what went wrong is asked for at the end: sorting cannot fail.
#[derive(Debug)]
pub struct Metis {
    hash: Hash,
    /// Weight of an edge between neighbours.
    near: u32,
    ran: Mutex<anyhow::Result<Cost>>,
}

impl Metis {
    /// With edges between neighbours in a file, or without.
    pub fn new(near: bool) -> Metis {
        Metis { hash: Hash::default(), near: if near { NEIGHBOUR } else { 0 }, ran: Mutex::new(Ok(Cost::default())) }
    }

    /// What all runs of the program cost; their peak is that of the largest.
    ///
    /// # Errors
    /// One of them failed.
    pub fn cost(&self) -> anyhow::Result<Cost> {
        let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *ran, Ok(Cost::default()))
    }

    /// The part of each chunk.
    fn parts(&self, graph: &Graph, chunks: &[Sortable<'_>], count: u64) -> Vec<u32> {
        let parts = partition(graph, chunks, count);
        let mut ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        match (parts, &mut *ran) {
            (Ok((parts, cost)), Ok(sum)) => {
                *sum = Cost { cpu: sum.cpu + cost.cpu, wall: sum.wall + cost.wall, peak: sum.peak.max(cost.peak) };
                return parts;
            }
            (Err(error), Ok(_)) => *ran = Err(error),
            (_, Err(_)) => {}
        }
        vec![0; chunks.len()]
    }
}

impl Sorter for Metis {
    fn features(&self, bytes: &[u8], out: &mut Vec<u32>) {
        self.hash.features(bytes, out);
    }

    fn blocks(&self, chunks: &[Sortable<'_>], block_bytes: u32) -> Vec<Vec<u32>> {
        let total: u64 = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
        let count = (total * (1000 + IMBALANCE)).div_ceil(u64::from(block_bytes) * 1000);
        let graph = Graph::new(chunks, self.near);
        let cuts = count > 1 && !graph.edges.is_empty();
        let parts = if cuts { self.parts(&graph, chunks, count) } else { vec![0; chunks.len()] };
        let mut lists = vec![Vec::new(); count as usize];
        (0..).zip(&parts).for_each(|(chunk, part)| lists[*part as usize].push(chunk));
        let (mut blocks, mut rest) = (Vec::new(), Vec::new());
        for list in lists {
            // What is over the size of a block goes to the end.
            let mut cut = cut(graph.ordered(list).into_iter(), chunks, block_bytes).into_iter();
            blocks.extend(cut.next());
            rest.extend(cut.flatten());
        }
        blocks.extend(cut(rest.into_iter(), chunks, block_bytes));
        blocks
    }
}

/// The edges, both ways: from, to, weight; sorted.
struct Graph {
    edges: Vec<(u32, u32, u32)>,
    /// The first edge of each chunk, and the end.
    starts: Vec<usize>,
}

impl Graph {
    fn new(chunks: &[Sortable<'_>], near: u32) -> Graph {
        let mut edges = Vec::new();
        let mut join = |a: u32, b: u32, weight: u32| edges.extend([(a, b, weight), (b, a, weight)]);
        for feature in 0..FEATURES {
            let mut holders: Vec<(u32, u32)> =
                (0..).zip(chunks).map(|(number, chunk)| (chunk.features[feature], number)).collect();
            holders.sort_unstable();
            let same = holders.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() <= HOLDERS_MAX);
            for same in same {
                for (at, a) in same.iter().enumerate() {
                    same[at + 1..].iter().take(CHAIN).for_each(|b| join(a.1, b.1, 1));
                }
            }
        }
        for (number, pair) in (0..).zip(chunks.windows(2)) {
            if near > 0 && pair[0].file == pair[1].file {
                join(number, number + 1, near);
            }
        }
        edges.sort_unstable();
        let same = edges.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
        let edges: Vec<_> = same.map(|same| (same[0].0, same[0].1, same.iter().map(|edge| edge.2).sum())).collect();
        let starts = (0..=chunks.len()).map(|chunk| edges.partition_point(|edge| (edge.0 as usize) < chunk)).collect();
        Graph { edges, starts }
    }

    fn of(&self, chunk: u32) -> &[(u32, u32, u32)] {
        &self.edges[self.starts[chunk as usize]..self.starts[chunk as usize + 1]]
    }

    /// As the program reads it: a line for each chunk with its size, and then pairs of a chunk,
    /// counted from 1, and a weight.
    fn text(&self, chunks: &[Sortable<'_>]) -> String {
        let mut text = format!("{} {} 011\n", chunks.len(), self.edges.len() / 2);
        for (number, chunk) in (0..).zip(chunks) {
            let _ = write!(text, "{}", chunk.bytes);
            self.of(number).iter().for_each(|(_, to, weight)| {
                let _ = write!(text, " {} {weight}", to + 1);
            });
            text.push('\n');
        }
        text
    }

    /// The chunks of a part, always next the one that shares most with those before it.
    fn ordered(&self, mut part: Vec<u32>) -> Vec<u32> {
        let mut shared = vec![0u32; part.len()];
        for at in 0..part.len() {
            let best = (at..part.len()).max_by_key(|next| (shared[*next], std::cmp::Reverse(part[*next])));
            let best = best.unwrap_or(at);
            part.swap(at, best);
            shared.swap(at, best);
            let edges = self.of(part[at]);
            for next in at + 1..part.len() {
                let found = edges.binary_search_by_key(&part[next], |edge| edge.1);
                shared[next] += found.map_or(0, |edge| edges[edge].2);
            }
        }
        part
    }
}

/// Lets the program cut the graph into `count` parts.
fn partition(graph: &Graph, chunks: &[Sortable<'_>], count: u64) -> anyhow::Result<(Vec<u32>, Cost)> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let path = folder.path().join("graph");
    std::fs::write(&path, graph.text(chunks)).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(PROGRAM);
    command.args(["-ptype=kway", "-seed=1", &format!("-ufactor={IMBALANCE}")]).arg(&path).arg(count.to_string());
    let done = measure::run(&mut command)?;
    let result = folder.path().join(format!("graph.part.{count}"));
    let text = std::fs::read_to_string(&result).with_context(|| {
        format!("{PROGRAM} made no {}: {}", result.display(), String::from_utf8_lossy(&done.output).trim())
    })?;
    let part = |line: &str| line.trim().parse().ok().filter(|part| u64::from(*part) < count);
    let parts: Option<Vec<u32>> = text.lines().map(part).collect();
    let parts = parts.ok_or_else(|| anyhow!("{PROGRAM} named a part that there is not"))?;
    ensure!(parts.len() == chunks.len(), "{PROGRAM} gave {} parts for {} chunks", parts.len(), chunks.len());
    Ok((parts, done.cost))
}

#[cfg(test)]
mod tests {
    use super::super::gear::tests::sortable;
    use super::*;

    /// Twelve features: `twin` is that of two chunks, the others of none.
    fn features(number: u32, twin: u32) -> Vec<u32> {
        let mut features: Vec<u32> = (0..12).map(|feature| 1000 * number + feature).collect();
        features[3..7].fill(twin);
        features
    }

    #[test]
    fn a_graph_is_written_as_the_program_reads_it() {
        let features = [features(1, 7), features(2, 8), features(3, 7)];
        let mut chunks = sortable(&features);
        let text = |chunks: &[Sortable<'_>], near| Graph::new(chunks, near).text(chunks);
        assert_eq!(text(&chunks, 4), "3 1 011\n1000 3 4\n1000\n1000 1 4\n");
        (chunks[1].file, chunks[2].file) = (2, 2);
        assert_eq!(text(&chunks, 4), "3 2 011\n1000 3 4\n1000 3 4\n1000 1 4 2 4\n");
        assert_eq!(text(&chunks, 0), "3 1 011\n1000 3 4\n1000\n1000 1 4\n");
        assert_eq!(Graph::new(&chunks, 4).ordered(vec![0, 1, 2]), [0, 2, 1]);
    }

    #[test]
    fn twins_share_a_block_and_a_failure_is_told() -> anyhow::Result<()> {
        let features: Vec<_> = (0..40).map(|number| features(number + 1, number % 20)).collect();
        let chunks = sortable(&features);
        let metis = Metis::new(false);
        if crate::process::find_program(PROGRAM).is_none() {
            println!("skipped: {PROGRAM} is missing");
            let blocks = metis.blocks(&chunks, 8000);
            assert!(blocks.len() == 5 && metis.cost().is_err_and(|error| error.to_string().contains(PROGRAM)));
            return Ok(());
        }
        let blocks = metis.blocks(&chunks, 8000);
        let block_of = |chunk: u32| blocks.iter().position(|block| block.contains(&chunk));
        let apart = (0..20).filter(|chunk| block_of(*chunk) != block_of(chunk + 20)).count();
        assert!(apart <= 2, "{apart} of 20 twins apart");
        assert!(metis.cost()?.cpu > 0.0);
        Ok(())
    }
}
