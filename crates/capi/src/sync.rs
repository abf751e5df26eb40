//! Bringing changes to the server, and the end of a volume.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use stream::Lost;

use crate::error::{Failure, call};
use crate::file::FILES;
use crate::quiet::SignalsHeld;
use crate::volume::{Deadline, VOLUMES, Volume, runnel_volume};

/// Told of one change that did not get to the server and never will: the file, the bytes of the
/// change with what describes it, why, and the file of this device where the change lies now (NULL:
/// nowhere). The strings are valid during the call only. It must return, and may call the library.
pub type runnel_lost_callback = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        path: *const c_char,
        bytes: u64,
        reason: *const c_char,
        kept_as: *const c_char,
    ),
>;

/// What of the deadline is kept, at most, to write down what was not sent.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

const SYNC_GOES_ON: &str = "the changes are still being sent; a later sync tells the outcome";

/// Waits until everything that was written to any file of the volume is on the server's stable
/// storage.
///
/// Returns 0, or -1 with errno set as for runnel_fsync.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_sync(volume: *mut runnel_volume) -> c_int {
    call(-1, || {
        let volume = VOLUMES.get(volume)?;
        sync(&volume, volume.deadline()).map(|()| 0)
    })
}

fn sync(volume: &Volume, deadline: Deadline) -> Result<(), Failure> {
    volume.wait(deadline, volume.remote.name(), SYNC_GOES_ON, |remote, done| remote.sync_all(done))
}

/// Tells of the changes of this volume that were lost so far, the latest 64, those of earlier
/// processes that were in its folder of unsent changes among them. told may be NULL, to count them
/// only.
///
/// Returns their number, or -1 with errno EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_lost(volume: *mut runnel_volume, told: runnel_lost_callback, context: *mut c_void) -> c_int {
    call(-1, || {
        let lost = VOLUMES.get(volume)?.remote.status().lost;
        tell(&lost, told, context);
        Ok(c_int::try_from(lost.len()).unwrap_or(c_int::MAX))
    })
}

fn tell(lost: &[Lost], told: runnel_lost_callback, context: *mut c_void) {
    let Some(told) = told else { return };
    let text = |text: &str| CString::new(text.replace('\0', "?")).unwrap_or_default();
    for change in lost {
        let (path, reason) = (text(&change.path), text(&change.reason));
        let kept_as = change.kept_as.as_deref().map(text);
        let kept_as = kept_as.as_ref().map_or(std::ptr::null(), |kept_as| kept_as.as_ptr());
        // SAFETY: a function that the caller gave to be called so; all strings live until it
        // returns.
        unsafe { told(context, path.as_ptr(), change.bytes, reason.as_ptr(), kept_as) };
    }
}

/// Syncs everything, until the volume's deadline at most, and ends the volume: its files and calls
/// that wait in other threads fail from then on, and the handle must not be used again, whatever
/// the outcome. told (may be NULL) is called for changes that are lost by it.
///
/// Returns 0 if the server has everything, or -1 with errno set: ETIMEDOUT or another one of
/// runnel_sync if changes were left in the folder of unsent changes, to be sent when the volume is
/// connected again, or are lost; EINVAL or EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_disconnect(
    volume: *mut runnel_volume,
    told: runnel_lost_callback,
    context: *mut c_void,
) -> c_int {
    call(-1, || {
        let volume = VOLUMES.remove(volume)?;
        let deadline = volume.deadline();
        let synced = sync(&volume, deadline.earlier(SHUTDOWN_TIME.min(deadline.time() / 4)));
        let files = FILES.remove_all(|file| Arc::ptr_eq(&file.volume, &volume));
        let lost = end(&volume, deadline)?;
        drop(files);
        tell(&lost, told, context);
        let rest = match (&lost[..], &volume.unsent) {
            ([], _) if synced.is_ok() => return Ok(0),
            ([], Some(folder)) => {
                format!("what was not sent lies in {}, to be sent after the next connect", folder.display())
            }
            ([], None) => "nothing else was left unsent".to_owned(),
            ([first, ..], _) => format!("{} changes are lost: {}: {}", lost.len(), first.path, first.reason),
        };
        let (errno, message) =
            synced.map_or_else(|failure| (failure.errno, failure.message), |()| (libc::EIO, "synced".to_owned()));
        Err(Failure::new(errno, format!("{message}; disconnected: {rest}")))
    })
}

/// Shuts a volume down, which takes as long as this device's storage needs to keep what was not
/// sent; not longer than the deadline for the caller.
fn end(volume: &Arc<Volume>, deadline: Deadline) -> Result<Vec<Lost>, Failure> {
    let (sender, receiver) = channel();
    let remote = Arc::clone(&volume.remote);
    let thread = {
        let _held = SignalsHeld::new();
        std::thread::Builder::new().name("runnel-end".to_owned()).spawn(move || {
            // Nobody may wait for it any more.
            let _ = sender.send(remote.shutdown());
        })
    };
    match thread {
        Err(_) => Ok(volume.remote.shutdown()),
        Ok(_) => receiver.recv_timeout(deadline.left()).map_err(|_| {
            deadline
                .missed(volume.remote.name(), "the volume is still being shut down; its folders are in use meanwhile")
        }),
    }
}
