//! Whose the published images and tags are: who was the first to publish one, its bytes or its tag
//! count for. What somebody else has published again costs nobody more room.
//!
//! The store has an empty object for each image and tag of a principal, beside them. One whose
//! image or tag is not there any more counts for nothing.

use std::sync::Arc;

use store::{Listed, Store};
use units::ImageId;
use wire::ErrorCode;

use crate::access::Usage;
use crate::catalog::image_key;
use crate::catalog::names::tag_key;
use crate::error::Failure;

/// A name and a tag.
type Place<'a> = (&'a str, &'a str);

/// The principal that publishes an image.
#[derive(Clone, Debug)]
pub(crate) struct Publisher(pub Arc<Usage>);

impl Publisher {
    /// Refuses an image of a file of so many bytes that exceeds a quota under this name and tag.
    /// Blocks.
    pub fn check(&self, store: &dyn Store, at: Place<'_>, id: ImageId, file_bytes: u64) -> Result<(), Failure> {
        let (usage, limits) = (&self.0, self.0.limits());
        if limits.tags.is_some() && !exists(store, &tag_key(at.0, at.1)) {
            usage.check("tags", limits.tags, self.tags(store)?, 1, ErrorCode::NoSpace)?;
        }
        if limits.stored_bytes.is_some() && !exists(store, &image_key(id)) {
            let used = self.stored_bytes(store)?;
            usage.check("stored_bytes", limits.stored_bytes, used, file_bytes, ErrorCode::NoSpace)?;
        }
        Ok(())
    }

    /// Notes whose the image and the tag are that are about to be published, if they are new.
    /// Blocks.
    pub fn note(&self, store: &dyn Store, (name, tag): Place<'_>, id: ImageId) -> Result<(), Failure> {
        if !exists(store, &image_key(id)) {
            store.put_atomic(&format!("{}/{id}", self.folder("images")), b"")?;
        }
        if !exists(store, &tag_key(name, tag)) {
            store.put_atomic(&format!("{}/{name}/{tag}", self.folder("tags")), b"")?;
        }
        Ok(())
    }

    /// Names of principals may begin with a dot, and parts of keys may not.
    fn folder(&self, what: &str) -> String {
        format!("published/p-{}/{what}", self.0.principal())
    }

    fn stored_bytes(&self, store: &dyn Store) -> Result<u64, Failure> {
        let ids = objects(store, &self.folder("images"))?.into_iter().filter_map(|id| ImageId::from_hex(&id));
        Ok(ids.filter_map(|id| store.len(&image_key(id)).ok()).sum())
    }

    fn tags(&self, store: &dyn Store) -> Result<u64, Failure> {
        let mut count = 0;
        for listed in store.list(&self.folder("tags"))? {
            let Listed::Folder(folder) = listed else { continue };
            let name = folder.rsplit('/').next().unwrap_or_default();
            let tags = objects(store, &folder)?;
            count += tags.iter().filter(|tag| exists(store, &tag_key(name, tag))).count() as u64;
        }
        Ok(count)
    }
}

fn exists(store: &dyn Store, key: &str) -> bool {
    store.len(key).is_ok()
}

/// The last parts of the keys of the objects in a folder.
fn objects(store: &dyn Store, folder: &str) -> Result<Vec<String>, Failure> {
    let last = |listed| match listed {
        Listed::Object(key) => key.rsplit('/').next().map(str::to_owned),
        Listed::Folder(_) => None,
    };
    Ok(store.list(folder)?.into_iter().filter_map(last).collect())
}
