//! Tests of the whole server over loopback sockets, with a small client on the wire's client side.

mod access;
mod bundles;
mod carried;
mod client;
mod decoded;
mod hints;
mod hooked;
mod hostile;
mod identity;
mod learned;
mod learning;
mod lone;
mod panics;
mod proofs;
mod provider;
mod rig;
mod serving;
mod sessions;
mod siblings;
mod stops;
mod timestamps;
mod upload_limits;
mod uploads;
mod volume_hostile;
mod volume_pushes;
mod volumes;
