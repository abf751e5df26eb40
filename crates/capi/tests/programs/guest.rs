//! The library is a good guest in a process.

use std::ptr::null_mut;

use runnel::*;

use crate::support::{Server, c, message};

/// Signals of the application go to threads of the application.
#[test]
fn threads_of_the_library_take_no_signals() {
    let server = Server::start();
    let volume = runnel_connect(c(&server.url()).as_ptr(), std::ptr::null());
    assert!(!volume.is_null(), "{}", message());
    let mut seen = 0;
    for thread in std::fs::read_dir("/proc/self/task").expect("Linux") {
        // Threads of other tests come and go.
        let Ok(text) = std::fs::read_to_string(thread.expect("entry").path().join("status")) else { continue };
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).expect("there");
        if !field("Name:").starts_with("runnel-") {
            continue;
        }
        seen += 1;
        let blocked = u64::from_str_radix(field("SigBlk:"), 16).expect("a mask");
        let held = [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGPIPE];
        for signal in held {
            assert!(blocked & (1 << (signal - 1)) != 0, "{}: signal {signal}", field("Name:"));
        }
    }
    assert!(seen > 0, "no thread of the library has its name");
    assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
}
