//! How far a collection is, in one object of the store. All that changes it does so by
//! [`Store::put_if`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use store::{Store, Version};
use units::ImageId;
use wire::ErrorCode;

use super::{UnixSeconds, Waiting};
use crate::error::Failure;

/// Where it lies.
const KEY: &str = "collection.json";

/// Longest record: some hundred thousand images.
const BYTES_MAX: u64 = 64 << 20;

/// Changes by others between reading and writing that are put up with.
const TRIES_MAX: u32 = 100;

/// Images of which it is remembered that they were collected.
const COLLECTED_MAX: usize = 10_000;

/// The record.
///
/// Invariants: no image is both unwanted and condemned. `revision` grows with every change, so no
/// two states of the record are the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    revision: u64,
    #[serde(with = "by_id")]
    pub unwanted: BTreeMap<ImageId, Unwanted>,
    /// To be deleted, with their names.
    #[serde(with = "by_id")]
    pub condemned: BTreeMap<ImageId, Option<String>>,
    pub lease: Option<Lease>,
    #[serde(with = "by_id")]
    pub collected: BTreeMap<ImageId, Collected>,
}

/// An image that nobody wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unwanted {
    pub since: UnixSeconds,
    /// The name that it had last, if that is known.
    pub name: Option<String>,
}

/// The collector at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub owner: u64,
    pub until: UnixSeconds,
}

/// An image that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Collected {
    pub at: UnixSeconds,
    pub name: Option<String>,
}

impl Unwanted {
    pub fn waiting(&self, id: ImageId, grace: u64) -> Waiting {
        Waiting { id: id.to_string(), name: self.name.clone(), until: self.since.saturating_add(grace) }
    }
}

impl Record {
    /// Refuses whoever has lost the lease.
    pub fn is_held_by(&self, owner: u64) -> Result<(), Failure> {
        let holds = self.lease.as_ref().is_some_and(|lease| lease.owner == owner);
        let lost = "the collection took too long, and another one has taken over";
        if holds { Ok(()) } else { Err(Failure::new(ErrorCode::Busy, lost)) }
    }

    /// These images are deleted.
    pub fn removed(&mut self, images: &BTreeSet<ImageId>, now: UnixSeconds) {
        for id in images {
            if let Some(name) = self.condemned.remove(id) {
                self.collected.insert(*id, Collected { at: now, name });
            }
        }
        while self.collected.len() > COLLECTED_MAX {
            let oldest = self.collected.iter().min_by_key(|(_, it)| it.at).map(|(id, _)| *id);
            oldest.map(|id| self.collected.remove(&id));
        }
    }
}

/// What becomes of a record that was looked at.
pub(super) enum Edit<T> {
    /// It stays.
    Keep(T),
    /// It is written.
    Write(T),
}

/// Reads the record, with its version.
pub(super) fn load(store: &dyn Store) -> Result<(Record, Option<Version>), Failure> {
    match store.get_versioned(KEY, BYTES_MAX) {
        Ok((bytes, version)) => {
            let damaged = |error| Failure::corrupt(format!("{KEY} of the store is damaged: {error}"));
            Ok((serde_json::from_slice(&bytes).map_err(damaged)?, Some(version)))
        }
        Err(error) if error.is_not_found() => Ok((Record::default(), None)),
        Err(error) => Err(error.into()),
    }
}

/// Changes the record: `change` is asked again whenever somebody else was quicker.
pub(super) fn edit<T>(
    store: &dyn Store,
    mut change: impl FnMut(&mut Record) -> Result<Edit<T>, Failure>,
) -> Result<T, Failure> {
    for _ in 0..TRIES_MAX {
        let (mut record, version) = load(store)?;
        let result = match change(&mut record)? {
            Edit::Keep(result) => return Ok(result),
            Edit::Write(result) => result,
        };
        record.revision += 1;
        let bytes = serde_json::to_vec(&record);
        let bytes = bytes.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        match store.put_if(KEY, &bytes, version.as_ref()) {
            Ok(_) => return Ok(result),
            Err(error) if error.is_changed() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(ErrorCode::Busy, format!("{KEY} of the store changes all the time; try again later")))
}

/// A map by image, as an object of JSON whose keys are 64 hexadecimal digits.
mod by_id {
    use super::*;
    use serde::de::Error;

    pub fn serialize<S: serde::Serializer, V: Serialize>(
        map: &BTreeMap<ImageId, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(id, value)| (id.to_string(), value)))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>, V: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<ImageId, V>, D::Error> {
        let map = BTreeMap::<String, V>::deserialize(deserializer)?;
        let parsed = map.into_iter().map(|(id, value)| Some((ImageId::from_hex(&id)?, value)));
        parsed.collect::<Option<_>>().ok_or_else(|| D::Error::custom("a key is no id of an image"))
    }
}
