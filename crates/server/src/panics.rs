//! What a panic ends: one connection, one upload, one bundle, or one part of the upkeep; never the
//! server. A panic is a bug. The default hook prints where it happened, and a line of log says what
//! it ended.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Runs a future to its end; if it panics, it is dropped, and the error says why.
///
/// What outlives the future must bear that it stops anywhere: locks are taken by
/// [`crate::lock::locked`], and all that a connection holds goes with it.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(reason(&*panic))),
    })
    .await
}

/// The same for what blocks.
pub(crate) fn caught_blocking<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| reason(&*panic))
}

/// What a panic said.
fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text").to_owned()
}
