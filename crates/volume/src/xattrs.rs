//! Extended attributes of files and folders: names with values that programs keep beside a file.
//!
//! They are real attributes of the server's files, so programs there see them too. Only those of
//! users are served (`user.NAME`): the others give rights, or belong to the server's system. Names
//! that begin with `user.runnel.` are our own.

use std::collections::BTreeMap;

use crate::{VolumeError, VolumePath};

/// Names that are served begin with it.
const PREFIX: &[u8] = b"user.";

/// Our own begin with it: what is there says whose a file is, and more.
const OWN_PREFIX: &[u8] = b"user.runnel.";

/// Bytes of a name: Linux takes no more.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes of a value: Linux takes no more.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names and values of a file: Linux lists no more names, and one answer holds all.
pub const XATTRS_BYTES_MAX: usize = 64 << 10;

/// What ext4 needs for each attribute besides name and value, bytes.
const ENTRY_BYTES: usize = 16;

/// Attributes that take no more than this have room in every file system that has attributes, also
/// in an ext4 with blocks of 1 KiB and with the attributes that the system itself may add.
const ALWAYS_FIT_BYTES: usize = 512;

/// Names and values.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Whether there must be an attribute of a name before it is set, or must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum XattrHow {
    /// Set in any case.
    #[default]
    Any,
    /// Only if there is none.
    Create,
    /// Only if there is one.
    Replace,
}

/// Whether an attribute is one that devices see and set.
pub(crate) fn is_served(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
        && !name.starts_with(OWN_PREFIX)
        && name.len() > PREFIX.len()
        && name.len() <= XATTR_NAME_BYTES_MAX
        && !name.contains(&0)
}

/// Bytes of names and values.
pub(crate) fn total_bytes(xattrs: &Xattrs) -> usize {
    xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Whether there is room for them in any case, so that nobody need try.
pub(crate) fn always_fit(xattrs: &Xattrs) -> bool {
    let padded = |bytes: &Vec<u8>| bytes.len().next_multiple_of(4);
    xattrs.iter().map(|(name, value)| ENTRY_BYTES + padded(name) + padded(value)).sum::<usize>() <= ALWAYS_FIT_BYTES
}

/// What a device is shown of those that a file has: all, unless others set more than fits an
/// answer.
pub(crate) fn served(all: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Xattrs {
    let mut bytes = 0;
    let fits = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let more = bytes + name.len() + value.len();
        let fits = is_served(name) && more <= XATTRS_BYTES_MAX;
        bytes = if fits { more } else { bytes };
        fits
    };
    all.into_iter().filter(fits).collect()
}

/// Checks a name that somebody wants to set or remove.
pub(crate) fn check_name(path: &VolumePath, name: &[u8]) -> Result<(), VolumeError> {
    let why = "an extended attribute is `user.` and a name, 255 bytes at most, and none of `user.runnel.`";
    if is_served(name) { Ok(()) } else { Err(VolumeError::Invalid { path: path.to_string(), why }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_users_are_served() {
        for good in [&b"user.a"[..], b"user.runnel", b"user.a\xff.b", &[b"user.", &[b'n'; 250][..]].concat()] {
            assert!(is_served(good), "{good:?}");
        }
        let long = [b"user.", &[b'n'; 251][..]].concat();
        for bad in [
            &b""[..],
            b"user.",
            b"user",
            b"trusted.a",
            b"user.runnel.inode",
            b"user.a\0b",
            b"security.capability",
            &long,
        ] {
            assert!(!is_served(bad), "{bad:?}");
        }
    }

    #[test]
    fn what_is_shown_has_a_limit() {
        let pair = |name: &str, count: usize| (name.as_bytes().to_vec(), vec![1; count]);
        let shown = served([pair("user.a", 100), pair("user.b", XATTRS_BYTES_MAX - 20), pair("user.c", 50)]);
        assert_eq!(shown.keys().collect::<Vec<_>>(), [b"user.a", b"user.c"]);
        assert!(always_fit(&shown) && !always_fit(&served([pair("user.a", 600)])));
    }
}
