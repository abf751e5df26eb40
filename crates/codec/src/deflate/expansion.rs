//! The writing side: finds the style of a stream, and builds an expansion.

use super::matcher::Tables;
use super::{COST_WRITTEN, HEADER_BYTES, PART_BYTES, Part, Style, compress};

/// An expansion that grows part by part.
#[derive(Clone, Debug, Default)]
pub struct Expansion {
    records: Vec<u8>,
    copies: Vec<u8>,
    texts: Vec<u8>,
}

impl Expansion {
    /// Bytes of an expansion with so many parts and so many bytes in them.
    pub fn size(parts: usize, bytes: usize) -> usize {
        HEADER_BYTES + parts * PART_BYTES + bytes
    }

    /// Adds bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.records.extend_from_slice(&Part::Bytes(bytes.len() as u32).to_record());
        self.copies.extend_from_slice(bytes);
    }

    /// Adds a text that was compressed in this style, perhaps with the end of a gzip file behind
    /// it.
    pub fn text(&mut self, text: &[u8], style: Style, trailer: bool) {
        self.records.extend_from_slice(&Part::Text { bytes: text.len() as u32, style, trailer }.to_record());
        self.texts.extend_from_slice(text);
    }

    /// As it is compressed and stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let count = (self.records.len() / PART_BYTES) as u32;
        [&count.to_le_bytes()[..], &self.records, &self.copies, &self.texts].concat()
    }
}

/// The style in which `text` becomes exactly `stream`: the first of `styles` that does.
pub fn style_of(text: &[u8], stream: &[u8], styles: &[Style]) -> Option<Style> {
    let (mut out, mut tables) = (Vec::new(), Tables::new());
    styles.iter().copied().find(|&style| {
        out.clear();
        let mut steps = COST_WRITTEN.steps(text.len());
        let watch = |written: &[u8]| stream.starts_with(written);
        compress(style, text, &mut tables, &mut steps, &mut out, stream.len(), &watch).is_ok() && out == stream
    })
}

/// The stream that a text becomes.
#[cfg(test)]
pub(crate) fn stream(text: &[u8], style: Style) -> Option<Vec<u8>> {
    let (mut out, mut steps) = (Vec::new(), COST_WRITTEN.steps(text.len()));
    compress(style, text, &mut Tables::new(), &mut steps, &mut out, usize::MAX, &|_| true).ok()?;
    Some(out)
}
