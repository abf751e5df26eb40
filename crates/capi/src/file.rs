//! Open files: reading and writing, at a position of the file's own or at a stated one.

pub mod hints;
mod position;

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use stream::{FileRef, Handle, OpenHow, Opened, READ_BYTES_MAX};

use crate::error::{Failure, call};
use crate::handle::Handles;
use crate::info::runnel_info;
use crate::raw;
use crate::volume::{DROPPED, Deadline, GOES_ON, VOLUMES, Volume, path_in_volume, runnel_volume, shown};
use position::Position;

/// Bytes that one write hands over at once: a long one is seen piece by piece.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The file has no deadline of its own.
const DEADLINE_OF_VOLUME: i64 = -1;

/// An open file. Any number of threads may use it at the same time; they share its position.
pub struct runnel_file {
    _private: [u8; 0],
}

/// Every open file.
pub(crate) static FILES: Handles<File> = Handles::new(2, "runnel_file");

/// What a file's handle stands for.
pub(crate) struct File {
    pub volume: Arc<Volume>,
    handle: Handle,
    name: String,
    append: bool,
    position: Position,
    deadline_ms: AtomicI64,
}

impl File {
    fn deadline(&self) -> Deadline {
        let own = u32::try_from(self.deadline_ms.load(Ordering::Relaxed));
        own.map_or_else(|_| self.volume.deadline(), Deadline::after_ms)
    }

    /// Reads until the buffer is full or the file ends. What was read before a failure counts.
    fn read(&self, buffer: *mut u8, length: usize, at: u64, deadline: Deadline) -> Result<usize, Failure> {
        let mut got = 0;
        while got < length {
            let want = (length - got).min(READ_BYTES_MAX as usize);
            let at = at.saturating_add(got as u64);
            let piece = self.volume.wait(deadline, &self.name, DROPPED, |remote, done| {
                remote.read(self.handle, self.volume.token, at, want as u32, done);
            });
            match piece {
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(want)];
                    // Within the buffer, which has `length - got` bytes left.
                    raw::fill(buffer.wrapping_add(got), bytes);
                    got += bytes.len();
                    if bytes.len() < want {
                        break;
                    }
                }
                Err(failure) if got == 0 => return Err(failure),
                Err(_) => break,
            }
        }
        Ok(got)
    }

    /// Writes all bytes. What was written before a failure counts.
    fn write(&self, bytes: &[u8], at: u64, deadline: Deadline) -> Result<usize, Failure> {
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Failure::new(libc::EFBIG, format!("{}: bytes behind the largest offset", self.name)));
        }
        let mut written = 0;
        for piece in bytes.chunks(WRITE_BYTES_MAX) {
            let at = at + written as u64;
            let copy = bytes::Bytes::copy_from_slice(piece);
            let outcome = self.volume.wait(deadline, &self.name, GOES_ON, |remote, done| {
                remote.write(self.handle, at, copy, done);
            });
            match outcome {
                Ok(()) => written += piece.len(),
                Err(failure) if written == 0 => return Err(failure),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    fn info(&self, deadline: Deadline) -> Result<stream::FileInfo, Failure> {
        let of = FileRef::Handle(self.handle);
        self.volume.wait(deadline, &self.name, DROPPED, |remote, done| remote.stat(of, done))
    }

    fn offset(&self, offset: i64) -> Result<u64, Failure> {
        u64::try_from(offset).map_err(|_| Failure::new(libc::EINVAL, format!("{}: an offset of {offset}", self.name)))
    }
}

/// Opens a regular file. flags are those of <fcntl.h>: one of O_RDONLY, O_WRONLY and O_RDWR, and
/// any of O_CREAT, O_EXCL, O_TRUNC and O_APPEND; O_CLOEXEC, O_NOCTTY, O_NOFOLLOW and O_LARGEFILE
/// change nothing; others are refused. mode is used with O_CREAT: permission bits, from which no
/// umask is taken. Paths begin at the top of the volume, with or without a slash. Symbolic links
/// are not followed.
///
/// The server is asked for the present state of the file, so that whatever was synced or closed
/// anywhere before is seen.
///
/// Returns NULL with errno set: ENOENT, EEXIST, EISDIR, EROFS, EACCES, ETIMEDOUT, EINVAL, EBADF,
/// ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_open(
    volume: *mut runnel_volume,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut runnel_file {
    call(std::ptr::null_mut(), || {
        let volume = VOLUMES.get(volume)?;
        let path = path_in_volume(path)?;
        let how = how(flags, mode)?;
        let Opened { handle, .. } = volume.wait(volume.deadline(), &shown(&path), DROPPED, |remote, done| {
            remote.open_file(&path, how, volume.token, done);
        })?;
        let file = Arc::new(File {
            handle,
            name: shown(&path),
            append: how.append,
            position: Position::default(),
            deadline_ms: AtomicI64::new(DEADLINE_OF_VOLUME),
            volume,
        });
        let opened = FILES.insert(Arc::clone(&file));
        if opened.is_err() {
            // Nothing was written to it, so nothing can be lost.
            file.volume.remote.close(handle, Box::new(drop));
        }
        opened
    })
}

fn how(flags: c_int, mode: u32) -> Result<OpenHow, Failure> {
    let ignored = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW | libc::O_LARGEFILE | O_LARGEFILE_KERNEL;
    let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | ignored;
    let has = |flag| flags & flag != 0;
    if flags & !known != 0 {
        return Err(Failure::new(libc::EINVAL, format!("open flags {:#o} are not supported", flags & !known)));
    }
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Failure::new(libc::EINVAL, "open flags without O_RDONLY, O_WRONLY or O_RDWR")),
    };
    if !write && (has(libc::O_TRUNC) || has(libc::O_APPEND)) {
        return Err(Failure::new(libc::EINVAL, "O_TRUNC and O_APPEND need O_WRONLY or O_RDWR"));
    }
    if has(libc::O_EXCL) && !has(libc::O_CREAT) {
        return Err(Failure::new(libc::EINVAL, "O_EXCL needs O_CREAT"));
    }
    Ok(OpenHow {
        read,
        write,
        append: has(libc::O_APPEND),
        create: has(libc::O_CREAT).then_some((mode & 0o7777) as u16),
        owner: None,
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
    })
}

/// What programs with large offsets may set on their own, and what the C library hides from 64-bit
/// ones.
const O_LARGEFILE_KERNEL: c_int =
    if cfg!(any(target_arch = "arm", target_arch = "aarch64")) { 0o400000 } else { 0o100000 };

/// Reads up to length bytes at the file's position, and moves it. Fewer bytes are read at the end
/// of the file, or when the deadline comes after some of them.
///
/// Returns the bytes read, 0 at the end of the file, or -1 with errno set: ETIMEDOUT, EBADF,
/// ESTALE, EIO, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_read(file: *mut runnel_file, buffer: *mut c_void, length: usize) -> libc::ssize_t {
    call(-1, || {
        raw::check_buffer(buffer.cast(), length)?;
        let file = FILES.get(file)?;
        let deadline = file.deadline();
        let mut position = file.position.claim(deadline, &file.name)?;
        let got = file.read(buffer.cast(), length, position.at(), deadline)?;
        position.move_to(position.at() + got as u64);
        Ok(got as libc::ssize_t)
    })
}

/// Reads up to length bytes at an offset; otherwise as runnel_read. The position of the file plays
/// no part.
///
/// Returns the bytes read, 0 at the end of the file, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_pread(
    file: *mut runnel_file,
    buffer: *mut c_void,
    length: usize,
    offset: i64,
) -> libc::ssize_t {
    call(-1, || {
        raw::check_buffer(buffer.cast(), length)?;
        let file = FILES.get(file)?;
        let got = file.read(buffer.cast(), length, file.offset(offset)?, file.deadline())?;
        Ok(got as libc::ssize_t)
    })
}

/// Writes length bytes at the file's position (with O_APPEND: at the end), and moves it behind
/// them. All handles of the volume in this process see them at once; the server has them for
/// certain after runnel_fsync. Waits only if too much is unsent.
///
/// Returns the bytes written, fewer than length if the deadline comes in between, or -1 with errno
/// set: ETIMEDOUT (it may be done yet: with O_APPEND look at the size before repeating it), ESTALE
/// (somebody else changed the file), ENOSPC, EBADF, EROFS, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_write(file: *mut runnel_file, buffer: *const c_void, length: usize) -> libc::ssize_t {
    call(-1, || {
        let bytes = raw::buffer(buffer.cast(), length)?;
        let file = FILES.get(file)?;
        let deadline = file.deadline();
        let mut position = file.position.claim(deadline, &file.name)?;
        let written = file.write(bytes, position.at(), deadline)?;
        let end = position.at() + written as u64;
        // The bytes are written whether or not the end can be told now; then the position counts
        // what was written.
        let end = if file.append { file.info(deadline).map_or(end, |info| info.size) } else { end };
        position.move_to(end);
        Ok(written as libc::ssize_t)
    })
}

/// Writes length bytes at an offset; otherwise as runnel_write. The position of the file plays no
/// part. With O_APPEND the bytes go to the end, as with Linux.
///
/// Returns the bytes written, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_pwrite(
    file: *mut runnel_file,
    buffer: *const c_void,
    length: usize,
    offset: i64,
) -> libc::ssize_t {
    call(-1, || {
        let bytes = raw::buffer(buffer.cast(), length)?;
        let file = FILES.get(file)?;
        let written = file.write(bytes, file.offset(offset)?, file.deadline())?;
        Ok(written as libc::ssize_t)
    })
}

/// Moves the file's position: whence is SEEK_SET, SEEK_CUR or SEEK_END; SEEK_DATA and SEEK_HOLE are
/// understood too, and take every byte of the file for data.
///
/// Returns the new position, or -1 with errno set: EINVAL, ENXIO (SEEK_DATA or SEEK_HOLE behind the
/// end), EBADF, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_lseek(file: *mut runnel_file, offset: i64, whence: c_int) -> i64 {
    call(-1, || {
        let file = FILES.get(file)?;
        let deadline = file.deadline();
        let mut position = file.position.claim(deadline, &file.name)?;
        let size = || file.info(deadline).map(|info| info.size as i64);
        let inside = |size: i64| {
            let failure = || Failure::new(libc::ENXIO, format!("{}: no data at offset {offset}", file.name));
            if (0..size).contains(&offset) { Ok(()) } else { Err(failure()) }
        };
        let target = match whence {
            libc::SEEK_SET => Some(offset),
            libc::SEEK_CUR => offset.checked_add_unsigned(position.at()),
            libc::SEEK_END => offset.checked_add(size()?),
            libc::SEEK_DATA => inside(size()?).map(|()| Some(offset))?,
            libc::SEEK_HOLE => {
                let size = size()?;
                inside(size).map(|()| Some(size))?
            }
            _ => return Err(Failure::new(libc::EINVAL, format!("{}: whence is {whence}", file.name))),
        };
        let target = target.filter(|target| *target >= 0);
        let target = target
            .ok_or_else(|| Failure::new(libc::EINVAL, format!("{}: a position below 0 or too large", file.name)))?;
        position.move_to(target as u64);
        Ok(target)
    })
}

/// Tells what is known of an open file, with what was changed here and not sent yet.
///
/// Returns 0, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_fstat(file: *mut runnel_file, info: *mut runnel_info) -> c_int {
    call(-1, || {
        raw::check_place(info, "a runnel_info")?;
        let file = FILES.get(file)?;
        raw::put(info, file.info(file.deadline())?.into());
        Ok(0)
    })
}

/// Cuts an open file to a size, or extends it with a hole. Goes to the server with the next sync.
///
/// Returns 0, or -1 with errno set.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_ftruncate(file: *mut runnel_file, size: i64) -> c_int {
    call(-1, || {
        let file = FILES.get(file)?;
        let size = file.offset(size)?;
        let of = FileRef::Handle(file.handle);
        file.volume.wait(file.deadline(), &file.name, GOES_ON, |remote, done| remote.set_size(of, size, done))?;
        Ok(0)
    })
}

/// Returns 0 when all that was written to the file is on the server's stable storage. Otherwise -1
/// with errno set:
///
/// ETIMEDOUT: not yet; it goes on, and a later runnel_fsync tells the outcome. ESTALE: somebody
/// else changed the file; nothing of these changes was taken; they can still be read here until the
/// file is closed. ENOSPC, EACCES, EBUSY (a lease of somebody else), EIO: the server refused them.
/// An error of earlier changes is told once for each open file.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_fsync(file: *mut runnel_file) -> c_int {
    call(-1, || {
        let file = FILES.get(file)?;
        file.volume.wait(file.deadline(), &file.name, SYNC_GOES_ON, |remote, done| remote.sync(file.handle, done))?;
        Ok(0)
    })
}

const SYNC_GOES_ON: &str = "the sync goes on; a later one tells the outcome";

/// As runnel_fsync if the file is open for writing, and the file is closed in any case: the handle
/// must not be used again, whatever the outcome.
///
/// Returns 0, or -1 with errno set: as runnel_fsync (after ETIMEDOUT, runnel_sync tells the
/// outcome); EBADF for a handle that is not open.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_close(file: *mut runnel_file) -> c_int {
    call(-1, || {
        let file = FILES.remove(file)?;
        file.volume.wait(file.deadline(), &file.name, CLOSE_GOES_ON, |remote, done| remote.close(file.handle, done))?;
        Ok(0)
    })
}

const CLOSE_GOES_ON: &str = "it is closed, and its changes are still being sent; runnel_sync tells the outcome";

/// Sets how long calls on this file wait at most, milliseconds, whatever the volume's deadline is.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_set_file_deadline(file: *mut runnel_file, milliseconds: u32) -> c_int {
    call(-1, || {
        FILES.get(file)?.deadline_ms.store(milliseconds.into(), Ordering::Relaxed);
        Ok(0)
    })
}
