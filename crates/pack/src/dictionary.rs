//! Dictionaries: what many blocks of a group have in common, learned once and kept in the image.
//!
//! A small block starts with an empty window, so it pays again for what every block of its kind
//! contains. A dictionary gives it that window. Each group gets its own, learned from chunks spread
//! over all of it. The dictionary is kept only if a sample of the group's blocks saves more than
//! the dictionary takes.

mod learn;

use std::collections::BTreeMap;

use codec::EncodeDictionary;
use image::Codec;

use crate::base::Kept;
use crate::group::Group;
use crate::options::Stages;
use crate::survey::Survey;
use crate::{Options, PackError};

/// Largest block that a dictionary helps: larger ones fill their own window.
const BLOCK_BYTES_MAX: u32 = 128 << 10;
/// Level at which the metadata of an image is compressed.
const METADATA_LEVEL: i32 = 15;

/// The dictionaries of an image.
#[derive(Default)]
pub(crate) struct Dictionaries {
    /// As they go into the image.
    pub(crate) raw: Vec<Vec<u8>>,
    prepared: Vec<EncodeDictionary>,
    /// By group, heat left out.
    by_group: BTreeMap<Group, u8>,
    /// Whether blocks of hot chunks are small enough to gain from them.
    hot: bool,
}

impl Dictionaries {
    /// Those of a base, which kept blocks name by number; new blocks use them too where they fit.
    pub(crate) fn kept(kept: &Kept<'_>, survey: &Survey, options: &Options) -> Result<Dictionaries, PackError> {
        let raw = kept.dictionaries()?;
        if !Dictionaries::fit(options, &options.stages) {
            return Ok(Dictionaries { raw, ..Dictionaries::default() });
        }
        let prepare = |raw: &Vec<u8>| EncodeDictionary::new(options.effective_level(), raw);
        let prepared = raw.iter().map(prepare).collect::<Result<_, _>>()?;
        let by_group = kept.dictionary_of_groups(survey, options);
        Ok(Dictionaries { raw, prepared, by_group, hot: Dictionaries::fit_hot(options) })
    }

    /// The dictionary for a group, with its index.
    pub(crate) fn of(&self, group: Group) -> Option<(u8, &EncodeDictionary)> {
        if group.is_hot() && !self.hot {
            return None;
        }
        let index = *self.by_group.get(&group.without_heat())?;
        Some((index, &self.prepared[usize::from(index)]))
    }

    /// Bytes that they take in an image, where they are compressed together.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let mut stored = Vec::new();
        let raw = self.raw.concat();
        match codec::encode(Codec::Zstd, METADATA_LEVEL, &raw, &mut stored) {
            Ok(()) => stored.len().min(raw.len()) as u64,
            Err(_) => raw.len() as u64,
        }
    }

    /// Whether dictionaries are of any use with these options.
    pub(crate) fn fit(options: &Options, stages: &Stages) -> bool {
        stages.dictionary && options.codec == Codec::Zstd && options.block_bytes <= BLOCK_BYTES_MAX
    }

    /// Whether they are for hot blocks too.
    fn fit_hot(options: &Options) -> bool {
        options.hot_block_bytes() <= BLOCK_BYTES_MAX
    }
}
