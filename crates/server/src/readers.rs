//! How much is done at once for requests that need a disk or a processor for long.

use std::time::Duration;

use crate::budget::Budget;
use crate::config::WorkConfig;
use crate::peer::Peer;
use crate::slow::SlowPeers;

/// Images opened at once. Opening reads and validates all metadata of an image.
const OPENS_MAX: usize = 4;

/// A listing that takes longer is of a large folder: those of small ones do not wait for such.
const LISTING_LONG: Duration = Duration::from_millis(5);

/// Time for which a peer's listings go last after one of them took long.
const LISTER_FOR: Duration = Duration::from_secs(10);

/// Slots of work that answers requests.
///
/// Invariant: single pages and listings, which are work for a processor, take half the processors
/// each at most. So reads of blocks find a processor, however many of those there are.
pub(crate) struct Readers {
    reads: Budget,
    pages: Budget,
    listings: Budget,
    listers: SlowPeers,
    opens: Budget,
}

impl Readers {
    pub fn new(work: &WorkConfig) -> Readers {
        let listers = SlowPeers::for_time(LISTER_FOR);
        let half = (work.builds_max / 2).max(1);
        Readers {
            reads: Budget::reads(work.reads_max),
            pages: Budget::turns(half),
            listings: Budget::turns(half).with_slow(&listers),
            listers,
            opens: Budget::slots(OPENS_MAX),
        }
    }

    /// Reads of blocks, and whatever else a disk answers.
    pub fn reads(&self) -> &Budget {
        &self.reads
    }

    /// Single pages that are decoded and compressed for demands.
    pub fn pages(&self) -> &Budget {
        &self.pages
    }

    /// Folders of volumes that are listed.
    pub fn listings(&self) -> &Budget {
        &self.listings
    }

    /// Images that are opened.
    pub fn opens(&self) -> &Budget {
        &self.opens
    }

    /// A listing for `peer` took this time.
    pub fn listed(&self, peer: Peer, took: Duration) {
        if took > LISTING_LONG {
            self.listers.add(peer);
        }
    }
}
