//! Which images a store has, and under which names.
//!
//! An image gets into the store in two ways. An upload puts `images/<id>.rnl` and then points
//! `tags/<name>/<tag>` to it. A file `<name>.rnl` that somebody puts into the folder is published
//! as `<name>:latest`; each lookup looks at such files again, so that they may come and go while
//! the server runs. A tag wins over such a file.

use std::sync::Arc;

use image::Superblock;
use store::{Listed, Object, Store, StoreError};
use units::ImageId;
use wire::ErrorCode;

use crate::error::Failure;
use crate::log::Logger;
use crate::name::{LATEST, Name};
use crate::published::ImageObject;

/// Longest tag file we read: 64 digits and a line end, and room for a later version to add a word.
const TAG_BYTES_MAX: u64 = 256;

/// Longest tag file that is replaced: a damaged one may be of any kind.
const REPLACED_BYTES_MAX: u64 = 1 << 20;

/// How often a switch of a tag is tried. With each try that fails, a switch of somebody else
/// succeeded.
const SWITCHES_MAX: usize = 64;

/// Entries in a listing; a longer one is cut and says so. One reply carries at most 1 MiB of JSON.
const LISTED_MAX: usize = 2048;

/// Tags, and images, that an upload looks at for blocks that it need not send, or for what was
/// learned of them.
const RELATIVES_MAX: usize = 256;

/// An image file, with the identity that its superblock gives it.
type Found = (ImageId, Arc<dyn Object>);

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListedImage {
    /// The name.
    pub name: String,
    /// The tag.
    pub tag: String,
    /// The image, as 64 hexadecimal digits.
    pub id: String,
    /// Length of the image file in bytes.
    pub file_bytes: u64,
    /// It is a file dropped into the folder, not an upload.
    pub dropped_in: bool,
}

/// The published images.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Listing {
    /// By name, then tag.
    pub images: Vec<ListedImage>,
    /// There are more than are listed.
    pub truncated: bool,
}

/// The key of an uploaded image.
pub(crate) fn image_key(id: ImageId) -> String {
    format!("images/{id}.rnl")
}

/// The key of a tag.
pub(crate) fn tag_key(name: &str, tag: &str) -> String {
    format!("tags/{name}/{tag}")
}

/// The image in what was read of a tag.
fn id_in(key: &str, read: Result<Vec<u8>, StoreError>) -> Result<Option<ImageId>, Failure> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let id = std::str::from_utf8(&bytes).ok().and_then(|text| ImageId::from_hex(text.trim_end()));
    id.map(Some).ok_or_else(|| Failure::corrupt(format!("{key} does not hold an image id")))
}

/// The names of a store. Nothing is kept in memory.
pub(crate) struct Names {
    store: Arc<dyn Store>,
    limits: image::Limits,
    log: Logger,
}

impl Names {
    pub fn new(store: Arc<dyn Store>, limits: image::Limits, log: Logger) -> Names {
        Names { store, limits, log }
    }

    /// The image and its file that a name stands for now.
    pub fn find(&self, name: &Name) -> Result<Found, Failure> {
        let missing =
            || Failure::new(ErrorCode::NotFound, format!("there is no image {name}; `runnel images` lists them"));
        match name {
            Name::Id(id) => match self.store.open(&image_key(*id)) {
                Ok(object) => Ok((*id, object)),
                Err(error) if error.is_not_found() => self.dropped_with_id(*id)?.ok_or_else(missing),
                Err(error) => Err(error.into()),
            },
            Name::Tag { name: stem, tag } => match self.tag(stem, tag)? {
                Some(id) => Ok((id, self.uploaded(id)?)),
                None if tag == LATEST => self.dropped(&format!("{stem}.rnl"))?.ok_or_else(missing),
                None => Err(missing()),
            },
        }
    }

    /// Opens an image that a tag points to.
    fn uploaded(&self, id: ImageId) -> Result<Arc<dyn Object>, Failure> {
        match self.store.open(&image_key(id)) {
            // A tag may also name a dropped file, if somebody moved the image there.
            Err(error) if error.is_not_found() => match self.dropped_with_id(id)? {
                Some((_, object)) => Ok(object),
                None => Err(Failure::corrupt(format!("the tag points to image {id}, which is not in the store"))),
            },
            other => Ok(other?),
        }
    }

    /// The image a tag points to, if there is such a tag.
    pub fn tag(&self, name: &str, tag: &str) -> Result<Option<ImageId>, Failure> {
        let key = tag_key(name, tag);
        id_in(&key, self.store.get(&key, TAG_BYTES_MAX))
    }

    /// The same as the store has it now, or an error: a store that is away gives no older one.
    pub fn tag_now(&self, name: &str, tag: &str) -> Result<Option<ImageId>, Failure> {
        let key = tag_key(name, tag);
        id_in(&key, self.store.get_versioned(&key, TAG_BYTES_MAX).map(|(bytes, _)| bytes))
    }

    /// The images that the tags of a name point to.
    pub fn tagged(&self, name: &str) -> Vec<ImageId> {
        let tags = self.store.list(&format!("tags/{name}")).unwrap_or_default();
        let tags = tags.into_iter().take(RELATIVES_MAX).filter_map(|entry| match entry {
            Listed::Object(key) => key.rsplit_once('/').map(|(_, tag)| tag.to_owned()),
            Listed::Folder(_) => None,
        });
        tags.filter_map(|tag| self.tag(name, &tag).ok().flatten()).collect()
    }

    /// Points a tag to an image that is in the store. Other servers of the store may switch it at
    /// the same time: each switch replaces what its server has read, so the tag goes from one to
    /// the next, and means what the last one wrote.
    pub fn set_tag(&self, name: &str, tag: &str, id: ImageId) -> Result<(), StoreError> {
        let (key, text) = (tag_key(name, tag), format!("{id}\n"));
        for _ in 0..SWITCHES_MAX {
            let found = match self.store.get_versioned(&key, REPLACED_BYTES_MAX) {
                Ok((_, version)) => Some(version),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            };
            match self.store.put_if(&key, text.as_bytes(), found.as_ref()) {
                Err(error) if error.is_changed() => {}
                done => return done.map(drop),
            }
        }
        Err(StoreError::Changed { key })
    }

    /// A dropped file, with the identity that its superblock gives it now.
    fn dropped(&self, key: &str) -> Result<Option<Found>, Failure> {
        let object = match self.store.open(key) {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let superblock = Superblock::read(&ImageObject(object.clone()), &self.limits)
            .map_err(|error| Failure::corrupt(format!("{key} cannot be opened: {error}")))?;
        Ok(Some((superblock.id, object)))
    }

    /// The keys of files dropped into the top folder.
    pub fn dropped_keys(&self) -> Result<Vec<String>, Failure> {
        let listed = self.store.list("")?.into_iter();
        let keys = listed.filter_map(|entry| match entry {
            Listed::Object(key) if key.strip_suffix(".rnl").is_some_and(Name::is_name) => Some(key),
            _ => None,
        });
        Ok(keys.collect())
    }

    /// The images of files dropped into the top folder, of those that can be read.
    pub fn dropped_ids(&self) -> Result<Vec<ImageId>, Failure> {
        let keys = self.dropped_keys()?;
        Ok(keys.iter().filter_map(|key| Some(self.dropped(key).ok()??.0)).collect())
    }

    /// One warning for each image file that cannot be served: cut short, damaged, or no image at
    /// all; and one for each tag that points to no image. Reads the superblock of each image.
    pub fn warn_of_unusable(&self) {
        let dropped = self.dropped_keys().unwrap_or_default().into_iter();
        let uploaded = self.store.list("images").unwrap_or_default().into_iter().filter_map(|entry| match entry {
            Listed::Object(key) if key.ends_with(".rnl") => Some(key),
            _ => None,
        });
        for key in dropped.chain(uploaded) {
            if let Err(failure) = self.dropped(&key) {
                self.log.warning(format_args!("not served: {failure}"));
            }
        }
        for (name, tag) in self.tags(LISTED_MAX + 1).unwrap_or_default() {
            let found = self.tag(&name, &tag).and_then(|id| id.map(|id| self.uploaded(id)).transpose());
            if let Err(failure) = found {
                self.log.warning(format_args!("not served: {name}:{tag}: {failure}"));
            }
        }
    }

    fn dropped_with_id(&self, id: ImageId) -> Result<Option<Found>, Failure> {
        for key in self.dropped_keys()? {
            // A broken neighbour must not hide the image that was asked for.
            if let Ok(Some((found, object))) = self.dropped(&key)
                && found == id
            {
                return Ok(Some((found, object)));
            }
        }
        Ok(None)
    }

    /// A name for which `may` holds and that stands for this image now.
    pub fn name_of(&self, id: ImageId, may: impl Fn(&str) -> bool) -> Result<Option<String>, Failure> {
        for (name, tag) in self.tags(LISTED_MAX + 1)? {
            let text = format!("{name}:{tag}");
            // A broken neighbour must not hide the image that was asked for.
            if may(&text) && self.tag(&name, &tag).ok().flatten() == Some(id) {
                return Ok(Some(text));
            }
        }
        for key in self.dropped_keys()? {
            let text = format!("{}:{LATEST}", key.trim_end_matches(".rnl"));
            if may(&text) && matches!(self.dropped(&key), Ok(Some((found, _))) if found == id) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Keys of all image files in the store, where an upload of `name` may find blocks: those of
    /// its own tags first, which are likely to share most.
    pub fn keys_for(&self, name: &str) -> Result<Vec<String>, Failure> {
        let mut keys = Vec::new();
        let mut add = |key: String| {
            if !keys.contains(&key) {
                keys.push(key);
            }
        };
        for tag in self.store.list(&format!("tags/{name}"))?.into_iter().take(RELATIVES_MAX) {
            if let Listed::Object(key) = tag
                && let Some((_, tag)) = key.rsplit_once('/')
                && let Ok(Some(id)) = self.tag(name, tag)
            {
                add(image_key(id));
            }
        }
        let uploaded = self.store.list("images")?.into_iter().filter_map(|entry| match entry {
            Listed::Object(key) => Some(key),
            Listed::Folder(_) => None,
        });
        uploaded.chain(self.dropped_keys()?).take(RELATIVES_MAX).for_each(add);
        Ok(keys)
    }

    /// What is published. Files that are no images are left out.
    pub fn listing(&self) -> Result<Listing, Failure> {
        let mut images = Vec::new();
        for (name, tag) in self.tags(LISTED_MAX + 1)? {
            if let Some(id) = self.tag(&name, &tag).ok().flatten()
                && let Ok(file_bytes) = self.store.len(&image_key(id))
            {
                images.push(ListedImage { name, tag, id: id.to_string(), file_bytes, dropped_in: false });
            }
        }
        for key in self.dropped_keys()? {
            let name = key.trim_end_matches(".rnl").to_owned();
            let hidden = images.iter().any(|image| image.name == name && image.tag == LATEST);
            if let (false, Ok(Some((id, object)))) = (hidden, self.dropped(&key)) {
                let file_bytes = object.len();
                images.push(ListedImage {
                    name,
                    tag: LATEST.to_owned(),
                    id: id.to_string(),
                    file_bytes,
                    dropped_in: true,
                });
            }
        }
        images.sort_by(|a, b| (&a.name, &a.tag).cmp(&(&b.name, &b.tag)));
        let truncated = images.len() > LISTED_MAX;
        images.truncate(LISTED_MAX);
        Ok(Listing { images, truncated })
    }

    /// Names and tags of uploads, at most so many.
    pub fn tags(&self, most: usize) -> Result<Vec<(String, String)>, Failure> {
        let mut tags = Vec::new();
        for folder in self.store.list("tags")? {
            let Listed::Folder(folder) = folder else { continue };
            for entry in self.store.list(&folder)? {
                let Listed::Object(key) = entry else { continue };
                if let Some((name, tag)) = key.trim_start_matches("tags/").split_once('/')
                    && tags.len() < most
                {
                    tags.push((name.to_owned(), tag.to_owned()));
                }
            }
        }
        Ok(tags)
    }
}
