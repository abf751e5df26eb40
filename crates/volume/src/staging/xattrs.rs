//! Extended attributes that are set and removed, and access control lists, which go with the
//! permission bits: who sets one changes the other.

use std::sync::Arc;

use units::Acl;

use super::Plan;
use crate::disk::Kind;
use crate::record::Record;
use crate::xattrs::{
    ACL_ACCESS, ACL_DEFAULT, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrHow, Xattrs, acl_of, always_fit, check_name,
    is_acl, total_bytes,
};
use crate::{FileId, Seen, Transaction, VolumeError, VolumePath};

impl Plan<'_> {
    /// Plans that an attribute gets a value.
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
            let mode = self.overlay.nodes[&file].mode & 0o7000 | acl.mode();
            self.set_mode(file, mode);
        }
        if access.is_some_and(|acl| acl.is_mode()) {
            // The bits say it all.
            self.take_xattr(file, xattrs, name);
            return Ok(file);
        }
        Arc::make_mut(&mut xattrs).insert(name.to_vec(), value.to_vec());
        let what = "a file has no room for more extended attributes";
        if total_bytes(&xattrs) > XATTRS_BYTES_MAX {
            return Err(VolumeError::NoSpace { what });
        }
        if !always_fit(&xattrs) && !self.disk.fits_xattrs(&xattrs).map_err(|error| failed(path, error))? {
            return Err(VolumeError::NoSpace { what });
        }
        self.overlay.needs.bytes += (value.len() as u64).next_multiple_of(4096) + 2 * 4096;
        self.records.push(Record::SetXattr { file, name: name.to_vec(), value: value.to_vec() });
        self.keep(file, xattrs);
        Ok(file)
    }

    /// Plans that an attribute is removed.
    pub(super) fn remove_xattr(
        &mut self,
        (path, base): (&VolumePath, &Option<Seen>),
        name: &[u8],
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        check_name(path, name)?;
        let file = self.attributes(path, base, from)?;
        let xattrs = self.xattrs(path, name, file)?;
        if !self.take_xattr(file, xattrs, name) {
            return Err(VolumeError::NoAttribute { path: attribute(path, name) });
        }
        Ok(file)
    }

    /// Plans that the permission bits of a file change.
    pub(super) fn set_mode(&mut self, file: FileId, mode: u16) {
        if let Some(node) = self.overlay.nodes.get_mut(&file) {
            node.mode = mode;
        }
        self.records.push(Record::Mode { file, mode });
    }

    /// The permission bits of a file were changed: so is its access control list.
    pub(super) fn chmod_acl(&mut self, path: &VolumePath, file: FileId, mode: u16) -> Result<(), VolumeError> {
        if !self.overlay.nodes[&file].has_xattrs {
            return Ok(());
        }
        let mut xattrs = self.xattrs(path, ACL_ACCESS, file)?;
        let Some(acl) = xattrs.get(ACL_ACCESS).and_then(|value| Acl::parse(value)) else { return Ok(()) };
        let value = acl.with_mode(mode).to_bytes();
        Arc::make_mut(&mut xattrs).insert(ACL_ACCESS.to_vec(), value.clone());
        self.records.push(Record::SetXattr { file, name: ACL_ACCESS.to_vec(), value });
        self.keep(file, xattrs);
        Ok(())
    }

    /// Takes away an attribute; false if there is none.
    fn take_xattr(&mut self, file: FileId, mut xattrs: Arc<Xattrs>, name: &[u8]) -> bool {
        let removed = Arc::make_mut(&mut xattrs).remove(name).is_some();
        if removed {
            self.records.push(Record::RemoveXattr { file, name: name.to_vec() });
            self.keep(file, xattrs);
        }
        removed
    }

    /// Those that a file has by now.
    fn xattrs(&mut self, path: &VolumePath, name: &[u8], file: FileId) -> Result<Arc<Xattrs>, VolumeError> {
        let node = &self.overlay.nodes[&file];
        let (can, why) = match node.kind {
            kind if name == ACL_DEFAULT => (kind == Kind::Folder, "only folders have default access control lists"),
            kind if is_acl(name) => (kind != Kind::Symlink, "symbolic links have no access control lists"),
            kind => (matches!(kind, Kind::File | Kind::Folder), "only files and folders have extended attributes"),
        };
        if !can {
            return Err(VolumeError::Invalid { path: path.to_string(), why });
        }
        if !self.disk.has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "extended attributes" });
        }
        match (&node.xattrs, &node.disk) {
            (Some(known), _) => Ok(known.clone()),
            (None, Some(disk)) => Ok(Arc::new(self.disk.xattrs(disk).map_err(|error| failed(path, error))?)),
            (None, None) => Ok(Arc::default()),
        }
    }

    fn keep(&mut self, file: FileId, xattrs: Arc<Xattrs>) {
        if let Some(node) = self.overlay.nodes.get_mut(&file) {
            (node.has_xattrs, node.xattrs) = (true, Some(xattrs));
        }
    }
}

fn failed(path: &VolumePath, error: std::io::Error) -> VolumeError {
    VolumeError::io("reading extended attributes of", path.as_bytes(), error)
}

/// An attribute in an error.
fn attribute(path: &VolumePath, name: &[u8]) -> String {
    format!("the extended attribute {} of {path}", String::from_utf8_lossy(name).escape_debug())
}
