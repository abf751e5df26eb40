//! Which chunks share a block: combines the groups, their heat and the sorter, as far as the
//! options ask.

use image::Filter;

use crate::Options;
use crate::group::{Group, Kind};
use crate::options::Stages;
use crate::recompress::{self, Streams};
use crate::sort::{self, Item};
use crate::survey::Survey;

/// The blocks to make.
pub(crate) struct Arrangement {
    /// For each block its chunks, by number, in the order in which they lie in it.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// For each block the group of its first chunk. Heat and filter are the same for all chunks of
    /// a block; the kind may differ where rests of groups were joined, and any serves them alike.
    pub(crate) groups: Vec<Group>,
    /// The first so many blocks are hot.
    pub(crate) hot_blocks: u32,
}

/// Arranges all chunks. `sorted` gets the number of chunks each time some are done. Runs on the
/// current pool.
pub(crate) fn arrange(
    survey: &Survey,
    options: &Options,
    stages: &Stages,
    sorted: &(dyn Fn(u64) + Sync),
) -> Arrangement {
    let items: Vec<Item> = survey
        .chunks
        .list
        .iter()
        .zip(0..)
        .map(|(chunk, number)| Item {
            group: if stages.recompress && survey.streams.of(number).is_some() {
                STREAM.0
            } else {
                group(chunk.group, stages).0
            },
            file: chunk.file,
            position: chunk.position,
            bytes: chunk.bytes,
        })
        .collect();
    let config = sort::Config {
        method: stages.sort,
        block_bytes: options.block_bytes,
        hot_block_bytes: options.hot_block_bytes(),
        locality: options.locality,
        sorter: options.sorter.as_deref(),
    };
    let (hot, cold): (Vec<_>, Vec<_>) = sort::blocks(&items, &survey.features, &config, sorted)
        .into_iter()
        .filter(|block| block.first().is_none_or(|&chunk| items[chunk as usize].group != STREAM.0))
        .partition(|block| block.first().is_some_and(|&chunk| Group(items[chunk as usize].group).is_hot()));
    let hot_blocks = hot.len() as u32;
    let streams = if stages.recompress { streams(&survey.streams, &config) } else { Vec::new() };
    let blocks: Vec<Vec<u32>> = hot.into_iter().chain(cold).chain(streams).collect();
    let first = |block: &Vec<u32>| block.first().map_or(Group(0), |&chunk| Group(items[chunk as usize].group));
    Arrangement { groups: blocks.iter().map(first).collect(), blocks, hot_blocks }
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
fn group(mut group: Group, stages: &Stages) -> Group {
    if !stages.group {
        group = group.without_kind();
    }
    if !stages.filter || (stages.hot && group.is_hot() && !stages.filter_hot) {
        group = group.without_filter();
    }
    if stages.hot { group } else { group.without_heat() }
}
