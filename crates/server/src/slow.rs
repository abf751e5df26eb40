//! Peers that lately kept, for too long, what others waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::locked;
use crate::peer::Peer;

/// Peers that are remembered; those that were slow first are forgotten first.
const PEERS_MAX: usize = 4096;

/// Slow peers. Clones are the same ones.
///
/// A peer that gives way can come again at once, and from many addresses: without memory of it,
/// such clients would take all there is again and again.
#[derive(Clone, Default)]
pub(crate) struct SlowPeers {
    peers: Arc<Mutex<HashMap<Peer, Instant>>>,
    /// How long a peer is slow.
    kept: Duration,
}

impl SlowPeers {
    /// None yet; those that come are slow for this time.
    pub fn for_time(kept: Duration) -> SlowPeers {
        SlowPeers { peers: Arc::default(), kept }
    }

    /// `peer` was slow just now.
    pub fn add(&self, peer: Peer) {
        let mut peers = locked(&self.peers);
        let now = Instant::now();
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.retain(|_, since| now < *since + self.kept);
            let oldest = peers.iter().min_by_key(|(_, since)| **since).map(|(peer, _)| *peer);
            if let Some(oldest) = oldest.filter(|_| peers.len() >= PEERS_MAX) {
                peers.remove(&oldest);
            }
        }
        peers.insert(peer, now);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let now = Instant::now();
        locked(&self.peers).values().filter(|since| now < **since + self.kept).count()
    }

    /// Whether `peer` was slow lately.
    pub fn contains(&self, peer: Peer) -> bool {
        let peers = locked(&self.peers);
        // Most of the time there are none.
        !peers.is_empty() && peers.get(&peer).is_some_and(|since| Instant::now() < *since + self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(600);

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_slow_for_a_while_and_the_latest_are_remembered() {
        let peer = |number: u32| Peer::Address(std::net::Ipv4Addr::from_bits(number).into());
        let slow = SlowPeers::for_time(KEPT);
        assert!(!slow.contains(peer(0)));
        slow.add(peer(0));
        tokio::time::advance(KEPT - Duration::from_secs(1)).await;
        assert!(slow.contains(peer(0)) && !slow.contains(peer(1)));
        slow.add(peer(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!slow.contains(peer(0)) && slow.contains(peer(1)));
        for number in 2..PEERS_MAX as u32 + 2 {
            tokio::time::advance(Duration::from_millis(1)).await;
            slow.add(peer(number));
        }
        assert!(!slow.contains(peer(1)) && slow.contains(peer(2)) && slow.contains(peer(PEERS_MAX as u32 + 1)));
    }
}
