//! Signed names in the store: the files of The Update Framework beside the tags.
//!
//! The files lie under `trust/`, named as a repository with consistent snapshots names them, so a
//! copy of the folder on a web server serves other clients of the framework, too. This server has
//! at most the key of timestamps (`timestamp`), and devices check what they get. It checks what
//! publishers write all the same, as a device would that has seen the files before, so that nobody
//! can publish what all devices refuse.
//!
//! All roots stay, since a device follows them one by one. Of the other files those stay that the
//! newest two snapshots list: who reads the files one by one, as a copy of the folder is read, may
//! have begun before the last change. The rest goes with the next change, also what is left over
//! from one that did not get to its end.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use codec::Codec;
use store::{Listed, Store, StoreError, Version};
use trust::repository::{collect, expiry_of, file_name, listed_version, version_of};
use trust::{Kind, Known, Refusal, Stapled, UnixTime, Verifier};
use units::Moment;
use wire::format::TRUST_FILES_BYTES_MAX;
use wire::{ErrorCode, Reply};

use crate::error::{Failure, ServerError};
use crate::log::Logger;
use crate::name::Name;
use crate::timestamp::TimestampSigner;

/// Largest file; no larger one comes from a publisher.
const FILE_BYTES_MAX: u64 = TRUST_FILES_BYTES_MAX as u64;

/// The file that makes all others valid.
const TIMESTAMP: &str = "timestamp.json";

/// Answers are 1 to 3 KiB, so the best level takes less than a millisecond.
const ZSTD_LEVEL: i32 = 19;

/// Roots that a store may have: one a week for forty years.
const ROOTS_MAX: u64 = 2048;

/// Files that one change takes away, each with a write to the disk: a change makes a few, and a
/// store of an older server may have thousands.
const PRUNED_MAX: usize = 64;

/// The signed names of a store.
pub(crate) struct SignedNames {
    store: Arc<dyn Store>,
    /// Nobody reads while a publisher's files are checked and written: new keys and what they
    /// signed come together.
    writing: RwLock<()>,
    /// `None` if publishers alone sign.
    signer: Option<TimestampSigner>,
    log: Logger,
}

impl SignedNames {
    /// Refuses a key that the present root does not name. A store without signed names takes any: a
    /// server may start before its first publisher comes.
    pub fn new(
        store: Arc<dyn Store>,
        signer: Option<TimestampSigner>,
        log: Logger,
    ) -> Result<SignedNames, ServerError> {
        let names = SignedNames { store, writing: RwLock::new(()), signer, log };
        // Files that cannot be read are for the first look, which warns.
        if let (Some(signer), Ok(Some((root, _)))) = (&names.signer, names.newest_root()) {
            signer.check(&root)?;
        }
        Ok(names)
    }

    /// The files that a device lacks to check what a name stands for; without a name, those that
    /// come before names. Blocks.
    pub fn read(&self, name: &str, known: &[u8]) -> Result<Reply, Failure> {
        let name = parse(name)?;
        let known = Known::decode(known).map_err(|error| Failure::bad_request(error.to_string()))?;
        let _reading = self.writing.read().unwrap_or_else(PoisonError::into_inner);
        let mut files = collect(name.as_deref().unwrap_or_default(), &known, |file| self.get(file))?;
        files.omit(&known);
        let raw = files.encode().map_err(|error| Failure::new(ErrorCode::TooLarge, error.to_string()))?;
        let raw_bytes = raw.len() as u32;
        let mut packed = Vec::new();
        let is_smaller = codec::encode(Codec::Zstd, ZSTD_LEVEL, &raw, &mut packed).is_ok() && packed.len() < raw.len();
        let (codec, bytes) = if is_smaller { (Codec::Zstd, packed) } else { (Codec::Stored, raw) };
        Ok(Reply::TrustFiles { codec: codec as u8, raw_bytes, bytes: Bytes::from(bytes) })
    }

    /// Keeps what a publisher has signed, if it follows what is there. With a name, files of
    /// delegated roles on the way to it are among them; without, others are not touched. Blocks.
    pub fn write(&self, name: &str, files: &[u8], now: UnixTime) -> Result<(), Failure> {
        let name = parse(name)?;
        let mut new = Stapled::decode(files).map_err(|error| Failure::bad_request(error.to_string()))?;
        let roots = new.clone();
        let _writing = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        // Before the rest is read: what another server of this store publishes from now on makes
        // the last step fail.
        let before = self.timestamp_version()?;
        let Present { mut verifier, roots_stored, files: present, .. } = self.present(&new)?;
        new.drop_roots_until(verifier.root_version());
        let checked = match &name {
            None => verifier.verify_files(&new, Some(now)),
            Some(name) => verifier.verify(&new, name, Some(now)).map(drop),
        };
        match checked {
            // As when the name is taken away. Every role that could have it was read and checked.
            Err(refusal) if refusal.kind() == Kind::NotFound => {}
            checked => checked.map_err(refused)?,
        }
        for root in roots.roots() {
            let version = version_of("root", root).unwrap_or(0);
            if version > roots_stored {
                self.put(&file_name("root", version), root, None)?;
            }
        }
        let is_checked = |role: &str| name.is_some() || ["snapshot", "targets"].contains(&role);
        for (role, file) in new.files().filter(|(role, _)| *role != "timestamp" && is_checked(role)) {
            let listed = present.file("snapshot").and_then(|snapshot| listed_version(snapshot, role));
            let version = version_of(role, file).unwrap_or(0);
            self.put(&file_name(role, version), file, listed.filter(|listed| *listed == version))?;
        }
        // Until here everybody reads the files of before.
        if let Some(timestamp) = new.file("timestamp") {
            self.store.put_if(&key(TIMESTAMP), timestamp, before.as_ref())?;
        }
        self.signer.iter().for_each(TimestampSigner::note_change);
        // It is published, whatever becomes of old files: the next change tries again.
        if let Some(snapshot) = new.file("snapshot")
            && let Err(error) = self.prune(snapshot)
        {
            self.log.warning(format_args!("old files of signed names stay: {error}"));
        }
        Ok(())
    }

    /// Takes away what neither the newest snapshot nor the one before it lists.
    fn prune(&self, newest: &[u8]) -> Result<(), StoreError> {
        let listing = self.store.list("trust")?;
        let versioned: Vec<(&str, u64, &str)> = listing.iter().filter_map(versioned).collect();
        let present = version_of("snapshot", newest).unwrap_or(0);
        let snapshots = versioned.iter().filter(|(_, version, role)| *role == "snapshot" && *version < present);
        let before = snapshots.map(|(_, version, _)| *version).max();
        let before = before.map(|version| self.store.get(&key(&file_name("snapshot", version)), FILE_BYTES_MAX));
        let before = before.transpose()?.unwrap_or_default();
        let kept = |version: u64, role: &str| match role {
            "root" => true,
            "snapshot" => [newest, &before].iter().any(|file| version_of("snapshot", file) == Some(version)),
            role => [newest, &before].iter().any(|file| listed_version(file, role) == Some(version)),
        };
        let old = versioned.into_iter().filter(|(_, version, role)| !kept(*version, role));
        for (key, ..) in old.take(PRUNED_MAX) {
            self.store.delete(key)?;
        }
        Ok(())
    }

    /// Signs the timestamp anew, if this server may and it is time. Blocks.
    pub fn keep_fresh(&self, moment: Moment, now: UnixTime) {
        let Some(signer) = self.signer.as_ref().filter(|signer| signer.is_time(moment)) else { return };
        let renewed = self.renew(signer, now);
        signer.looked(moment, renewed.is_ok());
        match renewed {
            Ok(None) => {}
            Ok(Some(Renewed { version, expires, snapshot_expires })) => {
                self.log.info(format_args!("timestamp version {version} of the signed names is valid until {expires}"));
                if snapshot_expires < expires {
                    self.log.warning(format_args!(
                        "the snapshot of the signed names expires {snapshot_expires}, and its publisher alone can sign it \
                         again: runnel trust refresh"
                    ));
                }
            }
            Err(failure) => {
                let place = signer.place();
                self.log.warning(format_args!(
                    "the timestamp of the signed names is not signed anew with {place}: {failure}"
                ));
            }
        }
    }

    /// The next timestamp, if the present one should not be kept. `None` if it should.
    fn renew(&self, signer: &TimestampSigner, now: UnixTime) -> Result<Option<Renewed>, Failure> {
        let _writing = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        let before = self.timestamp_version()?;
        let Some(Present { mut verifier, root, files, is_accepted, .. }) = self.stored()? else { return Ok(None) };
        let Some(timestamp) = files.file("timestamp") else { return Ok(None) };
        let expires = expiry_of("timestamp", timestamp).unwrap_or_default();
        if is_accepted && !signer.is_due(expires, now) {
            return Ok(None);
        }
        let failed = |reason| Failure::new(ErrorCode::Storage, reason);
        let new = signer.sign(&root, timestamp, now).map_err(failed)?;
        let mut renewed = Stapled::default();
        renewed.push("timestamp", new.clone());
        files.files().for_each(|(role, file)| renewed.push(role, file.to_vec()));
        // As devices do that have seen what is published: they would stay with the old one.
        verifier
            .verify_files(&renewed, Some(now))
            .map_err(|refusal| failed(format!("devices would refuse it: {refusal}")))?;
        match self.store.put_if(&key(TIMESTAMP), &new, before.as_ref()) {
            // Another server of this store was quicker.
            Err(error) if error.is_changed() => return Ok(None),
            done => done.map(drop)?,
        }
        Ok(Some(Renewed {
            version: version_of("timestamp", &new).unwrap_or(0),
            expires: expiry_of("timestamp", &new).unwrap_or_default(),
            snapshot_expires: files.file("snapshot").and_then(|file| expiry_of("snapshot", file)).unwrap_or_default(),
        }))
    }

    fn timestamp_version(&self) -> Result<Option<Version>, Failure> {
        match self.store.get_versioned(&key(TIMESTAMP), FILE_BYTES_MAX) {
            Ok((_, version)) => Ok(Some(version)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The newest root and its version.
    fn newest_root(&self) -> Result<Option<(Vec<u8>, u64)>, Failure> {
        let mut newest = None;
        for version in 1..=ROOTS_MAX {
            let Some(root) = self.get(&file_name("root", version))? else { break };
            newest = Some((root, version));
        }
        Ok(newest)
    }

    /// What is in the store, or what the first root of a publisher makes of an empty one.
    fn present(&self, new: &Stapled) -> Result<Present, Failure> {
        let Some(present) = self.stored()? else {
            let first = new.roots().first();
            let first = first.filter(|root| version_of("root", root) == Some(1));
            let none = "this server has no signed names yet, and the first root does not come with these";
            let first = first.ok_or_else(|| Failure::new(ErrorCode::Conflict, none))?;
            let verifier = Verifier::new(first).map_err(refused)?;
            let (root, files) = (first.clone(), Stapled::default());
            return Ok(Present { verifier, root, roots_stored: 0, files, is_accepted: false });
        };
        Ok(present)
    }

    /// What is in the store; `None` if that is not even a root.
    fn stored(&self) -> Result<Option<Present>, Failure> {
        let Some((root, roots_stored)) = self.newest_root()? else { return Ok(None) };
        let damaged = |refusal: Refusal| Failure::corrupt(format!("the signed names of the store: {refusal}"));
        let mut verifier = Verifier::new(&root).map_err(damaged)?;
        let files = collect("", &Known::of_root(roots_stored), |file| self.get(file))?;
        // Without a clock: that they have expired is no fault of what follows.
        let is_accepted = match files.file("timestamp").map(|_| verifier.verify_files(&files, None)) {
            // Rotated keys may have signed nothing yet, if a write did not get to its end.
            Some(Err(refusal)) if refusal.kind() != Kind::Signature => return Err(damaged(refusal)),
            checked => matches!(checked, Some(Ok(()))),
        };
        Ok(Some(Present { verifier, root, roots_stored, files, is_accepted }))
    }

    fn get(&self, file: &str) -> Result<Option<Vec<u8>>, Failure> {
        match self.store.get(&key(file), FILE_BYTES_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a file with a version. One that is listed never changes; another one is left over
    /// from a write that did not get to the timestamp, and nobody has seen it.
    fn put(&self, file: &str, bytes: &[u8], listed: Option<u64>) -> Result<(), Failure> {
        match self.get(file)? {
            Some(other) if other == bytes => Ok(()),
            Some(_) if listed.is_some() => {
                let text = format!("{file} is published with other contents; somebody else was quicker: try again");
                Err(Failure::new(ErrorCode::Conflict, text))
            }
            _ => Ok(self.store.put_atomic(&key(file), bytes)?),
        }
    }
}

/// What is in the store.
struct Present {
    /// A device that has seen it.
    verifier: Verifier,
    /// The newest root.
    root: Vec<u8>,
    /// Version of the newest root; 0 if there is none.
    roots_stored: u64,
    files: Stapled,
    /// Whether devices take the files, as far as their clock allows.
    is_accepted: bool,
}

/// A timestamp that was signed here.
struct Renewed {
    version: u64,
    expires: UnixTime,
    snapshot_expires: UnixTime,
}

/// A name and its tag; `None` for an empty one.
fn parse(name: &str) -> Result<Option<String>, Failure> {
    match name {
        "" => Ok(None),
        name => match Name::parse(name).map_err(Failure::bad_request)? {
            Name::Id(_) => Err(Failure::bad_request("an image id needs no signature")),
            name => Ok(Some(name.to_string())),
        },
    }
}

/// Key, version and role of a file that has a version.
fn versioned(listed: &Listed) -> Option<(&str, u64, &str)> {
    let Listed::Object(key) = listed else { return None };
    let file = key.strip_prefix("trust/")?;
    let (version, role) = file.strip_suffix(".json")?.split_once('.')?;
    let version = version.parse().ok()?;
    // Others are not ours.
    (file_name(role, version) == file).then_some((key, version, role))
}

fn key(file: &str) -> String {
    format!("trust/{file}")
}

/// What a publisher is told.
fn refused(refusal: Refusal) -> Failure {
    let (code, next) = match refusal.kind() {
        Kind::Rollback | Kind::Forked => (ErrorCode::Conflict, "; somebody else has published meanwhile: try again"),
        _ => (ErrorCode::Forbidden, "; devices would refuse it, so it is not published"),
    };
    Failure::new(code, format!("{refusal}{next}"))
}
