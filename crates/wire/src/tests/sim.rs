//! A device that loses its connection again and again: every request still gets exactly one answer.
//!
//! One seed makes a whole run; a failure names it. `RUNNEL_WIRE_SEED` runs one seed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, InodeId, Moment, PageId, RequestId, Rng, SegmentIndex, SplitMix64, StreamId, Token};

use super::rig::{LinkConfig, Pair};
use crate::{
    ClientConfig, ClientEvent, ErrorCode, ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply,
    Request, ServerConfig, ServerEvent,
};

/// How requests ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    replies: u32,
    expired: u32,
    replayed: u32,
    losses: u32,
    pieces: u32,
    ends: u32,
}

/// One run: a client application, a server application, and a link that fails.
struct World {
    rng: SplitMix64,
    link: LinkConfig,
    pair: Pair,
    /// Requests on the present connection, by what the application calls them.
    asked: BTreeMap<RequestId, u32>,
    /// What the application still waits for.
    waits: BTreeMap<u32, Request>,
    /// What the server's store still works on, and when it will be done.
    work: Vec<(Moment, RequestId, Request)>,
    streams: Vec<StreamId>,
    outcome: Outcome,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = SplitMix64(seed);
        let link =
            LinkConfig { loss_permille: rng.below(20), ..LinkConfig::new(1 + rng.below(200), 1 + rng.below(100)) };
        World {
            pair: connect(link, rng.next_u64(), Moment(0)),
            rng,
            link,
            asked: BTreeMap::new(),
            waits: BTreeMap::new(),
            work: Vec::new(),
            streams: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn run(mut self, requests: u32) -> Outcome {
        let (mut next, mut loss) = (0, self.after_ms(2000));
        while next < requests || !self.waits.is_empty() {
            if next < requests && self.rng.below(4) == 0 {
                self.ask(next);
                next += 1;
            }
            if self.rng.below(50) == 0 {
                self.cancel();
            }
            let until = self.after_ms(30);
            while self.pair.step(until) {
                self.client_side();
                self.server_side();
            }
            self.client_side();
            self.server_side();
            // the last stretch is without faults, so that the run ends
            if self.pair.now >= loss && next < requests {
                self.lose();
                loss = self.after_ms(3000);
            }
            assert!(self.pair.now < Moment(3_600_000_000), "no end within an hour: {:?}", self.waits);
        }
        assert_eq!(self.pair.client.unanswered().count(), 0);
        self.outcome
    }

    fn after_ms(&mut self, ms: u64) -> Moment {
        self.pair.now.after(Duration::from_millis(1 + self.rng.below(ms)))
    }

    fn ask(&mut self, name: u32) {
        let page = PageId::new(InodeId(1), name);
        let token = Token(1);
        let ask = match self.rng.below(4) {
            0 => Request::List,
            1 => Request::PullPages { image: ImageHandle(1), token, pages: vec![page], force: false },
            _ => Request::PullBlock {
                image: ImageHandle(1),
                token,
                page,
                block: BlockId(name),
                force: false,
                speculative: false,
            },
        };
        let request = self.pair.client.request(self.pair.now, ask.clone()).unwrap();
        self.asked.insert(request, name);
        self.waits.insert(name, ask);
    }

    fn cancel(&mut self) {
        let pick = self.rng.below(self.asked.len() as u64 + 1) as usize;
        if let Some((request, name)) = self.asked.iter().nth(pick).map(|(request, name)| (*request, *name)) {
            self.pair.client.cancel(self.pair.now, request).unwrap();
            self.asked.remove(&request);
            self.waits.remove(&name);
        }
    }

    fn client_side(&mut self) {
        while let Some(event) = self.pair.client.poll_event() {
            match event {
                ClientEvent::Reply { request, reply } => {
                    let name = self.asked.remove(&request).expect("a reply to what was asked on this connection");
                    let ask = self.waits.remove(&name).expect("one answer only");
                    assert!(ask.accepts(&reply), "{ask:?} got {reply:?}");
                    self.outcome.replies += 1;
                }
                ClientEvent::Expired { request } => {
                    let name = self.asked.remove(&request).expect("an open request");
                    self.waits.remove(&name).expect("one answer only");
                    self.outcome.expired += 1;
                }
                ClientEvent::Push { piece, credit } => {
                    self.outcome.pieces += 1;
                    self.pair.client.credit(piece.stream, credit).unwrap();
                    if self.rng.below(40) == 0 {
                        self.pair.client.stop_push(piece.stream).unwrap();
                    }
                }
                ClientEvent::Ready(_) | ClientEvent::PushStart { .. } => {}
                ClientEvent::PushEnd { .. } => self.outcome.ends += 1,
                ClientEvent::Closed(_) => return self.reconnect(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn server_side(&mut self) {
        while let Some(event) = self.pair.server.poll_event() {
            match event {
                ServerEvent::Request { request, ask } => {
                    let done = if self.rng.below(3) == 0 { self.after_ms(400) } else { self.pair.now };
                    self.work.push((done, request, ask));
                }
                ServerEvent::Cancelled { request } => self.work.retain(|(_, open, _)| *open != request),
                ServerEvent::PushStopped { stream } => self.streams.retain(|open| *open != stream),
                ServerEvent::Ready(_) | ServerEvent::Closed(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let now = self.pair.now;
        let (done, work) = std::mem::take(&mut self.work).into_iter().partition(|(due, _, _)| *due <= now);
        self.work = work;
        for (_, request, ask) in done {
            let reply = self.reply(ask);
            // the connection may have closed meanwhile
            let _ = self.pair.server.reply(request, reply);
        }
        self.push();
    }

    fn reply(&mut self, ask: Request) -> Reply {
        let bytes = Bytes::from(vec![1; 1 + self.rng.below(60_000) as usize]);
        match (ask, self.rng.below(10), self.streams.first()) {
            (Request::List, _, _) => Reply::Listing { json: bytes },
            (_, 0, _) => Reply::error(ErrorCode::Storage, "a bad day"),
            (_, 1, Some(stream)) => Reply::OnTheWay { stream: *stream },
            (Request::PullBlock { block, .. }, _, _) => Reply::Block { block, bytes },
            _ => Reply::Pages { codec: 1, bytes },
        }
    }

    fn push(&mut self) {
        let Some(hello) = self.pair.server.hello() else { return };
        let window_log = hello.window_log_max;
        if self.rng.below(200) == 0 {
            let encoding = PushEncoding::ZstdStream;
            let (image, token, action) = (ImageHandle(1), Token(1), Default::default());
            let header = PushHeader { image, token, action, encoding, window_log, audit: false };
            self.streams.extend(self.pair.server.push_start(header));
        }
        if self.rng.below(400) == 0 && !self.streams.is_empty() {
            self.pair.server.cancel_push(self.streams.remove(0), PushEndReason::Mismatch);
        }
        let Some(stream) = self.streams.last().copied() else { return };
        while self.pair.server.push_room() > 0 {
            let bytes = Bytes::from(vec![2; 1 + self.rng.below(40_000) as usize]);
            let piece = PushPiece { stream, segment: SegmentIndex(0), pages: vec![PageId::default()], bytes };
            if self.pair.server.push(piece).is_err() {
                break;
            }
        }
    }

    /// The connection breaks: with a reset both sides see, or without a word.
    fn lose(&mut self) {
        self.outcome.losses += 1;
        if self.rng.below(2) == 0 {
            self.pair.client.lost();
            self.pair.server.lost();
            self.client_side();
        } else {
            self.pair.up.dead = true;
            self.pair.down.dead = true;
        }
    }

    /// A new connection; what was not answered on the old one is asked again.
    fn reconnect(&mut self) {
        let seed = self.rng.next_u64();
        let mut pair = connect(self.link, seed, self.pair.now);
        let mut asked = BTreeMap::new();
        for open in self.pair.client.unanswered() {
            let name = self.asked.remove(&open.request).expect("an open request");
            let request = pair.client.request_until(pair.now, open.ask.clone(), open.deadline).unwrap();
            asked.insert(request, name);
            self.outcome.replayed += 1;
        }
        assert!(self.asked.is_empty(), "requests that are neither answered nor to be replayed: {:?}", self.asked);
        (self.pair, self.asked) = (pair, asked);
        self.work.clear();
        self.streams.clear();
    }
}

fn connect(link: LinkConfig, seed: u64, now: Moment) -> Pair {
    Pair::with(link, seed, now, ClientConfig::default(), ServerConfig::default())
}

#[test]
fn sim_every_request_gets_one_answer_whatever_the_link_does() {
    let seeds = match std::env::var("RUNNEL_WIRE_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number in RUNNEL_WIRE_SEED")],
        Err(_) => (1..=12).collect(),
    };
    let mut total = Outcome::default();
    for seed in &seeds {
        println!("seed {seed}: RUNNEL_WIRE_SEED={seed} cargo test -p runnel-wire sim_every -- --nocapture");
        let outcome = World::new(*seed).run(300);
        println!("{outcome:?}");
        total.losses += outcome.losses;
        total.replayed += outcome.replayed;
        total.replies += outcome.replies;
        total.pieces += outcome.pieces;
        total.ends += outcome.ends;
    }
    // the run must have been through something
    if seeds.len() > 1 {
        assert!(total.losses > 20 && total.replayed > 20 && total.pieces > 1000 && total.ends > 10, "{total:?}");
        assert!(total.replies > 2000, "{total:?}");
    }
}

#[test]
fn sim_the_same_seed_gives_the_same_run() {
    assert_eq!(World::new(77).run(100), World::new(77).run(100));
}
