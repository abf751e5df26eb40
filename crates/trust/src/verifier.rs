//! The verifier: a state, and one operation on it.

use std::fmt;

use units::ImageId;

use crate::digest::sha256;
use crate::format::NAME_BYTES_MAX;
use crate::refusal::Refusal;
use crate::root::Root;
use crate::stapled::Stapled;
use crate::state::State;
use crate::time::UnixTime;
use crate::workflow::Workflow;

/// Where the time comes from by which expiry was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedBy {
    /// The device's clock.
    Clock,
    /// The floor: the device has no clock, or one that stands before a time that is known to be
    /// past. Metadata that expired since the floor are accepted.
    Floor,
}

impl fmt::Display for JudgedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JudgedBy::Clock => "by the clock",
            JudgedBy::Floor => "at least, without a clock",
        })
    }
}

/// What a publisher has signed about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedName {
    /// The image that the name stands for.
    pub image: ImageId,
    /// Bytes of the image.
    pub bytes: u64,
    /// What Linux's fs-verity has for the image's file, by SHA-256 with blocks of 4096 bytes and no
    /// salt; publishers may leave it out.
    pub fs_verity: Option<[u8; 32]>,
    /// The role that says so: `targets` or a delegated one.
    pub role: String,
    /// Version of that role's file.
    pub version: u64,
    /// When the first of the files that were needed expires.
    pub expires: UnixTime,
    /// How expiry was judged.
    pub judged_by: JudgedBy,
}

/// Verifies names for one source of trust, and remembers what it has seen.
///
/// # Time
///
/// Metadata have no time of creation, only of expiry, so nothing that a server sends tells a device
/// without a clock what time it is. The *floor* is a time that is surely past: the latest at which
/// a name was verified with a clock, or that [`Verifier::raise_floor`] was given. It is part of the
/// state, and a clock that stands before it is not believed. A clock that is wrong the other way
/// raises the floor by no more than up to the first expiry of the files that were accepted; newer
/// files then work.
#[derive(Clone, Debug)]
pub struct Verifier {
    state: State,
}

impl Verifier {
    /// A device that has seen nothing but a root file, which it trusts: its `anchor`.
    ///
    /// # Errors
    ///
    /// The file is not a root, or its own keys have not signed it.
    pub fn new(anchor: &[u8]) -> Result<Verifier, Refusal> {
        let state = State {
            anchor: sha256(anchor),
            root: Root::anchor(anchor)?,
            floor: UnixTime::default(),
            timestamp: None,
            snapshot: None,
            targets: None,
            listed: Vec::new(),
        };
        Ok(Verifier { state })
    }

    /// A device with the state of an earlier one.
    ///
    /// With another anchor than that of the state, the owner of the device has changed whom it
    /// trusts: the new root counts, not the one in the state. Memory of other files stays, and
    /// counts as long as they are valid with the new keys; so a new anchor of the same publisher
    /// forgets nothing.
    ///
    /// # Errors
    ///
    /// The anchor is not a root, or its own keys have not signed it.
    pub fn resume(anchor: &[u8], state: State) -> Result<Verifier, Refusal> {
        let digest = sha256(anchor);
        if digest == state.anchor {
            return Ok(Verifier { state });
        }
        Ok(Verifier { state: State { anchor: digest, root: Root::anchor(anchor)?, ..state } })
    }

    /// What to keep across a reboot. Changes with each accepted name, and with each new root.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Version of the newest root that is trusted.
    pub fn root_version(&self) -> u64 {
        self.state.root.version
    }

    /// Believes no time before `past` from now on. For times that a device can be sure of, such as
    /// when its firmware was built.
    pub fn raise_floor(&mut self, past: UnixTime) {
        self.state.floor = self.state.floor.max(past);
    }

    /// What `name` (`NAME:TAG`) stands for, by the files of an answer. `now` is the device's clock,
    /// if it has one that was set.
    ///
    /// New roots are taken one by one, and stay taken whatever follows. Everything else is
    /// remembered only if the name is accepted: so no file that stands alone, which a thief of the
    /// timestamp key can make, raises a version.
    ///
    /// # Errors
    ///
    /// [`Refusal::kind`] tells them apart. [`Kind::MoreRoots`](crate::Kind::MoreRoots) asks for
    /// another answer, and comes only after a new root.
    pub fn verify(&mut self, answer: &Stapled, name: &str, now: Option<UnixTime>) -> Result<SignedName, Refusal> {
        if !is_name(name) {
            return Err(Refusal::BadName { max: NAME_BYTES_MAX });
        }
        self.take_roots(answer)?;
        let (found, update) = Workflow::new(&self.state, answer, now).run(name)?;
        update.apply(&mut self.state);
        Ok(found)
    }

    /// Checks and remembers an answer that is about no name, as a server does with what a publisher
    /// writes.
    ///
    /// # Errors
    ///
    /// Those of [`Verifier::verify`], but for those that are about the name.
    pub fn verify_files(&mut self, answer: &Stapled, now: Option<UnixTime>) -> Result<(), Refusal> {
        self.take_roots(answer)?;
        Workflow::new(&self.state, answer, now).run_without_name()?.apply(&mut self.state);
        Ok(())
    }

    /// Takes the new roots of an answer, one by one.
    ///
    /// # Errors
    ///
    /// One does not follow the root before it; those before it stay taken.
    pub fn take_roots(&mut self, answer: &Stapled) -> Result<(), Refusal> {
        let before = self.state.root.version;
        for root in answer.roots() {
            self.state.root = self.state.root.next(root)?;
        }
        let version = self.state.root.version;
        if answer.has_more_roots() && version > before {
            return Err(Refusal::MoreRoots { version });
        }
        Ok(())
    }
}

/// Whether it is `NAME:TAG`: two parts of letters, digits, `.`, `-` and `_`, each with a letter or
/// digit first.
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    name.len() <= NAME_BYTES_MAX && name.split_once(':').is_some_and(|(name, tag)| is_part(name) && is_part(tag))
}
