//! Learns the dictionaries of an image.

use std::collections::BTreeMap;

use codec::EncodeDictionary;
use rayon::prelude::*;

use super::Dictionaries;
use crate::PackError;
use crate::arrange::Arrangement;
use crate::emit::Emitter;
use crate::group::Group;

/// Bytes of a dictionary: what zstd's own trainer makes by default.
const DICTIONARY_BYTES: usize = 112 << 10;
/// A group has at least so many bytes for each byte of its dictionary.
const BYTES_PER_BYTE: u64 = 16;
/// Bytes to learn from for each byte of a dictionary, as zstd's documentation advises.
const SAMPLE_BYTES_PER_BYTE: usize = 100;
/// Blocks compressed both ways to see whether a dictionary pays.
const TRIAL_BLOCKS: usize = 24;

impl Dictionaries {
    /// Learns a dictionary for each group that gains from one. `emitter` has none yet.
    pub(crate) fn learn(emitter: &Emitter<'_>, arrangement: &Arrangement) -> Result<Dictionaries, PackError> {
        let hot = Dictionaries::fit_hot(emitter.options);
        let mut groups: BTreeMap<Group, Vec<usize>> = BTreeMap::new();
        for (index, group) in arrangement.groups.iter().enumerate() {
            if Group::kind_repeats(*group) && (hot || !group.is_hot()) {
                groups.entry(group.without_heat()).or_default().push(index);
            }
        }
        let groups: Vec<(Group, Vec<usize>)> = groups.into_iter().collect();
        let learned: Vec<Option<Vec<u8>>> = groups
            .par_iter()
            .map(|(group, blocks)| learn_group(emitter, arrangement, *group, blocks))
            .collect::<Result<_, _>>()?;
        let mut found = Dictionaries { hot, ..Dictionaries::default() };
        for ((group, _), raw) in groups.into_iter().zip(learned) {
            let Some(raw) = raw else { continue };
            found.by_group.insert(group, found.raw.len() as u8);
            found.prepared.push(EncodeDictionary::new(emitter.options.effective_level(), &raw)?);
            found.raw.push(raw);
        }
        Ok(found)
    }
}

fn learn_group(
    emitter: &Emitter<'_>,
    arrangement: &Arrangement,
    group: Group,
    blocks: &[usize],
) -> Result<Option<Vec<u8>>, PackError> {
    let list = &emitter.survey.chunks.list;
    let chunks: Vec<u32> = blocks.iter().flat_map(|&block| &arrangement.blocks[block]).copied().collect();
    let bytes: u64 = chunks.iter().map(|&chunk| u64::from(list[chunk as usize].bytes)).sum();
    if bytes < DICTIONARY_BYTES as u64 * BYTES_PER_BYTE {
        return Ok(None);
    }
    let room = DICTIONARY_BYTES * SAMPLE_BYTES_PER_BYTE;
    let step = bytes.div_ceil(room as u64).max(1) as usize;
    let chosen: Vec<u32> = chunks.into_iter().step_by(step).collect();
    let mut raw = Vec::new();
    emitter.raw(&chosen, group.filter(), &mut raw)?;
    let mut samples = Vec::with_capacity(chosen.len());
    let mut rest = raw.as_slice();
    for &chunk in &chosen {
        let (sample, after) = rest.split_at(list[chunk as usize].bytes as usize);
        samples.push(sample);
        rest = after;
    }
    let Some(dictionary) = codec::train(&samples, DICTIONARY_BYTES)? else { return Ok(None) };
    let pays = pays(emitter, arrangement, group, blocks, &dictionary)?;
    Ok(pays.then_some(dictionary))
}

/// Whether the blocks of a group save more than `dictionary` takes, by a sample of them.
fn pays(
    emitter: &Emitter<'_>,
    arrangement: &Arrangement,
    group: Group,
    blocks: &[usize],
    dictionary: &[u8],
) -> Result<bool, PackError> {
    let (codec, level) = (emitter.options.codec, emitter.options.effective_level());
    let prepared = EncodeDictionary::new(level, dictionary)?;
    let step = blocks.len().div_ceil(TRIAL_BLOCKS);
    let (mut without, mut with, mut tried) = (0, 0, 0u64);
    let (mut raw, mut stored) = (Vec::new(), Vec::new());
    for &block in blocks.iter().step_by(step) {
        raw.clear();
        emitter.raw(&arrangement.blocks[block], group.filter(), &mut raw)?;
        codec::encode(codec, level, &raw, &mut stored)?;
        without += stored.len() as u64;
        codec::encode_with(codec, level, Some(&prepared), &raw, &mut stored)?;
        with += stored.len() as u64;
        tried += 1;
    }
    let saved = without.saturating_sub(with) * blocks.len() as u64 / tried.max(1);
    Ok(saved > dictionary.len() as u64)
}
