//! Replaying first-touch orders over a modelled link: how many pages a predictor saves, wastes, and
//! how long programs wait.
//!
//! The model: one client, cold at the start of each run; one link with a round-trip time and a
//! rate; a program that touches the pages of its order one after another, with a little work
//! between. A demanded page takes a round trip and its transfer, and goes before all pushed pages
//! that have not begun to be sent. Pushed pages use the link whenever nothing is demanded, in the
//! order in which they were ordered. Touches reach the predictor without delay, which flatters all
//! alike.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use profile::Order;
use units::{Moment, PageId, SEGMENT_PAGES_MAX, Token};

use crate::{Predictor, Verdict};

/// Which touches of pushed pages the predictor gets to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// All: pushed pages wait in the client's daemon.
    All,
    /// The first of each pushed segment: the others are in the page cache. Audits show all.
    SegmentStarts,
}

/// The modelled link and program.
#[derive(Clone, Copy, Debug)]
pub struct CostModel {
    /// Round-trip time.
    pub round_trip: Duration,
    /// Time to send one page, as compressed: 4096 bytes that pack to 1500 take 0.5 ms at 25 Mbit/s.
    pub page_time: Duration,
    /// Work of the program between two touches.
    pub work: Duration,
    /// What the predictor sees.
    pub visible: Visible,
}

impl Default for CostModel {
    /// A 25 Mbit/s link with a 20 ms round trip.
    fn default() -> CostModel {
        CostModel {
            round_trip: Duration::from_millis(20),
            page_time: Duration::from_micros(500),
            work: Duration::from_micros(200),
            visible: Visible::SegmentStarts,
        }
    }
}

/// What one run, or all, came to. Units: pages, and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Pages touched, each once.
    pub touched: u64,
    /// Pages asked for: each waited for a round trip.
    pub demanded: u64,
    /// Pages pushed that were sent, or on their way, when the run ended or earlier.
    pub pushed: u64,
    /// Pushed pages that the program then touched without asking.
    pub hit: u64,
    /// Of these, pages that were still on their way, so that the program waited for less than a
    /// round trip.
    pub late: u64,
    /// Pushed pages that it did not touch.
    pub wasted: u64,
    /// Time that the program waited.
    pub stalled: Duration,
    /// Time from the first touch to the last.
    pub wall: Duration,
}

impl Evaluation {
    /// The sum of several.
    pub fn total(all: &[Evaluation]) -> Evaluation {
        all.iter().fold(Evaluation::default(), |sum, one| Evaluation {
            touched: sum.touched + one.touched,
            demanded: sum.demanded + one.demanded,
            pushed: sum.pushed + one.pushed,
            hit: sum.hit + one.hit,
            late: sum.late + one.late,
            wasted: sum.wasted + one.wasted,
            stalled: sum.stalled + one.stalled,
            wall: sum.wall + one.wall,
        })
    }
}

/// Replays `orders` one after the other, each on a cold client, and gives one evaluation for each.
/// A run's token is that of its order; it ends before the next begins, ten seconds later.
pub fn evaluate(predictor: &mut dyn Predictor, orders: &[Order], model: &CostModel) -> Vec<Evaluation> {
    let mut now = Moment(0);
    orders
        .iter()
        .map(|order| {
            let mut replay = Replay::new(now, order.token, model);
            let result = replay.run(predictor, &order.pages);
            predictor.end(order.token, replay.now);
            now = replay.now.after(Duration::from_secs(10));
            predictor.expire(now);
            result
        })
        .collect()
}

struct Queued {
    page: PageId,
    position: u32,
    /// Its touch is visible.
    visible: bool,
}

/// A page that the client has, or that is on its way.
struct Held {
    arrives: Moment,
    pushed: bool,
    visible: bool,
}

struct Replay<'a> {
    now: Moment,
    token: Token,
    model: &'a CostModel,
    /// When the link has sent what it is sending.
    link_free: Moment,
    queue: VecDeque<Queued>,
    queued: HashSet<PageId>,
    held: HashMap<PageId, Held>,
    result: Evaluation,
}

impl<'a> Replay<'a> {
    fn new(now: Moment, token: Token, model: &'a CostModel) -> Replay<'a> {
        Replay {
            now,
            token,
            model,
            link_free: now,
            queue: VecDeque::new(),
            queued: HashSet::new(),
            held: HashMap::new(),
            result: Evaluation::default(),
        }
    }

    fn run(&mut self, predictor: &mut dyn Predictor, pages: &[PageId]) -> Evaluation {
        let began = self.now;
        let mut touched = HashSet::new();
        for page in pages.iter().filter(|page| touched.insert(**page)) {
            self.now = self.now.after(self.model.work);
            self.send_pushes();
            self.result.touched += 1;
            self.touch(predictor, *page);
        }
        self.send_pushes();
        self.result.pushed = self.held.values().filter(|held| held.pushed).count() as u64;
        self.result.wasted = self.result.pushed - self.result.hit;
        self.result.wall = self.now.since(began);
        self.result
    }

    fn touch(&mut self, predictor: &mut dyn Predictor, page: PageId) {
        let visible = match self.held.get(&page) {
            Some(held) => {
                let wait = held.arrives.since(self.now);
                self.now = self.now.after(wait);
                self.result.stalled += wait;
                self.result.hit += 1;
                self.result.late += u64::from(!wait.is_zero());
                held.visible
            }
            None => {
                let verdict = predictor.touch(self.token, page, self.now);
                self.obey(predictor, verdict);
                self.demand(page);
                false
            }
        };
        if visible {
            let verdict = predictor.touch(self.token, page, self.now);
            self.obey(predictor, verdict);
        }
    }

    /// Asks for a page and waits for it.
    fn demand(&mut self, page: PageId) {
        self.result.demanded += 1;
        let half = self.model.round_trip / 2;
        let asked = self.now;
        // Pushes go on until the request arrives; then the page goes before them.
        self.now = asked.after(half);
        self.send_pushes();
        if self.held.contains_key(&page) {
            // It left with the pushes meanwhile: wait for that.
            let held = &self.held[&page];
            self.now = self.now.max(held.arrives);
            self.result.hit += 1;
            self.result.late += 1;
            self.result.demanded -= 1;
        } else {
            self.queued.remove(&page);
            let sent = self.link_free.max(self.now).after(self.model.page_time);
            self.link_free = sent;
            self.now = sent.after(half);
            self.held.insert(page, Held { arrives: self.now, pushed: false, visible: false });
        }
        self.result.stalled += self.now.since(asked);
    }

    fn obey(&mut self, predictor: &dyn Predictor, verdict: Verdict) {
        if verdict.cancel {
            self.queue.clear();
            self.queued.clear();
        }
        if let Some(hold) = verdict.hold {
            let held = self.queue.iter().filter(|queued| queued.position >= hold);
            held.for_each(|queued| _ = self.queued.remove(&queued.page));
            self.queue.retain(|queued| queued.position < hold);
        }
        let Some(order) = verdict.push else { return };
        if self.queue.is_empty() {
            // An idle link begins to send when the touch has reached the server.
            self.link_free = self.link_free.max(self.now.after(self.model.round_trip / 2));
        }
        let all = order.audit || self.model.visible == Visible::All;
        for (offset, page) in predictor.pages(self.token, &order).iter().enumerate() {
            let position = order.from + offset as u32;
            let starts = offset == 0 || position.is_multiple_of(SEGMENT_PAGES_MAX as u32);
            if !self.held.contains_key(page) && self.queued.insert(*page) {
                self.queue.push_back(Queued { page: *page, position, visible: all || starts });
            }
        }
    }

    /// Sends queued pages as far as the link had time for them until now.
    fn send_pushes(&mut self) {
        while let Some(next) = self.queue.front() {
            if self.queued.contains(&next.page) {
                let sent = self.link_free.after(self.model.page_time);
                if sent > self.now {
                    break;
                }
                self.link_free = sent;
                self.queued.remove(&next.page);
                let arrives = sent.after(self.model.round_trip / 2);
                self.held.insert(next.page, Held { arrives, pushed: true, visible: next.visible });
            }
            self.queue.pop_front();
        }
        if self.queue.is_empty() {
            self.link_free = self.link_free.max(self.now);
        }
    }
}
