//! Which chunks share a block: combines the groups, their heat and the sorter, as far as the
//! options ask.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use image::Filter;

use crate::Options;
use crate::base::Kept;
use crate::group::{Group, Kind};
use crate::hot::Programs;
use crate::options::Stages;
use crate::recompress::{self, Streams};
use crate::sort::{self, Item};
use crate::survey::Survey;

/// The new blocks.
pub(crate) struct Arrangement {
    /// For each block its chunks, by number, in the order in which they lie in it.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// For each block the group of its first chunk. Heat and filter are the same for all chunks of
    /// a block; the kind may differ where rests of groups were joined, and any serves them alike.
    pub(crate) groups: Vec<Group>,
    /// The first so many blocks are hot.
    pub(crate) hot_blocks: u32,
}

/// Arranges all chunks that do not lie in `kept` blocks. `sorted` gets the number of chunks each
/// time some are done. Runs on the current pool.
pub(crate) fn arrange(
    survey: &Survey,
    kept: &Kept<'_>,
    options: &Options,
    stages: &Stages,
    sorted: &(dyn Fn(u64) + Sync),
) -> Arrangement {
    let classes = classes(survey, stages);
    let list = &survey.chunks.list;
    let in_stream = |chunk: u32| stages.recompress && survey.streams.of(chunk).is_some();
    let new: Vec<u32> = (0..list.len() as u32).filter(|&chunk| !kept.has(chunk) && !in_stream(chunk)).collect();
    let group_of = |chunk: u32| group(list[chunk as usize].group, stages);
    let item = |&number: &u32| {
        let (chunk, group) = (&list[number as usize], group_of(number));
        let class = classes.get(&chunk.programs).filter(|_| group.is_hot());
        Item {
            group: class.map_or(group.0, |class| sort::HOT | class),
            file: chunk.file,
            position: chunk.position,
            bytes: chunk.bytes,
        }
    };
    let items: Vec<Item> = new.iter().map(item).collect();
    let some;
    let features = if new.len() == list.len() {
        &survey.features
    } else {
        some = survey.features.of_items(&new);
        &some
    };
    let config = sort::Config {
        method: stages.sort,
        block_bytes: options.block_bytes,
        hot_block_bytes: options.hot_block_bytes(),
        locality: options.locality,
        sorter: options.sorter.as_deref(),
    };
    let first = |block: &Vec<u32>| block.first().map_or(Group(0), |&chunk| group_of(chunk));
    let (hot, cold): (Vec<_>, Vec<_>) = sort::blocks(&items, features, &config, sorted)
        .into_iter()
        .map(|block| block.into_iter().map(|item| new[item as usize]).collect())
        .partition(|block| first(block).is_hot());
    let hot_blocks = hot.len() as u32;
    let mut blocks: Vec<Vec<u32>> = hot.into_iter().chain(cold).collect();
    let mut groups: Vec<Group> = blocks.iter().map(first).collect();
    if stages.recompress {
        blocks.extend(streams(&survey.streams, &config));
        groups.resize(blocks.len(), STREAM);
    }
    Arrangement { blocks, groups, hot_blocks }
}

/// Numbers of the sets of programs that touch the same chunks, what most of them touch first. A
/// start of one program reads the blocks of its sets, and none of others: so what is hot is divided
/// by them instead of by its kind. Empty if hot chunks have filters, which divide them already, or
/// if there are no two sets.
fn classes(survey: &Survey, stages: &Stages) -> BTreeMap<Programs, u16> {
    let hot = survey.chunks.list.iter().filter(|chunk| stages.hot && chunk.group.is_hot());
    let mut sets: Vec<Programs> = hot.map(|chunk| chunk.programs).collect();
    sets.sort_unstable_by_key(|programs| (Reverse(programs.count_ones()), *programs));
    sets.dedup();
    if stages.filter_hot || sets.len() < 2 {
        return BTreeMap::new();
    }
    // More than there are numbers share the last one.
    (0u32..).zip(sets).map(|(number, programs)| (programs, number.min(u32::from(sort::HOT) - 1) as u16)).collect()
}

/// The group of all chunks of files that are kept as their text. They are sorted as files, by their
/// texts.
const STREAM: Group = Group::new(Kind::Dense, Filter::Deflate);

/// Blocks of files that are kept as their text, as chunks.
fn streams(streams: &Streams, config: &sort::Config<'_>) -> Vec<Vec<u32>> {
    let items: Vec<Item> = (0..)
        .zip(&streams.list)
        .map(|(number, stream)| Item { group: STREAM.0, file: number, position: 0, bytes: stream.bytes })
        .collect();
    let blocks = recompress::cut(sort::blocks(&items, &streams.features, config, &|_| {}), streams);
    let chunks = |&number: &u32| {
        let stream = &streams.list[number as usize];
        stream.chunk_first..stream.chunk_first + stream.chunk_count
    };
    blocks.iter().map(|block| block.iter().flat_map(chunks).collect()).collect()
}

/// The group of a chunk as far as the stages look at it.
pub(crate) fn group(mut group: Group, stages: &Stages) -> Group {
    if !stages.group {
        group = group.without_kind();
    }
    if !stages.filter || (stages.hot && group.is_hot() && !stages.filter_hot) {
        group = group.without_filter();
    }
    if stages.hot { group } else { group.without_heat() }
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;
    use crate::chunks::{Chunk, Chunks};
    use crate::sort::Features;

    #[test]
    fn hot_blocks_are_those_of_one_set_of_programs() {
        let mut survey =
            Survey { chunks: Chunks::new(true), features: Features::default(), streams: Streams::default() };
        // Chunks without a pattern: of two programs, of both, and cold ones.
        let mut random = SplitMix64(1);
        for position in 0..2000u32 {
            let programs = random.below(4);
            let cold = Group::new(Kind::Text, Filter::None);
            let group = if programs > 0 { cold.hot() } else { cold };
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&position.to_le_bytes());
            survey.chunks.add(Chunk { hash, bytes: 4096, file: position / 100, position, group, programs });
            survey.features.push(&[]);
        }
        let options = Options { block_bytes: 64 << 10, stages: Stages::ALL, ..Options::default() };
        let found = arrange(&survey, &Kept::default(), &options, &options.stages, &|_| {});
        let sets = |block: &Vec<u32>| {
            let programs = block.iter().map(|chunk| survey.chunks.list[*chunk as usize].programs);
            programs.collect::<std::collections::BTreeSet<_>>()
        };
        let (hot, cold) = found.blocks.split_at(found.hot_blocks as usize);
        assert!(hot.iter().all(|block| !sets(block).contains(&0)) && cold.iter().all(|block| sets(block).len() == 1));
        // At most the rest of each of the three sets lies with others.
        assert!(hot.iter().filter(|block| sets(block).len() > 1).count() < 3, "{hot:?}");
        assert!(hot.len() < 1500 / 16 + 4, "{}", hot.len());
        // What both start with comes first.
        assert_eq!(sets(&hot[0]), [3].into());
        assert!(found.groups[..hot.len()].iter().all(|group| group.is_hot() && group.filter() == Filter::None));
    }
}
