//! The counters of a mounted image, in one place. `runnel status --json` prints them as one flat
//! object.
//!
//! All count since the session was opened and are never reset. Field names are stable. A field name
//! is unique over all groups, because the groups are flattened.

use serde::{Deserialize, Serialize};

macro_rules! groups {
    ($($(#[$doc:meta])* $group:ident $name:ident { $($(#[$about:meta])* $counter:ident,)* })*) => {
        /// Counters of one session.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters {
            $($(#[$doc])* #[serde(flatten)] pub $name: $group,)*
        }

        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $group { $($(#[$about])* pub $counter: u64,)* })*
    };
}

groups! {
    /// READs of the kernel.
    ReadCounters reads {
        /// READs the kernel sent (one may span several pages).
        reads,
        /// READs answered with an error.
        read_errors,
        /// READs that could not be answered at once.
        stalls,
        /// Time those READs waited, in microseconds, all added up.
        stall_micros,
        /// READs that waited for a push in flight instead of sending a demand.
        late_pushes,
    }

    /// Requests to the server, or to the local file.
    RequestCounters demand {
        /// Demand requests, without those that were sent again.
        requests,
        /// Demand requests sent while no READ of the same token was waiting already: these delay a
        /// program.
        round_trips,
        /// Pages a demand request was sent for.
        pages_demanded,
        /// Requests sent once more because their connection was lost.
        replays,
        /// Blocks, pages and pieces whose bytes did not match the image.
        verify_failures,
    }

    /// Traffic of the connections.
    TransferCounters transfer {
        /// Bytes received from the server, framing included.
        bytes_received,
        /// Bytes sent to the server, framing included.
        bytes_sent,
        /// Connections made again after a loss.
        reconnects,
        /// Pages reported to the server by touch messages.
        pages_touched,
    }

    /// Pushes of learned actions.
    PushCounters pushes {
        /// Pages that arrived in pushes and were verified.
        pages_pushed,
        /// Pushed pages known to be used: exact in audit runs and for READs answered from a push;
        /// elsewhere a segment counts whole as soon as its sentinel (its first page) is read, or if
        /// it was read before.
        pages_push_hit,
        /// Pushed pages taken to be wasted: in audit runs each page held and not read when its
        /// token ended; elsewhere the whole segment if its sentinel was not read by then. Pages
        /// dropped for want of room count here too.
        pages_wasted,
        /// Pages put into the holding area (sentinels, audit pages, pages of unknown inodes).
        pages_held,
        /// Push streams refused because the image's chunk hashes could not be had.
        pushes_refused,
    }

    /// Hints of pages that will be needed.
    HintCounters hints {
        /// Pages asked for by hints, without those that were here or on their way already.
        pages_hinted,
        /// Hinted pages that came, by a push or in a block, and were verified; not among
        /// `pages_pushed`.
        pages_hint_pushed,
    }

    /// Readahead of blocks.
    ReadaheadCounters readahead {
        /// Blocks asked for by readahead.
        blocks_speculated,
        /// Pages of those blocks (every page whose first chunk lies there).
        pages_speculated,
        /// Readahead blocks of which at least one page was read.
        blocks_speculated_used,
        /// Readahead blocks that left the cache unread.
        blocks_speculated_wasted,
    }

    /// Stores into the kernel's page cache.
    StoreCounters stores {
        /// Pages stored into the page cache.
        pages_stored,
        /// Store calls the kernel refused.
        store_failures,
        /// Inodes looked up so that pages could be stored.
        looked_up,
    }

    /// Memory of the session: the block cache and the pool of page buffers.
    MemoryCounters memory {
        /// Decoded blocks found in the cache.
        cache_hits,
        /// Blocks that were decoded again from the stored bytes the cache keeps.
        cache_decodes,
        /// Page buffers that lay ready in the pool.
        pool_hits,
        /// Page buffers that had to be allocated on demand.
        pool_misses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_one_flat_object() {
        let serde_json::Value::Object(mut json) = serde_json::to_value(Counters::default()).unwrap() else { panic!() };
        assert_eq!(json.len(), 32, "no name is in two groups");
        assert!(json.values().all(serde_json::Value::is_u64), "{json:?}");
        json.remove("pages_hinted");
        json.insert("requests".into(), 7.into());
        json.insert("of_a_later_version".into(), 8.into());
        let counters: Counters = serde_json::from_value(json.into()).unwrap();
        let demand = RequestCounters { requests: 7, ..RequestCounters::default() };
        assert_eq!(counters, Counters { demand, ..Counters::default() });
    }
}
