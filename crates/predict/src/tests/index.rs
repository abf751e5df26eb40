//! The index against a plain scan of all segments of all actions.

use std::collections::BTreeSet;

use profile::MergeConfig;
use units::{ActionId, Rng, SplitMix64};

use super::*;
use crate::index::Index;

#[test]
fn ref_index_is_a_scan_of_all_actions() {
    let config = MergeConfig { actions_max: 12, variants_max: 3, overlap_percent: 60, ..MergeConfig::default() };
    let mut rng = SplitMix64(5);
    let mut set = ActionSet::new(IMAGE);
    let mut index = Index::new(&set);
    for _ in 0..400 {
        let start = rng.below(4) as u32;
        let run: Vec<PageId> = (0..1 + rng.below(30)).map(|_| page(start + rng.below(40) as u32)).collect();
        let change = set.learn(&run, &config);
        change.removed.iter().for_each(|id| index.remove(*id));
        change.action.and_then(|id| set.get(id)).into_iter().for_each(|action| index.update(action));
        for number in 0..50 {
            let page = page(number);
            let holders: BTreeSet<ActionId> =
                set.iter().filter(|action| action.pages.contains(&page)).map(|action| action.id).collect();
            let starters: BTreeSet<ActionId> =
                set.iter().filter(|action| action.pages[0] == page).map(|action| action.id).collect();
            assert_eq!(index.holders(page).iter().copied().collect::<BTreeSet<_>>(), holders);
            assert_eq!(index.holders(page).len(), holders.len());
            assert_eq!(index.starters(page).iter().copied().collect::<BTreeSet<_>>(), starters);
            for id in holders {
                let expected = set.get(id).unwrap().pages.iter().position(|other| *other == page);
                assert_eq!(index.get(id).unwrap().position(page), expected.map(|position| position as u32));
            }
        }
    }
    assert!(set.len() > 5);
}
