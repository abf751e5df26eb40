//! Servers that do not answer, die, or have other clients: what calls say, and that they come back.

use std::ptr::{null, null_mut};

use runnel::*;

use crate::support::{Server, c, errno, message};

fn connect(server: &Server, change: impl FnOnce(&mut runnel_options)) -> *mut runnel_volume {
    let mut options = std::mem::MaybeUninit::<runnel_options>::uninit();
    assert_eq!(runnel_options_init(options.as_mut_ptr(), size_of::<runnel_options>()), 0);
    // SAFETY: filled by the call.
    let mut options = unsafe { options.assume_init() };
    change(&mut options);
    let volume = runnel_connect(c(&server.url()).as_ptr(), &options);
    assert!(!volume.is_null(), "{}", message());
    volume
}

fn open(volume: *mut runnel_volume, path: &str, flags: i32) -> *mut runnel_file {
    let file = runnel_open(volume, c(path).as_ptr(), flags, 0o644);
    assert!(!file.is_null(), "{}", message());
    file
}

fn write(file: *mut runnel_file, bytes: &[u8], at: i64) {
    assert_eq!(runnel_pwrite(file, bytes.as_ptr().cast(), bytes.len(), at), bytes.len() as isize, "{}", message());
}

#[test]
fn calls_come_back_at_their_deadline_and_what_was_asked_goes_on() {
    let server = Server::start();
    std::fs::write(server.data().join("old"), [7; 10_000]).expect("written");
    let volume = connect(&server, |_| ());
    let (old, new) = (open(volume, "old", libc::O_RDONLY), open(volume, "new", libc::O_RDWR | libc::O_CREAT));
    write(new, b"changes", 0);
    server.freeze();
    assert_eq!(runnel_set_deadline(volume, 50), 0);
    let mut buffer = [0_u8; 10_000];
    let place = buffer.as_mut_ptr().cast();
    for call in [
        &|| runnel_pread(old, place, 10_000, 0) as i64,
        &|| runnel_read(old, place, 10_000) as i64,
        &|| runnel_fsync(new).into(),
        &|| runnel_mkdir(volume, c("folder").as_ptr(), 0o755).into(),
        &|| runnel_sync(volume).into(),
        &|| -i64::from(runnel_open(volume, c("old").as_ptr(), libc::O_RDONLY, 0).is_null()),
        &|| -i64::from(runnel_opendir(volume, c("").as_ptr()).is_null()),
        &|| runnel_lease(old, RUNNEL_LEASE_SHARED, 1000),
    ] as [&dyn Fn() -> i64; 8]
    {
        assert_eq!((call(), errno()), (-1, libc::ETIMEDOUT), "{}", message());
        assert!(message().contains("no answer within 0.050 s"), "{}", message());
    }
    // Its own deadline goes before.
    assert_eq!(runnel_set_file_deadline(new, 0), 0);
    assert_eq!((runnel_fsync(new), errno()), (-1, libc::ETIMEDOUT));
    assert_eq!(runnel_set_file_deadline(new, 60_000), 0);
    server.thaw();
    assert_eq!(runnel_set_deadline(volume, 60_000), 0);
    assert_eq!(runnel_fsync(new), 0, "{}", message());
    assert_eq!(std::fs::read(server.data().join("new")).expect("there"), b"changes");
    assert_eq!(runnel_read(old, place, 10_000), 10_000, "the position was not moved: {}", message());
    assert_eq!(buffer, [7; 10_000]);
    assert_eq!(runnel_sync(volume), 0, "{}", message());
    let mut info = runnel_info::default();
    assert_eq!(runnel_stat(volume, c("folder").as_ptr(), &mut info), 0, "made all the same: {}", message());
    assert_eq!((runnel_close(old), runnel_close(new)), (0, 0));
    assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
}

#[test]
fn whoever_waits_for_another_reader_waits_for_the_own_deadline_only() {
    let server = Server::start();
    std::fs::write(server.data().join("old"), [7; 1000]).expect("written");
    let volume = connect(&server, |_| ());
    let file = open(volume, "old", libc::O_RDONLY);
    server.freeze();
    let handle = file.addr();
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0_u8; 1000];
        sender.send(()).expect("heard");
        let got = runnel_read(std::ptr::without_provenance_mut(handle), buffer.as_mut_ptr().cast(), 1000);
        (got, buffer)
    });
    receiver.recv().expect("told");
    // Whichever of the two claims the position: this one comes back, and reads nothing.
    runnel_set_file_deadline(file, 20);
    let mut buffer = [0_u8; 1000];
    assert_eq!((runnel_read(file, buffer.as_mut_ptr().cast(), 1000), errno()), (-1, libc::ETIMEDOUT));
    server.thaw();
    let (got, read) = reader.join().expect("no panic");
    assert!(got == -1 || (got == 1000 && read == [7; 1000]), "{got}");
    assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
}

#[test]
fn stale_writers_are_told() {
    let server = Server::start();
    std::fs::write(server.data().join("f"), b"first").expect("written");
    let (one, two) = (connect(&server, |_| ()), connect(&server, |_| ()));
    let (mine, theirs) = (open(one, "f", libc::O_RDWR), open(two, "f", libc::O_RDWR));
    write(mine, b"MINE", 0);
    write(theirs, b"THEIRS", 0);
    assert_eq!(runnel_fsync(theirs), 0, "{}", message());
    assert_eq!((runnel_fsync(mine), errno()), (-1, libc::ESTALE), "{}", message());
    assert!(message().starts_with("f: "), "{}", message());
    runnel_close(mine);
    let again = open(one, "f", libc::O_RDWR);
    let mut buffer = [0_u8; 16];
    assert_eq!(runnel_read(again, buffer.as_mut_ptr().cast(), 16), 6, "{}", message());
    assert_eq!(&buffer[..6], b"THEIRS");
    write(again, b"MINE", 0);
    assert_eq!(runnel_close(again), 0, "{}", message());
    assert_eq!(std::fs::read(server.data().join("f")).expect("there"), b"MINERS");
    // A lease keeps the others from changing it.
    let again = open(one, "f", libc::O_RDWR);
    assert!(runnel_lease(again, RUNNEL_LEASE_EXCLUSIVE, 60_000) > 0, "{}", message());
    assert_eq!((runnel_lease(theirs, RUNNEL_LEASE_SHARED, 60_000), errno()), (-1, libc::EBUSY), "{}", message());
    for volume in [one, two] {
        assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
    }
}

#[test]
fn what_a_dead_server_did_not_get_comes_with_the_next_connection() {
    let mut server = Server::start();
    let folder = tempfile::tempdir().expect("folder");
    let unsent = c(folder.path().join("unsent").to_str().expect("UTF-8"));
    let volume = connect(&server, |options| options.unsent_folder = unsent.as_ptr());
    let file = open(volume, "f", libc::O_RDWR | libc::O_CREAT);
    write(file, b"kept", 0);
    server.kill();
    assert_eq!(runnel_set_deadline(volume, 2000), 0);
    assert_eq!((runnel_disconnect(volume, None, null_mut()), errno()), (-1, libc::ETIMEDOUT), "{}", message());
    assert!(message().contains(folder.path().to_str().expect("UTF-8")), "{}", message());
    server.restart();
    let volume = connect(&server, |options| options.unsent_folder = unsent.as_ptr());
    assert_eq!(runnel_sync(volume), 0, "{}", message());
    assert_eq!(std::fs::read(server.data().join("f")).expect("there"), b"kept");
    assert_eq!(runnel_disconnect(volume, None, null_mut()), 0, "{}", message());
}

#[test]
fn what_is_lost_is_told() {
    unsafe extern "C" fn told(
        context: *mut std::ffi::c_void,
        path: *const std::ffi::c_char,
        bytes: u64,
        _reason: *const std::ffi::c_char,
        kept_as: *const std::ffi::c_char,
    ) {
        // SAFETY: as the header promises, and as the test passes it.
        let (all, path) = unsafe { (&mut *context.cast::<Vec<_>>(), std::ffi::CStr::from_ptr(path)) };
        all.push((path.to_string_lossy().into_owned(), bytes, kept_as.is_null()));
    }
    let mut server = Server::start();
    let volume = connect(&server, |_| ());
    let file = open(volume, "f", libc::O_RDWR | libc::O_CREAT);
    write(file, b"gone", 0);
    server.kill();
    assert_eq!(runnel_set_deadline(volume, 500), 0);
    let mut all: Vec<(String, u64, bool)> = Vec::new();
    assert_eq!(runnel_disconnect(volume, Some(told), (&raw mut all).cast()), -1);
    let [(path, bytes, true)] = &all[..] else { panic!("{all:?}") };
    assert!(path == "f" && *bytes >= 4, "{all:?}");
    assert!(message().contains("lost"), "{}", message());
}

#[test]
fn nobody_there_is_an_error_in_time() {
    let mut server = Server::start();
    let url = c(&server.url());
    server.kill();
    let mut options = std::mem::MaybeUninit::<runnel_options>::uninit();
    assert_eq!(runnel_options_init(options.as_mut_ptr(), size_of::<runnel_options>()), 0);
    // SAFETY: filled by the call.
    let mut options = unsafe { options.assume_init() };
    options.deadline_ms = 200;
    assert!(runnel_connect(url.as_ptr(), &options).is_null());
    assert!([libc::ETIMEDOUT, libc::EIO].contains(&errno()), "{}", message());
}

#[test]
fn wrong_names_are_told_at_once() {
    let server = Server::start();
    let url = c(&server.url().replace("/data", "/date"));
    assert!(runnel_connect(url.as_ptr(), null()).is_null());
    assert_eq!(errno(), libc::ENOENT, "{}", message());
    assert!(message().contains("date"), "{}", message());
}
