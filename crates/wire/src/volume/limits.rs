//! Limits of requests to volumes, checked before they are sent.

use super::{Change, VolumeAsk};
use crate::error::Refused;
use crate::format::{
    COMMIT_BYTES_MAX_WRITTEN, COPY_BYTES_MAX, FILE_NAME_BYTES_MAX, FOLDER_ENTRIES_MAX, LINK_BYTES_MAX, PATH_BYTES_MAX,
    PUSH_PAGES_MAX, TRANSACTION_CHANGES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};

/// Checks a request against the limits of its frame.
pub(crate) fn check(ask: &VolumeAsk) -> Result<(), Refused> {
    match ask {
        VolumeAsk::FileOpen { path, .. } | VolumeAsk::FileStat { path } | VolumeAsk::LinkRead { path } => {
            check_path(path)
        }
        VolumeAsk::XattrsRead { path } => check_path(path),
        VolumeAsk::FolderList { path, after, limit } => {
            check_path(path)?;
            within("bytes of a name", after.len(), 0, FILE_NAME_BYTES_MAX)?;
            within("entries of a listing", usize::from(*limit), 1, FOLDER_ENTRIES_MAX)
        }
        VolumeAsk::PullBlocks { blocks, .. } => {
            within("blocks of a pull", blocks.len(), 1, PUSH_PAGES_MAX)?;
            let file = blocks.first().map(|block| block.inode);
            let others = blocks.iter().filter(|block| Some(block.inode) != file).count();
            within("blocks of another file in a pull", others, 0, 0)
        }
        VolumeAsk::Commit { number, changes, .. } => {
            within("number of a transaction", usize::from(*number > 0), 1, 1)?;
            within("changes of a transaction", changes.len(), 1, TRANSACTION_CHANGES_MAX)?;
            let bytes = changes.iter().map(Change::encoded_bytes).sum();
            within("bytes of a transaction", bytes, 0, COMMIT_BYTES_MAX_WRITTEN)?;
            changes.iter().try_for_each(check_change)
        }
        VolumeAsk::Lock(lock) => {
            within("range of a lock", usize::from(lock.start <= lock.end), 1, 1)?;
            within("kind of a lock that is tested", usize::from(!lock.test || lock.kind.is_some()), 1, 1)
        }
        VolumeAsk::SpaceStat | VolumeAsk::Lease { .. } | VolumeAsk::Enrol => Ok(()),
        VolumeAsk::Prove { number, .. } => within("number of a device", usize::from(*number > 0), 1, 1),
    }
}

fn check_change(change: &Change) -> Result<(), Refused> {
    match change {
        Change::Link { from, to, .. } | Change::Rename { from, to, .. } => {
            check_path(from).and_then(|()| check_path(to))
        }
        Change::Allocate { path, length, .. } => {
            check_path(path)?;
            within("bytes of a range", usize::from(*length > 0), 1, 1)
        }
        Change::Copy { path, from, length, .. } => {
            check_path(path).and_then(|()| check_path(from))?;
            within("bytes of a copy", *length as usize, 1, COPY_BYTES_MAX as usize)
        }
        Change::Create { path, mode, .. }
        | Change::MakeFolder { path, mode, .. }
        | Change::MakeNode { path, mode, .. }
        | Change::SetMode { path, mode, .. } => {
            check_path(path)?;
            within("permission bits", usize::from(*mode), 0, 0o7777)
        }
        Change::MakeLink { path, target, .. } => {
            check_path(path)?;
            within("bytes of a link's target", target.len(), 1, LINK_BYTES_MAX)
        }
        Change::SetXattr { path, name, value, .. } => {
            check_path(path)?;
            within("bytes of an attribute's name", name.len(), 1, XATTR_NAME_BYTES_MAX)?;
            within("bytes of an attribute", value.len(), 0, XATTR_VALUE_BYTES_MAX)
        }
        Change::RemoveXattr { path, name, .. } => {
            check_path(path)?;
            within("bytes of an attribute's name", name.len(), 1, XATTR_NAME_BYTES_MAX)
        }
        Change::Write { path, .. }
        | Change::Append { path, .. }
        | Change::Truncate { path, .. }
        | Change::Unlink { path, .. }
        | Change::OnlyName { path }
        | Change::RemoveFolder { path }
        | Change::SetOwner { path, .. }
        | Change::SetAccessTime { path, .. }
        | Change::SetTime { path, .. } => check_path(path),
    }
}

fn check_path(path: &[u8]) -> Result<(), Refused> {
    within("bytes of a path", path.len(), 0, PATH_BYTES_MAX)
}

fn within(what: &'static str, found: usize, min: usize, max: usize) -> Result<(), Refused> {
    let (found, min, max) = (found as u64, min as u64, max as u64);
    if (min..=max).contains(&found) { Ok(()) } else { Err(Refused::Limit { what, found, min, max }) }
}
