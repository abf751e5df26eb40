//! Huffman codes as gzip and zlib make them, down to how they break ties.
//!
//! Any optimal code would decode; this one reproduces the bytes that gzip wrote. Symbols wait in a
//! heap, ordered by their frequency and then by the depth of their tree; codes that are too long
//! are shortened by lengthening others.

/// Longest code of literals, lengths and distances, in bits.
pub(super) const CODE_BITS_MAX: usize = 15;
/// Longest code of the lengths of codes, in bits.
pub(super) const LENGTH_CODE_BITS_MAX: usize = 7;
/// Symbols of the largest alphabet.
const SYMBOLS_MAX: usize = 288;
/// Leaves and inner nodes of the largest tree, and one place at the start of the heap that stays
/// unused.
const NODES_MAX: usize = 2 * SYMBOLS_MAX + 1;

/// A prefix code.
#[derive(Clone)]
pub(super) struct Code {
    /// Length of the code of each symbol in bits, 0 if it has none.
    pub(super) lengths: [u8; SYMBOLS_MAX],
    /// The codes, first bit lowest.
    pub(super) codes: [u16; SYMBOLS_MAX],
    /// The last symbol that has a code.
    pub(super) last: usize,
}

impl Code {
    /// The code for symbols that come so often, with codes of at most `bits_max` bits. At least two
    /// symbols get one, as some decoders ask for.
    pub(super) fn build(counts: &[u32], bits_max: usize) -> Code {
        let mut tree = Tree::new(counts);
        tree.join();
        let lengths = tree.lengths(bits_max);
        Code::canonical(lengths, tree.last)
    }

    /// The code with these lengths: RFC 1951, section 3.2.2.
    pub(super) fn canonical(lengths: [u8; SYMBOLS_MAX], last: usize) -> Code {
        let mut of_length = [0u32; CODE_BITS_MAX + 1];
        for &length in lengths.iter().filter(|&&length| length > 0) {
            of_length[usize::from(length)] += 1;
        }
        let mut next = [0u32; CODE_BITS_MAX + 1];
        for bits in 1..=CODE_BITS_MAX {
            next[bits] = (next[bits - 1] + of_length[bits - 1]) << 1;
        }
        let mut codes = [0; SYMBOLS_MAX];
        for (code, &length) in codes.iter_mut().zip(&lengths).filter(|(_, length)| **length > 0) {
            let number = &mut next[usize::from(length)];
            *code = (*number as u16).reverse_bits() >> (16 - u32::from(length));
            *number += 1;
        }
        Code { lengths, codes, last }
    }
}

/// The tree while it grows. Nodes below `symbols` are leaves.
struct Tree {
    symbols: usize,
    counts: [u32; NODES_MAX],
    depths: [u8; NODES_MAX],
    parents: [u16; NODES_MAX],
    /// From 1 on: the nodes without a parent, the rarest first. At the end: those that have one, in
    /// falling order.
    heap: [u16; NODES_MAX],
    waiting: usize,
    /// Where those with a parent start.
    joined: usize,
    last: usize,
}

impl Tree {
    fn new(counts: &[u32]) -> Tree {
        let mut tree = Tree {
            symbols: counts.len(),
            counts: [0; NODES_MAX],
            depths: [0; NODES_MAX],
            parents: [0; NODES_MAX],
            heap: [0; NODES_MAX],
            waiting: 0,
            joined: NODES_MAX,
            last: 0,
        };
        tree.counts[..counts.len()].copy_from_slice(counts);
        for symbol in (0..counts.len()).filter(|&symbol| counts[symbol] > 0) {
            tree.add(symbol);
            tree.last = symbol;
        }
        while tree.waiting < 2 {
            let free = if tree.waiting == 0 || tree.last >= 2 { 0 } else { tree.last + 1 };
            tree.counts[free] = 1;
            tree.add(free);
            tree.last = tree.last.max(free);
        }
        tree
    }

    fn add(&mut self, node: usize) {
        self.waiting += 1;
        self.heap[self.waiting] = node as u16;
    }

    /// Joins the two rarest nodes until one is left.
    fn join(&mut self) {
        for place in (1..=self.waiting / 2).rev() {
            self.sink(place);
        }
        let mut node = self.symbols;
        while self.waiting >= 2 {
            let first = usize::from(self.heap[1]);
            self.heap[1] = self.heap[self.waiting];
            self.waiting -= 1;
            self.sink(1);
            let second = usize::from(self.heap[1]);
            self.take(first, node);
            self.take(second, node);
            self.counts[node] = self.counts[first] + self.counts[second];
            self.depths[node] = self.depths[first].max(self.depths[second]) + 1;
            self.heap[1] = node as u16;
            node += 1;
            self.sink(1);
        }
        self.joined -= 1;
        self.heap[self.joined] = self.heap[1];
    }

    fn take(&mut self, node: usize, parent: usize) {
        self.joined -= 1;
        self.heap[self.joined] = node as u16;
        self.parents[node] = parent as u16;
    }

    fn before(&self, a: u16, b: u16) -> bool {
        let (a, b) = (usize::from(a), usize::from(b));
        let order = self.counts[a].cmp(&self.counts[b]);
        order.is_lt() || order.is_eq() && self.depths[a] <= self.depths[b]
    }

    /// Moves the node at `place` down to where it belongs.
    fn sink(&mut self, mut place: usize) {
        let node = self.heap[place];
        loop {
            let mut child = 2 * place;
            if child > self.waiting {
                break;
            }
            if child < self.waiting && self.before(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if self.before(node, self.heap[child]) {
                break;
            }
            self.heap[place] = self.heap[child];
            place = child;
        }
        self.heap[place] = node;
    }

    /// Lengths of the codes of all symbols, none above `bits_max`.
    fn lengths(&self, bits_max: usize) -> [u8; SYMBOLS_MAX] {
        let mut depths = [0u8; NODES_MAX];
        let mut of_length = [0u32; CODE_BITS_MAX + 1];
        let mut too_long = 0;
        for &node in &self.heap[self.joined + 1..] {
            let node = usize::from(node);
            let mut bits = usize::from(depths[usize::from(self.parents[node])]) + 1;
            if bits > bits_max {
                bits = bits_max;
                too_long += 1;
            }
            depths[node] = bits as u8;
            of_length[bits] += u32::from(node < self.symbols);
        }
        let mut lengths = [0; SYMBOLS_MAX];
        if too_long == 0 {
            lengths[..self.symbols].copy_from_slice(&depths[..self.symbols]);
            return lengths;
        }
        while too_long > 0 {
            // Two codes that are too long become brothers where one code was; it moves down with
            // one of them.
            let Some(bits) = (1..bits_max).rev().find(|&bits| of_length[bits] > 0) else { break };
            of_length[bits] -= 1;
            of_length[bits + 1] += 2;
            of_length[bits_max] = of_length[bits_max].saturating_sub(1);
            too_long -= 2;
        }
        // The rarest symbols get the longest codes.
        let mut leaves = self.heap[self.joined..].iter().rev().filter(|&&node| usize::from(node) < self.symbols);
        for bits in (1..=bits_max).rev() {
            for &leaf in leaves.by_ref().take(of_length[bits] as usize) {
                lengths[usize::from(leaf)] = bits as u8;
            }
        }
        lengths
    }
}
