//! The names under which images were opened.
//!
//! A mount opens its image by name once, then by its id, on each connection. When a push moves the
//! name to another image, the mount must be able to connect again all the same.

use std::collections::HashMap;
use std::sync::Mutex;

use units::ImageId;

use crate::lock::locked;

/// Images that are remembered. When there are more, all are forgotten: mounts whose names have
/// moved need a right on the id then.
const IMAGES_MAX: usize = 4096;

/// Names of one image.
const NAMES_MAX: usize = 8;

/// The names under which images were opened since the server started.
#[derive(Default)]
pub(super) struct Served(Mutex<HashMap<ImageId, Vec<String>>>);

impl Served {
    /// An image was opened by this name.
    pub fn note(&self, id: ImageId, name: &str) {
        let mut images = locked(&self.0);
        if images.len() >= IMAGES_MAX && !images.contains_key(&id) {
            images.clear();
        }
        let names = images.entry(id).or_default();
        if names.len() < NAMES_MAX && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }

    /// A name of the image for which `may` holds.
    pub fn name_of(&self, id: ImageId, may: impl Fn(&str) -> bool) -> Option<String> {
        locked(&self.0).get(&id)?.iter().find(|name| may(name)).cloned()
    }
}
