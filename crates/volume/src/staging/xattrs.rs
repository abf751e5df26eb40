//! Stages changes of extended attributes and access control lists. An access control list and the
//! permission bits change together.

use std::sync::Arc;

use units::Acl;

use super::Staging;
use crate::disk::Kind;
use crate::xattrs::{
    ACL_ACCESS, ACL_DEFAULT, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrHow, Xattrs, acl_of, always_fit, check_name,
    is_acl, total_bytes,
};
use crate::{FileId, Seen, Transaction, VolumeError, VolumePath};

impl Staging<'_> {
    /// Stages that an attribute gets a value.
    pub(super) fn set_xattr(
        &mut self,
        (path, base): (&VolumePath, &Option<Seen>),
        (name, value): (&[u8], &[u8]),
        how: XattrHow,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        check_name(path, name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            let (found, limit) = (value.len() as u64, XATTR_VALUE_BYTES_MAX as u64);
            return Err(VolumeError::TooLarge { what: "bytes of an extended attribute", found, limit });
        }
        let acl = acl_of(path, name, value)?;
        let file = self.attributes(path, base, from)?;
        let mut xattrs = self.xattrs(path, name, file)?;
        match (how, xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(VolumeError::Exists { path: attribute(path, name) }),
            (XattrHow::Replace, false) => return Err(VolumeError::NoAttribute { path: attribute(path, name) }),
            _ => {}
        }
        let access = acl.filter(|_| name == ACL_ACCESS);
        if let Some(acl) = &access {
            let mode = self.tree.node(file).inode.mode & 0o7000 | acl.mode();
            self.tree.set_mode(file, mode);
        }
        if access.is_some_and(|acl| acl.is_mode()) {
            // The bits say it all.
            self.tree.remove_xattr(file, xattrs, name);
            return Ok(file);
        }
        Arc::make_mut(&mut xattrs).insert(name.to_vec(), value.to_vec());
        let what = "a file has no room for more extended attributes";
        if total_bytes(&xattrs) > XATTRS_BYTES_MAX {
            return Err(VolumeError::NoSpace { what });
        }
        if !always_fit(&xattrs) && !self.tree.disk().fits_xattrs(&xattrs).map_err(|error| failed(path, error))? {
            return Err(VolumeError::NoSpace { what });
        }
        self.tree.need_bytes((value.len() as u64).next_multiple_of(4096) + 2 * 4096);
        self.tree.set_xattr(file, xattrs, name, value.to_vec());
        Ok(file)
    }

    /// Stages that an attribute is removed.
    pub(super) fn remove_xattr(
        &mut self,
        (path, base): (&VolumePath, &Option<Seen>),
        name: &[u8],
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        check_name(path, name)?;
        let file = self.attributes(path, base, from)?;
        let xattrs = self.xattrs(path, name, file)?;
        if !self.tree.remove_xattr(file, xattrs, name) {
            return Err(VolumeError::NoAttribute { path: attribute(path, name) });
        }
        Ok(file)
    }

    /// The permission bits of a file were changed: so is its access control list.
    pub(super) fn chmod_acl(&mut self, path: &VolumePath, file: FileId, mode: u16) -> Result<(), VolumeError> {
        if !self.tree.node(file).may_have_xattrs() {
            return Ok(());
        }
        let mut xattrs = self.xattrs(path, ACL_ACCESS, file)?;
        let Some(acl) = xattrs.get(ACL_ACCESS).and_then(|value| Acl::parse(value)) else { return Ok(()) };
        let value = acl.with_mode(mode).to_bytes();
        Arc::make_mut(&mut xattrs).insert(ACL_ACCESS.to_vec(), value.clone());
        self.tree.set_xattr(file, xattrs, ACL_ACCESS, value);
        Ok(())
    }

    /// Those that a file has by now.
    fn xattrs(&mut self, path: &VolumePath, name: &[u8], file: FileId) -> Result<Arc<Xattrs>, VolumeError> {
        let node = &self.tree.node(file);
        let (can, why) = match node.kind() {
            kind if name == ACL_DEFAULT => (kind == Kind::Folder, "only folders have default access control lists"),
            kind if is_acl(name) => (kind != Kind::Symlink, "symbolic links have no access control lists"),
            kind => (matches!(kind, Kind::File | Kind::Folder), "only files and folders have extended attributes"),
        };
        if !can {
            return Err(VolumeError::Invalid { path: path.to_string(), why });
        }
        if !self.tree.disk().has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "extended attributes" });
        }
        self.tree.xattrs(file).map_err(|error| failed(path, error))
    }
}

fn failed(path: &VolumePath, error: std::io::Error) -> VolumeError {
    VolumeError::io("reading extended attributes of", path.as_bytes(), error)
}

/// An attribute in an error.
fn attribute(path: &VolumePath, name: &[u8]) -> String {
    format!("the extended attribute {} of {path}", String::from_utf8_lossy(name).escape_debug())
}
