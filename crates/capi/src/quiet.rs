//! Threads without signals, and nothing on standard error: the library disturbs no process that it
//! is in.

use std::mem::MaybeUninit;
use std::sync::Once;

/// How threads of ours are named: those of the client and of the stream begin like this.
const THREADS: &str = "runnel-";

/// Holds all signals back in this thread, and so in those that it starts meanwhile, until dropped.
pub(crate) struct SignalsHeld(libc::sigset_t);

impl SignalsHeld {
    /// Holds them back from now on.
    pub fn new() -> SignalsHeld {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset fills `all`, and pthread_sigmask, which cannot fail for SIG_SETMASK,
        // `before`.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        SignalsHeld(before)
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the mask that this thread had; the type is neither Send nor used in another
        // thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// From now on a panic in a thread of ours prints nothing. A call that panics says so by its error.
pub(crate) fn no_words_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let ours = std::thread::current().name().is_some_and(|name| name.starts_with(THREADS));
            if !ours && !crate::error::in_call() {
                before(panic);
            }
        }));
    });
}
