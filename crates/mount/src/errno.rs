//! The one place where errors become the numbers an application sees.

use client::ReadError;
use fuser::Errno;

/// What a READ that failed tells the application.
///
/// Every cause is EIO: the application cannot act on more, and a more telling number (ENOENT, ESTALE) would make some
/// programs take a lost server for a missing file. The cause itself is in the daemon's log and counters.
pub(crate) fn of_read(_error: &ReadError) -> Errno {
    Errno::EIO
}

/// A block that cannot be read or does not match the image's metadata.
pub(crate) const DAMAGED: Errno = Errno::EIO;

/// A name or an inode the image does not have.
pub(crate) const NOT_FOUND: Errno = Errno::ENOENT;

/// A READLINK of something else than a link, a READ of something else than a file.
pub(crate) const WRONG_KIND: Errno = Errno::EINVAL;

/// A directory operation on something else.
pub(crate) const NOT_A_DIRECTORY: Errno = Errno::ENOTDIR;

/// A name longer than any directory entry can be.
pub(crate) const NAME_TOO_LONG: Errno = Errno::ENAMETOOLONG;

/// An operation the kernel does itself once it has been told so: it remembers this answer and asks no more.
pub(crate) const KERNEL_DOES_IT: Errno = Errno::ENOSYS;

/// The inode has no extended attribute of that name.
pub(crate) const NO_ATTRIBUTE: Errno = Errno::ENODATA;

/// The buffer offered for an extended attribute is too small.
pub(crate) const BUFFER_TOO_SMALL: Errno = Errno::ERANGE;

/// SEEK_DATA or SEEK_HOLE behind the last of them.
pub(crate) const NOTHING_BEHIND: Errno = Errno::ENXIO;

/// The image and the session disagree; never wrong bytes.
pub(crate) const INCONSISTENT: Errno = Errno::EIO;
