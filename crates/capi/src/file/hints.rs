//! Hints of a program on its files: what it will read, how much of the link that is worth, and who
//! else may change them.

use std::ffi::c_int;
use std::time::Duration;

use stream::{FileRef, LeaseKind, Share};

use super::{FILES, runnel_file};
use crate::error::{Failure, call};
use crate::raw;
use crate::volume::GOES_ON;

/// Ranges of one call at most.
const RANGES_MAX: usize = 1024;

/// The file gets what the others leave of the link. For runnel_rate.
pub const RUNNEL_RATE_REST: c_int = 0;
/// amount is percent of the link, 1 to 100. For runnel_rate.
pub const RUNNEL_RATE_PERCENT: c_int = 1;
/// amount is bytes per second, at least 1. For runnel_rate.
pub const RUNNEL_RATE_BYTES: c_int = 2;

/// Gives a lease back. For runnel_lease.
pub const RUNNEL_LEASE_NONE: c_int = 0;
/// Keeps exclusive leases of other devices away. For runnel_lease.
pub const RUNNEL_LEASE_SHARED: c_int = 1;
/// No other device may hold a lease of the file, or change it. For runnel_lease.
pub const RUNNEL_LEASE_EXCLUSIVE: c_int = 2;

/// A part of a file, bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct runnel_range {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

/// Says that a part of the file will be read soon: what of it is not here is sent by the server,
/// behind what calls wait for. A hint: it never waits, and what it asks for may be dropped when
/// memory is short.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_prefetch(file: *mut runnel_file, offset: u64, length: u64) -> c_int {
    call(-1, || {
        let file = FILES.get(file)?;
        file.volume.remote.hint(file.handle, &[(offset, length)]);
        Ok(0)
    })
}

/// As runnel_prefetch, for up to 1024 parts, which will be read in this order.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_prefetch_ranges(file: *mut runnel_file, ranges: *const runnel_range, count: usize) -> c_int {
    call(-1, || {
        if count > RANGES_MAX {
            return Err(Failure::new(libc::EINVAL, format!("{count} ranges, at most {RANGES_MAX}")));
        }
        let file = FILES.get(file)?;
        let ranges: Vec<(u64, u64)> =
            raw::copies(ranges, count)?.into_iter().map(|range| (range.offset, range.length)).collect();
        file.volume.remote.hint(file.handle, &ranges);
        Ok(0)
    })
}

/// Says how much of the link the file gets for what is sent ahead of reads, whatever its profile
/// says: what is RUNNEL_RATE_REST, RUNNEL_RATE_PERCENT or RUNNEL_RATE_BYTES. What a call waits for
/// comes first in any case.
///
/// Returns 0, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_rate(file: *mut runnel_file, what: c_int, amount: u64) -> c_int {
    call(-1, || {
        let share = match (what, amount) {
            (RUNNEL_RATE_REST, _) => Share::Rest,
            (RUNNEL_RATE_PERCENT, 1..=100) => Share::Percent(amount as u8),
            (RUNNEL_RATE_BYTES, 1..) => Share::Rate(amount),
            _ => return Err(Failure::new(libc::EINVAL, format!("a rate of kind {what} with amount {amount}"))),
        };
        let file = FILES.get(file)?;
        file.volume.remote.share(file.handle, share);
        Ok(0)
    })
}

/// Takes, renews or gives back a lease of the file for this device: kind is RUNNEL_LEASE_SHARED,
/// RUNNEL_LEASE_EXCLUSIVE or RUNNEL_LEASE_NONE. It ends by itself after the milliseconds, or a
/// while after the device is gone. Sync what was written under a lease before giving it back.
///
/// Returns how long it holds, milliseconds, which may be less than asked for (0 if it was given
/// back), or -1 with errno set: EBUSY (somebody else holds one), ETIMEDOUT, EINVAL, ...
#[unsafe(no_mangle)]
pub extern "C" fn runnel_lease(file: *mut runnel_file, kind: c_int, milliseconds: u32) -> i64 {
    call(-1, || {
        let kind = match kind {
            RUNNEL_LEASE_NONE => None,
            RUNNEL_LEASE_SHARED => Some(LeaseKind::Shared),
            RUNNEL_LEASE_EXCLUSIVE => Some(LeaseKind::Exclusive),
            _ => return Err(Failure::new(libc::EINVAL, format!("a lease of kind {kind}"))),
        };
        let file = FILES.get(file)?;
        let (of, time) = (FileRef::Handle(file.handle), Duration::from_millis(milliseconds.into()));
        let held: Duration = file
            .volume
            .wait(file.deadline(), &file.name, GOES_ON, |remote, done| remote.lease(of, kind, time, done))?;
        Ok(i64::try_from(held.as_millis()).unwrap_or(i64::MAX))
    })
}
