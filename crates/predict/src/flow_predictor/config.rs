//! The constants of [`crate::FlowPredictor`], with their defaults.

use std::time::Duration;

use units::{PAGE_BYTES, SEGMENT_PAGES_MAX};

/// Constants of the flow predictor, with their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Bytes of the unit of touches: a page, or a data block of a volume. Indexes of pages count
    /// these.
    pub page_bytes: u32,
    /// Pages in a segment, the step in which windows grow.
    pub segment_pages: u32,
    /// Segments ahead when a run begins with a first block of its file.
    pub lookahead_first: u32,
    /// Segments ahead when a run is found anywhere else.
    pub lookahead_found: u32,
    /// Most segments ahead.
    pub lookahead_max: u32,
    /// A step is sure if this part of the weights is on its edge, percent.
    pub sure_percent: u32,
    /// Tokens tracked; the one touched longest ago makes room.
    pub tokens_max: usize,
    /// Memory of all tokens, bytes, about 400 KB each at most; those touched longest ago make room.
    pub token_bytes_max: usize,
    /// A token is over after this long without a touch.
    pub linger: Duration,
    /// Graphs that are not static, if some are made of files of which nothing is known; 0 to learn
    /// of no others.
    pub learned_max: usize,
    /// Memory of all graphs, bytes; those touched longest ago are forgotten. A single graph that is
    /// larger learns no further blocks.
    pub graph_bytes_max: usize,
}

impl Default for FlowConfig {
    fn default() -> FlowConfig {
        let actions = crate::Config::default();
        FlowConfig {
            page_bytes: PAGE_BYTES as u32,
            segment_pages: SEGMENT_PAGES_MAX as u32,
            lookahead_first: actions.lookahead_first,
            lookahead_found: actions.lookahead_found,
            lookahead_max: actions.lookahead_max,
            sure_percent: 90,
            tokens_max: 1024,
            token_bytes_max: 64 << 20,
            linger: actions.linger,
            learned_max: 0,
            graph_bytes_max: 96 << 20,
        }
    }
}
