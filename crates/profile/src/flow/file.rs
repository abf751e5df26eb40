//! The flow graph file: encoding and decoding. Described byte by byte in docs/formats/flow.md.
//!
//! The reader trusts nothing: counts are bounded before memory is taken for them, every rule of a
//! graph is checked, and an accepted file encodes to the very same bytes again.

use trace::varint;
use zerocopy::{FromBytes, IntoBytes};

use super::edges::Edges;
use super::format::{self, FileHeader, HASH_BYTES};
use super::{BlockRange, Edge, FlowError, FlowGraph, Layout, Share, Stage, Updates};

impl FlowGraph {
    /// The graph as a file. Equal graphs give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        put_edges(self.entry(), 0, &mut payload);
        let mut end = 0;
        for (block, edges) in &self.nodes {
            varint::put(&mut payload, u64::from(block - end));
            end = block + 1;
            varint::put(&mut payload, edges.as_slice().len() as u64);
            put_edges(edges.as_slice(), end, &mut payload);
        }
        self.stages.iter().for_each(|stage| put_stage(stage, &mut payload));
        let header = FileHeader {
            magic: format::MAGIC,
            version: format::VERSION.into(),
            flags: if self.updates == Updates::Live { format::FLAG_LIVE } else { 0 }.into(),
            block_bytes: self.layout.block_bytes().into(),
            file_bytes: self.layout.file_bytes().into(),
            entry_count: (self.entry().len() as u32).into(),
            node_count: (self.nodes.len() as u32).into(),
            stage_count: (self.stages.len() as u32).into(),
            reserved: 0.into(),
            payload_bytes: (payload.len() as u64).into(),
        };
        let mut file = header.as_bytes().to_vec();
        file.append(&mut payload);
        let hash = blake3::hash(&file);
        file.extend_from_slice(hash.as_bytes());
        file
    }
}

fn put_edges(edges: &[Edge], usual: u32, out: &mut Vec<u8>) {
    for edge in edges {
        varint::put(out, varint::zigzag(i64::from(edge.to) - i64::from(usual)));
        varint::put(out, edge.weight.into());
    }
}

fn put_stage(stage: &Stage, out: &mut Vec<u8>) {
    varint::put(out, stage.name().len() as u64);
    out.extend_from_slice(stage.name().as_bytes());
    let (kind, value) = match stage.share() {
        Share::Rest => (format::SHARE_REST, None),
        Share::Percent(percent) => (format::SHARE_PERCENT, Some(percent.into())),
        Share::Rate(rate) => (format::SHARE_RATE, Some(rate)),
    };
    varint::put(out, kind);
    value.into_iter().for_each(|value| varint::put(out, value));
    varint::put(out, stage.ranges().len() as u64);
    let mut end = 0;
    for range in stage.ranges() {
        varint::put(out, u64::from(range.first - end));
        varint::put(out, u64::from(range.last - range.first));
        end = range.last + 1;
    }
}

/// Reads a flow graph file.
///
/// # Errors
/// Not such a file, another version, a length or hash that does not match, a value that breaks a
/// rule, more than the limits of [`format`] allow.
pub fn decode(bytes: &[u8]) -> Result<FlowGraph, FlowError> {
    let (header, payload) = read_header(bytes)?;
    let layout = Layout::new(header.block_bytes.get(), header.file_bytes.get())?;
    let mut cursor = Cursor { bytes: payload, at: 0, blocks: layout.blocks() };
    let mut graph = FlowGraph::new(layout);
    graph.updates = if header.flags.get() == format::FLAG_LIVE { Updates::Live } else { Updates::Static };
    graph.entry = cursor.edges("first block", header.entry_count.get().into(), 0, None)?;
    let mut end = 0;
    for _ in 0..header.node_count.get() {
        let block = cursor.block("block", end)?;
        end = block + 1;
        let count = cursor.number("edges of a block", format::EDGES_MAX as u64)?;
        let edges = cursor.edges("next block", count, end, Some(block))?;
        graph.nodes.insert(block, edges);
    }
    let targets = graph.nodes.values().chain([&graph.entry]).flat_map(|edges| edges.as_slice());
    if let Some(unused) = targets.map(|edge| edge.to).find(|block| !graph.nodes.contains_key(block)) {
        let rule = "edges lead to used blocks only";
        return Err(FlowError::Value { offset: cursor.offset(), field: "next block", found: unused.into(), rule });
    }
    let mut stages = Vec::new();
    for _ in 0..header.stage_count.get() {
        stages.push(cursor.stage()?);
    }
    if cursor.at != payload.len() {
        let found = (payload.len() - cursor.at) as u64;
        let rule = "no bytes follow the last stage";
        return Err(FlowError::Value { offset: cursor.offset(), field: "trailing bytes", found, rule });
    }
    graph.set_stages(stages)?;
    Ok(graph)
}

fn read_header(bytes: &[u8]) -> Result<(FileHeader, &[u8]), FlowError> {
    let least = size_of::<FileHeader>() + HASH_BYTES;
    let length = |expected: u64| FlowError::Length { found: bytes.len() as u64, expected };
    let (header, rest) = FileHeader::read_from_prefix(bytes).map_err(|_| length(least as u64))?;
    if header.magic != format::MAGIC {
        return Err(FlowError::Magic { found: header.magic, expected: format::MAGIC });
    }
    if header.version.get() != format::VERSION {
        return Err(FlowError::Version { found: header.version.get(), expected: format::VERSION });
    }
    let expected = header.payload_bytes.get().saturating_add(least as u64);
    if expected != bytes.len() as u64 {
        return Err(length(expected));
    }
    let (payload, hash) = rest.split_at(rest.len() - HASH_BYTES);
    let found = blake3::hash(&bytes[..bytes.len() - HASH_BYTES]);
    if found.as_bytes() != hash {
        let expected = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        return Err(FlowError::Hash { found: found.to_string(), expected });
    }
    let (entries, nodes, stages) = (header.entry_count.get(), header.node_count.get(), header.stage_count.get());
    let blank = (entries == 0) != (nodes == 0);
    let rules: [(usize, &'static str, u64, bool, &'static str); 6] = [
        (
            10,
            "flags",
            header.flags.get().into(),
            header.flags.get() > format::FLAG_LIVE,
            "no other flag than 1 is known",
        ),
        (24, "first blocks", entries.into(), entries as usize > format::ENTRIES_MAX, "there are at most 64"),
        (24, "first blocks", entries.into(), blank, "there are some if blocks are used, and else none"),
        (28, "used blocks", nodes.into(), nodes > format::BLOCKS_MAX, "a file has at most 1048576 blocks"),
        (32, "stages", stages.into(), stages as usize > format::STAGES_MAX, "there are at most 256"),
        (36, "reserved", header.reserved.get().into(), header.reserved.get() != 0, "it must be zero"),
    ];
    match rules.into_iter().find(|(.., broken, _)| *broken) {
        Some((offset, field, found, _, rule)) => Err(FlowError::Value { offset, field, found, rule }),
        None => Ok((header, payload)),
    }
}

/// A place in the payload.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    blocks: u32,
}

impl<'a> Cursor<'a> {
    /// Bytes from the start of the file.
    fn offset(&self) -> usize {
        size_of::<FileHeader>() + self.at
    }

    fn number(&mut self, field: &'static str, max: u64) -> Result<u64, FlowError> {
        let offset = self.offset();
        let found =
            varint::get(self.bytes, &mut self.at).map_err(|cause| FlowError::Number { offset, field, cause })?;
        if found > max {
            return Err(FlowError::Value { offset, field, found, rule: "it is larger than it can be" });
        }
        Ok(found)
    }

    /// A block at `from` or later.
    fn block(&mut self, field: &'static str, from: u32) -> Result<u32, FlowError> {
        let offset = self.offset();
        let found = u64::from(from).saturating_add(self.number(field, u64::MAX)?);
        self.inside(offset, field, i64::try_from(found).ok())
    }

    fn inside(&self, offset: usize, field: &'static str, found: Option<i64>) -> Result<u32, FlowError> {
        let block = found.and_then(|block| u32::try_from(block).ok());
        let found = found.unwrap_or(i64::MAX) as u64;
        let rule = "it is a block of the file";
        block.filter(|block| *block < self.blocks).ok_or(FlowError::Value { offset, field, found, rule })
    }

    fn edges(&mut self, field: &'static str, count: u64, usual: u32, from: Option<u32>) -> Result<Edges, FlowError> {
        let start = self.offset();
        let mut edges: Vec<Edge> = Vec::new();
        for _ in 0..count {
            let offset = self.offset();
            let moved = varint::unzigzag(self.number(field, u64::MAX)?);
            let to = self.inside(offset, field, moved.checked_add(usual.into()))?;
            let rule = "it is another block, named once";
            if Some(to) == from || edges.iter().any(|edge| edge.to == to) {
                return Err(FlowError::Value { offset, field, found: to.into(), rule });
            }
            let offset = self.offset();
            let weight = self.number("weight", format::WEIGHT_MAX.into())? as u32;
            if weight == 0 {
                let rule = "a weight is at least 1";
                return Err(FlowError::Value { offset, field: "weight", found: 0, rule });
            }
            edges.push(Edge { to, weight });
        }
        let rule = "the heaviest edges come first, those of equal weight in file order";
        Edges::in_order(edges).ok_or(FlowError::Value { offset: start, field, found: count, rule })
    }

    fn stage(&mut self) -> Result<Stage, FlowError> {
        let offset = self.offset();
        let length = self.number("name of a stage", format::STAGE_NAME_BYTES_MAX as u64)? as usize;
        let name = self.bytes[self.at..].get(..length).and_then(|name| std::str::from_utf8(name).ok());
        let rule = "the file ends inside it, or it is not UTF-8";
        let name = name.ok_or(FlowError::Value { offset, field: "name of a stage", found: length as u64, rule })?;
        self.at += length;
        let share = match self.number("kind of a share", format::SHARE_RATE)? {
            format::SHARE_PERCENT => Share::Percent(self.number("share", 100)? as u8),
            format::SHARE_RATE => Share::Rate(self.number("rate", format::RATE_MAX)?),
            _ => Share::Rest,
        };
        let count = self.number("ranges of a stage", format::RANGES_MAX as u64)?;
        let mut ranges: Vec<BlockRange> = Vec::new();
        let mut end = 0;
        for _ in 0..count {
            let offset = self.offset();
            let first = self.block("first block of a range", end)?;
            if first == end && !ranges.is_empty() {
                let rule = "ranges that touch are one";
                return Err(FlowError::Value { offset, field: "first block of a range", found: first.into(), rule });
            }
            let last = self.block("last block of a range", first)?;
            ranges.push(BlockRange { first, last });
            end = last + 1;
        }
        Stage::new(name, &ranges, share)
    }
}
