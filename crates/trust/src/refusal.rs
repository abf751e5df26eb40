//! Why a signed name is refused.

use std::fmt;

use thiserror::Error;

use crate::time::UnixTime;
use crate::verifier::JudgedBy;

/// What a refusal comes to: the command line maps each to an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Older metadata than this device has seen.
    Rollback,
    /// The timestamp has expired: the server withholds newer metadata, or nobody signs any.
    Freeze,
    /// Another role than the timestamp has expired.
    Expired,
    /// Files that do not belong together.
    Mixed,
    /// Too few valid signatures by the keys of a role.
    Signature,
    /// The publishers have signed no such name.
    NotFound,
    /// A file that is not metadata as TUF has it.
    Damaged,
    /// A file, or the way to a name, is longer than a device accepts.
    Oversized,
    /// The answer lacks a file.
    Missing,
    /// Two different files with the same version.
    Forked,
    /// The roots of this answer are taken, and more are to come: ask again.
    MoreRoots,
}

impl Kind {
    /// One word, which never changes: for logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Rollback => "rollback",
            Kind::Freeze => "freeze",
            Kind::Expired => "expired",
            Kind::Mixed => "mixed",
            Kind::Signature => "signature",
            Kind::NotFound => "not-found",
            Kind::Damaged => "damaged",
            Kind::Oversized => "oversized",
            Kind::Missing => "missing",
            Kind::Forked => "forked",
            Kind::MoreRoots => "more-roots",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a name is not accepted. `role` is the file: `root`, `timestamp`, `snapshot`, `targets`, or
/// the name of a delegated role.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// [`Kind::Rollback`].
    #[error(
        "rollback: {role} has version {found}, this device has seen version {expected}: \
         the server sends old metadata, or was restored from a backup"
    )]
    Rollback {
        /// The file.
        role: String,
        /// Version that came.
        found: u64,
        /// Lowest version that is accepted.
        expected: u64,
    },
    /// [`Kind::Rollback`]: a role that this device has seen in a snapshot is gone from the next.
    #[error("rollback: snapshot version {version} no longer lists a role whose version {expected} it has listed")]
    Vanished {
        /// Version of the snapshot that came.
        version: u64,
        /// Version of the role that was listed.
        expected: u64,
    },
    /// [`Kind::Freeze`] for the timestamp, [`Kind::Expired`] for other files.
    #[error(
        "{}: {role} version {version} expired on {expires}, now is {now} {judged_by}",
        if role == "timestamp" { "freeze" } else { "expired" }
    )]
    Expired {
        /// The file.
        role: String,
        /// Its version.
        version: u64,
        /// When it expired.
        expires: UnixTime,
        /// The time that it was compared with.
        now: UnixTime,
        /// Where that time comes from.
        judged_by: JudgedBy,
    },
    /// [`Kind::Mixed`]: a version that is not the listed one.
    #[error("mixed: {role} has version {found}, but {parent} lists version {expected}")]
    MixedVersion {
        /// The file.
        role: String,
        /// The file that lists it.
        parent: &'static str,
        /// Version that came.
        found: u64,
        /// Version that is listed.
        expected: u64,
    },
    /// [`Kind::Mixed`]: other bytes than the listed ones, or a role that is not listed.
    #[error("mixed: {role}, whose version is {version}, is not the file that {parent} lists: {what}")]
    MixedContent {
        /// The file.
        role: String,
        /// Its version.
        version: u64,
        /// The file that lists it.
        parent: &'static str,
        /// What differs.
        what: &'static str,
    },
    /// [`Kind::Signature`].
    #[error("signature: {role} version {version} has {found} valid signatures of its keys, {expected} are needed")]
    Signature {
        /// The file.
        role: String,
        /// The version that it claims.
        version: u64,
        /// Distinct keys that signed it.
        found: usize,
        /// The role's threshold.
        expected: usize,
    },
    /// [`Kind::NotFound`].
    #[error("not found: no publisher has signed the name {name}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// [`Kind::NotFound`]: a text that cannot be a name.
    #[error("not found: a signed name is NAME:TAG, of letters, digits, '.', '-' and '_', at most {max} bytes")]
    BadName {
        /// Bytes that a name may have.
        max: usize,
    },
    /// [`Kind::Damaged`].
    #[error("damaged: {role} is not valid metadata: {what}")]
    Damaged {
        /// The file.
        role: String,
        /// What is wrong.
        what: Damage,
    },
    /// [`Kind::Oversized`].
    #[error("oversized: {role} has {found} {what}, at most {max} are accepted")]
    Oversized {
        /// The file.
        role: String,
        /// What there is too much of.
        what: &'static str,
        /// How many there are, or at least.
        found: usize,
        /// How many are accepted.
        max: usize,
    },
    /// [`Kind::Missing`].
    #[error("missing: the answer has no file of {role}, and this device has none either")]
    Missing {
        /// The file.
        role: String,
    },
    /// [`Kind::Missing`]: roots that are left out.
    #[error("missing: root version {found} came, but version {expected} comes next")]
    RootGap {
        /// Version that came.
        found: u64,
        /// Version that was expected.
        expected: u64,
    },
    /// [`Kind::Damaged`]: the root that this device trusts, where the next one belongs.
    #[error("damaged: the answer repeats root version {version}, which this device has already")]
    RootTwice {
        /// The version.
        version: u64,
    },
    /// [`Kind::Forked`].
    #[error("forked: {role} version {version} differs from the version {version} that this device has seen")]
    Forked {
        /// The file.
        role: String,
        /// The version of both.
        version: u64,
    },
    /// [`Kind::MoreRoots`].
    #[error("root version {version} is verified, and the server has more: ask again")]
    MoreRoots {
        /// Version of the newest root that is verified.
        version: u64,
    },
}

impl Refusal {
    /// What this refusal comes to.
    pub fn kind(&self) -> Kind {
        match self {
            Refusal::Rollback { .. } | Refusal::Vanished { .. } => Kind::Rollback,
            Refusal::Expired { role, .. } if role == "timestamp" => Kind::Freeze,
            Refusal::Expired { .. } => Kind::Expired,
            Refusal::MixedVersion { .. } | Refusal::MixedContent { .. } => Kind::Mixed,
            Refusal::Signature { .. } => Kind::Signature,
            Refusal::NotFound { .. } | Refusal::BadName { .. } => Kind::NotFound,
            Refusal::Damaged { .. } | Refusal::RootTwice { .. } => Kind::Damaged,
            Refusal::Oversized { .. } => Kind::Oversized,
            Refusal::Missing { .. } | Refusal::RootGap { .. } => Kind::Missing,
            Refusal::Forked { .. } => Kind::Forked,
            Refusal::MoreRoots { .. } => Kind::MoreRoots,
        }
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// It is not JSON, or not as strict as canonical JSON.
    #[error("{what} at byte {offset}")]
    Json {
        /// What is wrong.
        what: &'static str,
        /// Offset in bytes.
        offset: usize,
    },
    /// A field is missing, or holds what it must not.
    #[error("{field} must be {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
}

/// A fault of a file whose role is not known yet where it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Damaged(Damage),
    Oversized { what: &'static str, found: usize, max: usize },
}

impl Flaw {
    /// A field that holds what it must not.
    pub fn field(field: &'static str, expected: &'static str) -> Flaw {
        Flaw::Damaged(Damage::Field { field, expected })
    }

    /// Refuses `found` above `max`.
    pub fn limit(what: &'static str, found: usize, max: usize) -> Result<(), Flaw> {
        if found > max { Err(Flaw::Oversized { what, found, max }) } else { Ok(()) }
    }

    /// The refusal of the file `role`.
    pub fn of(self, role: &str) -> Refusal {
        let role = role.to_owned();
        match self {
            Flaw::Damaged(what) => Refusal::Damaged { role, what },
            Flaw::Oversized { what, found, max } => Refusal::Oversized { role, what, found, max },
        }
    }
}
