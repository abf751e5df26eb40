//! The one file that a server may sign: a timestamp that says the same for longer.

use trust::UnixTime;

use crate::error::SigningError;
use crate::file::File;
use crate::key::SigningKey;
use crate::role::{Lifetimes, RoleKeys};

/// The next version of a timestamp: it lists what it listed, and expires later. `root` is the
/// newest one, whose timestamp keys must be among `keys`. Both files were verified by the caller,
/// who also has the result verified before anybody gets it.
///
/// # Errors
/// A file is none, or too few keys of the role are here.
pub fn renew_timestamp(
    root: &[u8],
    timestamp: &[u8],
    keys: &[SigningKey],
    lifetimes: Lifetimes,
    now: UnixTime,
) -> Result<Vec<u8>, SigningError> {
    let signers = RoleKeys::of_root(root, "timestamp")?;
    let mut file = File::read("timestamp", timestamp)?;
    file.sign("timestamp", &signers.among("timestamp", keys)?, &lifetimes, now);
    Ok(file.bytes)
}
