//! The images and volumes that one connection has open, by the handles that it was given.

use std::sync::{Arc, Weak};

use store::Object;
use units::ImageId;
use wire::ImageHandle;

use crate::published::Published;
use crate::uses::{Use, Uses};
use crate::volumes::{OpenVolume, Served};

/// Images and volumes one connection may have open.
pub(crate) const HANDLES_MAX: usize = 64;

/// Images and volumes that a connection has open. They share their numbers.
///
/// Invariant: a handle stands for the same image or volume as long as the connection lives, and
/// there are at most [`HANDLES_MAX`].
pub(crate) struct Handles {
    opened: Vec<Open>,
    uses: Arc<Uses>,
}

enum Open {
    /// Closed by the server when it needs room; the next request opens it again from the file.
    Image {
        id: ImageId,
        file: Arc<dyn Object>,
        image: Weak<Published>,
        _use: Use,
    },
    Volume(Arc<OpenVolume>),
}

impl Handles {
    /// None yet. Images count among `uses` as long as they have a handle.
    pub fn new(uses: Arc<Uses>) -> Handles {
        Handles { opened: Vec::new(), uses }
    }

    /// An image that is open, also in the server.
    pub fn get(&self, handle: ImageHandle) -> Option<Arc<Published>> {
        match self.opened.get(handle.0 as usize)? {
            Open::Image { image, .. } => image.upgrade().inspect(|image| image.note_use()),
            Open::Volume(_) => None,
        }
    }

    /// An image that the server closed meanwhile.
    pub fn closed(&self, handle: ImageHandle) -> Option<(ImageId, Arc<dyn Object>)> {
        match self.opened.get(handle.0 as usize)? {
            Open::Image { id, file, image, .. } if image.strong_count() == 0 => Some((*id, file.clone())),
            _ => None,
        }
    }

    pub fn volume(&self, handle: ImageHandle) -> Option<&Arc<OpenVolume>> {
        match self.opened.get(handle.0 as usize)? {
            Open::Image { .. } => None,
            Open::Volume(volume) => Some(volume),
        }
    }

    /// The handle of a volume that is open.
    pub fn volume_handle(&self, served: &Arc<Served>) -> Option<ImageHandle> {
        let same = |open: &Open| matches!(open, Open::Volume(volume) if Arc::ptr_eq(&volume.served, served));
        self.opened.iter().position(same).map(|index| ImageHandle(index as u32))
    }

    /// Gives a volume a handle. `None` if there are too many.
    pub fn add_volume(&mut self, volume: Arc<OpenVolume>) -> Option<ImageHandle> {
        self.add(Open::Volume(volume))
    }

    fn add(&mut self, open: Open) -> Option<ImageHandle> {
        if self.opened.len() >= HANDLES_MAX {
            return None;
        }
        self.opened.push(open);
        Some(ImageHandle(self.opened.len() as u32 - 1))
    }

    /// The handle of an image, given at the first time. `None` if there are too many.
    pub fn handle(&mut self, image: &Arc<Published>) -> Option<ImageHandle> {
        let new = Open::Image {
            id: image.id,
            file: image.object(),
            image: Arc::downgrade(image),
            _use: self.uses.add(image.id),
        };
        let known = self.opened.iter().position(|open| matches!(open, Open::Image { id, .. } if *id == image.id));
        match known {
            Some(index) => {
                self.opened[index] = new;
                Some(ImageHandle(index as u32))
            }
            None => self.add(new),
        }
    }

    /// An image with its handle.
    pub fn by_id(&self, wanted: ImageId) -> Option<(ImageHandle, Arc<Published>)> {
        self.opened.iter().enumerate().find_map(|(index, open)| match open {
            Open::Image { id, image, .. } if *id == wanted => Some((ImageHandle(index as u32), image.upgrade()?)),
            _ => None,
        })
    }
}
