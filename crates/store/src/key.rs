//! Which keys are allowed. One rule for all stores, so narrow that every key is also a safe
//! relative file path.

use crate::StoreError;

/// Longest key in bytes. Ours are under 200; 512 leaves room and stays far below PATH_MAX with any
/// root.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest part between slashes: 255 is what Linux file systems allow, and temporaries need no
/// suffix.
pub const KEY_PART_BYTES_MAX: usize = 255;

/// Most parts in a key. Ours have at most three.
pub const KEY_DEPTH_MAX: usize = 8;

/// Checks a key: parts of ASCII letters, digits and `. _ - + = @ , : ~`, joined by single slashes,
/// none starting with a dot.
///
/// So no key is absolute, climbs with `..`, or names a hidden file such as the folder of
/// temporaries.
///
/// # Errors
/// [`StoreError::InvalidKey`] with the reason.
pub fn check_key(key: &str) -> Result<(), StoreError> {
    let invalid = |why| Err(StoreError::InvalidKey { key: key.chars().take(80).collect(), why });
    if key.is_empty() {
        return invalid("it is empty");
    }
    if key.len() > KEY_BYTES_MAX {
        return invalid("it is longer than 512 bytes");
    }
    for (depth, part) in key.split('/').enumerate() {
        if depth >= KEY_DEPTH_MAX {
            return invalid("it has more than 8 parts");
        }
        if part.is_empty() {
            return invalid("a part between slashes is empty");
        }
        if part.len() > KEY_PART_BYTES_MAX {
            return invalid("a part between slashes is longer than 255 bytes");
        }
        if part.starts_with('.') {
            return invalid("a part starts with a dot");
        }
        if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+=@,:~".contains(&byte)) {
            return invalid("it has a character other than letters, digits and ._-+=@,:~");
        }
    }
    Ok(())
}

/// Checks the folder of a listing: a key, or empty for the top.
pub(crate) fn check_folder(folder: &str) -> Result<(), StoreError> {
    if folder.is_empty() { Ok(()) } else { check_key(folder) }
}
