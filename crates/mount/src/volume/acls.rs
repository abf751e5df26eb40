//! Access control lists: new files get the default lists of their directory.
//!
//! The kernel reads the lists as extended attributes and obeys them. The server keeps a list and
//! the permission bits of its file consistent. This applies only where owners are kept: elsewhere
//! all files belong to one user, whom no list would restrict.

use std::sync::Arc;

use fuse::{Create, Errno, INodeNo, Make, Request};
use stream::{
    ACL_ACCESS, ACL_DEFAULT, Done, ErrorKind, OpenHow, Opened, Owner, StreamError, Xattr, XattrChange, XattrHow, Xattrs,
};
use units::{Acl, Token};

use super::state::State;
use crate::errno;

/// The bits that a umask clears.
const UMASK_BITS: u16 = 0o777;

/// The bits of the owning group, which are the mask of a file with a list: until it has the list,
/// they would be the group's.
const GROUP_BITS: u16 = 0o070;

/// The mode and lists of a new file.
pub(super) struct Made {
    /// Permission bits (07777).
    pub mode: u16,
    /// Its lists.
    pub xattrs: Vec<Xattr>,
}

/// The requested permissions of a new file, and the umask. With access control lists the kernel has
/// not applied it.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    mode: u32,
    umask: u32,
    is_folder: bool,
}

impl Wanted {
    pub fn folder(make: Make) -> Wanted {
        Wanted { mode: make.mode, umask: make.umask, is_folder: true }
    }

    pub fn file(make: Make) -> Wanted {
        Wanted { is_folder: false, ..Wanted::folder(make) }
    }

    pub fn opened(create: Create) -> Wanted {
        Wanted { mode: create.mode, umask: create.umask, is_folder: false }
    }

    /// Applies the default list of the directory; without one, the umask.
    fn in_folder(self, default: Option<&Acl>) -> Made {
        let mode = (self.mode & 0o7777) as u16;
        let Some(default) = default else {
            return Made { mode: mode & !(self.umask as u16 & UMASK_BITS), xattrs: Vec::new() };
        };
        let (acl, mode) = default.inherited(mode);
        let access = (!acl.is_mode()).then_some((ACL_ACCESS, acl.to_bytes()));
        let inherits = self.is_folder.then(|| (ACL_DEFAULT, default.to_bytes()));
        let xattrs = access.into_iter().chain(inherits);
        let xattrs = xattrs.map(|(name, value)| Xattr { name: name.to_vec(), value: value.into() });
        Made { mode, xattrs: xattrs.collect() }
    }
}

/// Calls `then` with the mode and lists of a file that is made in a directory.
pub(super) fn made_in(
    state: &Arc<State>,
    folder: INodeNo,
    wanted: Wanted,
    then: impl FnOnce(Result<Made, Errno>) + Send + 'static,
) {
    if !state.has_acls() {
        // The kernel has applied the umask.
        return then(Ok(Made { mode: (wanted.mode & 0o7777) as u16, xattrs: Vec::new() }));
    }
    let path = match state.path(folder) {
        Ok(path) => path,
        Err(error) => return then(Err(error)),
    };
    let done: Done<Xattrs> = Box::new(move |found| {
        let made = found.map(|xattrs| {
            let default = xattrs.iter().find(|xattr| xattr.name == ACL_DEFAULT);
            wanted.in_folder(default.and_then(|default| Acl::parse(&default.value)).as_ref())
        });
        then(made.map_err(|error| errno::of_stream(&error)));
    });
    state.volume.folder_xattrs(&path, done);
}

/// The maker of a file, kept until its lists are known.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    pub owner: Option<Owner>,
    pub token: Token,
}

impl Maker {
    pub fn new(state: &State, request: &Request) -> Maker {
        Maker { owner: state.maker(request), token: state.token(request) }
    }
}

/// Opens a file for a request, and makes it with its lists if it is not there.
pub(super) fn open_file(
    state: &Arc<State>,
    unique: u64,
    path: &[u8],
    how: OpenHow,
    (made, token): (Made, Token),
    done: Done<Opened>,
) {
    let (mode, volume) = (made.mode, state.volume_for(unique));
    let Some(access) = made.xattrs.into_iter().find(|xattr| xattr.name == ACL_ACCESS) else {
        let how = OpenHow { create: Some(mode), ..how };
        return volume.open_file(path, how, token, done);
    };
    // Only a file that this call made gets the list.
    let new = OpenHow { create: Some(mode & !GROUP_BITS), exclusive: true, ..how };
    let (opening, again) = (state.clone(), path.to_vec());
    let then: Done<Opened> = Box::new(move |opened| match opened {
        Ok(opened) => give(&opening, opened, access, mode, done),
        Err(error) if error.kind() == ErrorKind::Exists && !how.exclusive => {
            let there = OpenHow { create: None, ..how };
            opening.volume.open_file(&again, there, token, done);
        }
        Err(error) => done(Err(error)),
    });
    volume.open_file(path, new, token, then);
}

/// Gives a new file its list, and with it its bits.
fn give(state: &Arc<State>, opened: Opened, access: Xattr, mode: u16, done: Done<Opened>) {
    let closing = state.clone();
    let given: Done<()> = Box::new(move |given: Result<(), StreamError>| match given {
        Ok(()) => {
            let info = stream::FileInfo { mode, has_xattrs: true, ..opened.info };
            done(Ok(Opened { info, ..opened }));
        }
        Err(error) => {
            closing.volume.close(opened.handle, Box::new(drop));
            done(Err(error));
        }
    });
    state.volume.change_xattr(opened.handle, ACL_ACCESS, XattrChange::Set(access.value, XattrHow::Any), given);
}
