//! First-touch orders of traces, from which actions are made.

use std::collections::{HashMap, HashSet};

use trace::{Event, How, Trace};
use units::{Moment, PageId, Token};

/// What one run of one program touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its token.
    pub token: Token,
    /// Its executable; empty if the recorder did not know.
    pub name: Vec<u8>,
    /// When it started.
    pub began: Moment,
    /// When it ended, if the trace says so.
    pub ended: Option<Moment>,
    /// Pages in the order of their first touch.
    pub pages: Vec<PageId>,
    /// No push hid a touch: the order is complete.
    pub exact: bool,
}

/// The runs of a trace, in the order of their starts. A token that ends and starts again gives two.
pub fn orders(trace: &Trace) -> Vec<Order> {
    let mut found: Vec<Order> = Vec::new();
    let mut running: HashMap<Token, (usize, HashSet<PageId>)> = HashMap::new();
    for event in &trace.events {
        match event {
            Event::Start { token, at, name } => {
                running.insert(*token, (found.len(), HashSet::new()));
                let name = name.clone();
                found.push(Order { token: *token, name, began: *at, ended: None, pages: Vec::new(), exact: true });
            }
            Event::Touch { token, page, how, .. } => {
                let Some((position, seen)) = running.get_mut(token) else { continue };
                let order = &mut found[*position];
                order.exact &= *how != How::Pushed;
                if seen.insert(*page) {
                    order.pages.push(*page);
                }
            }
            Event::End { token, at } => {
                if let Some((position, _)) = running.remove(token) {
                    found[position].ended = Some(*at);
                }
            }
            Event::File { .. } | Event::Lookup { .. } | Event::Code { .. } => {}
        }
    }
    found
}

/// `touches` without all but the first of equal ones, at most `pages_max`.
pub fn first_touches(touches: &[PageId], pages_max: usize) -> Vec<PageId> {
    let mut seen = HashSet::new();
    touches.iter().copied().filter(|page| seen.insert(*page)).take(pages_max).collect()
}
