//! Who is at the other end of a connection: what memory, slots, devices and leases are counted
//! against.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Leading bits of an IPv6 address that name a site: within them one machine chooses its addresses
/// freely.
const SITE_BITS_V6: u32 = 64;

/// A client, as far as the server can tell clients apart. One peer may have many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Peer {
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nobody shows one"))]
    /// It showed this certificate, which an authority of ours issued: the BLAKE3 of its DER form.
    Certificate([u8; 32]),
    /// It showed none: its address, without the bits that it may choose itself.
    Address(IpAddr),
}

/// A connection and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub peer: Peer,
    /// Number of the connection, never given twice.
    pub connection: u64,
}

impl Peer {
    /// The peer with this address.
    pub fn at(address: SocketAddr) -> Peer {
        Peer::Address(match address.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - SITE_BITS_V6)))),
            v4 => v4,
        })
    }

    /// The same as a number: what volumes count shares by. Never that of [`volume::Peer::UNKNOWN`].
    pub fn number(&self) -> volume::Peer {
        let mut hasher = blake3::Hasher::new();
        match self {
            Peer::Certificate(hash) => hasher.update(b"certificate").update(hash),
            Peer::Address(IpAddr::V4(ip)) => hasher.update(b"v4").update(&ip.octets()),
            Peer::Address(IpAddr::V6(ip)) => hasher.update(b"v6").update(&ip.octets()),
        };
        let hash = hasher.finalize();
        volume::Peer(u64::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index])).max(1))
    }

    /// The peer with this certificate, in DER form, which was verified.
    #[cfg(feature = "tls")]
    pub fn with_certificate(der: &[u8]) -> Peer {
        Peer::Certificate(*blake3::hash(der).as_bytes())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Certificate(hash) => {
                f.write_str("certificate ")?;
                hash.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Peer::Address(ip @ IpAddr::V6(_)) => write!(f, "{ip}/{SITE_BITS_V6}"),
            Peer::Address(ip) => ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_is_one_peer_whatever_address_of_its_site_it_takes() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("[2001:db8:1:2::7]:80"), at("[2001:db8:1:2:ffff::9]:443"));
        assert_ne!(at("[2001:db8:1:2::7]:80"), at("[2001:db8:1:3::7]:80"));
        assert_eq!(at("[::ffff:192.0.2.1]:80"), at("192.0.2.1:9"));
        assert_ne!(at("192.0.2.1:80"), at("192.0.2.2:80"));
        assert_eq!(at("[2001:db8:1:2::7]:80").to_string(), "2001:db8:1:2::/64");
    }
}
