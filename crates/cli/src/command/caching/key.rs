//! Where the key is that encrypts what a device keeps on its disk, and reading it.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use encryption::{KEY_FILE_BYTES_MAX, StorageKey};
use rustix::fs::Access;

use super::{NONE, is_of_another};
use crate::command::credential;
use crate::failure;

/// Variable that names the key, for commands without `--cache-key`.
pub const VARIABLE: &str = "RUNNEL_CACHE_KEY";

/// Permission bits of who must not read a key. The group may: it is how a service without root gets
/// one.
const OTHERS: u32 = 0o007;

/// Whether a text says where a key is: an absolute path, a credential, or none.
pub fn is_place(text: &Path) -> bool {
    text.is_absolute() || text == Path::new(NONE) || credential::name(text).is_some_and(credential::is_name)
}

/// The key: from an option, then the environment, then the configuration of this device. One of
/// the configuration that belongs to another user, and that we cannot read, is left to that user. A
/// service without root that was given it by its group uses it.
///
/// # Errors
/// The key is not there, is none, or others can read it.
pub fn key(given: Option<&Path>, configured: Option<PathBuf>) -> anyhow::Result<Option<StorageKey>> {
    let variable = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()).map(PathBuf::from);
    let chosen = given.map(Path::to_path_buf).or(variable);
    let is_left = |place: &Path| is_of_another(place) && rustix::fs::access(place, Access::READ_OK).is_err();
    let configured = || configured.filter(|place| credential::name(place).is_some() || !is_left(place));
    let Some(place) = chosen.or_else(configured).filter(|place| place != Path::new(NONE)) else { return Ok(None) };
    read(&place, credential::folder().as_deref()).map(Some)
}

/// What the variable is for another command, wherever that runs.
///
/// # Errors
/// There is no current directory.
pub fn variable(place: &Path) -> std::io::Result<OsString> {
    let is_file = credential::name(place).is_none() && place != Path::new(NONE);
    Ok(if is_file { std::path::absolute(place)?.into() } else { place.into() })
}

fn read(place: &Path, credentials: Option<&Path>) -> anyhow::Result<StorageKey> {
    let named = || format!("the key of the cache, {}", place.display());
    let wrong = |problem: &str| failure::usage(format!("{}: {problem}", named()));
    let path = credential::path(place, credentials).map_err(|problem| wrong(&problem))?;
    let file = host::file::open(&path).with_context(named)?;
    let mode = file.metadata().with_context(named)?.mode();
    if mode & OTHERS != 0 {
        let text = format!("others can read it (mode {:o})\nhint: chmod 600 {}", mode & 0o7777, path.display());
        return Err(wrong(&text));
    }
    let mut bytes = Vec::new();
    file.take(KEY_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(named)?;
    StorageKey::parse(&bytes).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn places_are_paths_and_credentials() {
        for right in ["/etc/runnel/key", "credential:cache", "none"] {
            assert!(is_place(Path::new(right)), "{right}");
        }
        for wrong in ["key", "", "credential:", "credential:../key", "credential:..", "credentials:a"] {
            assert!(!is_place(Path::new(wrong)), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_read_from_a_file_that_others_cannot_read() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("key");
        let text = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
        let put = |text: &str, mode| {
            fs::write(&file, text).expect("write");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("chmod");
        };
        let said = |place: &Path, credentials| read(place, credentials).expect_err("it is wrong").to_string();
        put(text, 0o640);
        let key = read(&file, None).expect("a key");
        assert_eq!(read(Path::new("credential:key"), Some(folder.path())).expect("a key"), key);
        assert!(said(Path::new("credential:key"), None).contains("LoadCredentialEncrypted"));
        assert!(said(Path::new("credential:../key"), Some(folder.path())).contains("without `/`"));
        put(text, 0o644);
        assert!(said(&file, None).contains("others can read it (mode 644)"), "{}", said(&file, None));
        for (text, part) in [("secret", "has 6 bytes"), ("", "has 0 bytes"), (&text.repeat(3), "has 67 bytes")] {
            put(text, 0o600);
            assert!(said(&file, None).contains(part), "{}", said(&file, None));
        }
        put(&"0".repeat(64), 0o600);
        assert!(said(&file, None).contains("no key"));
        assert!(said(&folder.path().join("absent"), None).contains("absent"));
    }

    #[test]
    fn regress_a_configured_key_of_another_user_is_used_by_who_can_read_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("key");
        fs::write(&file, "0123456789abcdef".repeat(4)).expect("write");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("chmod");
        std::os::unix::fs::chown(&file, Some(65534), None).expect("chown");
        assert!(key(None, Some(file)).expect("a key").is_some());
    }
}
