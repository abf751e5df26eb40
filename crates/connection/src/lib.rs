//! Connections to servers: addresses, TLS, connecting and reconnecting. Knows neither images nor
//! codecs.
//!
//! A [`Target`] is what a user names. A [`Dialer`] connects to its [`Server`], plainly or over TLS.
//! A [`Connection`] moves bytes between the socket and the protocol's state machine in `wire`; a
//! command without a mount drives it by itself. Mounts have [`Driver`]s: each is a thread that
//! keeps one connection alive and calls a [`Handler`]. The volume client is a [`VolumeHandler`],
//! whose frames go over a connection of an image's session or over a [`DedicatedConnection`].

mod back_off;
mod clock;
mod config;
mod connection;
mod dedicated;
mod driver;
mod error;
mod estimate;
mod frames;
mod poll;
mod system;
pub mod target;
#[cfg(feature = "tls")]
mod tls;
mod transport;
mod trust;
pub mod volume;
mod waker;

pub use back_off::BackOff;
pub use clock::Clock;
pub use config::{Config, Waiting, answer_time};
pub use connection::{Connection, Moved};
pub use dedicated::DedicatedConnection;
pub use driver::{Driver, Handler};
pub use error::ConnectionError;
pub use estimate::LinkEstimate;
pub use frames::VolumeFrames;
pub use system::{random_number, spawn};
pub use target::{HttpFile, ImageName, Remote, Scheme, Server, Target, TargetError, VolumeAt};
pub use transport::{Dialer, Transport};
pub use trust::{Identity, Trust};
pub use volume::{Attach, Connected, Tag, Unanswered, VolumeConnection, VolumeHandler, VolumeMessage};
pub use waker::Waker;
