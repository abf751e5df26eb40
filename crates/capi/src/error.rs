//! Errors of calls: a number, and a message for people, of the calling thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest message, bytes: what a log line bears.
const MESSAGE_BYTES_MAX: usize = 1024;

thread_local! {
    /// What the last call of this thread that failed had to say.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());

    /// Whether this thread is in a call.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// A Linux error number.
    pub errno: c_int,
    /// What happened, to what, and what to do.
    pub message: String,
}

impl Failure {
    /// A failure with a message.
    pub fn new(errno: c_int, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }
}

/// Runs one call of the interface: a failure goes to `errno` and [`runnel_errmsg`], and `failed` to
/// the caller. A panic, which would be a defect of the library, becomes EIO.
pub(crate) fn call<T>(failed: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let outer = IN_CALL.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let failure = Failure::new(libc::EIO, format!("defect in librunnel, please report it: {}", said(&*panic)));
        // Dropping what somebody threw could throw again.
        std::mem::forget(panic);
        Err(failure)
    });
    IN_CALL.set(outer);
    match outcome {
        Ok(value) => value,
        Err(failure) => {
            tell(&failure);
            failed
        }
    }
}

/// Whether the present thread is in a call of the library.
pub(crate) fn in_call() -> bool {
    IN_CALL.try_with(Cell::get).unwrap_or(false)
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Leaves a failure with the calling thread.
fn tell(failure: &Failure) {
    let mut bytes: Vec<u8> = failure.message.bytes().map(|byte| if byte == 0 { b'?' } else { byte }).collect();
    let end = (0..=MESSAGE_BYTES_MAX).rev().find(|at| failure.message.is_char_boundary(*at)).unwrap_or(0);
    bytes.truncate(end);
    // Without zeros in it there is nothing to refuse; a thread that is ending has no message any
    // more.
    let message = CString::new(bytes).unwrap_or_default();
    let _ = MESSAGE.try_with(|kept| *kept.borrow_mut() = message);
    // SAFETY: the C library's own place for the error number of this thread, always valid.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// What the last call of this thread that failed had to say: what happened, to which file, and what
/// to do about it.
///
/// Never NULL; empty if nothing failed yet. Valid until the next call of this thread that fails, so
/// copy what you keep.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_errmsg() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests;
