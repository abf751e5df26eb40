//! What all connections share: memory of replies and pushes, reads at once, uploads. Who may hold how much of it, and whose
//! turn it is when there is too little.
//!
//! A connection takes room before it does the work, keeps it while the bytes lie in its queue, and gives it back as the
//! queue drains. How long that takes is up to its peer, so no peer may hold so much that others must wait for it:
//!
//! - **Shares** (dynamic thresholds, as switches share their buffers): a peer may hold no more than what would then still be
//!   free: one gets a half at most, and something is always left for the next. The connections of a peer share its part by
//!   the same rule, in smaller parts.
//! - **Turns**: those who wait are served by peer in turn, and by connection in turn within a peer. A peer that waits
//!   because it holds its share is passed over. One that holds nothing is not: the next room is kept for it, however large its wish.
//!
//! A peer that reads gets all its room back in the end, so none waits for ever. One that does not read is cut off by the
//! least rate of the wire.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::blocks::locked;
use crate::peer::{Owner, Peer};

/// A connection holds no more than this part of what its peer could still take: forty that give nothing back then leave
/// hundredths for the next, where halves would leave nothing. With the default memory it is more than the connection's own limit.
const CONNECTION_PARTS: usize = 8;

/// A peer holds no more reads than this part of those that are free: seven of 64. Reads may turn
/// out to be work for the processor, of which a machine does few at once: more would only make
/// those of others slow.
const READ_PARTS: usize = 8;

/// Grain of memory: rounding costs little, and the sums stay small.
const UNIT_BYTES: usize = 1024;

/// Who may hold how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Peers have shares, and their connections have shares of those.
    Memory,
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
    state: Mutex<State>,
}

struct State {
    free: usize,
    peers: HashMap<Peer, PeerShare>,
    /// Peers with somebody who waits; the next to be served is in front.
    turns: VecDeque<Peer>,
}

#[derive(Default)]
struct PeerShare {
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

    /// Slots that are held as long as a peer or the disk likes.
    pub fn slots(count: usize) -> Budget {
        Budget::new(Rule::Slots, 1, count)
    }

    /// Slots of reads from the disk.
    pub fn reads(count: usize) -> Budget {
        Budget::new(Rule::Reads, 1, count)
    }

    /// Slots of work that ends by itself soon: one peer may use all of them while nobody else wants one.
    pub fn turns(count: usize) -> Budget {
        Budget::new(Rule::Turns, 1, count)
    }

    fn new(rule: Rule, unit: usize, units_max: usize) -> Budget {
        let units_max = units_max.max(1);
        let state = State { free: units_max, peers: HashMap::new(), turns: VecDeque::new() };
        Budget { inner: Arc::new(Inner { rule, unit, units_max, state: Mutex::new(state) }) }
    }

    /// Waits in turn for `amount`: bytes, or slots. More than there is at all is cut to it, so that the wait ends.
    pub async fn take(&self, owner: Owner, amount: usize) -> Room {
        let units = self.units(amount).min(self.inner.units_max);
        if units == 0 {
            return self.nothing(owner);
        }
        // Dropped after the receiver, if this future is.
        let mut wait = Wait { budget: self, owner, is_over: false };
        let granted = {
            let mut state = locked(&self.inner.state);
            let (sender, granted) = oneshot::channel();
            state.queue(owner, units, sender);
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
        let units = self.units(amount);
        let mut state = locked(&self.inner.state);
        // Who waits goes first.
        if !state.turns.is_empty() || state.may(self.inner.rule, owner, units) != Verdict::Granted {
            return None;
        }
        state.hold(owner, units);
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
        locked(&self.inner.state).may(self.inner.rule, owner, self.units(amount)) == Verdict::OverShare
    }

    /// Whether somebody waits who holds nothing: others hold too much, not he.
    pub fn is_lacking(&self) -> bool {
        let state = locked(&self.inner.state);
        state.turns.iter().any(|peer| state.peers.get(peer).is_some_and(|share| share.held == 0))
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

    /// Serves those who wait as far as there is room. Returns the room of those who waited no longer, to be dropped without the lock.
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
    fn may(&self, rule: Rule, owner: Owner, units: usize) -> Verdict {
        let peer = self.peers.get(&owner.peer);
        let peer_held = peer.map_or(0, |peer| peer.held);
        let held = peer.and_then(|peer| peer.connections.get(&owner.connection)).map_or(0, |share| share.held);
        let room_of_peer = self.free.saturating_sub(peer_held);
        let within_share = match rule {
            Rule::Turns => true,
            _ if peer_held > 0 && units > room_of_peer => false,
            Rule::Memory => held == 0 || 2 * CONNECTION_PARTS * (held + units) <= room_of_peer,
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
        for peer in &self.turns {
            let share = self.peers.get(peer)?;
            for connection in &share.turns {
                let owner = Owner { peer: *peer, connection: *connection };
                let (units, _) = share.connections.get(connection)?.waiting.front()?;
                match self.may(rule, owner, *units) {
                    Verdict::Granted => return Some(owner),
                    Verdict::TooLittle => return None,
                    Verdict::OverShare => {}
                }
            }
        }
        None
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
        peer.connections.entry(owner.connection).or_default().held += units;
        self.free -= units;
    }

    fn release(&mut self, owner: Owner, units: usize) {
        let Some(peer) = self.peers.get_mut(&owner.peer) else { return };
        let Some(connection) = peer.connections.get_mut(&owner.connection) else { return };
        connection.held -= units;
        peer.held -= units;
        self.free += units;
        if connection.held == 0 && connection.waiting.is_empty() {
            peer.connections.remove(&owner.connection);
        }
        if peer.connections.is_empty() {
            self.peers.remove(&owner.peer);
        }
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
