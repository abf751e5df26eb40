//! The status of a volume, and the version of this library.

use std::ffi::{c_char, c_int};

use crate::error::call;
use crate::raw;
use crate::volume::{VOLUMES, runnel_volume};

/// What a volume is, holds and did so far. May grow at its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct runnel_state {
    /// 1 if the server answers, else 0.
    pub connected: u32,
    /// 1 if files may be changed, else 0.
    pub writable: u32,
    /// Bytes of a data block.
    pub block_bytes: u32,
    /// Open files.
    pub files: u32,
    /// Connections so far.
    pub connections: u64,
    /// Bytes of data blocks in memory.
    pub memory_bytes: u64,
    /// Bytes of data blocks in the cache folder.
    pub cache_bytes: u64,
    /// Blocks read that were in memory, in the cache folder, or known to be zeros.
    pub hits: u64,
    /// Blocks asked of the server because a call waited for them.
    pub blocks_asked: u64,
    /// Blocks that the server sent ahead of reads.
    pub blocks_pushed: u64,
    /// Those of them that were used later.
    pub blocks_used: u64,
    /// Bytes of blocks received, as they were encoded.
    pub bytes_received: u64,
    /// Round trip of the link, microseconds; 0 if unknown.
    pub round_trip_micros: u64,
    /// Rate of the link, bytes per second; 0 if unknown.
    pub bytes_per_second: u64,
    /// Bytes of changes that the server has not got yet.
    pub unsent_bytes: u64,
    /// Transactions of changes that the server has not got yet.
    pub unsent_transactions: u64,
    /// Those of them that lie in the folder of unsent changes.
    pub stored_transactions: u64,
    /// Transactions that the server has on stable storage.
    pub committed: u64,
    /// Changes that were lost, as runnel_lost tells them.
    pub lost: u64,
}

/// Tells what a volume is, holds and did. size is sizeof(runnel_state) of the program. Never waits.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_status(volume: *mut runnel_volume, state: *mut runnel_state, size: usize) -> c_int {
    call(-1, || {
        raw::check_place(state, "a runnel_state")?;
        let volume = VOLUMES.get(volume)?;
        let (info, status) = (volume.remote.info(), volume.remote.status());
        let now = runnel_state {
            connected: status.connected.into(),
            writable: info.writable.into(),
            block_bytes: info.block_bytes,
            files: u32::try_from(status.handles).unwrap_or(u32::MAX),
            connections: status.connections,
            memory_bytes: status.blocks.memory_bytes,
            cache_bytes: status.blocks.disk_bytes,
            hits: status.blocks.hits + status.blocks.disk_hits,
            blocks_asked: status.blocks.blocks_asked,
            blocks_pushed: status.blocks.blocks_pushed,
            blocks_used: status.blocks.blocks_used,
            bytes_received: status.bytes_received,
            round_trip_micros: status.round_trip_micros,
            bytes_per_second: status.bytes_per_second,
            unsent_bytes: status.unsent.unsent_bytes,
            unsent_transactions: status.unsent.unsent_transactions,
            stored_transactions: status.unsent.stored_transactions,
            committed: status.committed,
            lost: status.lost.len() as u64,
        };
        raw::put_sized(state, now, size).map(|()| 0)
    })
}

/// The version of the library that runs, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn runnel_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
