//! Two orders of pages as one.

use std::collections::HashMap;

use units::PageId;

/// What two orders that begin with the same page have in common.
struct Shared {
    /// Where each page lies in the first order.
    positions: HashMap<PageId, usize>,
    /// Pages in both.
    both: usize,
    /// As many of these as possible that lie in the same order in both.
    aligned: Vec<PageId>,
}

/// Whether most of the pages in both orders lie in the same order.
pub(crate) fn is_same_order(one: &[PageId], other: &[PageId]) -> bool {
    let shared = compare(one, other);
    shared.aligned.len() * 2 >= shared.both
}

/// `base` in its order, with the pages that only `other` has. Each of them lies behind the last
/// page before it that is in the same order in both: one that lies elsewhere in `base` does not
/// tell where its neighbours belong.
pub(crate) fn woven(base: &[PageId], other: &[PageId]) -> Vec<PageId> {
    let Shared { positions, aligned, .. } = compare(base, other);
    let mut aligned = aligned.into_iter().peekable();
    let mut added: HashMap<PageId, Vec<PageId>> = HashMap::new();
    let mut anchor = base[0];
    for page in other {
        if aligned.next_if_eq(page).is_some() {
            anchor = *page;
        } else if !positions.contains_key(page) {
            added.entry(anchor).or_default().push(*page);
        }
    }
    let behind = |page: &PageId| added.remove(page).unwrap_or_default();
    base.iter().zip(base.iter().map(behind)).flat_map(|(page, added)| std::iter::once(*page).chain(added)).collect()
}

/// Finds the longest rising sequence of positions, by patience sorting.
fn compare(one: &[PageId], other: &[PageId]) -> Shared {
    let positions: HashMap<PageId, usize> = one.iter().copied().zip(0..).collect();
    let both: Vec<(PageId, usize)> = other.iter().filter_map(|page| Some((*page, *positions.get(page)?))).collect();
    // For each length, the end of the sequence of that length that ends lowest.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(both.len());
    for (index, (_, position)) in both.iter().enumerate() {
        let length = ends.partition_point(|end| both[*end].1 < *position);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut aligned = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(index) = next {
        aligned.push(both[index].0);
        next = before[index];
    }
    aligned.reverse();
    Shared { positions, both: both.len(), aligned }
}

#[cfg(test)]
mod tests {
    use units::InodeId;

    use super::*;

    fn pages(indexes: &[u32]) -> Vec<PageId> {
        indexes.iter().map(|index| PageId::new(InodeId(1), *index)).collect()
    }

    fn check(base: &[u32], other: &[u32], expected: &[u32]) {
        assert_eq!(woven(&pages(base), &pages(other)), pages(expected));
    }

    #[test]
    fn the_base_keeps_its_order_and_new_pages_follow_their_neighbours() {
        check(&[0, 1, 2, 3], &[0, 1, 2, 3], &[0, 1, 2, 3]);
        check(&[0, 1, 2, 3], &[0, 7, 1, 3, 8, 9], &[0, 7, 1, 2, 3, 8, 9]);
        check(&[0, 1, 2, 3], &[0], &[0, 1, 2, 3]);
        check(&[0], &[0, 5, 4], &[0, 5, 4]);
    }

    #[test]
    fn a_page_that_lies_elsewhere_takes_no_new_page_along() {
        // 6 lies at the end of the base; what `other` has behind it belongs behind 1.
        check(&[0, 1, 2, 3, 4, 5, 6], &[0, 1, 6, 8, 9, 2, 3, 4, 5], &[0, 1, 8, 9, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn orders_are_alike_if_most_pages_are_in_the_same_one() {
        let alike = |one: &[u32], other: &[u32]| is_same_order(&pages(one), &pages(other));
        assert!(alike(&[0, 1, 2, 3, 4, 5], &[0, 4, 5, 1, 2, 3]), "a block lies elsewhere");
        assert!(!alike(&[0, 1, 2, 3, 4, 5], &[0, 5, 4, 3, 2, 1]));
        assert!(alike(&[0, 1], &[0, 7]));
    }
}
