//! The handshake of a mount: what kernel and file system agree on.

use crate::abi::{self, InitIn, InitOut};

/// Features that the kernel has, and uses if it is asked. Bits of `flags` and, from 32 on, of
/// `flags2` of FUSE_INIT.
pub mod capability {
    /// Several READs of a file at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// Locks of fcntl(2) come as GETLK, SETLK and SETLKW.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// O_TRUNC comes with OPEN.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// WRITEs of more than 4 KiB.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Locks of flock(2) come as SETLK and SETLKW.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Permissions come as they were asked for, with the umask beside them.
    pub const DONT_MASK: u64 = 1 << 6;
    /// READDIRPLUS instead of READDIR.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// READDIRPLUS only where attributes are asked for.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Several direct reads and writes of a file at a time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// OPEN answered with ENOSYS is not asked again.
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// LOOKUP and READDIR of one directory side by side.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel reads access control lists as extended attributes, and obeys them. Who has them
    /// keeps them and permission bits together, and gives what is made in a directory its own.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are kept.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// OPENDIR answered with ENOSYS is not asked again.
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// Pages are dropped only when it is told to.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// SETXATTR says when the set-group-id bit goes; see [`crate::xattr_flag`].
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files with direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Largest WRITE and READ that can be agreed on, bytes: each serving thread has a buffer for one.
const WRITE_BYTES_MAX: u32 = 16 << 20;

/// Smallest: a page.
const WRITE_BYTES_MIN: u32 = 4096;

/// Longest value of an extended attribute, bytes, which SETXATTR brings in one piece.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Room for the structs and names before the bytes of a request.
const HEADER_BYTES_MAX: usize = 8192;

/// The result of the handshake. [`crate::Filesystem::init`] may change it.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    offered: u64,
    wanted: u64,
    readahead_bytes_max: u32,
    readahead_bytes: u32,
    write_bytes: u32,
    background: u16,
    congestion: Option<u16>,
}

impl KernelConfig {
    pub(crate) fn new(init: &InitIn) -> KernelConfig {
        let extended = u64::from(init.flags) & capability::INIT_EXT != 0;
        let high = if extended { u64::from(init.flags2) << 32 } else { 0 };
        KernelConfig {
            offered: u64::from(init.flags) | high,
            wanted: capability::ASYNC_READ | capability::BIG_WRITES | capability::MAX_PAGES | capability::INIT_EXT,
            readahead_bytes_max: init.max_readahead,
            readahead_bytes: init.max_readahead,
            write_bytes: 128 << 10,
            background: 16,
            congestion: None,
        }
    }

    /// What an earlier daemon has agreed on with the kernel: nothing else can be had.
    pub(crate) fn agreed(answer: &InitOut) -> KernelConfig {
        KernelConfig {
            offered: u64::from(answer.flags) | (u64::from(answer.flags2) << 32),
            wanted: 0,
            readahead_bytes_max: answer.max_readahead,
            readahead_bytes: answer.max_readahead,
            write_bytes: answer.max_write,
            background: answer.max_background,
            congestion: Some(answer.congestion_threshold),
        }
    }

    /// The features of the kernel.
    pub fn capabilities(&self) -> u64 {
        self.offered
    }

    /// Asks for those of `wanted` that the kernel can do.
    pub fn add_capabilities(&mut self, wanted: u64) {
        self.wanted |= wanted;
    }

    /// Bytes that the kernel may read ahead; never more than it wants to.
    pub fn set_max_readahead(&mut self, bytes: u32) {
        self.readahead_bytes = bytes.min(self.readahead_bytes_max);
    }

    /// Bytes of the largest WRITE and the largest READ: 4 KiB to 16 MiB.
    pub fn set_max_write(&mut self, bytes: u32) {
        self.write_bytes = bytes.clamp(WRITE_BYTES_MIN, WRITE_BYTES_MAX);
    }

    /// Requests in flight that nobody waits for directly, such as those for reading ahead; at least
    /// one.
    pub fn set_max_background(&mut self, requests: u16) {
        self.background = requests.max(1);
    }

    /// How many of them make the file system look busy, which ends reading ahead. Three fourths of
    /// them by default.
    pub fn set_congestion_threshold(&mut self, requests: u16) {
        self.congestion = Some(requests);
    }

    /// The answer to INIT. A page has `page_bytes`.
    pub(crate) fn answer(&self, page_bytes: usize) -> InitOut {
        let flags = self.wanted & self.offered;
        let congestion = self.congestion.unwrap_or((u32::from(self.background) * 3 / 4) as u16);
        let pages = self.write_bytes.max(self.readahead_bytes).div_ceil(page_bytes.max(1) as u32);
        InitOut {
            major: abi::VERSION,
            minor: abi::MINOR,
            max_readahead: self.readahead_bytes,
            flags: flags as u32,
            max_background: self.background,
            congestion_threshold: congestion.clamp(1, self.background),
            max_write: self.write_bytes,
            time_gran: 1,
            max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
            map_alignment: 0,
            flags2: (flags >> 32) as u32,
            max_stack_depth: 0,
            unused: [0; 6],
        }
    }

    /// Bytes of a buffer that every request fits into.
    pub(crate) fn buffer_bytes(&self) -> usize {
        (self.write_bytes as usize).max(XATTR_BYTES_MAX) + HEADER_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor: 45,
            max_readahead: 128 << 10,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            unused: [0; 11],
        }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let mut config = KernelConfig::new(&offer(capability::ASYNC_READ | capability::MAX_PAGES));
        config.add_capabilities(capability::CACHE_SYMLINKS | capability::DIRECT_IO_ALLOW_MMAP);
        let answer = config.answer(4096);
        assert_eq!(u64::from(answer.flags), capability::ASYNC_READ | capability::MAX_PAGES);
        assert_eq!((answer.flags2, answer.max_write, answer.max_pages), (0, 128 << 10, 32));
        assert_eq!((answer.max_background, answer.congestion_threshold), (16, 12));
    }

    #[test]
    fn flags_above_32_bits_travel_in_the_second_word() {
        let mut config = KernelConfig::new(&offer(capability::INIT_EXT | capability::DIRECT_IO_ALLOW_MMAP));
        config.add_capabilities(capability::DIRECT_IO_ALLOW_MMAP);
        let answer = config.answer(4096);
        assert_eq!(answer.flags2, 1 << 4);
        assert_ne!(u64::from(answer.flags) & capability::INIT_EXT, 0);
        // Without the flag that says so, the second word is not one.
        assert_eq!(KernelConfig::new(&offer(capability::DIRECT_IO_ALLOW_MMAP)).capabilities(), 0);
    }

    #[test]
    fn sizes_are_bounded() {
        let mut config = KernelConfig::new(&offer(0));
        config.set_max_write(u32::MAX);
        config.set_max_readahead(u32::MAX);
        config.set_max_background(0);
        config.set_congestion_threshold(9);
        let answer = config.answer(4096);
        assert_eq!((answer.max_write, answer.max_readahead, answer.max_pages), (16 << 20, 128 << 10, 4096));
        assert_eq!((answer.max_background, answer.congestion_threshold), (1, 1));
        config.set_max_write(0);
        assert_eq!(config.answer(1 << 16).max_pages, 2);
        assert!(config.buffer_bytes() >= abi::READ_BUFFER_BYTES_MIN + XATTR_BYTES_MAX);
    }
}
