//! Extended attributes that are set and removed.

use std::sync::Arc;

use super::Plan;
use crate::disk::Kind;
use crate::record::Record;
use crate::xattrs::{XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrHow, Xattrs, always_fit, check_name, total_bytes};
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
        let file = self.attributes(path, base, from)?;
        let mut xattrs = self.xattrs(path, file)?;
        match (how, xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(VolumeError::Exists { path: attribute(path, name) }),
            (XattrHow::Replace, false) => return Err(VolumeError::NoAttribute { path: attribute(path, name) }),
            _ => {}
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
        let mut xattrs = self.xattrs(path, file)?;
        if Arc::make_mut(&mut xattrs).remove(name).is_none() {
            return Err(VolumeError::NoAttribute { path: attribute(path, name) });
        }
        self.records.push(Record::RemoveXattr { file, name: name.to_vec() });
        self.keep(file, xattrs);
        Ok(file)
    }

    /// Those that a file has by now.
    fn xattrs(&mut self, path: &VolumePath, file: FileId) -> Result<Arc<Xattrs>, VolumeError> {
        let node = &self.overlay.nodes[&file];
        if !matches!(node.kind, Kind::File | Kind::Folder) {
            let why = "only files and folders have extended attributes";
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
            node.xattrs = Some(xattrs);
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
