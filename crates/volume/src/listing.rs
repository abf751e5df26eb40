//! Names in a folder, page by page.

use std::collections::BTreeSet;

use crate::disk::{Disk, Kind};
use crate::path::{OWN_FOLDER, PATH_BYTES_MAX};
use crate::{VolumeError, VolumePath};

/// Entries of a folder that can be listed; each page looks at all of them.
pub const FOLDER_ENTRIES_MAX: usize = 1_000_000;

/// The first `limit` names of a folder after one, in order, and whether there are more. Special
/// files, names of which the path would be too long, and our own folder are left out.
///
/// # Errors
/// [`VolumeError::TooLarge`], or what the system says.
pub(crate) fn names_after(
    disk: &dyn Disk,
    path: &VolumePath,
    after: &[u8],
    limit: usize,
) -> Result<(Vec<Vec<u8>>, bool), VolumeError> {
    let mut page: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut count = 0;
    // A folder may have been moved to where the paths in it are too long.
    let name_bytes_max = PATH_BYTES_MAX.saturating_sub(path.as_bytes().len() + usize::from(!path.is_top()));
    let listed = disk.list(path.as_bytes(), &mut |name, kind| {
        count += 1;
        let ours = path.is_top() && name == OWN_FOLDER;
        // Of a large folder most names are on another page.
        let beyond = page.len() > limit && page.last().is_some_and(|last| name > last.as_slice());
        if name > after && !beyond && kind != Kind::Special && !ours && name.len() <= name_bytes_max {
            page.insert(name.to_vec());
            if page.len() > limit + 1 {
                page.pop_last();
            }
        }
        count <= FOLDER_ENTRIES_MAX
    });
    listed.map_err(|error| VolumeError::io("listing", path.as_bytes(), error))?;
    if count > FOLDER_ENTRIES_MAX {
        let (found, limit) = (count as u64, FOLDER_ENTRIES_MAX as u64);
        return Err(VolumeError::TooLarge { what: "entries of a folder", found, limit });
    }
    let more = page.len() > limit;
    Ok((page.into_iter().take(limit).collect(), more))
}
