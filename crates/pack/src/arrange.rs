//! Which chunks share a block: the groups, their heat and the sorter put together, each as far as the options ask.

use crate::Options;
use crate::group::Group;
use crate::options::Stages;
use crate::sort::{self, Item};
use crate::survey::Survey;

/// The blocks to make.
pub(crate) struct Arrangement {
    /// For each block its chunks, by number, in the order in which they lie in it.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// For each block the group of its first chunk. Heat and filter are the same for all chunks of a block; the kind may
    /// differ where rests of groups were joined, and any serves them alike.
    pub(crate) groups: Vec<Group>,
    /// The first so many blocks are hot.
    pub(crate) hot_blocks: u32,
}

/// Arranges all chunks. `sorted` is told the number of chunks each time some are done. Runs on the current pool.
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
        .map(|chunk| Item {
            group: group(chunk.group, stages).0,
            file: chunk.file,
            position: chunk.position,
            bytes: chunk.bytes,
        })
        .collect();
    let config = sort::Config {
        method: stages.sort,
        block_bytes: options.block_bytes,
        locality: options.locality,
        seed: options.seed,
    };
    let (hot, cold): (Vec<_>, Vec<_>) = sort::blocks(&items, &survey.features, &config, sorted)
        .into_iter()
        .partition(|block| block.first().is_some_and(|&chunk| Group(items[chunk as usize].group).is_hot()));
    let hot_blocks = hot.len() as u32;
    let blocks: Vec<Vec<u32>> = hot.into_iter().chain(cold).collect();
    let first = |block: &Vec<u32>| block.first().map_or(Group(0), |&chunk| Group(items[chunk as usize].group));
    Arrangement { groups: blocks.iter().map(first).collect(), blocks, hot_blocks }
}

/// The group of a chunk as far as the stages look at it.
fn group(mut group: Group, stages: &Stages) -> Group {
    if !stages.group {
        group = group.without_kind();
    }
    if !stages.filter {
        group = group.without_filter();
    }
    if stages.hot { group } else { group.without_heat() }
}
