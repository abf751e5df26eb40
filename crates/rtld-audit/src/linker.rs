//! The functions that the dynamic linker calls.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_long, c_uint};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::report;
use crate::wanted::Wanted;

/// The newest version of the interface that this is written for (glibc 2.35). What is used of it is
/// the same in version 1.
const LAV_CURRENT: c_uint = 2;

/// The first fields of `struct link_map` (link.h).
#[repr(C)]
pub struct LinkMap {
    address: usize,
    name: *const c_char,
}

/// What the variable says; written once, before the program runs.
struct State {
    is_ready: AtomicBool,
    wanted: UnsafeCell<MaybeUninit<Wanted>>,
    /// Which libraries this process has reported.
    reported: AtomicU64,
}

// SAFETY: `wanted` is written before `is_ready` is set, and only read afterwards.
unsafe impl Sync for State {}

static STATE: State = State {
    is_ready: AtomicBool::new(false),
    wanted: UnsafeCell::new(MaybeUninit::uninit()),
    reported: AtomicU64::new(0),
};

// What the standard library would have asked for.
#[cfg(panic = "abort")]
#[link(name = "c")]
// SAFETY: declares nothing.
unsafe extern "C" {}

/// Nothing here panics; without the standard library the compiler wants to be told what would
/// happen.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: takes nothing and does not return.
    unsafe { libc::abort() }
}

/// The handshake: the version of the interface that is used; 0 has the linker unload this library.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    // SAFETY: the name ends with NUL; the program does not run yet, so nothing changes the
    // environment.
    let value = unsafe { libc::getenv(c"RUNNEL_AUDIT".as_ptr()) };
    if value.is_null() || STATE.is_ready.load(Ordering::Acquire) {
        return 0;
    }
    // SAFETY: getenv gave a string that ends with NUL.
    let text = unsafe { CStr::from_ptr(value) };
    let Some(wanted) = Wanted::parse(text.to_bytes()) else { return 0 };
    // SAFETY: the linker calls this once, before there are threads, and nobody reads it before the
    // store below.
    unsafe { (*STATE.wanted.get()).write(wanted) };
    STATE.is_ready.store(true, Ordering::Release);
    version.min(LAV_CURRENT)
}

/// An object was mapped, by the program's start or by dlopen(3). Returns 0: its symbols are none of
/// our business, and its calls are bound as without an auditor.
///
/// # Safety
/// As rtld-audit(7) says: `map` is null or leads to the object's link map.
#[unsafe(no_mangle)]
// SAFETY: the linker keeps the contract of rtld-audit(7).
pub unsafe extern "C" fn la_objopen(map: *const LinkMap, _: c_long, _: *mut usize) -> c_uint {
    if !STATE.is_ready.load(Ordering::Acquire) {
        return 0;
    }
    // SAFETY: written before `is_ready` was set, and never again.
    let wanted = unsafe { (*STATE.wanted.get()).assume_init_ref() };
    // SAFETY: null or a link map by the contract, whose name is null or a string.
    let name = unsafe { map.as_ref() }.map(|map| map.name).filter(|name| !name.is_null());
    // The program itself has no name, and what the kernel maps has no slash in it.
    // SAFETY: not null, so a string that ends with NUL.
    let Some(name) = name.filter(|name| unsafe { CStr::from_ptr(*name) }.to_bytes().contains(&b'/')) else { return 0 };
    // SAFETY: as above.
    let Some((device, inode)) = (unsafe { report::identity(name) }) else { return 0 };
    if let Some(position) = wanted.position(device, inode) {
        let bit = 1 << position;
        if STATE.reported.load(Ordering::Relaxed) & bit == 0 && report::send(wanted, device, inode) {
            STATE.reported.fetch_or(bit, Ordering::Relaxed);
        }
    }
    0
}
