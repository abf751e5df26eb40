//! Handles. A C program holds a number that looks like a pointer and is never followed, so a handle
//! that was closed, or never was one, is an error and nothing worse.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Failure;

/// Handles of one kind at most: a leak shows before the memory is gone.
const HANDLES_MAX: usize = 65_536;

/// The two lowest bits tell the kind; what `malloc` returns has zeros there.
const KIND_BITS: u32 = 2;

/// The process that the library works in; threads do not survive a fork.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// All open handles of one kind. A number is used again only after all others, at least 2^30 of
/// them.
pub(crate) struct Handles<T> {
    kind: usize,
    noun: &'static str,
    open: RwLock<Option<Open<T>>>,
}

struct Open<T> {
    last: usize,
    handles: HashMap<usize, Arc<T>>,
}

impl<T> Handles<T> {
    /// No handles yet. `kind` is 1 to 3, another one for each table; `noun` is for messages.
    pub const fn new(kind: usize, noun: &'static str) -> Handles<T> {
        Handles { kind, noun, open: RwLock::new(None) }
    }

    /// A new handle.
    ///
    /// # Errors
    /// EMFILE; EPERM in a forked child.
    pub fn insert<P>(&self, value: Arc<T>) -> Result<*mut P, Failure> {
        same_process()?;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let Open { last, handles } = open.get_or_insert_with(|| Open { last: 0, handles: HashMap::new() });
        if handles.len() >= HANDLES_MAX {
            return Err(Failure::new(libc::EMFILE, format!("{HANDLES_MAX} handles of a {} are open", self.noun)));
        }
        let number = loop {
            *last = last.wrapping_add(1) & (usize::MAX >> KIND_BITS);
            if *last != 0 && !handles.contains_key(last) {
                break *last;
            }
        };
        handles.insert(number, value);
        Ok(std::ptr::without_provenance_mut(number << KIND_BITS | self.kind))
    }

    /// What a handle stands for.
    ///
    /// # Errors
    /// EINVAL: NULL. EBADF: not open. EPERM: in a forked child.
    pub fn get<P>(&self, handle: *mut P) -> Result<Arc<T>, Failure> {
        let number = self.number(handle)?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let found = open.as_ref().and_then(|open| open.handles.get(&number)).cloned();
        found.ok_or_else(|| self.not_open())
    }

    /// Ends a handle; says what it stood for.
    ///
    /// # Errors
    /// As [`Handles::get`].
    pub fn remove<P>(&self, handle: *mut P) -> Result<Arc<T>, Failure> {
        let number = self.number(handle)?;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let found = open.as_mut().and_then(|open| open.handles.remove(&number));
        found.ok_or_else(|| self.not_open())
    }

    /// Ends all handles that `which` names, and says what they stood for.
    pub fn remove_all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let handles = open.as_mut().map(|open| &mut open.handles);
        handles.map_or_else(Vec::new, |all| all.extract_if(|_, value| which(value)).map(|(_, value)| value).collect())
    }

    fn number<P>(&self, handle: *mut P) -> Result<usize, Failure> {
        same_process()?;
        if handle.is_null() {
            return Err(Failure::new(libc::EINVAL, format!("NULL where a {} is needed", self.noun)));
        }
        let kind = handle.addr() & ((1 << KIND_BITS) - 1);
        if kind == self.kind { Ok(handle.addr() >> KIND_BITS) } else { Err(self.not_open()) }
    }

    fn not_open(&self) -> Failure {
        let text = format!("this {} is not open: it was closed already, or the handle is of something else", self.noun);
        Failure::new(libc::EBADF, text)
    }
}

/// Fails in a forked child: the threads of the library stayed with the parent, and its locks may be
/// held for ever.
///
/// # Errors
/// EPERM.
pub(crate) fn same_process() -> Result<(), Failure> {
    let own = std::process::id();
    match PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(known) if known == own => Ok(()),
        Err(_) => {
            let text = "librunnel was used before this process was forked and does not work here; exec a program, or connect after the fork only";
            Err(Failure::new(libc::EPERM, text))
        }
    }
}

#[cfg(test)]
mod tests;
