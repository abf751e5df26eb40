//! Paths inside a volume.

use std::fmt;

use crate::VolumeError;

/// Longest name, bytes: what Linux file systems accept.
pub const NAME_BYTES_MAX: usize = 255;

/// Longest path, bytes: PATH_MAX of Linux less its terminator.
pub const PATH_BYTES_MAX: usize = 4095;

/// The folder of the journal at the top of a volume; no path leads into it.
pub const OWN_FOLDER: &[u8] = b".runnel";

/// A path from the top of a volume: names joined by `/`, none of them empty, `.` or `..`, no zero
/// byte, each at most [`NAME_BYTES_MAX`] and all at most [`PATH_BYTES_MAX`] bytes, and not into
/// [`OWN_FOLDER`]. Empty: the top folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumePath(Vec<u8>);

impl VolumePath {
    /// The top folder.
    pub fn top() -> VolumePath {
        VolumePath::default()
    }

    /// Checks a path.
    ///
    /// # Errors
    /// [`VolumeError::InvalidPath`] with the rule that it breaks.
    pub fn new(bytes: &[u8]) -> Result<VolumePath, VolumeError> {
        let fail = |why| {
            let path = String::from_utf8_lossy(bytes).chars().take(80).collect();
            Err(VolumeError::InvalidPath { path, why })
        };
        if bytes.is_empty() {
            return Ok(VolumePath::top());
        }
        if bytes.len() > PATH_BYTES_MAX {
            return fail("it is longer than 4095 bytes");
        }
        for (index, name) in bytes.split(|byte| *byte == b'/').enumerate() {
            match name {
                b"" => return fail("a name in it is empty"),
                b"." | b".." => return fail("it holds '.' or '..'"),
                _ if name.len() > NAME_BYTES_MAX => return fail("a name in it is longer than 255 bytes"),
                _ if name.contains(&0) => return fail("it holds a zero byte"),
                OWN_FOLDER if index == 0 => return fail("this folder belongs to the volume's journal"),
                _ => {}
            }
        }
        Ok(VolumePath(bytes.to_vec()))
    }

    /// `name` in this folder.
    ///
    /// # Errors
    /// As [`VolumePath::new`]; also if `name` holds a slash.
    pub fn join(&self, name: &[u8]) -> Result<VolumePath, VolumeError> {
        if name.is_empty() || name.contains(&b'/') {
            let path = String::from_utf8_lossy(name).chars().take(80).collect();
            return Err(VolumeError::InvalidPath { path, why: "a name is not empty and holds no slash" });
        }
        VolumePath::new(&join(&self.0, name))
    }

    /// The path as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the top folder.
    pub fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    /// The names, from the top.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::error::text(&self.0))
    }
}

/// `name` in `folder`, both as bytes.
pub(crate) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }
}

/// Splits a path into its folder and its last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
