//! Collection: images that nobody wants any more leave the store, with all that was learned of them
//! and made of them.
//!
//! An image is wanted while a tag points to it, while a rule keeps it as an earlier version of a
//! tag ([`rules`], [`history`]), and while a client has it open. Others are collected by mark and
//! sweep, by any number of servers on one store, beside uploads, and from whatever a killed
//! collector left. One object of the store, the [`record`], says how far it is:
//!
//! 1. Who finds an image unwanted notes since when. It stays so for a time of grace.
//! 2. Who still finds it unwanted then condemns it. The record changes by [`Store::put_if`], so
//!    this fails if an upload has spoken for the image meanwhile ([`Collection::hold`]).
//! 3. What is condemned is deleted, and leaves the record. Until then no upload publishes it.
//!
//! One collector is at work at a time, for as long as its lease lasts; it renews it. Another one
//! that finds an ended lease finishes its work. This needs clocks that agree up to a minute, and no
//! upload that takes longer than the grace from [`Collection::hold`] to its tag.

mod history;
mod record;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use store::{Listed, Store};
use units::ImageId;
use wire::ErrorCode;

use self::record::{Edit, Lease, Record};
pub(crate) use self::rules::{Rule, Rules};
use crate::bundle;
use crate::catalog::{Names, image_key};
use crate::error::Failure;
use crate::learned;

/// Seconds since 1970, by the server's clock.
pub(crate) type UnixSeconds = u64;

/// The least time of grace. An upload is done within it.
pub(crate) const GRACE_SECONDS_MIN: u64 = 10 * 60;

/// A collector has its lease for so long. Clocks may differ by a part of it.
const LEASE_SECONDS: u64 = 15 * 60;

/// A lease is renewed when it has less than this left: what one image needs, with a request to a
/// store that answers late.
const LEASE_LEFT_SECONDS: u64 = 10 * 60;

/// Images that a report names; it counts the others.
const REPORTED_MAX: usize = 1000;

/// What a collection did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Report {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Images that are wanted.
    pub wanted: usize,
    /// Images that nobody wants and that are in their time of grace.
    pub waiting: Vec<Waiting>,
    /// Images that wait, also those that `waiting` does not name.
    pub waiting_count: usize,
    /// Images that were deleted, or would be.
    pub removed: Vec<Removed>,
    /// Images that were deleted or would be, also those that `removed` does not name.
    pub removed_count: usize,
    /// Bytes that they and what was made of them took.
    pub freed_bytes: u64,
    /// There is more to delete: collect again.
    pub is_cut: bool,
}

/// An image that nobody wants.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Waiting {
    /// 64 hexadecimal digits.
    pub id: String,
    /// The name that it had last.
    pub name: Option<String>,
    /// When it may be deleted.
    pub until: UnixSeconds,
}

/// An image that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Removed {
    /// 64 hexadecimal digits.
    pub id: String,
    /// The name that it had last.
    pub name: Option<String>,
    /// With all that was learned and made of it.
    pub bytes: u64,
}

/// The images of a store, and who may want them.
pub(crate) struct Collection<'a> {
    pub store: &'a dyn Store,
    pub names: &'a Names,
    /// Has the server let go of an image that is about to be deleted.
    pub forget: &'a dyn Fn(ImageId),
}

impl Collection<'_> {
    /// Collects once. `in_use` are the images that clients of this server have open; `now` is the
    /// time, and is asked again and again. Once `goes_on` says no, the rest is left to the next
    /// call.
    ///
    /// # Errors
    /// Another collector is at work ([`ErrorCode::Busy`]); something that decides what is wanted
    /// cannot be read, and then nothing is condemned; the store fails.
    pub fn collect(
        &self,
        grace_seconds: u64,
        in_use: &BTreeSet<ImageId>,
        dry_run: bool,
        goes_on: &dyn Fn() -> bool,
        now: &dyn Fn() -> UnixSeconds,
    ) -> Result<Report, Failure> {
        // Before the record is read: whoever wants an image from now on speaks for it there.
        let began = now();
        let mut wanted = self.wanted(began)?;
        wanted.keep.extend(in_use);
        let present = self.present()?;
        let (owner, grace) = (nonce()?, grace_seconds.max(GRACE_SECONDS_MIN));
        let (mut report, condemned) = record::edit(self.store, |record| {
            let (at, before) = (now(), record.clone());
            if let Some(lease) = record.lease.as_ref().filter(|lease| lease.until > at) {
                return Err(at_work(lease, at));
            }
            mark(record, &wanted, &present, grace, (began, at));
            let condemned = record.condemned.clone();
            let report = Report {
                dry_run,
                wanted: present.intersection(&wanted.keep).count(),
                waiting: record.unwanted.iter().take(REPORTED_MAX).map(|(id, it)| it.waiting(*id, grace)).collect(),
                waiting_count: record.unwanted.len(),
                ..Report::default()
            };
            record.lease = (!condemned.is_empty()).then(|| Lease { owner, until: at + LEASE_SECONDS });
            let stays = dry_run || *record == before;
            Ok(if stays { Edit::Keep((report, condemned)) } else { Edit::Write((report, condemned)) })
        })?;
        match dry_run {
            true => condemned.into_iter().try_for_each(|(id, name)| {
                self.report(&mut report, id, name, &self.keys_of(id)?);
                Ok(())
            }),
            false => self.sweep(owner, condemned, &mut report, goes_on, now),
        }?;
        Ok(report)
    }

    /// Speaks for images that are about to be published, or that clients have open: none of them is
    /// collected within the time of grace. Finishes what a killed collector left. Blocks.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] while one of them is being deleted; the store fails.
    pub fn hold(&self, images: &BTreeSet<ImageId>, now: &dyn Fn() -> UnixSeconds) -> Result<(), Failure> {
        let owner = nonce()?;
        let left = record::edit(self.store, |record| {
            let at = now();
            if let Some(id) = images.iter().find(|id| record.condemned.contains_key(id)) {
                if record.lease.as_ref().is_some_and(|lease| lease.until > at) {
                    let text = format!("image {id} is being deleted by a collection; try again in some minutes");
                    return Err(Failure::new(ErrorCode::Busy, text));
                }
                record.lease = Some(Lease { owner, until: at + LEASE_SECONDS });
                return Ok(Edit::Write(record.condemned.clone()));
            }
            let before = record.unwanted.len();
            record.unwanted.retain(|id, _| !images.contains(id));
            let stays = record.unwanted.len() == before;
            Ok(if stays { Edit::Keep(BTreeMap::new()) } else { Edit::Write(BTreeMap::new()) })
        })?;
        self.sweep(owner, left, &mut Report::default(), &|| true, now)
    }

    /// Deletes what is condemned, as the holder of the lease.
    fn sweep(
        &self,
        owner: u64,
        condemned: BTreeMap<ImageId, Option<String>>,
        report: &mut Report,
        goes_on: &dyn Fn() -> bool,
        now: &dyn Fn() -> UnixSeconds,
    ) -> Result<(), Failure> {
        if condemned.is_empty() {
            return Ok(());
        }
        let mut until = now() + LEASE_SECONDS;
        let mut done = BTreeSet::new();
        let delete_all = || {
            for (id, name) in condemned {
                // One at least, so that who asks again gets to the end.
                if !done.is_empty() && !goes_on() {
                    report.is_cut = true;
                    break;
                }
                if until < now() + LEASE_LEFT_SECONDS {
                    until = now() + LEASE_SECONDS;
                    go_on(self.store, owner, &done, Some(until), now())?;
                }
                (self.forget)(id);
                let keys = self.keys_of(id)?;
                self.report(report, id, name, &keys);
                for key in &keys {
                    self.store.delete(key)?;
                }
                done.insert(id);
            }
            Ok(())
        };
        let deleted = delete_all();
        // Whatever failed, the next collection need not wait for the end of the lease.
        deleted.and(go_on(self.store, owner, &done, None, now()))
    }

    fn report(&self, report: &mut Report, id: ImageId, name: Option<String>, keys: &[String]) {
        let bytes = keys.iter().filter_map(|key| self.store.len(key).ok()).sum();
        (report.freed_bytes, report.removed_count) = (report.freed_bytes + bytes, report.removed_count + 1);
        if report.removed.len() < REPORTED_MAX {
            report.removed.push(Removed { id: id.to_string(), name, bytes });
        }
    }

    /// All objects that are about an image, the image last: without one the next collection would
    /// still find the rest.
    fn keys_of(&self, id: ImageId) -> Result<Vec<String>, Failure> {
        let bundles = objects(self.store, &bundle::folder(id))?;
        let owners = folders(self.store, "published")?.into_iter().map(|owner| format!("{owner}/images/{id}"));
        Ok(bundles.into_iter().chain([learned::key(id)]).chain(owners).chain([image_key(id)]).collect())
    }

    /// Images that are wanted, and the name that others had last.
    fn wanted(&self, now: UnixSeconds) -> Result<Wanted, Failure> {
        let rules = Rules::load(self.store)?;
        let mut wanted = Wanted::default();
        for (name, tag) in self.names.tags(usize::MAX)? {
            let full = format!("{name}:{tag}");
            // Deleted just now if there is none.
            wanted.keep.extend(self.names.tag_now(&name, &tag)?);
            let versions = history::load(self.store, &name, &tag)?;
            wanted.keep.extend(rules.kept(&full, &versions, now));
            wanted.names.extend(versions.into_iter().map(|version| (version.id, full.clone())));
        }
        wanted.keep.extend(self.names.dropped_ids()?);
        Ok(wanted)
    }

    /// Images that the store has something of.
    fn present(&self) -> Result<BTreeSet<ImageId>, Failure> {
        let images = objects(self.store, "images")?.into_iter();
        let images = images.filter_map(|key| ImageId::from_hex(key.strip_prefix("images/")?.strip_suffix(".rnl")?));
        let learned = objects(self.store, "learned")?.into_iter().filter_map(|key| learned::image_of(&key));
        let bundles = folders(self.store, bundle::FOLDER)?.into_iter();
        let bundles = bundles.filter_map(|folder| ImageId::from_hex(folder.rsplit('/').next()?));
        Ok(images.chain(learned).chain(bundles).collect())
    }
}

/// What decides which images stay.
#[derive(Default)]
struct Wanted {
    keep: BTreeSet<ImageId>,
    /// A name that an image has or had.
    names: BTreeMap<ImageId, String>,
}

/// Notes what is unwanted, and condemns what has been for the time of grace. What is wanted was
/// looked up between the moments `began` and `at`: an image is noted as of the end of that, and
/// condemned as of its begin.
fn mark(
    record: &mut Record,
    wanted: &Wanted,
    present: &BTreeSet<ImageId>,
    grace: u64,
    (began, at): (UnixSeconds, UnixSeconds),
) {
    record.unwanted.retain(|id, _| present.contains(id) && !wanted.keep.contains(id));
    for id in present.difference(&wanted.keep).filter(|id| !record.condemned.contains_key(id)) {
        let name = wanted.names.get(id).cloned();
        let known = record.unwanted.entry(*id).or_insert(record::Unwanted { since: at, name: None });
        // A clock that was set back does not make it stay for years.
        known.since = known.since.min(at);
        known.name = name.or(known.name.take());
    }
    let is_due = |unwanted: &record::Unwanted| began >= unwanted.since.saturating_add(grace);
    let due: Vec<_> =
        record.unwanted.iter().filter(|(_, it)| is_due(it)).map(|(id, it)| (*id, it.name.clone())).collect();
    record.unwanted.retain(|_, unwanted| !is_due(unwanted));
    record.condemned.extend(due);
}

/// The holder of the lease has deleted these images. It has the lease `until` then, or no more.
fn go_on(
    store: &dyn Store,
    owner: u64,
    done: &BTreeSet<ImageId>,
    until: Option<UnixSeconds>,
    now: UnixSeconds,
) -> Result<(), Failure> {
    record::edit(store, |record| {
        record.is_held_by(owner)?;
        record.removed(done, now);
        record.lease = until.map(|until| Lease { owner, until });
        Ok(Edit::Write(()))
    })
}

/// A tag points to an image from now on.
pub(crate) use self::history::note as note_version;

/// A tag is gone. Its versions are not kept any more.
pub(crate) fn forget_versions(store: &dyn Store, name: &str, tag: &str) -> Result<(), Failure> {
    Ok(store.delete(&history::key(name, tag))?)
}

/// Whether an image was collected, lately; the name that it had last.
pub(crate) fn collected(store: &dyn Store, id: ImageId) -> Result<Option<Option<String>>, Failure> {
    Ok(record::load(store)?.0.collected.remove(&id).map(|it| it.name))
}

fn at_work(lease: &Lease, now: UnixSeconds) -> Failure {
    let minutes = lease.until.saturating_sub(now).div_ceil(60);
    let text = format!("another collection is at work; if it was killed, another one may begin in {minutes} min");
    Failure::new(ErrorCode::Busy, text)
}

/// A number that no other collector has.
fn nonce() -> Result<u64, Failure> {
    getrandom::u64().map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
}

/// The keys of the objects in a folder.
fn objects(store: &dyn Store, folder: &str) -> Result<Vec<String>, Failure> {
    let object = |listed| match listed {
        Listed::Object(key) => Some(key),
        Listed::Folder(_) => None,
    };
    Ok(store.list(folder)?.into_iter().filter_map(object).collect())
}

/// The folders in a folder.
fn folders(store: &dyn Store, folder: &str) -> Result<Vec<String>, Failure> {
    let below = |listed| match listed {
        Listed::Folder(folder) => Some(folder),
        Listed::Object(_) => None,
    };
    Ok(store.list(folder)?.into_iter().filter_map(below).collect())
}

#[cfg(test)]
mod tests;
