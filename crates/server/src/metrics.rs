//! Every counter of the server: name, unit, help. Counters only grow, except gauges. `runnel
//! status` prints them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that many tasks change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn one(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts one; for gauges.
    pub fn less_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Definition {
    /// Its key in the status document.
    pub name: &'static str,
    /// What one of it is.
    pub unit: &'static str,
    /// One sentence.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($name:ident, $unit:literal, $help:literal;)*) => {
        /// The counters of one server.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub $name: Counter,)*
        }

        impl Metrics {
            /// Every metric there is.
            pub const DEFINITIONS: &'static [Definition] =
                &[$(Definition { name: stringify!($name), unit: $unit, help: $help },)*];

            /// All values now, by name.
            pub fn values(&self) -> BTreeMap<&'static str, u64> {
                BTreeMap::from([$((stringify!($name), self.$name.get()),)*])
            }
        }
    };
}

metrics! {
    connections, "connections", "Connections open now.";
    connections_accepted, "connections", "Connections accepted since the start.";
    connections_refused, "connections", "Connections refused because there were too many.";
    connections_failed, "connections", "Connections closed because the client broke the protocol or stalled.";
    requests, "requests", "Requests of all kinds.";
    requests_failed, "requests", "Requests answered with an error.";
    reads_failed, "requests", "Requests for what could not be read from the disk, or is damaged there.";
    blocks_demanded, "blocks", "Blocks sent because a client missed a page.";
    block_bytes_demanded, "bytes", "Stored bytes of those blocks.";
    pages_demanded, "pages", "Pages sent one by one because a client missed them.";
    page_bytes_demanded, "bytes", "Encoded bytes of those pages.";
    demands_on_the_way, "requests", "Misses answered with a push that was under way.";
    pages_touched, "pages", "First touches reported without a miss.";
    hints, "messages", "Hints that clients sent.";
    pages_hinted, "pages", "Pages that hints asked for, as far as they were taken.";
    pushes_started, "streams", "Push streams started.";
    pushes_from_bundle, "streams", "Push streams fed from a bundle.";
    pages_from_bundle, "pages", "Pages pushed out of bundles.";
    pushes_completed, "streams", "Push streams sent to their end.";
    pushes_cancelled, "streams", "Push streams ended early by a mismatch, the client, or the end of the action.";
    pages_pushed, "pages", "Pages queued for pushing.";
    push_bytes, "bytes", "Encoded bytes queued for pushing.";
    pages_push_skipped, "pages", "Pages left out of a push because the device had them from us.";
    volume_blocks_demanded, "blocks", "Data blocks of volumes sent because a client asked for them.";
    volume_bytes_demanded, "bytes", "Encoded bytes of those blocks.";
    volume_blocks_pushed, "blocks", "Data blocks of volumes queued for pushing.";
    transactions, "transactions", "Transactions of volumes on stable storage.";
    metadata_bytes, "bytes", "Metadata sent to clients that opened an image.";
    blocks_decoded, "blocks", "Blocks decoded to build pages.";
    blocks_cached, "blocks", "Blocks found decoded in memory when pages were built.";
    blocks_read_ahead, "blocks", "Blocks read by the Provider before they were needed.";
    bundles_built, "bundles", "Bundles built.";
    bundle_pages_built, "pages", "Pages compressed for bundles.";
    bundles_failed, "bundles", "Bundles that could not be built or did not match their hash.";
    learned_saved, "files", "Learned files written.";
    uploads, "images", "Images published by an upload.";
    uploads_failed, "images", "Uploads that ended with an error or a lost connection.";
    upload_bytes_received, "bytes", "Bytes received in uploads.";
    audit_lines_lost, "lines", "Lines of the audit log that could not be written.";
    upload_bytes_copied, "bytes", "Bytes of uploads that other images already held.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_defined_once_and_described() {
        let metrics = Metrics::default();
        metrics.requests.add(3);
        let values = metrics.values();
        assert_eq!(values["requests"], 3);
        assert_eq!(values.len(), Metrics::DEFINITIONS.len());
        assert!(Metrics::DEFINITIONS.iter().all(|metric| metric.help.ends_with('.') && !metric.unit.is_empty()));
    }
}
