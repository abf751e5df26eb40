//! The engine against a simulated server, link, clock and storage, by seed.

mod attributes;
mod exposed;
mod flip;
mod fuzz;
mod hostile;
mod linear;
mod links;
mod locks;
mod model;
mod owners;
mod pushes;
mod ranges;
mod removed;
mod sealed;
mod sim;
mod storage;
mod writers;
mod xattrs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use connection::Connected;

/// A connection within this machine.
const HERE: Connected = Connected {
    features: wire::format::FEATURES,
    address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7327),
    encrypted: false,
};
