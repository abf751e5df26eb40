//! The files of earlier answers, so that only what is new travels.
//!
//! A cache is not trusted: its files are verified again with each name. Losing it costs bytes.

use crate::digest::short;
use crate::format::{CACHE_BYTES_MAX, CACHE_FILES_MAX};
use crate::known::Known;
use crate::stapled::Stapled;

/// At most one file for each role, those used last first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    files: Stapled,
}

impl Cache {
    /// Reads what [`Cache::encode`] wrote; bytes that are damaged or too many are an empty cache.
    pub fn decode(bytes: &[u8]) -> Cache {
        if bytes.len() > CACHE_BYTES_MAX {
            return Cache::default();
        }
        let stapled = Stapled::decode(bytes).unwrap_or_default();
        let mut cache = Cache::default();
        cache.keep(&stapled);
        cache
    }

    /// The bytes to keep, at most 64 KiB.
    pub fn encode(&self) -> Vec<u8> {
        // Its limits are tighter than those of an answer.
        self.files.encode().unwrap_or_default()
    }

    /// What to tell a server with the request to open a name.
    pub fn known(&self, root_version: u64) -> Known {
        Known { root: root_version, files: self.files.files().map(|(_, file)| short(file)).collect() }
    }

    /// An answer with the files that the server left out because this device has them. For a device
    /// without a connection the answer is an empty one.
    pub fn complete(&self, mut answer: Stapled) -> Stapled {
        self.files.files().for_each(|(role, file)| answer.push(role, file.to_vec()));
        answer
    }

    /// Keeps the files of an answer that was verified, and drops those used longest ago if there is
    /// no room. A file that is larger than a cache is not kept: it travels each time.
    pub fn keep(&mut self, answer: &Stapled) {
        let mut kept = Stapled::default();
        // Two bytes, two counts, and the names and lengths before each file.
        let mut bytes_left = CACHE_BYTES_MAX - 8;
        for (role, file) in answer.files().chain(self.files.files()) {
            let bytes = role.len() + file.len() + 8;
            let is_new = kept.file(role).is_none();
            if is_new && bytes <= bytes_left && kept.files().count() < CACHE_FILES_MAX {
                kept.push(role, file.to_vec());
                bytes_left -= bytes;
            }
        }
        self.files = kept;
    }
}
