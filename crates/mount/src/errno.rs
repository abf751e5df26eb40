//! Errors into the error numbers that applications see. No other file does this.

use client::ReadError;
use fuse::Errno;
use stream::StreamError;

/// The error number of a failed READ.
///
/// Every cause is EIO: the application cannot act on more, and a more telling number (ENOENT,
/// ESTALE) would make some programs take a lost server for a missing file. The cause itself is in
/// the daemon's log and counters.
pub(crate) fn of_read(_error: &ReadError) -> Errno {
    Errno::IO
}

/// A block that cannot be read or does not match the image's metadata.
pub(crate) const DAMAGED: Errno = Errno::IO;

/// A name or an inode the image does not have.
pub(crate) const NOT_FOUND: Errno = Errno::NOENT;

/// A READLINK of something else than a link, a READ of something else than a file.
pub(crate) const WRONG_KIND: Errno = Errno::INVAL;

/// A directory operation on something else.
pub(crate) const NOT_A_DIRECTORY: Errno = Errno::NOTDIR;

/// A name longer than any directory entry can be.
pub(crate) const NAME_TOO_LONG: Errno = Errno::NAMETOOLONG;

/// An operation the kernel does itself once it has been told so: it remembers this answer and asks
/// no more.
pub(crate) const KERNEL_DOES_IT: Errno = Errno::NOSYS;

/// The inode has no extended attribute of that name.
pub(crate) const NO_ATTRIBUTE: Errno = Errno::NODATA;

/// The buffer offered for an extended attribute is too small.
pub(crate) const BUFFER_TOO_SMALL: Errno = Errno::RANGE;

/// SEEK_DATA or SEEK_HOLE behind the last of them.
pub(crate) const NOTHING_BEHIND: Errno = Errno::NXIO;

/// The image and the session disagree; never wrong bytes.
pub(crate) const INCONSISTENT: Errno = Errno::IO;

/// The error number of a failed call on a volume.
pub(crate) fn of_stream(error: &StreamError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// The file of an inode number is not at its path any more. The kernel looks the path up again
/// before it tells the application.
pub(crate) const STALE: Errno = Errno::STALE;

/// Operations that a volume refuses: special files and other owners where all belongs to one user,
/// changes of its top folder.
pub(crate) const NOT_ALLOWED: Errno = Errno::PERM;

/// Extended attributes and ways to allocate that a volume does not have.
pub(crate) const NOT_SUPPORTED: Errno = Errno::OPNOTSUPP;

/// There is no data, or no hole, from there on.
pub(crate) const NO_SUCH_PLACE: Errno = Errno::NXIO;

/// Another owner has locked it.
pub(crate) const TRY_AGAIN: Errno = Errno::AGAIN;

/// There are too many locks.
pub(crate) const NO_LOCKS: Errno = Errno::NOLCK;

/// Arguments that make no sense here, such as two names to be exchanged.
pub(crate) const INVALID: Errno = Errno::INVAL;
