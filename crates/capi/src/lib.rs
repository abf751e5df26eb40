//! librunnel: volumes on servers for C programs, as include/runnel.h says.
//!
//! It is a thin layer over [`stream::RemoteVolume`]: it turns handles into objects (`handle`),
//! pointers into Rust values (`raw`), the volume's callbacks into calls that wait for a stated time
//! (`volume`), and failures into `errno` and a message of the calling thread (`error`). The header
//! is generated from this source, so the documentation of public items here speaks to C
//! programmers.
//!
//! Nothing here writes to a terminal, handles signals or reads the environment. Threads of the
//! library hold all signals back, so those of the application arrive at threads of the application.

// `no_mangle` counts as unsafe, and C has its own customs of naming; pointers are followed in `raw`
// alone.
#![allow(unsafe_code, non_camel_case_types)]

mod error;
mod file;
mod folder;
mod handle;
mod info;
mod names;
mod options;
mod quiet;
mod raw;
mod status;
mod sync;
mod volume;

pub use error::runnel_errmsg;
pub use file::hints::{
    RUNNEL_LEASE_EXCLUSIVE, RUNNEL_LEASE_NONE, RUNNEL_LEASE_SHARED, RUNNEL_RATE_BYTES, RUNNEL_RATE_PERCENT,
    RUNNEL_RATE_REST, runnel_lease, runnel_prefetch, runnel_prefetch_ranges, runnel_range, runnel_rate,
};
pub use file::{
    runnel_close, runnel_file, runnel_fstat, runnel_fsync, runnel_ftruncate, runnel_lseek, runnel_open, runnel_pread,
    runnel_pwrite, runnel_read, runnel_set_file_deadline, runnel_write,
};
pub use folder::{runnel_closedir, runnel_entry, runnel_folder, runnel_opendir, runnel_readdir};
pub use info::runnel_info;
pub use names::{
    runnel_chmod, runnel_mkdir, runnel_readlink, runnel_rename, runnel_rmdir, runnel_stat, runnel_truncate,
    runnel_unlink, runnel_utime,
};
pub use options::{runnel_options, runnel_options_init};
pub use status::{runnel_state, runnel_status, runnel_version};
pub use sync::{runnel_disconnect, runnel_lost, runnel_lost_callback, runnel_sync};
pub use volume::{runnel_connect, runnel_limit, runnel_set_deadline, runnel_volume};
