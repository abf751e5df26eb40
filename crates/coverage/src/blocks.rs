//! Blocks of one function, and functions of one name.

use std::collections::BTreeMap;

use crate::format::FUNCTION_BYTES_MAX;
use crate::{Block, Function, ORDER_UNKNOWN};

/// The union of blocks: by offset, without overlaps, neighbours of the same phases as one.
pub(crate) fn union(blocks: &[Block]) -> Vec<Block> {
    // How many blocks of each phase begin (or end, if negative) where.
    let mut edges: BTreeMap<u64, [i64; 2]> = BTreeMap::new();
    for block in blocks {
        for (at, change) in [(u64::from(block.offset), 1), (block.end(), -1)] {
            let edge = edges.entry(at).or_default();
            edge[0] += if block.boot { change } else { 0 };
            edge[1] += if block.service { change } else { 0 };
        }
    }
    let mut found: Vec<Block> = Vec::new();
    let (mut open, mut from) = ([0i64; 2], 0);
    for (at, change) in edges {
        let (boot, service) = (open[0] > 0, open[1] > 0);
        if at > from && (boot || service) {
            let bytes = (at - from) as u32;
            match found.last_mut() {
                Some(last) if last.end() == from && (last.boot, last.service) == (boot, service) => last.bytes += bytes,
                _ => found.push(Block { offset: from as u32, bytes, boot, service }),
            }
        }
        open = [open[0] + change[0], open[1] + change[1]];
        from = at;
    }
    found
}

/// Functions of one name as one.
pub(crate) struct Group {
    function: Function,
    /// Whether all have had the same size until now.
    is_equal: bool,
}

impl Group {
    /// The first of them.
    pub(crate) fn new(function: Function) -> Self {
        Self { function, is_equal: true }
    }

    /// Another one.
    pub(crate) fn add(&mut self, other: Function) {
        let function = &mut self.function;
        self.is_equal &= function.bytes == other.bytes;
        function.bytes = function.bytes.max(other.bytes);
        function.order = function.order.min(other.order);
        function.boot |= other.boot;
        function.service |= other.service;
        function.blocks.extend(other.blocks);
    }

    /// There are functions of this name and of other sizes, up to `bytes`, which did not run or are
    /// not known.
    pub(crate) fn differ(&mut self, bytes: u64) {
        self.is_equal = false;
        self.function.bytes = self.function.bytes.max(bytes);
    }

    /// The one function for all.
    pub(crate) fn finish(self) -> Function {
        let mut function = self.function;
        function.blocks = if self.is_equal {
            union(&function.blocks)
        } else {
            whole(function.bytes, function.boot, function.service)
        };
        function
    }
}

/// The blocks of a function that counts as executed as a whole.
pub(crate) fn whole(bytes: u64, boot: bool, service: bool) -> Vec<Block> {
    let bytes = bytes.min(FUNCTION_BYTES_MAX) as u32;
    if bytes == 0 { Vec::new() } else { vec![Block { offset: 0, bytes, boot, service }] }
}

/// A function whose order is not known, with the phases of its blocks.
pub(crate) fn unordered(name: &str, bytes: u64, blocks: Vec<Block>) -> Function {
    let (boot, service) = (blocks.iter().any(|block| block.boot), blocks.iter().any(|block| block.service));
    Function { name: name.to_string(), bytes, order: ORDER_UNKNOWN, boot, service, blocks }
}

/// Functions as groups, by name.
pub(crate) fn groups(functions: impl IntoIterator<Item = Function>) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for function in functions {
        match groups.get_mut(&function.name) {
            Some(group) => group.add(function),
            None => {
                groups.insert(function.name.clone(), Group::new(function));
            }
        }
    }
    groups
}
