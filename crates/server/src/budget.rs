//! Something that all connections share, such as memory of replies or slots of reads: how much each
//! may hold, and whose turn it is when there is too little.
//!
//! A connection takes room before it does the work, keeps it while the bytes lie in its queue, and
//! gives it back as the queue drains. Its peer decides how long that takes. So no peer may hold so
//! much that others have to wait for it:
//!
//! - **Shares** (dynamic thresholds, as switches share their buffers): a peer may hold no more than
//!   would then still be free. One peer alone gets half at most, and something is always left for
//!   the next. The connections of a peer share its part by the same rule, in smaller parts.
//! - **Turns**: peers that wait are served in turn, and so are the connections of a peer. A peer
//!   that waits because it holds its share is passed over. A peer that holds nothing is not: the
//!   next room is kept for it, however large its request.
//! - **Slow peers last** ([`SlowPeers`]): peers that lately had to give way hold half together, and
//!   go behind the others except in each eighth turn.
//!
//! A peer that reads gives all its room back in the end, so none waits for ever. The wire closes
//! the connection of a peer that does not read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::lock::locked;
use crate::peer::{Owner, Peer};
use crate::slow::SlowPeers;

/// A connection holds no more than this part of what its peer could still take: forty that give
/// nothing back then leave hundredths for the next, where halves would leave nothing. With the
/// default memory it is more than the connection's own limit.
const CONNECTION_PARTS: usize = 8;

/// A peer holds no more reads than this part of those that are free: seven of 64. Reads may turn
/// out to be work for the processor, of which a machine does few at once: more would only make
/// those of others slow.
const READ_PARTS: usize = 8;

/// Of so many turns one is for a slow peer, if one waits.
const TURNS_BETWEEN_SLOW: u32 = 8;

/// Grain of memory: rounding costs little, and the sums stay small.
const UNIT_BYTES: usize = 1024;

/// The largest frame, and requests that came before it.
const FRAME_UNITS: usize = (wire::format::FRAME_BYTES_MAX + (256 << 10)) / UNIT_BYTES;

/// Who may hold how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Peers have shares, and their connections have shares of those.
    Memory,
    /// The same, but a connection may always hold one of the largest frames.
    Frames,
    /// Peers have shares: what is held as long as a peer or the disk likes.
    Slots,
    /// The same in smaller shares.
    Reads,
    /// Everything may be held: what the server's own work gives back soon.
    Turns,
}

/// Something that all connections share. Clones are the same budget.
#[derive(Clone)]
pub(crate) struct Budget {
    inner: Arc<Inner>,
}

struct Inner {
    rule: Rule,
    unit: usize,
    units_max: usize,
    slow: SlowPeers,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// What slow peers hold, of what they may hold together.
    slow_held: usize,
    slow_held_max: usize,
    /// Wishes that were granted after a wait.
    grants: u32,
    peers: HashMap<Peer, PeerShare>,
    /// Peers with somebody who waits; the next to be served is in front.
    turns: VecDeque<Peer>,
}

#[derive(Default)]
struct PeerShare {
    /// As it was when it last wished for something.
    is_slow: bool,
    held: usize,
    connections: HashMap<u64, ConnectionShare>,
    /// Connections that wait.
    turns: VecDeque<u64>,
}

#[derive(Default)]
struct ConnectionShare {
    held: usize,
    waiting: VecDeque<(usize, oneshot::Sender<Room>)>,
}

/// A wish in the queues. One that nobody waits for any more must leave them: the next room would be
/// kept for it, and others would have to give way.
struct Wait<'a> {
    budget: &'a Budget,
    owner: Owner,
    is_over: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = locked(&self.budget.inner.state);
        state.forget_closed(self.owner);
        let unclaimed = self.budget.grant(&mut state);
        drop(state);
        drop(unclaimed);
    }
}

/// A part of a [`Budget`]; it goes back on drop.
pub(crate) struct Room {
    budget: Budget,
    owner: Owner,
    units: usize,
}

/// Whether a wish can be granted.
#[derive(PartialEq, Eq)]
enum Verdict {
    Granted,
    /// It holds its share: others go first.
    OverShare,
    /// It holds nothing, and there is too little left: the next room is for it.
    TooLittle,
}

impl Budget {
    /// Memory of `bytes_max`: what a peer holds of it depends on how fast it reads or sends.
    pub fn memory(bytes_max: usize) -> Budget {
        Budget::new(Rule::Memory, UNIT_BYTES, bytes_max / UNIT_BYTES)
    }

    /// Memory of what arrives. A large frame comes as one, but behind requests that hold some
    /// already.
    pub fn frames(bytes_max: usize) -> Budget {
        Budget::new(Rule::Frames, UNIT_BYTES, bytes_max / UNIT_BYTES)
    }

    /// Slots that are held as long as a peer or the disk likes.
    pub fn slots(count: usize) -> Budget {
        Budget::new(Rule::Slots, 1, count)
    }

    /// Slots of reads from the disk.
    pub fn reads(count: usize) -> Budget {
        Budget::new(Rule::Reads, 1, count)
    }

    /// Slots of work that ends by itself soon: one peer may use all of them while nobody else wants
    /// one.
    pub fn turns(count: usize) -> Budget {
        Budget::new(Rule::Turns, 1, count)
    }

    fn new(rule: Rule, unit: usize, units_max: usize) -> Budget {
        let units_max = units_max.max(1);
        let state = State {
            free: units_max,
            slow_held: 0,
            slow_held_max: units_max / 2,
            grants: 0,
            peers: HashMap::new(),
            turns: VecDeque::new(),
        };
        let (slow, state) = (SlowPeers::default(), Mutex::new(state));
        Budget { inner: Arc::new(Inner { rule, unit, units_max, slow, state }) }
    }

    /// The same, before it is used, but the peers in `slow` go last.
    pub fn with_slow(self, slow: &SlowPeers) -> Budget {
        let inner = Arc::into_inner(self.inner).expect("nobody uses it yet");
        Budget { inner: Arc::new(Inner { slow: slow.clone(), ..inner }) }
    }

    /// Waits in turn for `amount`: bytes, or slots. More than there is at all is cut to it, so that
    /// the wait ends.
    pub async fn take(&self, owner: Owner, amount: usize) -> Room {
        let units = self.units(amount).min(self.inner.units_max);
        if units == 0 {
            return self.nothing(owner);
        }
        // Dropped after the receiver, if this future is.
        let mut wait = Wait { budget: self, owner, is_over: false };
        let granted = {
            let is_slow = self.inner.slow.contains(owner.peer);
            let mut state = locked(&self.inner.state);
            let (sender, granted) = oneshot::channel();
            state.queue(owner, units, sender);
            state.judge(owner.peer, is_slow);
            let unclaimed = self.grant(&mut state);
            drop(state);
            drop(unclaimed);
            granted
        };
        let room = granted.await.expect("who waits is asked before the budget ends");
        wait.is_over = true;
        room
    }

    /// `amount` at once, or not at all.
    pub fn try_take(&self, owner: Owner, amount: usize) -> Option<Room> {
        let (units, is_slow) = (self.units(amount), self.inner.slow.contains(owner.peer));
        let mut state = locked(&self.inner.state);
        // Those that wait go first.
        if !state.turns.is_empty() || state.may(self.inner.rule, owner, is_slow, units) != Verdict::Granted {
            return None;
        }
        state.hold(owner, units);
        state.judge(owner.peer, is_slow);
        Some(Room { budget: self.clone(), owner, units })
    }

    /// Waits for `amount` as long as `patience`, unless the owner's own share is what is lacking.
    pub async fn take_soon(&self, owner: Owner, amount: usize, patience: Duration) -> Option<Room> {
        if self.is_over_share(owner, amount) {
            return None;
        }
        tokio::time::timeout(patience, self.take(owner, amount)).await.ok()
    }

    /// Whether `owner` would wait for its own share rather than for what others hold.
    pub fn is_over_share(&self, owner: Owner, amount: usize) -> bool {
        let is_slow = self.inner.slow.contains(owner.peer);
        locked(&self.inner.state).may(self.inner.rule, owner, is_slow, self.units(amount)) == Verdict::OverShare
    }

    /// Whether a peer waits that holds less than half of an equal share, because there is too
    /// little left: others hold too much, not it.
    pub fn is_lacking(&self) -> bool {
        self.is_any_lacking(|_| true)
    }

    /// The same, of peers that are not slow.
    pub fn is_lacking_for_others(&self) -> bool {
        self.is_any_lacking(|share| !share.is_slow)
    }

    fn is_any_lacking(&self, counts: impl Fn(&PeerShare) -> bool) -> bool {
        let state = locked(&self.inner.state);
        let little = self.inner.units_max / (2 * state.peers.len().max(1));
        // Not for what its connections wait for because of their own shares.
        let lacks = |share: &PeerShare| {
            share.held <= little && share.waiting().any(|(_, units)| units > state.free.saturating_sub(share.held))
        };
        let mut waiting = state.turns.iter().filter_map(|peer| state.peers.get(peer));
        waiting.any(|share| counts(share) && lacks(share))
    }

    /// All that there is, in bytes or slots.
    pub fn most(&self) -> usize {
        self.inner.units_max * self.inner.unit
    }

    /// What is taken now, in bytes or slots.
    pub fn taken(&self) -> usize {
        (self.inner.units_max - locked(&self.inner.state).free) * self.inner.unit
    }

    /// A room with nothing in it.
    pub fn nothing(&self, owner: Owner) -> Room {
        Room { budget: self.clone(), owner, units: 0 }
    }

    fn units(&self, amount: usize) -> usize {
        amount.div_ceil(self.inner.unit)
    }

    fn give_back(&self, owner: Owner, units: usize) {
        if units == 0 {
            return;
        }
        let mut state = locked(&self.inner.state);
        state.release(owner, units);
        let unclaimed = self.grant(&mut state);
        drop(state);
        drop(unclaimed);
    }

    /// Serves those who wait as far as there is room. Returns the room of those who waited no
    /// longer, to be dropped without the lock.
    #[must_use]
    fn grant(&self, state: &mut State) -> Vec<Room> {
        let mut unclaimed = Vec::new();
        while let Some((owner, units, sender)) = state.next(self.inner.rule) {
            state.hold(owner, units);
            let room = Room { budget: self.clone(), owner, units };
            unclaimed.extend(sender.send(room).err());
        }
        unclaimed
    }
}

impl State {
    fn may(&self, rule: Rule, owner: Owner, is_slow: bool, units: usize) -> Verdict {
        let peer = self.peers.get(&owner.peer);
        let peer_held = peer.map_or(0, |peer| peer.held);
        let held = peer.and_then(|peer| peer.connections.get(&owner.connection)).map_or(0, |share| share.held);
        let room_of_peer = self.free.saturating_sub(peer_held);
        let within_share = match rule {
            Rule::Turns => true,
            _ if peer_held > 0 && units > room_of_peer => false,
            _ if is_slow && self.slow_held > 0 && self.slow_held + units > self.slow_held_max => false,
            Rule::Frames if held + units <= FRAME_UNITS => true,
            Rule::Memory | Rule::Frames => held == 0 || 2 * CONNECTION_PARTS * (held + units) <= room_of_peer,
            Rule::Reads => peer_held == 0 || READ_PARTS * (peer_held + units) <= self.free,
            Rule::Slots => true,
        };
        match (within_share, units <= self.free) {
            (false, _) => Verdict::OverShare,
            (true, true) => Verdict::Granted,
            (true, false) => Verdict::TooLittle,
        }
    }

    fn queue(&mut self, owner: Owner, units: usize, sender: oneshot::Sender<Room>) {
        let peer = self.peers.entry(owner.peer).or_default();
        if peer.turns.is_empty() {
            self.turns.push_back(owner.peer);
        }
        let connection = peer.connections.entry(owner.connection).or_default();
        if connection.waiting.is_empty() {
            peer.turns.push_back(owner.connection);
        }
        connection.waiting.push_back((units, sender));
    }

    /// Takes the next wish that can be granted out of the queues.
    fn next(&mut self, rule: Rule) -> Option<(Owner, usize, oneshot::Sender<Room>)> {
        let owner = self.next_owner(rule)?;
        self.grants = self.grants.wrapping_add(1);
        let peer = self.peers.get_mut(&owner.peer)?;
        let share = peer.connections.get_mut(&owner.connection)?;
        let (units, sender) = share.waiting.pop_front()?;
        peer.turns.retain(|connection| *connection != owner.connection);
        if !share.waiting.is_empty() {
            peer.turns.push_back(owner.connection);
        }
        self.turns.retain(|peer| *peer != owner.peer);
        if !peer.turns.is_empty() {
            self.turns.push_back(owner.peer);
        }
        Some((owner, units, sender))
    }

    fn next_owner(&self, rule: Rule) -> Option<Owner> {
        let slow_first = self.grants % TURNS_BETWEEN_SLOW == TURNS_BETWEEN_SLOW - 1;
        let next = self.next_of(rule, slow_first).or_else(|| self.next_of(rule, !slow_first));
        next.and_then(|(owner, verdict)| (verdict == Verdict::Granted).then_some(owner))
    }

    /// Whose turn it is among those that are slow, or among the others, unless all hold their
    /// share.
    fn next_of(&self, rule: Rule, slow: bool) -> Option<(Owner, Verdict)> {
        for peer in &self.turns {
            let share = self.peers.get(peer).filter(|share| share.is_slow == slow);
            for (connection, waits) in share.iter().flat_map(|share| share.waiting()) {
                let owner = Owner { peer: *peer, connection };
                match self.may(rule, owner, slow, waits) {
                    Verdict::OverShare => {}
                    verdict => return Some((owner, verdict)),
                }
            }
        }
        None
    }

    /// Whether the peer is slow may have changed since it wished for something.
    fn judge(&mut self, peer: Peer, is_slow: bool) {
        let Some(share) = self.peers.get_mut(&peer) else { return };
        match (share.is_slow, is_slow) {
            (false, true) => self.slow_held += share.held,
            (true, false) => self.slow_held -= share.held,
            _ => {}
        }
        share.is_slow = is_slow;
    }

    /// Takes wishes of a connection that nobody waits for out of the queues.
    fn forget_closed(&mut self, owner: Owner) {
        let Some(peer) = self.peers.get_mut(&owner.peer) else { return };
        let Some(share) = peer.connections.get_mut(&owner.connection) else { return };
        share.waiting.retain(|(_, sender)| !sender.is_closed());
        if !share.waiting.is_empty() {
            return;
        }
        peer.turns.retain(|connection| *connection != owner.connection);
        if share.held == 0 {
            peer.connections.remove(&owner.connection);
        }
        if peer.turns.is_empty() {
            self.turns.retain(|peer| *peer != owner.peer);
        }
        if peer.connections.is_empty() {
            self.peers.remove(&owner.peer);
        }
    }

    fn hold(&mut self, owner: Owner, units: usize) {
        if units == 0 {
            return;
        }
        let peer = self.peers.entry(owner.peer).or_default();
        peer.held += units;
        self.slow_held += if peer.is_slow { units } else { 0 };
        peer.connections.entry(owner.connection).or_default().held += units;
        self.free -= units;
    }

    fn release(&mut self, owner: Owner, units: usize) {
        let Some(peer) = self.peers.get_mut(&owner.peer) else { return };
        let Some(connection) = peer.connections.get_mut(&owner.connection) else { return };
        connection.held -= units;
        peer.held -= units;
        self.slow_held -= if peer.is_slow { units } else { 0 };
        self.free += units;
        if connection.held == 0 && connection.waiting.is_empty() {
            peer.connections.remove(&owner.connection);
        }
        if peer.connections.is_empty() {
            self.peers.remove(&owner.peer);
        }
    }
}

impl PeerShare {
    /// Its connections that wait, in their turns, and what each waits for.
    fn waiting(&self) -> impl Iterator<Item = (u64, usize)> {
        let first = |connection: &u64| {
            let (units, _) = self.connections.get(connection)?.waiting.front()?;
            Some((*connection, *units))
        };
        self.turns.iter().filter_map(first)
    }
}

impl Room {
    /// Adds `other`, which the same connection took from the same budget.
    pub fn merge(&mut self, mut other: Room) {
        assert!(Arc::ptr_eq(&self.budget.inner, &other.budget.inner) && self.owner == other.owner);
        self.units += std::mem::take(&mut other.units);
    }

    /// `amount` more for the same owner, at once or not at all.
    pub fn try_more(&self, amount: usize) -> Option<Room> {
        self.budget.try_take(self.owner, amount)
    }

    /// Cuts off what `amount` needs, or all that there is.
    pub fn split(&mut self, amount: usize) -> Room {
        let units = self.budget.units(amount).min(self.units);
        self.units -= units;
        Room { budget: self.budget.clone(), owner: self.owner, units }
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Gives back all but what `amount` needs.
    pub fn shrink_to(&mut self, amount: usize) {
        let excess = self.units.saturating_sub(self.budget.units(amount));
        self.units -= excess;
        self.budget.give_back(self.owner, excess);
    }

    /// What it is, in bytes or slots.
    pub fn amount(&self) -> usize {
        self.units * self.budget.inner.unit
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back(self.owner, self.units);
    }
}

#[cfg(test)]
mod tests;
