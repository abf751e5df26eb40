//! The metadata files that travel with the answer to opening a name.
//!
//! A sequence of files in a frame of their own, with limits: what the files say is for
//! [`Verifier::verify`](crate::Verifier::verify).

use crate::coding::{CodingError, Reader, put_counted, put_varint};
use crate::format::{FILES_MAX, ROLE_BYTES_MAX, ROOTS_MAX, STAPLED_BYTES_MAX, STAPLED_VERSION};
use crate::known::Known;
use crate::repository::version_of;

/// Metadata files as bytes; nothing in them is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stapled {
    roots: Vec<Vec<u8>>,
    has_more_roots: bool,
    files: Vec<(String, Vec<u8>)>,
}

impl Stapled {
    /// Adds the next root; the first one follows the root that the device trusts.
    pub fn push_root(&mut self, root: Vec<u8>) {
        self.roots.push(root);
    }

    /// Says that the device shall take these roots and ask again for those that follow.
    pub fn set_more_roots(&mut self) {
        self.has_more_roots = true;
    }

    /// Adds the file of a role other than root, if it has none yet.
    pub fn push(&mut self, role: &str, file: Vec<u8>) {
        if self.file(role).is_none() {
            self.files.push((role.to_owned(), file));
        }
    }

    /// Leaves out the files that the device has.
    pub fn omit(&mut self, known: &Known) {
        self.files.retain(|(_, file)| !known.has(file));
    }

    /// Leaves out the roots up to this version.
    pub fn drop_roots_until(&mut self, version: u64) {
        self.roots.retain(|root| version_of("root", root).is_none_or(|found| found > version));
    }

    /// Roots, in the order of their versions.
    pub fn roots(&self) -> &[Vec<u8>] {
        &self.roots
    }

    /// Whether the server has more roots than these.
    pub fn has_more_roots(&self) -> bool {
        self.has_more_roots
    }

    /// The other files: role and bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(role, file)| (role.as_str(), file.as_slice()))
    }

    /// The file of a role other than root.
    pub fn file(&self, role: &str) -> Option<&[u8]> {
        self.files().find(|(other, _)| *other == role).map(|(_, file)| file)
    }

    /// The bytes to send.
    ///
    /// # Errors
    ///
    /// There are more roots, files or bytes than a device accepts.
    pub fn encode(&self) -> Result<Vec<u8>, CodingError> {
        CodingError::limit("roots", self.roots.len(), ROOTS_MAX)?;
        CodingError::limit("files", self.files.len(), FILES_MAX)?;
        let mut out = vec![STAPLED_VERSION, u8::from(self.has_more_roots)];
        put_varint(&mut out, self.roots.len() as u64);
        self.roots.iter().for_each(|root| put_counted(&mut out, root));
        put_varint(&mut out, self.files.len() as u64);
        for (role, file) in &self.files {
            CodingError::limit("bytes of a role's name", role.len(), ROLE_BYTES_MAX)?;
            put_counted(&mut out, role.as_bytes());
            put_counted(&mut out, file);
        }
        CodingError::limit("bytes", out.len(), STAPLED_BYTES_MAX)?;
        Ok(out)
    }

    /// Reads what [`Stapled::encode`] wrote; takes as much memory as `bytes`.
    ///
    /// # Errors
    ///
    /// The bytes are cut, too many, or no such frame.
    pub fn decode(bytes: &[u8]) -> Result<Stapled, CodingError> {
        CodingError::limit("bytes", bytes.len(), STAPLED_BYTES_MAX)?;
        let mut reader = Reader::new(bytes);
        let version = reader.u8("version")?;
        if version != STAPLED_VERSION {
            return Err(reader.bad("version", version.into(), "1"));
        }
        let has_more_roots = match reader.u8("more roots")? {
            0 => false,
            1 => true,
            other => return Err(reader.bad("more roots", other.into(), "0 or 1")),
        };
        let mut stapled = Stapled { has_more_roots, ..Stapled::default() };
        for _ in 0..reader.count("roots", ROOTS_MAX)? {
            stapled.roots.push(reader.counted("root", STAPLED_BYTES_MAX)?.to_vec());
        }
        for _ in 0..reader.count("files", FILES_MAX)? {
            let role = reader.counted("role", ROLE_BYTES_MAX)?;
            let file = reader.counted("file", STAPLED_BYTES_MAX)?;
            let role = std::str::from_utf8(role).ok().filter(|role| stapled.file(role).is_none());
            let role = role.ok_or(reader.bad("role", 0, "a text that no other file has"))?;
            stapled.files.push((role.to_owned(), file.to_vec()));
        }
        reader.end()?;
        Ok(stapled)
    }
}
