//! Which images are open, and the memory that they take.
//!
//! All calls here may read the disk, so only blocking threads make them.

pub(crate) mod names;
mod relatives;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use image::{Metadata, Superblock};
use predict::ActionPredictor;
use profile::ActionSet;
use store::{Object, Store, StoreError};
use units::ImageId;
use wire::ErrorCode;

use crate::account::{Account, Reserved};
use crate::blocks::BlockCache;
use crate::budget::{Budget, Room};
use crate::clock::unix_seconds;
use crate::collect::{self, Collection};
use crate::config::ImageConfig;
use crate::error::{Failure, ServerError};
use crate::learning::Learning;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::name::Name;
use crate::peer::{Owner, Peer};
use crate::published::{ImageObject, Published};
use crate::signed::SignedNames;
use crate::timestamp::TimestampSigner;
use crate::uses::Uses;
use crate::{learned, published};
pub use names::{ListedImage, Listing};
pub(crate) use names::{Names, image_key};

/// Time that an upload waits for a slot or for memory: longer than a client that sends too little
/// keeps them once somebody waits.
pub(crate) const UPLOAD_PATIENCE: Duration = Duration::from_secs(10);

/// Uploads that lost their connection, whose memory can be had.
pub(crate) trait Interrupted: Send + Sync {
    /// Drops the one that has been kept for longest, of this peer if one is given; false if there
    /// is none.
    fn drop_oldest(&self, of: Option<Peer>) -> bool;
}

/// The images that are open.
///
/// Invariant: each image is open once, and there are no more than `config.open_max`. Its memory is
/// taken before it is opened.
pub(crate) struct Catalog {
    store: Arc<dyn Store>,
    names: Names,
    config: ImageConfig,
    predict: predict::Config,
    /// Actions of other images are taken over.
    carries_over: bool,
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
    pub signed: SignedNames,
    /// Images that clients have open.
    pub uses: Arc<Uses>,
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

impl Catalog {
    pub fn new(
        store: Arc<dyn Store>,
        config: &crate::Config,
        blocks: Arc<BlockCache>,
        metrics: Arc<Metrics>,
    ) -> Result<Catalog, ServerError> {
        let shares = config.shares();
        let signer = config.timestamp_key.clone().map(TimestampSigner::open).transpose()?;
        Ok(Catalog {
            names: Names::new(store.clone(), config.images.limits, config.log.clone()),
            signed: SignedNames::new(store.clone(), signer, config.log.clone())?,
            store,
            config: config.images.clone(),
            predict: config.learning.predict.clone(),
            carries_over: config.learning.learns(),
            blocks,
            metrics,
            log: config.log.clone(),
            memory: Account::new(shares.metadata),
            upload_memory: Budget::memory(shares.metadata / UPLOADS_PART),
            learned: Account::new(shares.learned),
            open: Mutex::default(),
            opening: Mutex::new(()),
            uses: Arc::default(),
        })
    }

    /// Which images there are.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Opens the image of this name, or finds it open. `true` if it was not open before. Room for
    /// it is made of `uploads`, then of other images.
    pub fn open(&self, name: &Name, uploads: &dyn Interrupted) -> Result<(Arc<Published>, bool), Failure> {
        let (id, object) = self.names.find(name).map_err(|failure| self.explained(name, failure))?;
        let stem = match name {
            Name::Tag { name, .. } => Some(name.as_str()),
            Name::Id(_) => None,
        };
        self.open_object(id, object, stem, Some(uploads))
    }

    /// Why an image is not there that was, and what has its name now.
    fn explained(&self, name: &Name, failure: Failure) -> Failure {
        let Name::Id(id) = name else { return failure };
        let collected = collect::collected(&*self.store, *id).ok().flatten();
        let Some(last) = collected.filter(|_| failure.code == ErrorCode::NotFound) else { return failure };
        let next = last.as_deref().and_then(|last| Name::parse(last).ok());
        let next = next.and_then(|next| Some((self.names.find(&next).ok()?.0, next)));
        let next = next.map_or_else(String::new, |(next, name)| format!("; {name} is image {next} now"));
        Failure::new(ErrorCode::NotFound, format!("image {id} was not wanted any more and is deleted{next}"))
    }

    /// Opens an image if there is memory for it and for all that was learned of it: nothing is
    /// closed or forgotten for it.
    pub fn open_beside(&self, id: ImageId) -> Result<(Arc<Published>, bool), Failure> {
        let (id, object) = self.names.find(&Name::Id(id))?;
        self.open_object(id, object, None, None)
    }

    /// Opens an image again that a client has open and that was closed meanwhile to make room.
    /// `object` is the file as it was then: what lies there by its name may be another one by now.
    pub fn open_again(
        &self,
        id: ImageId,
        object: Arc<dyn Object>,
        uploads: &dyn Interrupted,
    ) -> Result<(Arc<Published>, bool), Failure> {
        // An upload may have put a whole file where a damaged one was.
        let object = self.store.open(&image_key(id)).unwrap_or(object);
        self.open_object(id, object, None, Some(uploads))
    }

    /// `uploads`: room is made of them and of other images; `None` if it has to be there.
    fn open_object(
        &self,
        id: ImageId,
        object: Arc<dyn Object>,
        name: Option<&str>,
        uploads: Option<&dyn Interrupted>,
    ) -> Result<(Arc<Published>, bool), Failure> {
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let _one_at_a_time = locked(&self.opening);
        if let Some(image) = self.lookup(id) {
            return Ok((image, false));
        }
        let source = ImageObject(object.clone());
        let failed = |error: image::ImageError| match published::busy(&error) {
            Some(busy) => busy,
            None => Failure::corrupt(format!("image {id} cannot be opened: {error}")),
        };
        let superblock = Superblock::read(&source, &self.config.limits).map_err(failed)?;
        if superblock.id != id {
            return Err(Failure::corrupt(format!("the file of image {id} holds image {}", superblock.id)));
        }
        let (held, opening) = (superblock.metadata_memory_bytes(), superblock.opening_memory_bytes());
        let proofs = Published::proof_bytes(superblock.chunk_count);
        let mut reserved = self.reserve((held + opening) as usize + proofs, uploads)?;
        let metadata = Metadata::open(&source, &self.config.limits).map_err(failed)?;
        reserved.shrink_to((held as usize).max(metadata.memory_bytes()) + proofs);
        let expected = || {
            let expected = self.carries_over.then(|| self.expected(&metadata, name, None)).flatten();
            let mut actions = expected.unwrap_or_else(|| ActionSet::new(id));
            self.add_packed(&mut actions, &metadata, &source);
            actions
        };
        let (actions, saved) = learned::begin(&*self.store, id, &self.log, expected)?;
        let predictor = ActionPredictor::with_actions(actions, self.predict.clone());
        let (blocks, metrics) = (self.blocks.clone(), self.metrics.clone());
        let bytes = Learning::bytes_of(&predictor);
        let memory = match uploads {
            Some(_) => self.reserve_learned(bytes),
            None => {
                let all = self.learned.take(bytes).filter(|memory| memory.bytes() == bytes);
                all.ok_or_else(|| no_memory("what is learned", &self.learned))?
            }
        };
        let predictor = Learning::new(predictor, memory);
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

    /// Takes memory for metadata. If there is too little, uploads that lost their connection are
    /// dropped, then images are closed: clients that have them open get them back with their next
    /// request. Without `uploads` neither is done.
    fn reserve(&self, bytes: usize, uploads: Option<&dyn Interrupted>) -> Result<Reserved, Failure> {
        loop {
            if let Some(reserved) = self.memory.take(bytes) {
                return Ok(reserved);
            }
            if !uploads.is_some_and(|uploads| uploads.drop_oldest(None) || self.close_oldest()) {
                return Err(no_memory("metadata", &self.memory));
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
        let reserved = self.reserve(share.amount(), Some(uploads))?;
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
        while locked(&self.open).len() >= self.config.open_max && self.close_oldest() {}
        locked(&self.open).insert(image.id, image.clone());
    }

    /// Closes the image used longest ago; what it learned is saved. Its memory comes back when
    /// nobody is at work with it. False if none is open.
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

    /// Does `work` with all images of the store, and those that clients have open.
    pub fn collection<T>(&self, work: impl FnOnce(Collection<'_>, BTreeSet<ImageId>) -> T) -> T {
        // Nothing that was learned is saved: it goes as well.
        let forget = |id: ImageId| drop(locked(&self.open).remove(&id));
        work(Collection { store: &*self.store, names: &self.names, forget: &forget }, self.uses.images())
    }

    /// Speaks for an image that gets a name: it is not collected until it has it. Blocks.
    pub fn hold(&self, id: ImageId) -> Result<(), Failure> {
        self.collection(|collection, _| collection.hold(&BTreeSet::from([id]), &unix_seconds))
    }

    /// Speaks for the images that clients have open, from time to time. Blocks.
    pub fn hold_opened(&self) -> Result<(), Failure> {
        let Some(opened) = self.uses.due() else { return Ok(()) };
        self.collection(|collection, _| collection.hold(&opened, &unix_seconds))
    }

    /// Points a tag to an image that is in the store, and that [`Catalog::hold`] has spoken for.
    pub fn set_tag(&self, name: &str, tag: &str, id: ImageId) -> Result<(), StoreError> {
        collect::note_version(&*self.store, (name, tag), id, unix_seconds())?;
        self.names.set_tag(name, tag, id)?;
        // The upload may have put a whole file where a damaged one was: who has the image open
        // reads the new one.
        if let (Some(image), Ok(object)) = (self.lookup(id), self.store.open(&image_key(id))) {
            image.replace_object(object);
        }
        Ok(())
    }
}

fn no_memory(what: &str, account: &Account) -> Failure {
    let all = account.bytes_max() >> 20;
    let text = format!(
        "the server's memory for {what} ({all} MiB) is used up; try again later, or give the server a larger --memory"
    );
    Failure::new(ErrorCode::Busy, text)
}
