//! What a device tells a server before it opens a name: the files that need not travel.
//!
//! A file is named by the start of its SHA-256. A version would be shorter, but two files can have
//! the same one, and a server would have to know which role of its own it is about.

use crate::coding::{CodingError, Reader, put_varint};
use crate::digest::short;
use crate::format::CACHE_FILES_MAX;

/// The version of the newest root that a device trusts, and the files that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub(crate) root: u64,
    pub(crate) files: Vec<[u8; 8]>,
}

impl Known {
    /// Of who has no file but the root of this version.
    pub fn of_root(version: u64) -> Known {
        Known { root: version, files: Vec::new() }
    }

    /// Version of the newest root that the device trusts; the answer has those that follow.
    pub fn root_version(&self) -> u64 {
        self.root
    }

    /// Whether the device has this file.
    pub fn has(&self, file: &[u8]) -> bool {
        self.files.contains(&short(file))
    }

    /// The bytes to send: the version as a varint, then 8 bytes for each file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10 + self.files.len() * 8);
        put_varint(&mut out, self.root);
        self.files.iter().for_each(|file| out.extend_from_slice(file));
        out
    }

    /// Reads what [`Known::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are cut, or name more files than a cache can have.
    pub fn decode(bytes: &[u8]) -> Result<Known, CodingError> {
        let mut reader = Reader::new(bytes);
        let root = reader.varint("root version")?;
        let left = reader.left();
        CodingError::limit("known files", left / 8, CACHE_FILES_MAX)?;
        let mut files = Vec::with_capacity(left.div_ceil(8));
        for _ in 0..left.div_ceil(8) {
            files.push(reader.array("file")?);
        }
        Ok(Known { root, files })
    }
}
