//! Listing folders.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use stream::FolderEntry;

use crate::error::{Failure, call};
use crate::handle::Handles;
use crate::info::runnel_info;
use crate::raw;
use crate::volume::{DROPPED, VOLUMES, path_in_volume, runnel_volume, shown};

/// Longest name with its zero.
const NAME_BYTES_MAX: usize = 256;

/// A folder that is being listed.
pub struct runnel_folder {
    _private: [u8; 0],
}

/// One entry of a folder.
#[repr(C)]
pub struct runnel_entry {
    /// Its name, with a zero at the end.
    pub name: [c_char; 256],
    /// What it is.
    pub info: runnel_info,
}

static FOLDERS: Handles<Listing> = Handles::new(3, "runnel_folder");

/// What was in the folder, in reverse order, so that the next one is the last.
type Listing = Mutex<Vec<FolderEntry>>;

/// Begins to list a folder; "" or "/" is the top one. The entries are those of this moment, in the
/// order of their names' bytes, without "." and "..".
///
/// Returns NULL with errno set: ENOENT, ENOTDIR, ETIMEDOUT, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_opendir(volume: *mut runnel_volume, path: *const c_char) -> *mut runnel_folder {
    call(std::ptr::null_mut(), || {
        let volume = VOLUMES.get(volume)?;
        let path = path_in_volume(path)?;
        let mut entries =
            volume.wait(volume.deadline(), &shown(&path), DROPPED, |remote, done| remote.list(&path, done))?;
        entries.reverse();
        FOLDERS.insert(Arc::new(Mutex::new(entries)))
    })
}

/// Tells the next entry. Never waits.
///
/// Returns 1, 0 when there are no more, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_readdir(folder: *mut runnel_folder, entry: *mut runnel_entry) -> c_int {
    call(-1, || {
        raw::check_place(entry, "a runnel_entry")?;
        let listing = FOLDERS.get(folder)?;
        let next = listing.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(next) = next else { return Ok(0) };
        if next.name.len() >= NAME_BYTES_MAX {
            let text = format!("{}: a name of more than 255 bytes", shown(&next.name));
            return Err(Failure::new(libc::ENAMETOOLONG, text));
        }
        let mut name = [0; NAME_BYTES_MAX];
        name.iter_mut().zip(&next.name).for_each(|(to, from)| *to = *from as c_char);
        raw::put(entry, runnel_entry { name, info: next.info.into() });
        Ok(1)
    })
}

/// Ends a listing.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_closedir(folder: *mut runnel_folder) -> c_int {
    call(-1, || FOLDERS.remove(folder).map(|_| 0))
}
