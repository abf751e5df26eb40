//! Mutexes that a panic does not close for good.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of somebody who held it: nobody who holds one leaves its value
/// half changed when it panics.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
