//! Extended attributes of files and folders: names with values that programs keep beside a file.
//!
//! They are real attributes of the server's files, so programs there see them too. Only those of
//! users are served (`user.NAME`): the others give rights, or belong to the server's system. Names
//! that begin with `user.runnel.` are our own.
//!
//! Access control lists are attributes too, but not real ones of the server's files, on which they
//! would give the server's users rights, or take the server's own: they lie in two of ours.

use std::collections::BTreeMap;

use units::Acl;

use crate::format::{ACL_ACCESS_STORED, ACL_DEFAULT_STORED};
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

/// Name of the access control list of a file.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Name of the list that files get which are made in a folder.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

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
    is_acl(name) || is_of_users(name)
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// What an attribute is called on the server's file.
pub(crate) fn stored_name(name: &[u8]) -> &[u8] {
    match name {
        ACL_ACCESS => ACL_ACCESS_STORED.as_bytes(),
        ACL_DEFAULT => ACL_DEFAULT_STORED.as_bytes(),
        other => other,
    }
}

/// The other way round; `None` for those that devices do not see.
pub(crate) fn shown_name(stored: &[u8]) -> Option<&[u8]> {
    match stored {
        _ if stored == ACL_ACCESS_STORED.as_bytes() => Some(ACL_ACCESS),
        _ if stored == ACL_DEFAULT_STORED.as_bytes() => Some(ACL_DEFAULT),
        _ => is_of_users(stored).then_some(stored),
    }
}

fn is_of_users(name: &[u8]) -> bool {
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

/// The access control list that a value is, if the name says that it is one.
pub(crate) fn acl_of(path: &VolumePath, name: &[u8], value: &[u8]) -> Result<Option<Acl>, VolumeError> {
    let why = "this is no access control list";
    match is_acl(name).then(|| Acl::parse(value)) {
        Some(None) => Err(VolumeError::Invalid { path: path.to_string(), why }),
        found => Ok(found.flatten()),
    }
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
        assert!(is_served(ACL_ACCESS) && is_served(ACL_DEFAULT));
        for name in [ACL_ACCESS, ACL_DEFAULT, b"user.a"] {
            assert_eq!(shown_name(stored_name(name)), Some(name));
        }
        for stored in [ACL_ACCESS, b"user.runnel.inode", b"user.runnel.x"] {
            assert_eq!(shown_name(stored), None, "that of the server's system is not ours");
        }
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
