//! Servers that learn from one store, in any order of their looks at it.

use units::{ImageId, InodeId, Rng, SplitMix64};

use super::*;
use crate::Extra;

/// What a server has.
#[derive(Clone)]
struct Server {
    base: ActionSet,
    live: ActionSet,
}

impl Server {
    /// Writes what it learned to the store, and takes over what others did.
    fn look(&mut self, store: &mut ActionSet, config: &MergeConfig) {
        self.live = ActionSet::join(&self.base, &self.live, store, config);
        *store = crate::decode(&self.live.encode_shared(), &crate::Limits::default()).unwrap();
        self.base = store.clone();
    }
}

fn run(rng: &mut SplitMix64) -> Vec<PageId> {
    let (first, pages) = (rng.below(3) as u32, 8 + rng.below(30) as u32);
    let from = rng.below(4) as u32 * 16;
    let page = |index| PageId::new(InodeId(first), index);
    std::iter::once(page(0)).chain((from..from + pages).map(|index| page(1 + index))).collect()
}

/// A few lessons.
fn learn(set: &mut ActionSet, rng: &mut SplitMix64, config: &MergeConfig) {
    for _ in 0..rng.below(5) {
        let ids: Vec<ActionId> = set.iter().map(|action| action.id).collect();
        let id = ids.get(rng.below(ids.len().max(1) as u64) as usize).copied();
        match (rng.below(8), id) {
            (0, Some(id)) => set.credit(id),
            (1, Some(id)) => set.prefer(id),
            (2, Some(id)) => drop(set.count_push(id)),
            (3, Some(id)) => {
                let after = set.get(id).unwrap().pages[0];
                let page = PageId::new(InodeId(9), rng.below(50) as u32);
                set.extend(id, &[Extra { after, page }], config);
            }
            (4, Some(_)) => drop(set.remove_oldest()),
            (5, _) => drop(set.learn_partial(&run(rng), config)),
            _ => drop(set.learn(&run(rng), config)),
        }
    }
}

/// The contents, whoever numbers what next.
fn contents(set: &ActionSet) -> Vec<u8> {
    set.encode_shared()
}

#[test]
fn order_repetition_and_loss_change_nothing() {
    let config = MergeConfig { variants_max: 1000, ..MergeConfig::default() };
    let mut rng = SplitMix64(1);
    let mut conflicts = 0;
    for case in 0..10_000 {
        let mut base = ActionSet::new(ImageId([1; 32]));
        learn(&mut base, &mut rng, &config);
        let servers: Vec<Server> = (1..=2 + rng.below(3))
            .map(|number| {
                let mut live = base.clone();
                live.number_from(number << 32);
                learn(&mut live, &mut rng, &config);
                Server { base: base.clone(), live }
            })
            .collect();
        let mut results = Vec::new();
        for _ in 0..3 {
            let mut servers = servers.clone();
            let mut store = base.clone();
            // Each at least once, in any order, and some again.
            let mut looks: Vec<usize> = (0..servers.len()).collect();
            looks.extend((0..rng.below(4)).map(|_| rng.below(servers.len() as u64) as usize));
            for place in (1..looks.len()).rev() {
                looks.swap(place, rng.below(place as u64 + 1) as usize);
            }
            looks.iter().for_each(|index| servers[*index].look(&mut store, &config));
            let all = contents(&store);
            // Who looks last sees all, and who has looked has nothing new to say.
            for server in &mut servers {
                server.look(&mut store, &config);
                assert_eq!(contents(&server.live), all, "case {case}");
            }
            results.push(all);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "case {case}");
        let found = crate::decode(&results[0], &crate::Limits::default()).unwrap();
        for server in &servers {
            // Nothing that anybody learned is lost.
            for action in server.live.iter().filter(|action| base.get(action.id) != Some(action)) {
                let joined = found.get(action.id).unwrap();
                assert!(joined.uses >= action.uses && joined.runs >= action.runs, "case {case}");
            }
        }
        let changed = |server: &Server, id| server.live.get(id).is_some_and(|action| base.get(id) != Some(action));
        conflicts +=
            base.iter().filter(|it| servers.iter().filter(|server| changed(server, it.id)).count() > 1).count();
        // One server that was lost before it looked: the others have what they learned.
        let mut left = servers[1..].to_vec();
        let mut store = base.clone();
        left.iter_mut().for_each(|server| server.look(&mut store, &config));
        let mut again = base.clone();
        servers[1..].to_vec().iter_mut().rev().for_each(|server| server.look(&mut again, &config));
        assert_eq!(contents(&store), contents(&again), "case {case}");
    }
    assert!(conflicts > 1000, "{conflicts} actions that several servers changed");
}

#[test]
fn bounds_hold_after_a_join() {
    let config = MergeConfig { variants_max: 2, actions_max: 4, pages_total_max: 90, ..MergeConfig::default() };
    let mut rng = SplitMix64(7);
    for _ in 0..500 {
        let base = ActionSet::new(ImageId([1; 32]));
        let mut lives = [1, 2].map(|number: u64| {
            let mut live = base.clone();
            live.number_from(number << 32);
            live
        });
        for live in &mut lives {
            (0..4).for_each(|_| learn(live, &mut rng, &config));
        }
        let [one, other] = &lives;
        let joined = ActionSet::join(&base, one, other, &config);
        assert_eq!(contents(&joined), contents(&ActionSet::join(&base, other, one, &config)));
        assert!(joined.len() <= 4 && (joined.pages_total() <= 90 || joined.len() == 1));
        let firsts: BTreeSet<PageId> = joined.iter().map(Action::first_page).collect();
        assert!(firsts.iter().all(|first| joined.variants(*first).len() <= 2));
    }
}
