//! Calls on names: of files that are not open, folders and links.

use std::ffi::{c_char, c_int};

use crate::error::{Failure, call};
use crate::info::runnel_info;
use crate::raw;
use crate::volume::{DROPPED, GOES_ON, VOLUMES, Volume, path_in_volume, runnel_volume, shown};

/// Makes a change of one name and waits until the server has it.
fn change(
    volume: *mut runnel_volume,
    path: *const c_char,
    ask: impl FnOnce(&stream::RemoteVolume, &[u8], stream::Done<()>),
) -> c_int {
    call(-1, || {
        let volume = VOLUMES.get(volume)?;
        let path = path_in_volume(path)?;
        volume.wait(volume.deadline(), &shown(&path), GOES_ON, |remote, done| ask(remote, &path, done)).map(|()| 0)
    })
}

fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// Tells what is known of the file, folder or link at a path, with what was changed here and not
/// sent yet. Links are not followed.
///
/// Returns 0, or -1 with errno set: ENOENT, ENOTDIR, ETIMEDOUT, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_stat(volume: *mut runnel_volume, path: *const c_char, info: *mut runnel_info) -> c_int {
    call(-1, || {
        raw::check_place(info, "a runnel_info")?;
        let volume = VOLUMES.get(volume)?;
        let found = stat(&volume, &path_in_volume(path)?)?;
        raw::put(info, found);
        Ok(0)
    })
}

fn stat(volume: &Volume, path: &[u8]) -> Result<runnel_info, Failure> {
    let found = volume.wait(volume.deadline(), &shown(path), DROPPED, |remote, done| remote.stat(path, done))?;
    Ok(found.into())
}

/// Removes a file or symbolic link; what was written to it and not sent is dropped.
///
/// Returns 0 when the server has done it, or -1 with errno set: ENOENT, EISDIR, EROFS, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_unlink(volume: *mut runnel_volume, path: *const c_char) -> c_int {
    change(volume, path, |remote, path, done| remote.remove(path, done))
}

/// Renames a file, folder or link, and replaces what has the new name.
///
/// Returns 0 when the server has done it, or -1 with errno set: ENOENT, ENOTEMPTY, EROFS, ESTALE,
/// ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_rename(volume: *mut runnel_volume, from: *const c_char, to: *const c_char) -> c_int {
    call(-1, || {
        let volume = VOLUMES.get(volume)?;
        let (from, to) = (path_in_volume(from)?, path_in_volume(to)?);
        let renamed = volume
            .wait(volume.deadline(), &shown(&from), GOES_ON, |remote, done| remote.rename(&from, &to, true, done));
        renamed.map(|()| 0)
    })
}

/// Makes a folder.
///
/// Returns 0 when the server has done it, or -1 with errno set: EEXIST, ENOENT, EROFS, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_mkdir(volume: *mut runnel_volume, path: *const c_char, mode: u32) -> c_int {
    change(volume, path, |remote, path, done| remote.make_folder(path, bits(mode), None, done))
}

/// Removes an empty folder.
///
/// Returns 0 when the server has done it, or -1 with errno set: ENOENT, ENOTDIR, ENOTEMPTY, EROFS,
/// ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_rmdir(volume: *mut runnel_volume, path: *const c_char) -> c_int {
    change(volume, path, |remote, path, done| remote.remove_folder(path, done))
}

/// Cuts a file to a size, or extends it with a hole.
///
/// Returns 0 when the server has done it, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_truncate(volume: *mut runnel_volume, path: *const c_char, size: i64) -> c_int {
    match u64::try_from(size) {
        Ok(size) => change(volume, path, |remote, path, done| remote.set_size(path, size, done)),
        Err(_) => call(-1, || Err(Failure::new(libc::EINVAL, format!("a size of {size} bytes")))),
    }
}

/// Sets permission bits (07777).
///
/// Returns 0, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_chmod(volume: *mut runnel_volume, path: *const c_char, mode: u32) -> c_int {
    change(volume, path, |remote, path, done| remote.set_mode(path, bits(mode), done))
}

/// Sets the time of the last change, nanoseconds since 1970.
///
/// Returns 0, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_utime(volume: *mut runnel_volume, path: *const c_char, mtime_ns: i64) -> c_int {
    change(volume, path, |remote, path, done| remote.set_time(path, mtime_ns, done))
}

/// Tells where a symbolic link points, as readlink(2): without a zero at the end, and cut if size
/// is too small.
///
/// Returns the bytes written to target, or -1 with errno set: EINVAL (no link), ENOENT, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_readlink(
    volume: *mut runnel_volume,
    path: *const c_char,
    target: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    call(-1, || {
        let volume = VOLUMES.get(volume)?;
        raw::check_buffer(target.cast(), size)?;
        let path = path_in_volume(path)?;
        let found =
            volume.wait(volume.deadline(), &shown(&path), DROPPED, |remote, done| remote.read_link(&path, done))?;
        let part = &found[..found.len().min(size)];
        raw::fill(target.cast(), part);
        Ok(part.len() as libc::ssize_t)
    })
}
