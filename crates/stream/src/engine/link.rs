//! The connection to the server, as the engine knows it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use connection::LinkEstimate;
use units::{Moment, StreamId};
use wire::ImageHandle;

use crate::estimate;

/// The connection to the server.
#[derive(Debug)]
pub(super) struct Link {
    /// Of the present connection, if there is one.
    pub(super) generation: Option<u64>,
    /// Where it leads, if others on the way can read and change what is sent.
    pub(super) exposed_to: Option<SocketAddr>,
    /// The volume is open on it.
    pub(super) volume: Option<ImageHandle>,
    /// When to try to open it again.
    pub(super) again: Option<Moment>,
    pub(super) reason: String,
    /// Since when there is none.
    pub(super) away: Moment,
    pub(super) connections: u64,
    pub(super) incoming: LinkEstimate,
    pub(super) outgoing: LinkEstimate,
    pub(super) received: u64,
    pub(super) streams: BTreeSet<StreamId>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            generation: None,
            exposed_to: None,
            volume: None,
            again: None,
            reason: String::new(),
            away: Moment(0),
            connections: 0,
            incoming: LinkEstimate::new(estimate::SAMPLE_BYTES_MIN),
            outgoing: LinkEstimate::new(estimate::SAMPLE_BYTES_MIN),
            received: 0,
            streams: BTreeSet::new(),
        }
    }
}
