//! Connections to servers: addresses, TLS, connecting and reconnecting. Knows neither images nor
//! codecs.
//!
//! A [`Target`] is what a user names. A [`Dialer`] connects to its [`Server`], plainly or over TLS.
//! A [`Connection`] moves bytes between the socket and the protocol's state machine in `wire`; a
//! command without a mount drives it by itself. What lives longer has a [`Driver`]: a thread that
//! keeps one connection alive and calls a [`Handler`]. The volume client is a [`VolumeHandler`],
//! whose frames go over a connection of an image's session or over a [`Networker`].

mod clock;
mod config;
mod connection;
mod driver;
mod error;
mod estimate;
mod frames;
mod networker;
pub mod target;
#[cfg(feature = "tls")]
mod tls;
mod transport;
pub mod volume;
mod waker;

pub use clock::Clock;
pub use config::{Config, Waiting, answer_time};
pub use connection::{Connection, Moved};
pub use driver::{BACK_OFF_MAX, BACK_OFF_MIN, Driver, Handler};
pub use error::ConnectionError;
pub use estimate::LinkEstimate;
pub use frames::VolumeFrames;
pub use networker::Networker;
pub use target::{HttpFile, ImageName, Remote, Scheme, Server, Target, TargetError, VolumeAt};
pub use transport::{Dialer, Identity, Transport, Trust};
pub use volume::{Attach, Connected, Tag, Unanswered, VolumeConnection, VolumeHandler, VolumeMessage};
pub use waker::Waker;

/// Starts a detached thread.
///
/// # Errors
/// [`ConnectionError::System`]: the system refuses a thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ConnectionError> {
    std::thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(ConnectionError::System)
}

/// A random number from the system.
///
/// # Errors
/// [`ConnectionError::System`]: the system has none.
pub fn random_number() -> Result<u128, ConnectionError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ConnectionError::System(std::io::Error::other(error)))?;
    Ok(u128::from_le_bytes(bytes))
}
