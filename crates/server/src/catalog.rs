//! Which images there are, by which names, and which of them are open.
//!
//! An image gets into the store in two ways. An upload puts `images/<id>.rnl` and then points `tags/<name>/<tag>` to
//! it. A file `<name>.rnl` dropped by hand into the folder is published as `<name>:latest`; such files are looked at
//! anew on each lookup, so that they may come and go while the server runs. A tag wins over a dropped file.
//!
//! All calls here may read the disk and are made from blocking threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use image::{Metadata, Superblock};
use predict::ActionPredictor;
use store::{Listed, Object, Store, StoreError};
use units::ImageId;
use wire::ErrorCode;

use crate::account::{Account, Reserved};
use crate::blocks::BlockCache;
use crate::budget::{Budget, Room};
use crate::error::Failure;
use crate::learned;
use crate::learning::Learning;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::name::{LATEST, Name};
use crate::peer::{Owner, Peer};
use crate::published::{ImageObject, Published};

/// Longest tag file we read: 64 digits and a line end, and room for a later version to add a word.
const TAG_BYTES_MAX: u64 = 256;

/// Entries in a listing; a longer one is cut and says so. One reply carries at most 1 MiB of JSON.
const LISTED_MAX: usize = 2048;

/// Tags, and images, that an upload looks at for blocks that it need not send.
const RELATIVES_MAX: usize = 256;

/// Time that an upload waits for a slot or for memory: longer than a client that sends too little
/// keeps them once somebody waits.
pub(crate) const UPLOAD_PATIENCE: Duration = Duration::from_secs(10);

/// Uploads that lost their connection, whose memory can be had.
pub(crate) trait Interrupted: Send + Sync {
    /// Drops the one that has been kept for longest, of this peer if one is given; false if there is none.
    fn drop_oldest(&self, of: Option<Peer>) -> bool;
}

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
    /// Memory of metadata: of open images, and of uploads.
    pub memory: Account,
    /// What uploads may take of it.
    upload_memory: Budget,
    /// Memory of what is learned of open images.
    pub learned: Account,
    open: Mutex<HashMap<ImageId, Arc<Published>>>,
    /// Held while an image is opened, so that clients that come together open it once.
    opening: Mutex<()>,
    images_open_max: usize,
}

/// Uploads have this part of the memory of metadata. An upload keeps what it has for as long as its
/// client likes, so images can be opened whatever uploads do.
const UPLOADS_PART: usize = 2;

/// Memory of an upload's metadata; it goes back on drop.
pub(crate) struct UploadMemory {
    /// Of what uploads may take.
    share: Room,
    reserved: Reserved,
}

impl UploadMemory {
    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.share.shrink_to(bytes);
        self.reserved.shrink_to(bytes);
    }

    /// Whose it is.
    pub fn peer(&self) -> Peer {
        self.share.owner().peer
    }
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
        let shares = config.shares();
        Catalog {
            store,
            limits: config.images.limits,
            predict: config.learning.predict.clone(),
            blocks,
            metrics,
            log: config.log.clone(),
            memory: Account::new(shares.metadata),
            upload_memory: Budget::memory(shares.metadata / UPLOADS_PART),
            learned: Account::new(shares.learned),
            open: Mutex::default(),
            opening: Mutex::new(()),
            images_open_max: config.images.open_max,
        }
    }

    /// Opens the image of this name, or finds it open. `true` if it was not open before. Room for it is made of `uploads`,
    /// then of other images.
    pub fn open(&self, name: &Name, uploads: &dyn Interrupted) -> Result<(Arc<Published>, bool), Failure> {
        let (id, object) = self.find(name)?;
        self.open_object(id, object, uploads)
    }

    /// Opens an image again that a client has open and that was closed meanwhile to make room. `object` is the file as it
    /// was then: what lies there by its name may be another one by now.
    pub fn open_again(
        &self,
        id: ImageId,
        object: Arc<dyn Object>,
        uploads: &dyn Interrupted,
    ) -> Result<(Arc<Published>, bool), Failure> {
        // An upload may have put a whole file where a damaged one was.
        let object = self.store.open(&image_key(id)).unwrap_or(object);
        self.open_object(id, object, uploads)
    }

    fn open_object(
        &self,
        id: ImageId,
        object: Arc<dyn Object>,
        uploads: &dyn Interrupted,
    ) -> Result<(Arc<Published>, bool), Failure> {
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let _one_at_a_time = locked(&self.opening);
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let source = ImageObject(object.clone());
        let failed = |error| Failure::corrupt(format!("image {id} cannot be opened: {error}"));
        let superblock = Superblock::read(&source, &self.limits).map_err(failed)?;
        if superblock.id != id {
            return Err(Failure::corrupt(format!("the file of image {id} holds image {}", superblock.id)));
        }
        let (held, opening) = (superblock.metadata_memory_bytes(), superblock.opening_memory_bytes());
        let mut reserved = self.reserve((held + opening) as usize, uploads)?;
        let metadata = Metadata::open(&source, &self.limits).map_err(failed)?;
        reserved.shrink_to((held as usize).max(metadata.memory_bytes()));
        let learned = learned::load(&*self.store, id).unwrap_or_else(|reason| {
            self.log.warning(format_args!("what was learned of image {id} is lost: {reason}"));
            None
        });
        let (predictor, saved) = match learned {
            Some((actions, hash)) => (ActionPredictor::with_actions(actions, self.predict.clone()), Some(hash)),
            None => (ActionPredictor::new(id, self.predict.clone()), None),
        };
        let (blocks, metrics) = (self.blocks.clone(), self.metrics.clone());
        let predictor = Learning::new(predictor, |bytes| self.reserve_learned(bytes));
        let image = Published::new(metadata, object, predictor, blocks, metrics, reserved);
        *locked(&image.saved) = saved;
        let image = Arc::new(image);
        self.keep(&image);
        Ok((image, true))
    }

    /// Images that are open now.
    pub fn opened(&self) -> Vec<Arc<Published>> {
        locked(&self.open).values().cloned().collect()
    }

    /// Takes memory for metadata. If there is too little, uploads that lost their connection are dropped, then images are
    /// closed: clients that have them open get them back with their next request.
    pub fn reserve(&self, bytes: usize, uploads: &dyn Interrupted) -> Result<Reserved, Failure> {
        loop {
            if let Some(reserved) = self.memory.take(bytes) {
                return Ok(reserved);
            }
            if !uploads.drop_oldest(None) && !self.close_oldest() {
                let all = self.memory.bytes_max() >> 20;
                return Err(Failure::new(
                    ErrorCode::Busy,
                    format!(
                        "the server's memory for metadata ({all} MiB) is used up; try again later, or \
                         give the server a larger --memory"
                    ),
                ));
            }
        }
    }

    /// Takes memory for what was learned of an image. If there is too little, images are closed,
    /// and if that is not enough it is less.
    fn reserve_learned(&self, bytes: usize) -> Reserved {
        loop {
            if let Some(reserved) = self.learned.take(bytes) {
                return reserved;
            }
            if !self.close_oldest() {
                return self.learned.take_up_to(bytes);
            }
        }
    }

    /// The part for an upload of the memory that uploads may take. If its peer has its share,
    /// interrupted uploads of this peer are dropped, else others too; then it waits until clients
    /// that send too little give way.
    pub async fn upload_share(&self, owner: Owner, bytes: usize, uploads: &dyn Interrupted) -> Result<Room, Failure> {
        let most = self.upload_memory.most();
        if bytes > most {
            let (needed, most) = (bytes.div_ceil(1 << 20), most >> 20);
            return Err(Failure::new(
                ErrorCode::TooLarge,
                format!(
                    "the image's metadata takes {needed} MiB of memory, this server has {most} MiB for uploads; \
                     it takes more with a larger --memory"
                ),
            ));
        }
        loop {
            if let Some(share) = self.upload_memory.try_take(owner, bytes) {
                return Ok(share);
            }
            let of = self.upload_memory.is_over_share(owner, bytes).then_some(owner.peer);
            if !uploads.drop_oldest(of) {
                let share = self.upload_memory.take_soon(owner, bytes, UPLOAD_PATIENCE).await;
                let text = "the memory for uploads is in use; try again later, or give the server a larger --memory";
                let busy = || Failure::new(ErrorCode::Busy, text);
                return share.ok_or_else(busy);
            }
        }
    }

    /// Memory for an upload that has its share of it.
    pub fn reserve_upload(&self, share: Room, uploads: &dyn Interrupted) -> Result<UploadMemory, Failure> {
        let reserved = self.reserve(share.amount(), uploads)?;
        Ok(UploadMemory { share, reserved })
    }

    /// Whether an upload waits for memory whose peer has none of it.
    pub fn is_upload_memory_lacking(&self) -> bool {
        self.upload_memory.is_lacking()
    }

    fn lookup(&self, id: ImageId) -> Option<Arc<Published>> {
        let image = locked(&self.open).get(&id)?.clone();
        image.note_use();
        Some(image)
    }

    /// Keeps `image` open.
    fn keep(&self, image: &Arc<Published>) {
        while locked(&self.open).len() >= self.images_open_max && self.close_oldest() {}
        locked(&self.open).insert(image.id, image.clone());
    }

    /// Closes the image used longest ago; what it learned is saved. Its memory comes back when nobody is at work with it.
    /// False if none is open.
    fn close_oldest(&self) -> bool {
        let oldest = {
            let mut open = locked(&self.open);
            let oldest = open.values().min_by_key(|image| image.last_use()).map(|image| image.id);
            oldest.and_then(|id| open.remove(&id))
        };
        let Some(image) = oldest else { return false };
        if let Err(error) = learned::save(&*self.store, &image, &self.metrics) {
            self.log.warning(format_args!("what was learned of image {} is not saved: {error}", image.id));
        }
        true
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

    /// Keys of all image files in the store, where an upload of `name` may find blocks: those of its own tags first, which
    /// are likely to share most.
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
