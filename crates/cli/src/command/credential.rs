//! Files that a service manager gives to a service: `credential:NAME` in the place of a path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Before the name of a credential of the service.
const CREDENTIAL: &str = "credential:";

/// Where the service manager puts the credentials of a service.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// The name after `credential:`; `None` for a path.
pub fn name(place: &Path) -> Option<&OsStr> {
    place.as_os_str().as_bytes().strip_prefix(CREDENTIAL.as_bytes()).map(OsStr::from_bytes)
}

/// Whether a credential can have this name.
pub fn is_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_bytes().contains(&b'/') && name != "." && name != ".."
}

/// Where the credentials of this process are, if it is a service.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(CREDENTIALS).map(PathBuf::from)
}

/// The absolute path that a place stands for; `credentials` is the folder of them.
pub fn path(place: &Path, credentials: Option<&Path>) -> Result<PathBuf, String> {
    match name(place) {
        None => std::path::absolute(place).map_err(|error| error.to_string()),
        Some(name) if !is_name(name) => Err("a credential has a name without `/`".into()),
        Some(name) => match credentials {
            Some(folder) => Ok(folder.join(name)),
            None => Err("there is no $CREDENTIALS_DIRECTORY\nhint: a unit gives it to its service, by \
                         LoadCredentialEncrypted="
                .into()),
        },
    }
}
