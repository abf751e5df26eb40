//! Nothing that a program passes by mistake is worse than an error; and the library is a good guest.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

use runnel::*;
use units::{Rng, SplitMix64};

use crate::support::{Server, c, errno, message};

/// Handles that were never given out, or belong to something else: errors, whatever is done with them.
#[test]
fn prop_wild_handles_are_errors() {
    let server = Server::start();
    let volume = runnel_connect(c(&server.url()).as_ptr(), std::ptr::null());
    let file = runnel_open(volume, c("f").as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
    let folder = runnel_opendir(volume, c("").as_ptr());
    assert!(!file.is_null() && !folder.is_null(), "{}", message());
    let known = [volume.addr(), file.addr(), folder.addr()];
    let mut rng = SplitMix64(1);
    let mut info = runnel_info::default();
    let mut buffer = [0_u8; 16];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    for _ in 0..20_000 {
        let near = known[rng.below(3) as usize].wrapping_add(rng.below(9) as usize).wrapping_sub(4);
        let wild = [rng.next_u64() as usize, near, rng.below(64) as usize][rng.below(3) as usize];
        if known.contains(&wild) {
            continue;
        }
        let outcome = match rng.below(8) {
            0 => runnel_read(without_provenance_mut(wild), place, 16) as i64,
            1 => runnel_close(without_provenance_mut(wild)).into(),
            2 => runnel_disconnect(without_provenance_mut(wild), None, null_mut()).into(),
            3 => runnel_closedir(without_provenance_mut(wild)).into(),
            4 => runnel_fstat(without_provenance_mut(wild), &mut info).into(),
            5 => runnel_sync(without_provenance_mut(wild)).into(),
            6 => runnel_lseek(without_provenance_mut(wild), 0, libc::SEEK_SET),
            _ => runnel_prefetch(without_provenance_mut(wild), 0, 1).into(),
        };
        assert_eq!(outcome, -1);
        assert!([libc::EBADF, libc::EINVAL].contains(&errno()), "{}", message());
    }
    assert_eq!((runnel_closedir(folder), runnel_close(file)), (0, 0), "{}", message());
    assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
}

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
