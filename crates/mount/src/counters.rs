//! Counters of the kernel's requests, one per FUSE operation. `runnel status` prints them beside
//! the counters of the session. After warm-up, a program that runs from a mount must add nothing
//! here.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters that the serving threads add to. All are requests since the mount began.
        #[derive(Debug, Default)]
        pub(crate) struct Operations { $(pub(crate) $name: AtomicU64,)* }

        /// FUSE requests by operation since the mount began, as JSON under `fuse` in
        /// `runnel status --json`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct FuseCounters { $($(#[$doc])* pub $name: u64,)* }

        impl Operations {
            /// The counters now.
            pub(crate) fn read(&self) -> FuseCounters {
                FuseCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl FuseCounters {
            /// All requests that the kernel waited for; FORGETs, which need no reply, are not among
            /// them.
            pub fn requests(&self) -> u64 {
                $(self.$name +)* 0 - self.forget
            }
        }
    };
}

operations! {
    /// Names looked up, found or not.
    lookup,
    /// Inodes the kernel dropped from its cache.
    forget,
    /// Attributes asked for.
    getattr,
    /// Symbolic links read.
    readlink,
    /// Files opened; stays at one where the kernel can open without asking.
    open,
    /// READs of file contents.
    read,
    /// Directories opened; stays at one where the kernel can open without asking.
    opendir,
    /// Directory listings, one for each buffer full.
    readdir,
    /// Files and directories closed.
    release,
    /// File-system statistics asked for.
    statfs,
    /// Extended attributes asked for, one or the list.
    xattr,
    /// Searches for data or a hole.
    lseek,
    /// Attributes changed (volumes).
    setattr,
    /// Files made (volumes).
    create,
    /// WRITEs of file contents (volumes).
    write,
    /// Syncs, and closes of descriptors (volumes).
    sync,
    /// Locks made, given back and asked about (volumes).
    lock,
    /// Names made, changed and removed (volumes).
    rename,
    /// Anything else: refused, the kernel does not ask again.
    other,
}

/// Counts one request.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_out_what_needs_no_reply() {
        let operations = Operations::default();
        count(&operations.lookup);
        count(&operations.read);
        count(&operations.forget);
        assert_eq!(operations.read().requests(), 2);
        assert_eq!(operations.read().forget, 1);
    }
}
