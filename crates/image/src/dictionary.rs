//! The dictionaries of an image: what many blocks of a kind have in common, kept once, so that
//! small blocks compress nearly as well as large ones.

use crate::{ImageError, format, section_name};
use codec::Dictionary;

/// Bytes of a number in front of the dictionaries.
const NUMBER_BYTES: usize = 4;

fn corrupt(offset: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    let section = section_name(format::SECTION_DICTIONARIES);
    ImageError::Corrupt { section, offset: offset as u64, what, expected, found }
}

/// The dictionaries of a decoded section.
pub(crate) fn parse(raw: &[u8]) -> Result<Vec<Dictionary>, ImageError> {
    each(raw, |index, dictionary| {
        Dictionary::new(dictionary).map_err(|source| ImageError::Dictionary { index, source })
    })
}

/// The bytes of each dictionary of a decoded section.
pub(crate) fn split(raw: &[u8]) -> Result<Vec<Vec<u8>>, ImageError> {
    each(raw, |_, dictionary| Ok(dictionary.to_vec()))
}

/// What `take` makes of each dictionary of a decoded section.
fn each<T>(raw: &[u8], take: impl Fn(u32, &[u8]) -> Result<T, ImageError>) -> Result<Vec<T>, ImageError> {
    let number = |index: usize| {
        let bytes = raw.get(index * NUMBER_BYTES..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u32::from_le_bytes(*bytes))
    };
    let count = number(0).ok_or(corrupt(0, "the size of the section, at least", 4, raw.len() as u64))? as usize;
    if !(1..=format::DICTIONARIES_MAX).contains(&count) {
        let most = format::DICTIONARIES_MAX as u64;
        return Err(corrupt(0, "the number of dictionaries, 1 to", most, count as u64));
    }
    let mut start = (1 + count) * NUMBER_BYTES;
    let mut dictionaries = Vec::with_capacity(count);
    for index in 1..=count {
        let at = index * NUMBER_BYTES;
        let bytes = number(index).ok_or(corrupt(at, "the end of the section, at least", start as u64, at as u64))?;
        let end = start.saturating_add(bytes as usize);
        let dictionary = raw.get(start..end);
        let dictionary =
            dictionary.ok_or(corrupt(at, "the end of a dictionary, at most", raw.len() as u64, end as u64))?;
        dictionaries.push(take(index as u32 - 1, dictionary)?);
        start = end;
    }
    if start != raw.len() {
        return Err(corrupt(0, "the end of the last dictionary", raw.len() as u64, start as u64));
    }
    Ok(dictionaries)
}

/// The section that holds `dictionaries`.
#[cfg(feature = "build")]
pub(crate) fn section(dictionaries: &[Vec<u8>]) -> Vec<u8> {
    let numbers = std::iter::once(dictionaries.len()).chain(dictionaries.iter().map(Vec::len));
    let mut raw: Vec<u8> = numbers.flat_map(|number| (number as u32).to_le_bytes()).collect();
    dictionaries.iter().for_each(|dictionary| raw.extend_from_slice(dictionary));
    raw
}
