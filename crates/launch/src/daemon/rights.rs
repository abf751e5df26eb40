//! The rights that a thread uses for files.
//!
//! The daemon is root, but acts for others: it reads and writes a folder of plans with the rights
//! of its owner, and checks and fetches files with the rights of the program that was started. So a
//! plan cannot make it open a file that the program could not open itself, and the kernel enforces
//! this (setfsuid(2)). Other privileges stay: probes need them.

use std::io;

use nix::unistd::{Gid, Uid, getegid, geteuid, getgroups, setfsgid, setfsuid};

/// The identity of a thread for the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Rights {
    /// The rights that the daemon was started with.
    ///
    /// # Errors
    /// Those of `getgroups(2)`.
    pub(crate) fn own() -> io::Result<Rights> {
        let groups = getgroups()?.into_iter().map(Gid::as_raw).collect();
        Ok(Rights { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups })
    }

    /// Gives these rights to the calling thread, and to those that it starts from now on; other
    /// threads keep theirs.
    ///
    /// # Errors
    /// This process may not change its rights; then the thread must not touch anybody's files.
    pub(crate) fn assume(&self) -> io::Result<()> {
        let groups: Vec<rustix::thread::Gid> = self.groups.iter().copied().map(rustix::thread::Gid::from_raw).collect();
        // Not that of the C library, which changes all threads.
        rustix::thread::set_thread_groups(&groups)?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setfsgid(gid);
        setfsuid(uid);
        // They report no error; a second call returns what is in force.
        let is_set = setfsgid(gid) == gid && setfsuid(uid) == uid;
        if is_set { Ok(()) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_thread_with_the_rights_of_another_opens_what_that_one_may_open() {
        if !geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |rights: &Rights| rights.assume().map(|()| File::open(file.path()).map(drop).map_err(|e| e.kind()));
        let own = Rights::own().unwrap();
        let other = Rights { uid: 65534, gid: 65534, groups: vec![] };
        let member = Rights { groups: vec![own.gid], ..other.clone() };
        let denied = Err(io::ErrorKind::PermissionDenied);
        let found = std::thread::scope(|scope| {
            let tried = || -> io::Result<Vec<_>> {
                let mut found = vec![open(&other)?, open(&own)?];
                std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640))?;
                found.extend([open(&other)?, open(&member)?]);
                // A thread started by one without rights has none either.
                found.push(std::thread::scope(|inner| {
                    other.assume().unwrap();
                    inner.spawn(|| File::open(file.path()).map(drop).map_err(|error| error.kind())).join().unwrap()
                }));
                Ok(found)
            };
            scope.spawn(tried).join().unwrap()
        });
        match found {
            // A container without CAP_SETGID.
            Err(error) => eprintln!("skipped: {error}"),
            Ok(found) => assert_eq!(found, [denied, Ok(()), denied, Ok(()), denied]),
        }
        assert!(File::open(file.path()).is_ok(), "this thread is still who it was");
    }
}
