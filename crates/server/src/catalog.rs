//! Which images there are, by which names, and which of them are open.
//!
//! An image gets into the store in two ways. An upload puts `images/<id>.rnl` and then points `tags/<name>/<tag>` to
//! it. A file `<name>.rnl` dropped by hand into the folder is published as `<name>:latest`; such files are looked at
//! anew on each lookup, so that they may come and go while the server runs. A tag wins over a dropped file.
//!
//! All calls here may read the disk and are made from blocking threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use image::{Metadata, Superblock};
use predict::ActionPredictor;
use store::{Listed, Object, Store, StoreError};
use units::ImageId;
use wire::ErrorCode;

use crate::blocks::{BlockCache, locked};
use crate::error::Failure;
use crate::learned;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::name::{LATEST, Name};
use crate::published::{ImageObject, Published};

/// Longest tag file we read: 64 digits and a line end, and room for a later version to add a word.
const TAG_BYTES_MAX: u64 = 256;

/// Entries in a listing; a longer one is cut and says so. One reply carries at most 1 MiB of JSON.
const LISTED_MAX: usize = 2048;

/// An image file, with the identity that its superblock gives it.
type Found = (ImageId, Arc<dyn Object>);

/// Images by name.
pub(crate) struct Catalog {
    store: Arc<dyn Store>,
    limits: image::Limits,
    predict: predict::Config,
    blocks: Arc<BlockCache>,
    metrics: Arc<Metrics>,
    log: Logger,
    open: Mutex<Open>,
    /// Held while an image is opened, so that clients that come together open it once.
    opening: Mutex<()>,
    images_open_max: usize,
}

#[derive(Default)]
struct Open {
    /// With the time of last use, by a counter.
    images: HashMap<ImageId, (u64, Arc<Published>)>,
    uses: u64,
}

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

impl Catalog {
    pub fn new(
        store: Arc<dyn Store>,
        config: &crate::Config,
        blocks: Arc<BlockCache>,
        metrics: Arc<Metrics>,
    ) -> Catalog {
        Catalog {
            store,
            limits: config.image_limits,
            predict: config.predict.clone(),
            blocks,
            metrics,
            log: config.log.clone(),
            open: Mutex::default(),
            opening: Mutex::new(()),
            images_open_max: config.images_open_max,
        }
    }

    /// Opens the image of this name, or finds it open. `true` if it was not open before.
    pub fn open(&self, name: &Name) -> Result<(Arc<Published>, bool), Failure> {
        let (id, object) = self.find(name)?;
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let _one_at_a_time = locked(&self.opening);
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let source = ImageObject(object.clone());
        let metadata = Metadata::open(&source, &self.limits)
            .map_err(|error| Failure::corrupt(format!("{name} cannot be opened: {error}")))?;
        if metadata.id() != id {
            return Err(Failure::corrupt(format!("{name} is not image {id} but {}", metadata.id())));
        }
        let learned = learned::load(&*self.store, id).unwrap_or_else(|reason| {
            self.log.warning(format_args!("what was learned of image {id} is lost: {reason}"));
            None
        });
        let (predictor, saved) = match learned {
            Some((actions, hash)) => (ActionPredictor::with_actions(actions, self.predict.clone()), Some(hash)),
            None => (ActionPredictor::new(id, self.predict.clone()), None),
        };
        let image = Published::new(metadata, object, predictor, self.blocks.clone(), self.metrics.clone());
        *locked(&image.saved) = saved;
        let image = Arc::new(image);
        self.keep(&image);
        Ok((image, true))
    }

    /// Images that are open now.
    pub fn opened(&self) -> Vec<Arc<Published>> {
        locked(&self.open).images.values().map(|(_, image)| image.clone()).collect()
    }

    fn lookup(&self, id: ImageId) -> Option<Arc<Published>> {
        let mut open = locked(&self.open);
        open.uses += 1;
        let uses = open.uses;
        let (used, image) = open.images.get_mut(&id)?;
        *used = uses;
        Some(image.clone())
    }

    /// Keeps `image` open, and lets go of the one used longest ago that nobody has open. What that one learned is saved.
    fn keep(&self, image: &Arc<Published>) {
        let mut gone = Vec::new();
        {
            let mut open = locked(&self.open);
            while open.images.len() >= self.images_open_max {
                let idle = open.images.iter().filter(|(_, (_, image))| Arc::strong_count(image) == 1);
                let Some(oldest) = idle.min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id) else { break };
                gone.extend(open.images.remove(&oldest));
            }
            open.uses += 1;
            let uses = open.uses;
            open.images.insert(image.id, (uses, image.clone()));
        }
        for (_, image) in gone {
            if let Err(error) = learned::save(&*self.store, &image, &self.metrics) {
                self.log.warning(format_args!("what was learned of image {} is not saved: {error}", image.id));
            }
        }
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
        let bytes = match self.store.get(&key, TAG_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let id = std::str::from_utf8(&bytes).ok().and_then(|text| ImageId::from_hex(text.trim_end()));
        id.map(Some).ok_or_else(|| Failure::corrupt(format!("{key} does not hold an image id")))
    }

    /// Points a tag to an image that is in the store.
    pub fn set_tag(&self, name: &str, tag: &str, id: ImageId) -> Result<(), StoreError> {
        self.store.put_atomic(&tag_key(name, tag), format!("{id}\n").as_bytes())?;
        // The upload may have put a whole file where a damaged one was: who has the image open reads the new one.
        if let (Some(image), Ok(object)) = (self.lookup(id), self.store.open(&image_key(id))) {
            image.replace_object(object);
        }
        Ok(())
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

    /// One warning for each image file that cannot be served: cut short, damaged, or no image at all. Reads the superblock
    /// of each.
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

    /// Every image file in the store, uploaded or dropped, with its identity: where an upload may find blocks.
    pub fn files(&self) -> Result<Vec<Arc<dyn Object>>, Failure> {
        let mut files = Vec::new();
        for entry in self.store.list("images")? {
            if let Listed::Object(key) = entry
                && let Ok(object) = self.store.open(&key)
            {
                files.push(object);
            }
        }
        files.extend(self.dropped_keys()?.iter().filter_map(|key| self.store.open(key).ok()));
        Ok(files)
    }

    /// What is published. Files that are no images are left out.
    pub fn listing(&self) -> Result<Listing, Failure> {
        let mut images = Vec::new();
        for (name, tag) in self.tags()? {
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

    /// Names and tags of uploads.
    fn tags(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut tags = Vec::new();
        for folder in self.store.list("tags")? {
            let Listed::Folder(folder) = folder else { continue };
            for entry in self.store.list(&folder)? {
                let Listed::Object(key) = entry else { continue };
                if let Some((name, tag)) = key.trim_start_matches("tags/").split_once('/')
                    && tags.len() <= LISTED_MAX
                {
                    tags.push((name.to_owned(), tag.to_owned()));
                }
            }
        }
        Ok(tags)
    }
}
