//! Threads and random numbers.

use crate::error::ConnectionError;

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
