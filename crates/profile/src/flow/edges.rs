//! The edges that leave one block.

use super::format::WEIGHT_MAX;

/// "After the block that this edge leaves, `to` was used next, `weight` times."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The next block.
    pub to: u32,
    /// How often, as far as it is remembered: 1 to [`WEIGHT_MAX`].
    pub weight: u32,
}

/// The edges of one block, the heaviest first, those of equal weight in file order. Each leads to
/// another block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges(Vec<Edge>);

impl Edges {
    /// The `max` heaviest of `counts`, as weights: halved until the heaviest is one.
    pub fn heaviest(counts: impl IntoIterator<Item = (u32, u64)>, max: usize) -> Edges {
        let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(to, count)| (std::cmp::Reverse(*count), *to));
        counts.truncate(max);
        while counts.first().is_some_and(|(_, count)| *count > WEIGHT_MAX.into()) {
            counts.iter_mut().for_each(|(_, count)| *count /= 2);
        }
        let mut edges = Edges(counts.into_iter().map(|(to, count)| Edge { to, weight: count as u32 }).collect());
        edges.settle();
        edges
    }

    /// Edges in the order they must have; `None` if they are not.
    pub fn in_order(edges: Vec<Edge>) -> Option<Edges> {
        let ordered = edges.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]));
        ordered.then_some(Edges(edges))
    }

    pub fn as_slice(&self) -> &[Edge] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().map(|edge| u64::from(edge.weight)).sum()
    }

    /// One more use of `to`. Among `max` others a newcomer takes one from the lightest, and its
    /// place once nothing is left of it. A counter that is full halves all.
    pub fn observe(&mut self, to: u32, max: usize) {
        let room = self.0.len() < max;
        match self.0.iter_mut().find(|edge| edge.to == to) {
            Some(edge) if edge.weight < WEIGHT_MAX => edge.weight += 1,
            Some(_) => {
                self.0.iter_mut().for_each(|edge| edge.weight /= 2);
                self.0.iter_mut().filter(|edge| edge.to == to).for_each(|edge| edge.weight += 1);
            }
            None if room => self.0.push(Edge { to, weight: 1 }),
            None => {
                let Some(lightest) = self.0.last_mut() else { return };
                lightest.weight -= 1;
                if lightest.weight == 0 {
                    *lightest = Edge { to, weight: 1 };
                }
            }
        }
        self.settle();
    }

    /// Adds the counts of `other`; of more than `max`, the lightest go.
    pub fn absorb(&mut self, other: &Edges, max: usize) {
        let mut counts: Vec<(u32, u64)> = self.0.iter().map(|edge| (edge.to, edge.weight.into())).collect();
        for edge in &other.0 {
            match counts.iter_mut().find(|(to, _)| *to == edge.to) {
                Some((_, count)) => *count += u64::from(edge.weight),
                None => counts.push((edge.to, edge.weight.into())),
            }
        }
        *self = Edges::heaviest(counts, max);
    }

    /// Takes away edges to blocks from `end` on.
    pub fn cut(&mut self, end: u32) {
        self.0.retain(|edge| edge.to < end);
    }

    fn settle(&mut self) {
        self.0.retain(|edge| edge.weight > 0);
        self.0.sort_unstable_by_key(key);
    }
}

fn key(edge: &Edge) -> (std::cmp::Reverse<u32>, u32) {
    (std::cmp::Reverse(edge.weight), edge.to)
}
