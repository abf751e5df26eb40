//! Which connections are served when more come than there are slots.
//!
//! Connections are counted by address, because the certificate is known too late: after the
//! handshake. One address has a part of the slots at most. When all slots are taken, the address
//! with the most connections gives one up to an address with fewer, so that few addresses cannot
//! keep the others out. If all addresses have as few, the server closes a connection that has made
//! no request for long, or never one. An address that gives up a slot loses the connection that
//! never made a request, else the one whose last request is the oldest. A device that only pings
//! notices nothing but that it has to connect again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use units::Moment;

use crate::lock::locked;
use crate::peer::Peer;

/// Time without a request after which a connection makes room for another one of the same address:
/// a few pings.
const IDLE: Duration = Duration::from_secs(60);

/// The same for a connection that has never asked for anything: devices ask at once.
const SILENT: Duration = Duration::from_secs(5);

/// Connections that have been told to leave and are still there. Each has a descriptor beyond the
/// slots for some seconds at most.
pub(crate) const LEAVING_MAX: usize = 64;

/// Connections at once that are told that there is no slot; further ones are just dropped.
pub(crate) const REFUSALS_MAX: usize = 64;

/// The slots of all connections.
pub(crate) struct Admission {
    slots_max: usize,
    per_address_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: HashMap<Peer, Vec<Arc<Admitted>>>,
    taken: usize,
    leaving: usize,
}

/// A connection that has a slot, or had one.
struct Admitted {
    came: Moment,
    /// When its last request came; 0 before the first.
    asked: AtomicU64,
    leave: Notify,
}

impl Admitted {
    /// Connections with the least leave first.
    fn worth(&self) -> (bool, u64) {
        match self.asked.load(Ordering::Relaxed) {
            0 => (false, self.came.0),
            asked => (true, asked),
        }
    }

    /// Whether it has not asked for long enough to make room for one that has no more than it.
    fn is_idle(&self, now: Moment) -> bool {
        let (asks, since) = self.worth();
        now.since(Moment(since)) >= if asks { IDLE } else { SILENT }
    }
}

/// The slot of one connection; free again on drop.
pub(crate) struct ConnectionSlot {
    admission: Arc<Admission>,
    address: Peer,
    connection: Arc<Admitted>,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All are taken: so many.
    Server(usize),
    /// The address has so many already.
    Address(usize),
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Full::Server(count) => {
                write!(f, "{count} connections are open, as many as this server takes (--connections)")
            }
            Full::Address(count) => {
                write!(
                    f,
                    "{count} connections from this address are open, as many as it may have (--connections-per-address)"
                )
            }
        }
    }
}

impl Admission {
    /// `slots_max` in all, `per_address_max` for each address.
    pub fn new(slots_max: usize, per_address_max: usize) -> Admission {
        Admission { slots_max, per_address_max, state: Mutex::default() }
    }

    /// A slot for a connection from `address`, if need be one that another has to leave.
    pub fn admit(self: &Arc<Admission>, address: Peer, now: Moment) -> Result<ConnectionSlot, Full> {
        let mut state = locked(&self.state);
        let own = state.addresses.get(&address).map_or(0, Vec::len);
        if own >= self.per_address_max {
            let idle = state.oldest(|peer| *peer == address).filter(|(_, connection)| connection.is_idle(now));
            idle.and_then(|(from, connection)| state.displace(from, &connection)).ok_or(Full::Address(own))?;
        } else if state.taken >= self.slots_max {
            // Half of those that may be leaving are kept for addresses that have nothing yet.
            let full = own > 0 && state.leaving >= LEAVING_MAX / 2;
            let connection = if full { None } else { state.loser_to(own, now) };
            connection
                .and_then(|(from, connection)| state.displace(from, &connection))
                .ok_or(Full::Server(state.taken))?;
        }
        let connection = Arc::new(Admitted { came: now, asked: AtomicU64::new(0), leave: Notify::new() });
        state.addresses.entry(address).or_default().push(connection.clone());
        state.taken += 1;
        Ok(ConnectionSlot { admission: self.clone(), address, connection })
    }
}

impl State {
    /// A connection of another address that gives its slot to an address with `own` connections.
    fn loser_to(&self, own: usize, now: Moment) -> Option<(Peer, Arc<Admitted>)> {
        let most = self.addresses.iter().max_by_key(|(_, connections)| connections.len())?;
        if most.1.len() >= own + 2 {
            return self.oldest(|peer| peer == most.0);
        }
        let has_more = |peer: &Peer| self.addresses[peer].len() > own;
        self.oldest(has_more).filter(|(_, connection)| connection.is_idle(now))
    }

    /// The connection worth least of these addresses.
    fn oldest(&self, of: impl Fn(&Peer) -> bool) -> Option<(Peer, Arc<Admitted>)> {
        let addresses = self.addresses.iter().filter(|(peer, _)| of(peer));
        let connections =
            addresses.flat_map(|(peer, connections)| connections.iter().map(|connection| (*peer, connection)));
        connections
            .min_by_key(|(_, connection)| connection.worth())
            .map(|(peer, connection)| (peer, connection.clone()))
    }

    /// Takes its slot from a connection, and tells it to leave.
    fn displace(&mut self, address: Peer, connection: &Arc<Admitted>) -> Option<()> {
        if self.leaving >= LEAVING_MAX {
            return None;
        }
        self.leave(address, connection);
        self.leaving += 1;
        connection.leave.notify_one();
        Some(())
    }

    /// Takes its slot from a connection. Whether it still had it.
    fn leave(&mut self, address: Peer, connection: &Arc<Admitted>) -> bool {
        let Some(connections) = self.addresses.get_mut(&address) else { return false };
        let Some(at) = connections.iter().position(|other| Arc::ptr_eq(other, connection)) else { return false };
        connections.swap_remove(at);
        if connections.is_empty() {
            self.addresses.remove(&address);
        }
        self.taken -= 1;
        true
    }
}

impl ConnectionSlot {
    /// The connection asked for something.
    pub fn asked(&self, now: Moment) {
        self.connection.asked.store(now.0.max(1), Ordering::Relaxed);
    }

    /// Ready when the slot is needed for another connection.
    pub async fn displaced(&self) {
        self.connection.leave.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = locked(&self.admission.state);
        if !state.leave(self.address, &self.connection) {
            state.leaving -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> Peer {
        Peer::at(([192, 0, 2, host], 1).into())
    }

    async fn is_displaced(place: &ConnectionSlot) -> bool {
        tokio::select! { biased; () = place.displaced() => true, () = std::future::ready(()) => false }
    }

    #[tokio::test]
    async fn an_address_has_a_part_of_the_places_and_its_idle_connections_make_room_in_it() {
        let admission = Arc::new(Admission::new(8, 2));
        let first = admission.admit(at(1), Moment(0)).unwrap();
        let second = admission.admit(at(1), Moment(1)).unwrap();
        assert_eq!(admission.admit(at(1), Moment(2)).err(), Some(Full::Address(2)));
        first.asked(Moment(3));
        let later = Moment(0).after(IDLE);
        let third = admission.admit(at(1), Moment(later.0 + 1)).unwrap();
        assert!(is_displaced(&second).await, "it asked for nothing in all the time");
        assert!(!is_displaced(&first).await);
        drop((first, second, third));
        let state = locked(&admission.state);
        assert_eq!((state.taken, state.leaving), (0, 0));
    }

    #[tokio::test]
    async fn the_address_with_most_connections_makes_room_for_those_with_fewer() {
        let admission = Arc::new(Admission::new(4, 4));
        let many: Vec<_> = (0..4).map(|moment| admission.admit(at(1), Moment(moment)).unwrap()).collect();
        many[0].asked(Moment(9));
        let good = admission.admit(at(2), Moment(10)).unwrap();
        assert!(is_displaced(&many[1]).await, "its last request is the oldest");
        let _other = admission.admit(at(2), Moment(11)).unwrap();
        assert!(!is_displaced(&good).await);
        assert!(admission.admit(at(1), Moment(12)).is_err(), "nobody else has more");
    }

    #[tokio::test]
    async fn regress_connections_that_ask_for_nothing_make_room_when_all_addresses_have_one() {
        let admission = Arc::new(Admission::new(4, 4));
        let all: Vec<_> = (1..=4).map(|host| admission.admit(at(host), Moment(host.into())).unwrap()).collect();
        all[0].asked(Moment(5));
        all[1].asked(Moment(6));
        assert!(admission.admit(at(9), Moment(7)).is_err(), "devices have time to ask for something");
        let silent = Moment(8).after(SILENT);
        let first = admission.admit(at(9), silent).unwrap();
        assert!(is_displaced(&all[2]).await, "it came first of those that never asked");
        assert!(admission.admit(at(9), silent).is_err(), "an address with a connection needs no other as much");
        let second = admission.admit(at(8), silent).unwrap();
        assert!(is_displaced(&all[3]).await);
        first.asked(silent);
        second.asked(silent);
        assert!(admission.admit(at(7), silent).is_err(), "the others ask");
        let idle = Moment(5).after(IDLE);
        let _third = admission.admit(at(7), idle).unwrap();
        assert!(is_displaced(&all[0]).await && !is_displaced(&all[1]).await && !is_displaced(&first).await);
    }

    #[tokio::test]
    async fn regress_addresses_that_reconnect_without_end_leave_room_for_one_that_has_none() {
        let admission = Arc::new(Admission::new(1000, 1000));
        let mut all: Vec<_> = (0..1000).map(|number| admission.admit(at((number % 4) as u8), Moment(number))).collect();
        // A fifth address fills up. Those who are told to leave do not.
        for round in 0..1000 {
            all.push(admission.admit(at(5), Moment(1000 + round)));
        }
        assert!(locked(&admission.state).leaving < LEAVING_MAX);
        assert!(admission.admit(at(9), Moment(3000)).is_ok());
    }
}
