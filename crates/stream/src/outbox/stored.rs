//! A transaction as the bytes of a file in the outbox.

use bytes::Bytes;
use wire::volume::{Change, Owner, Seen, XattrHow};

use crate::format::{
    BASE_AFTER, BASE_FREE, BASE_KNOWN, CHANGE_APPEND, CHANGE_CREATE, CHANGE_CREATE_OWNED, CHANGE_REMOVE_XATTR,
    CHANGE_SET_ACCESS_TIME, CHANGE_SET_MODE, CHANGE_SET_OWNER, CHANGE_SET_TIME, CHANGE_SET_XATTR, CHANGE_TRUNCATE,
    CHANGE_WRITE, HASH_BYTES, OWNER_STAYS, TRANSACTION_HEADER_BYTES, TRANSACTION_MAGIC,
};

/// The version on which a stored transaction is based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredBase {
    /// Whatever is there.
    Free,
    /// This version of the file.
    Known(Seen),
    /// The version that the transaction makes which is known by this number.
    After(u64),
}

/// A transaction in an outbox. The bases of its changes are empty; `base` is that of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub number: u64,
    /// The number by which those that follow it know it: an earlier one of its own, or the same.
    pub known_as: u64,
    /// Identity of the volume.
    pub volume: u128,
    pub mtime_ns: i64,
    pub base: StoredBase,
    pub changes: Vec<Change>,
}

impl Stored {
    /// As the bytes of its file. The numbers are its name, so that it can be renamed.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = TRANSACTION_MAGIC.to_vec();
        out.extend(self.volume.to_le_bytes());
        out.extend(self.mtime_ns.to_le_bytes());
        let (kind, first, second) = match self.base {
            StoredBase::Free => (BASE_FREE, 0, 0),
            StoredBase::Known(seen) => (BASE_KNOWN, seen.file, seen.version),
            StoredBase::After(number) => (BASE_AFTER, number, 0),
        };
        out.push(kind);
        out.extend(first.to_le_bytes());
        out.extend(second.to_le_bytes());
        out.extend((self.changes.len() as u32).to_le_bytes());
        debug_assert_eq!(out.len(), TRANSACTION_HEADER_BYTES);
        for change in &self.changes {
            put_change(&mut out, change);
        }
        let hash = hash(&out);
        out.extend(hash);
        out
    }

    /// Reads what [`Stored::to_bytes`] writes; the error says what is wrong.
    pub fn parse(number: u64, known_as: u64, bytes: &[u8]) -> Result<Stored, &'static str> {
        let (content, stored) = bytes.split_last_chunk::<HASH_BYTES>().ok_or("it is too short")?;
        if hash(content) != *stored {
            return Err("its hash is wrong");
        }
        let mut reader = Reader(content);
        if reader.take(TRANSACTION_MAGIC.len())? != TRANSACTION_MAGIC {
            return Err("it is no transaction of this version");
        }
        let volume = u128::from_le_bytes(reader.array()?);
        let mtime_ns = i64::from_le_bytes(reader.array()?);
        let kind = reader.array::<1>()?[0];
        let (first, second) = (u64::from_le_bytes(reader.array()?), u64::from_le_bytes(reader.array()?));
        let base = match kind {
            BASE_FREE => StoredBase::Free,
            BASE_KNOWN => StoredBase::Known(Seen { file: first, version: second }),
            BASE_AFTER if first < known_as => StoredBase::After(first),
            _ => return Err("its base makes no sense"),
        };
        let count = u32::from_le_bytes(reader.array()?) as usize;
        if !(1..=wire::format::TRANSACTION_CHANGES_MAX).contains(&count) {
            return Err("it has too many changes, or none");
        }
        let changes = (0..count).map(|_| take_change(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        if !reader.0.is_empty() {
            return Err("something follows its changes");
        }
        Ok(Stored { number, known_as, volume, mtime_ns, base, changes })
    }
}

fn put_change(out: &mut Vec<u8>, change: &Change) {
    let mut head = |kind: u8, path: &[u8]| {
        out.push(kind);
        out.extend((path.len() as u16).to_le_bytes());
        out.extend(path);
    };
    match change {
        Change::Write { path, offset, bytes, .. } => {
            head(CHANGE_WRITE, path);
            out.extend(offset.to_le_bytes());
            put_bytes(out, bytes);
        }
        Change::Append { path, bytes, .. } => {
            head(CHANGE_APPEND, path);
            put_bytes(out, bytes);
        }
        Change::Truncate { path, size, .. } => {
            head(CHANGE_TRUNCATE, path);
            out.extend(size.to_le_bytes());
        }
        Change::Create { path, mode, exclusive, owner } => {
            head(if owner.is_some() { CHANGE_CREATE_OWNED } else { CHANGE_CREATE }, path);
            out.extend(mode.to_le_bytes());
            out.push(u8::from(*exclusive));
            if let Some(Owner { uid, gid }) = owner {
                out.extend(uid.to_le_bytes());
                out.extend(gid.to_le_bytes());
            }
        }
        Change::SetTime { path, mtime_ns, .. } => {
            head(CHANGE_SET_TIME, path);
            out.extend(mtime_ns.to_le_bytes());
        }
        Change::SetMode { path, mode, .. } => {
            head(CHANGE_SET_MODE, path);
            out.extend(mode.to_le_bytes());
        }
        Change::SetAccessTime { path, atime_ns, .. } => {
            head(CHANGE_SET_ACCESS_TIME, path);
            out.extend(atime_ns.to_le_bytes());
        }
        Change::SetOwner { path, uid, gid, .. } => {
            head(CHANGE_SET_OWNER, path);
            out.extend(uid.unwrap_or(OWNER_STAYS).to_le_bytes());
            out.extend(gid.unwrap_or(OWNER_STAYS).to_le_bytes());
        }
        Change::SetXattr { path, name, value, how, .. } => {
            head(CHANGE_SET_XATTR, path);
            put_name(out, name);
            put_bytes(out, value);
            out.push(*how as u8);
        }
        Change::RemoveXattr { path, name, .. } => {
            head(CHANGE_REMOVE_XATTR, path);
            put_name(out, name);
        }
        // Changes that the server makes are waited for and never stored.
        Change::Allocate { .. }
        | Change::Copy { .. }
        | Change::MakeFolder { .. }
        | Change::MakeNode { .. }
        | Change::MakeLink { .. }
        | Change::Link { .. }
        | Change::Rename { .. }
        | Change::Unlink { .. }
        | Change::OnlyName { .. }
        | Change::RemoveFolder { .. } => {
            debug_assert!(false, "a change in an outbox that is made by the server");
        }
    }
}

/// The name of an extended attribute, with its length.
fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.push(name.len() as u8);
    out.extend(name);
}

/// Bytes with their number.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn take_change(reader: &mut Reader<'_>) -> Result<Change, &'static str> {
    let kind = reader.array::<1>()?[0];
    let length = u16::from_le_bytes(reader.array()?) as usize;
    if length > wire::format::PATH_BYTES_MAX {
        return Err("a path in it is too long");
    }
    let (path, base) = (reader.take(length)?.to_vec(), None);
    Ok(match kind {
        CHANGE_WRITE => {
            let offset = u64::from_le_bytes(reader.array()?);
            let length = u32::from_le_bytes(reader.array()?) as usize;
            Change::Write { path, base, offset, bytes: Bytes::copy_from_slice(reader.take(length)?) }
        }
        CHANGE_APPEND => {
            let length = u32::from_le_bytes(reader.array()?) as usize;
            Change::Append { path, base, bytes: Bytes::copy_from_slice(reader.take(length)?) }
        }
        CHANGE_TRUNCATE => Change::Truncate { path, base, size: u64::from_le_bytes(reader.array()?) },
        CHANGE_CREATE | CHANGE_CREATE_OWNED => {
            let mode = u16::from_le_bytes(reader.array()?) & 0o7777;
            let exclusive = reader.array::<1>()?[0] != 0;
            let owner = match kind {
                CHANGE_CREATE => None,
                _ => Some(Owner { uid: reader.u32()?, gid: reader.u32()? }),
            };
            Change::Create { path, mode, exclusive, owner }
        }
        CHANGE_SET_ACCESS_TIME => Change::SetAccessTime { path, base, atime_ns: i64::from_le_bytes(reader.array()?) },
        CHANGE_SET_OWNER => {
            let [uid, gid] = [reader.u32()?, reader.u32()?].map(|id| Some(id).filter(|id| *id != OWNER_STAYS));
            Change::SetOwner { path, base, uid, gid }
        }
        CHANGE_SET_XATTR => {
            let name = reader.name()?;
            let length = u32::from_le_bytes(reader.array()?) as usize;
            if length > wire::format::XATTR_VALUE_BYTES_MAX {
                return Err("an extended attribute in it is too long");
            }
            let value = Bytes::copy_from_slice(reader.take(length)?);
            let how = match reader.array::<1>()?[0] {
                0 => XattrHow::Any,
                1 => XattrHow::Create,
                2 => XattrHow::Replace,
                _ => return Err("an extended attribute in it is set in an unknown way"),
            };
            Change::SetXattr { path, base, name, value, how }
        }
        CHANGE_REMOVE_XATTR => Change::RemoveXattr { path, base, name: reader.name()? },
        CHANGE_SET_TIME => Change::SetTime { path, base, mtime_ns: i64::from_le_bytes(reader.array()?) },
        CHANGE_SET_MODE => Change::SetMode { path, base, mode: u16::from_le_bytes(reader.array()?) & 0o7777 },
        _ => return Err("a change in it is of an unknown kind"),
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("it ends within a field")?;
        self.0 = rest;
        Ok(taken)
    }

    /// The name of an extended attribute.
    fn name(&mut self) -> Result<Vec<u8>, &'static str> {
        match self.array::<1>()?[0] {
            0 => Err("an extended attribute in it has no name"),
            length => Ok(self.take(length.into())?.to_vec()),
        }
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or("it ends within a field")?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// The first bytes of BLAKE3.
pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut out = [0; HASH_BYTES];
    out.copy_from_slice(&blake3::hash(bytes).as_bytes()[..HASH_BYTES]);
    out
}
