use std::ffi::CStr;

use super::*;

fn message() -> String {
    // SAFETY: never NULL, and a string.
    unsafe { CStr::from_ptr(runnel_errmsg()) }.to_string_lossy().into_owned()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().expect("a number")
}

#[test]
fn a_panic_is_an_error_of_one_call() {
    crate::quiet::no_words_on_panic();
    assert_eq!(call(-1, || panic!("of {}", "a defect")), -1);
    assert_eq!(errno(), libc::EIO);
    assert!(message().ends_with("of a defect"), "{}", message());
    assert_eq!(call(-1, || Ok(7)), 7);
}

#[test]
fn messages_belong_to_their_thread_and_fit_into_a_line_of_a_log() {
    let long = "ä\0".repeat(5000);
    assert_eq!(call(-1, || Err(Failure::new(libc::ENOENT, long.clone()))), -1);
    assert_eq!(errno(), libc::ENOENT);
    assert!(message().len() <= MESSAGE_BYTES_MAX && message().starts_with("ä?ä?"), "{}", message());
    assert_eq!(std::thread::spawn(message).join().expect("no panic"), "");
}
