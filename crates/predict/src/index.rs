//! An index from a page to the actions that hold it: it replaces the scan of all segments of all
//! actions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use profile::{Action, ActionSet};
use units::{ActionId, PageId};

use crate::action_pages::ActionPages;

/// Pages of all actions, and which actions hold a page. Memory: the pages, and 8 bytes per page and
/// action that holds it, plus about 48 for each different page.
#[derive(Debug, Default)]
pub(crate) struct Index {
    actions: BTreeMap<ActionId, Arc<ActionPages>>,
    holders: HashMap<PageId, Vec<ActionId>>,
    starters: HashMap<PageId, Vec<ActionId>>,
}

impl Index {
    pub fn new(set: &ActionSet) -> Index {
        let mut index = Index::default();
        set.iter().for_each(|action| index.update(action));
        index
    }

    /// Takes in an action that is new, or has another revision or other extras.
    pub fn update(&mut self, action: &Action) {
        if self.actions.get(&action.id).is_some_and(|known| known.is_of(action)) {
            return;
        }
        self.remove(action.id);
        let action = Arc::new(ActionPages::new(action));
        for page in &action.pages {
            self.holders.entry(*page).or_default().push(action.id);
        }
        self.starters.entry(action.pages[0]).or_default().push(action.id);
        self.actions.insert(action.id, action);
    }

    pub fn remove(&mut self, id: ActionId) {
        let Some(action) = self.actions.remove(&id) else { return };
        for page in &action.pages {
            take_out(&mut self.holders, *page, id);
        }
        take_out(&mut self.starters, action.pages[0], id);
    }

    pub fn get(&self, id: ActionId) -> Option<&Arc<ActionPages>> {
        self.actions.get(&id)
    }

    /// Actions that hold `page`, in no stated order.
    pub fn holders(&self, page: PageId) -> &[ActionId] {
        self.holders.get(&page).map_or(&[], Vec::as_slice)
    }

    /// Actions that start with `page`, in no stated order.
    pub fn starters(&self, page: PageId) -> &[ActionId] {
        self.starters.get(&page).map_or(&[], Vec::as_slice)
    }
}

fn take_out(map: &mut HashMap<PageId, Vec<ActionId>>, page: PageId, id: ActionId) {
    if let Some(ids) = map.get_mut(&page) {
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            map.remove(&page);
        }
    }
}
