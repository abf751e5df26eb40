//! Pointers of C programs: strings, buffers and structs. All that can be checked is checked here,
//! and nothing else in the crate follows a pointer.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr;

use crate::error::Failure;

/// Longest text that is taken, bytes: PATH_MAX of Linux.
const TEXT_BYTES_MAX: usize = 4096;

/// Largest size of a struct that is believed, bytes: far beyond what one will ever have.
const STRUCT_BYTES_MAX: usize = 4096;

/// Copies a string that ends with a zero.
///
/// # Errors
/// EINVAL: NULL. ENAMETOOLONG: no zero within 4096 bytes.
pub(crate) fn bytes_of(text: *const c_char, what: &str) -> Result<Vec<u8>, Failure> {
    if text.is_null() {
        return Err(Failure::new(libc::EINVAL, format!("NULL where {what} is needed")));
    }
    // SAFETY: not NULL, and the header asks for a string that ends with a zero; strnlen stops
    // there, or at the limit.
    let length = unsafe { libc::strnlen(text, TEXT_BYTES_MAX) };
    if length == TEXT_BYTES_MAX {
        return Err(Failure::new(libc::ENAMETOOLONG, format!("{what} has more than {} bytes", TEXT_BYTES_MAX - 1)));
    }
    // SAFETY: strnlen found a zero at `length`, so these bytes are the caller's string.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
}

/// Copies a string that has to be UTF-8.
///
/// # Errors
/// As [`bytes_of`]; EINVAL: not UTF-8.
pub(crate) fn text_of(text: *const c_char, what: &str) -> Result<String, Failure> {
    String::from_utf8(bytes_of(text, what)?)
        .map_err(|error| Failure::new(libc::EINVAL, format!("{what} is not valid UTF-8: {error}")))
}

/// What is to be written.
///
/// # Errors
/// EINVAL: NULL with a length, or more than half of the address space.
pub(crate) fn buffer<'a>(bytes: *const u8, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check_buffer(bytes, length)?;
    // SAFETY: not NULL and no wild length; the header asks for `length` readable bytes that nobody
    // changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(bytes, length) })
}

/// Copies an array. Any bytes must be a valid `T`.
///
/// # Errors
/// EINVAL: NULL with a count.
pub(crate) fn copies<T: Copy>(items: *const T, count: usize) -> Result<Vec<T>, Failure> {
    check_buffer(items.cast(), count.saturating_mul(size_of::<T>()))?;
    // SAFETY: not NULL unless there are none, and the header asks for `count` items.
    Ok((0..count).map(|at| unsafe { items.add(at).read_unaligned() }).collect())
}

/// Looks whether there is a buffer that what is read can go to.
///
/// # Errors
/// EINVAL: NULL with a length, or more than half of the address space.
pub(crate) fn check_buffer(bytes: *const u8, length: usize) -> Result<(), Failure> {
    if length > isize::MAX as usize {
        return Err(Failure::new(libc::EINVAL, format!("a length of {length} bytes")));
    }
    if bytes.is_null() && length > 0 {
        return Err(Failure::new(libc::EINVAL, "NULL where a buffer is needed"));
    }
    Ok(())
}

/// Copies `from` to a buffer that [`check_buffer`] accepted for at least as many bytes.
pub(crate) fn fill(buffer: *mut u8, from: &[u8]) {
    if !from.is_empty() {
        // SAFETY: the caller checked the buffer for at least this length; our bytes are never the
        // caller's.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), buffer, from.len()) };
    }
}

/// Writes an answer to where the caller wants it, if it wants it.
pub(crate) fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, and the header asks for room for the struct; it may lie unaligned, and
        // is overwritten unread.
        unsafe { place.write_unaligned(value) };
    }
}

/// Fails for a NULL where an answer has to go.
///
/// # Errors
/// EINVAL.
pub(crate) fn check_place<T>(place: *mut T, what: &str) -> Result<(), Failure> {
    if place.is_null() { Err(Failure::new(libc::EINVAL, format!("NULL where {what} is needed"))) } else { Ok(()) }
}

/// Copies the name of a file of this machine.
///
/// # Errors
/// As [`bytes_of`].
pub(crate) fn path_of(text: *const c_char, what: &str) -> Result<PathBuf, Failure> {
    Ok(PathBuf::from(OsString::from_vec(bytes_of(text, what)?)))
}

/// Reads a struct whose first field is its size, as far as the caller has it, over its defaults.
/// Any bytes must be a valid `T`.
///
/// # Errors
/// EINVAL: a size that was never set, or something set that only a later library knows.
pub(crate) fn get_sized<T: Copy>(place: *const T, defaults: T, what: &str) -> Result<T, Failure> {
    if place.is_null() {
        return Ok(defaults);
    }
    // SAFETY: not NULL, and the header says that the struct begins with its size.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        let text = format!("a {what} of {size} bytes; fill it with {what}_init(&it, sizeof it) first");
        return Err(Failure::new(libc::EINVAL, text));
    }
    for at in size_of::<T>()..size {
        // SAFETY: within the size that the caller states.
        if unsafe { place.cast::<u8>().add(at).read() } != 0 {
            let text = format!("{what} sets what this library ({}) does not know yet", env!("CARGO_PKG_VERSION"));
            return Err(Failure::new(libc::EINVAL, text));
        }
    }
    let mut value = defaults;
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are the caller's by its own word, and no more than a `T` has; the
    // callers of this function use structs of numbers and raw pointers only, for which all bytes
    // are valid.
    unsafe { ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Writes as much of a struct as the caller has room for, and zeros behind it.
///
/// # Errors
/// EINVAL: no sensible size.
pub(crate) fn put_sized<T: Copy>(place: *mut T, value: T, size: usize) -> Result<(), Failure> {
    if !(size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Err(Failure::new(libc::EINVAL, format!("a size of {size} bytes; pass sizeof the struct")));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller states that `size` bytes are there, of which no more than a `T` has are
    // copied as bytes.
    unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), place.cast::<u8>(), known) };
    // SAFETY: the rest of the `size` bytes.
    unsafe { ptr::write_bytes(place.cast::<u8>().add(known), 0, size - known) };
    Ok(())
}
