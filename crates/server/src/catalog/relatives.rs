//! What is known of an image before anything was learned of it: actions of images that share files
//! with it.
//!
//! First come actions of the image that had the same name, which the new one replaces: its programs
//! are the same, whatever their bytes. Then those of other images of which half has the same
//! content. An image that is published takes them over at once; one that was put into the folder
//! does when it is opened. At last come those that travel with the image itself (`pack --trace`).
//! Work and memory are bounded: a few images, whose metadata is in memory one at a time.

use std::sync::Arc;

use image::format::SECTION_PROFILE;
use image::{Metadata, ReadAt, Superblock};
use profile::{ActionSet, Placed};
use store::Listed;
use units::ImageId;

use super::Catalog;
use crate::learned;
use crate::lock::locked;
use crate::mapping::Mapping;
use crate::name::Name;
use crate::published::{ImageObject, Published};

/// Images of which actions are taken.
const RELATIVES_MAX: usize = 4;

/// Images that are looked at for learned actions: a device waits meanwhile, some 10 ms for each.
const LOOKED_AT_MAX: usize = 16;

/// Most memory of the metadata of a relative: trees of a few gigabytes have less.
const METADATA_BYTES_MAX: u64 = 64 << 20;

/// Part of an action (percent) that must have the same content in another image.
const SAME_PERCENT: usize = 50;

/// Most bytes of the actions that travel with an image, and most pages: a few dozen large programs.
const PACKED_BYTES_MAX: u64 = 4 << 20;
const PACKED_PAGES_MAX: usize = 1 << 18;

/// An image that may share programs with a new one.
struct Relative {
    id: ImageId,
    /// It has, or had, the same name.
    same_name: bool,
}

impl Catalog {
    /// The actions of other images that fit `image`; nothing if some were learned of it, or there
    /// are none that fit. `name`: what it is published as; `previous`: the image that had that tag.
    pub fn expected(&self, image: &Metadata, name: Option<&str>, previous: Option<ImageId>) -> Option<ActionSet> {
        let mut expected = ActionSet::new(image.id());
        let mut used = 0;
        for relative in self.relatives(image.id(), name, previous) {
            let same_percent = if relative.same_name { 0 } else { SAME_PERCENT };
            let adopted = self.with_relative(relative.id, |actions, metadata| {
                let mut mapping = Mapping::new(metadata, image);
                expected.adopt(actions, &self.predict.merge, same_percent, |page| mapping.place(page))
            });
            used += usize::from(adopted.is_some_and(|actions| actions > 0));
            if used >= RELATIVES_MAX {
                break;
            }
        }
        if expected.is_empty() {
            return None;
        }
        let (actions, pages) = (expected.len(), expected.pages_total());
        self.log.info(format_args!("image {}: {actions} actions ({pages} pages) of other images fit it", image.id()));
        Some(expected)
    }

    /// Adds the actions that travel with the image, as far as nothing like them is there.
    pub fn add_packed(&self, actions: &mut ActionSet, image: &Metadata, source: &dyn ReadAt) {
        match packed(image, source) {
            Ok(Some(packed)) => {
                let place = |page| image.page_bytes(page).is_some().then_some(Placed { page, same: true });
                actions.adopt(&packed, &self.predict.merge, 0, place);
            }
            Ok(None) => {}
            Err(reason) => {
                let id = image.id();
                self.log.warning(format_args!("the actions that travel with image {id} are of no use: {reason}"));
            }
        }
    }

    /// An image is about to be published: saves what is expected of it. Failures cost only that.
    pub fn save_expected(&self, image: &Metadata, source: &dyn ReadAt, name: &str, tag: &str) {
        let id = image.id();
        let is_known = || matches!(learned::load(&*self.store, id), Ok(Some(_))) || self.lookup(id).is_some();
        if !self.carries_over || self.store.is_read_only() || is_known() {
            return;
        }
        let previous = self.names.tag(name, tag).ok().flatten();
        let Some(mut actions) = self.expected(image, Some(name), previous) else { return };
        // Once something is saved of an image, nobody looks into it for actions any more.
        self.add_packed(&mut actions, image, source);
        if let Err(error) = self.store.put_atomic(&learned::key(id), &actions.encode()) {
            self.log.warning(format_args!("what is expected of image {id} is not saved: {error}"));
        }
    }

    /// Images of which something was learned, those of the same name first.
    fn relatives(&self, id: ImageId, name: Option<&str>, previous: Option<ImageId>) -> Vec<Relative> {
        let mut found: Vec<Relative> = Vec::new();
        let mut add = |id_found: ImageId, same_name: bool| {
            if id_found != id && found.len() < LOOKED_AT_MAX && !found.iter().any(|known| known.id == id_found) {
                found.push(Relative { id: id_found, same_name });
            }
        };
        previous.into_iter().for_each(|id| add(id, true));
        if let Some(name) = name {
            self.names.tagged(name).into_iter().for_each(|id| add(id, true));
        }
        self.opened().iter().for_each(|image| add(image.id, false));
        for entry in self.store.list("learned").unwrap_or_default() {
            if let Listed::Object(key) = entry
                && let Some(id) = learned::image_of(&key)
            {
                add(id, false);
            }
        }
        found
    }

    /// Does something with what was learned of an image and its metadata, if there is both.
    fn with_relative<R>(&self, id: ImageId, work: impl FnOnce(&ActionSet, &Metadata) -> R) -> Option<R> {
        if let Some(open) = self.lookup_quietly(id) {
            let actions = locked(&open.predictor).actions().clone();
            return (!actions.is_empty()).then(|| work(&actions, &open.metadata));
        }
        let actions = learned::load(&*self.store, id).ok()??;
        let (_, object) = self.names.find(&Name::Id(id)).ok()?;
        let source = ImageObject(object);
        let superblock = Superblock::read(&source, &self.config.limits).ok()?;
        let bytes = superblock.metadata_memory_bytes() + superblock.opening_memory_bytes();
        if bytes > METADATA_BYTES_MAX {
            return None;
        }
        let _memory = self.memory.take(bytes as usize)?;
        let metadata = Metadata::open(&source, &self.config.limits).ok()?;
        Some(work(&actions, &metadata))
    }

    /// An open image, without counting that as a use of it.
    fn lookup_quietly(&self, id: ImageId) -> Option<Arc<Published>> {
        locked(&self.open).get(&id).cloned()
    }
}

/// The actions that travel with an image.
fn packed(image: &Metadata, source: &dyn ReadAt) -> Result<Option<ActionSet>, String> {
    let mut sections = image.section_report().iter();
    let Some(section) = sections.find(|section| section.kind == SECTION_PROFILE) else { return Ok(None) };
    if section.raw_bytes > PACKED_BYTES_MAX {
        return Err(format!("they take {} bytes, and {PACKED_BYTES_MAX} are accepted", section.raw_bytes));
    }
    let Some(bytes) = image.optional_section(source, SECTION_PROFILE).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let limits = profile::Limits { pages_total_max: PACKED_PAGES_MAX, ..profile::Limits::default() };
    profile::decode(&bytes, &limits).map(Some).map_err(|error| error.to_string())
}
