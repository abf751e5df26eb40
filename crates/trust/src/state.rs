//! What a device keeps across reboots, in at most 4 KiB.
//!
//! A state ends with a checksum, so that a torn write is found. The caller keeps it safe from
//! crashes: it writes a second file and renames it, or two slots in turn. Whoever opens names at
//! the same time holds a lock from reading the state to writing it: a state written over a newer
//! one would forget what that had seen.

use thiserror::Error;

use crate::coding::{CodingError, Reader};
use crate::digest::short;
use crate::format::{
    KEYS_MAX, ROLES_KEPT_MAX, STATE_BYTES_MAX, STATE_CHECKSUM_BYTES, STATE_MAGIC, STATE_VERSION, THRESHOLD_MAX,
};
use crate::key::{Key, RoleKeys};
use crate::memory::{Accepted, Listed};
use crate::root::Root;
use crate::time::UnixTime;

/// By so much a floor may fall back when power is lost.
const FLOOR_STEP_SECONDS: i64 = 86_400;

/// The newest root, the versions seen of all other files, and the floor of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// SHA-256 of the root file that the device was given first.
    pub(crate) anchor: [u8; 32],
    pub(crate) root: Root,
    /// No time before this one is believed.
    pub(crate) floor: UnixTime,
    pub(crate) timestamp: Option<Accepted>,
    pub(crate) snapshot: Option<Accepted>,
    pub(crate) targets: Option<Accepted>,
    pub(crate) listed: Vec<Listed>,
}

/// Bytes that are no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// They do not begin as a state does, or are too long.
    #[error("this is no state of trust: {found} bytes, or another beginning")]
    NotState {
        /// How many bytes there are.
        found: usize,
    },
    /// A newer program wrote it.
    #[error("this state of trust has layout {found}, this program knows {expected}")]
    Version {
        /// The layout that was found.
        found: u8,
        /// The layout that is known.
        expected: u8,
    },
    /// The checksum is wrong.
    #[error("this state of trust is damaged: its checksum is wrong, as after a torn write")]
    Checksum,
    /// A field is wrong although the checksum is right.
    #[error("this state of trust is damaged: {0}")]
    Field(#[from] CodingError),
}

impl State {
    /// Whether it says so much more than an earlier state that flash should be written for it. A
    /// floor that rises is news once a day.
    pub fn is_news_to(&self, before: &State) -> bool {
        self.floor.0.saturating_sub(before.floor.0) >= FLOOR_STEP_SECONDS
            || State { floor: before.floor, ..self.clone() } != *before
    }

    /// The bytes to keep, at most 4096.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(STATE_BYTES_MAX);
        out.extend_from_slice(&STATE_MAGIC);
        out.push(STATE_VERSION);
        out.extend_from_slice(&self.anchor);
        out.extend_from_slice(&self.root.version.to_le_bytes());
        out.extend_from_slice(&self.root.expires.0.to_le_bytes());
        out.extend_from_slice(&self.root.content);
        for role in &self.root.roles {
            out.push(role.threshold as u8);
            out.push(role.keys.len() as u8);
            for key in &role.keys {
                out.extend_from_slice(&key.label);
                out.extend_from_slice(&key.public);
            }
        }
        out.extend_from_slice(&self.floor.0.to_le_bytes());
        for accepted in [&self.timestamp, &self.snapshot, &self.targets] {
            let Some(accepted) = accepted else {
                out.push(0);
                continue;
            };
            // Every accepted file has a signer.
            out.push(accepted.signers.len() as u8);
            out.extend_from_slice(&accepted.version.to_le_bytes());
            out.extend_from_slice(&accepted.content);
            accepted.signers.iter().for_each(|signer| out.extend_from_slice(signer));
        }
        out.push(self.listed.len() as u8);
        for listed in &self.listed {
            out.extend_from_slice(&listed.role);
            out.extend_from_slice(&listed.version.to_le_bytes());
            out.extend_from_slice(&listed.content.unwrap_or_default());
        }
        out.extend_from_slice(&short::<STATE_CHECKSUM_BYTES>(&out));
        assert!(out.len() <= STATE_BYTES_MAX, "the limits of its parts bound a state");
        out
    }

    /// Reads what [`State::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are no state, of a newer program, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<State, StateError> {
        let found = bytes.len();
        let head = STATE_MAGIC.len() + 1;
        if found > STATE_BYTES_MAX || found < head + STATE_CHECKSUM_BYTES || !bytes.starts_with(&STATE_MAGIC) {
            return Err(StateError::NotState { found });
        }
        if bytes[head - 1] != STATE_VERSION {
            return Err(StateError::Version { found: bytes[head - 1], expected: STATE_VERSION });
        }
        let (body, checksum) = bytes.split_at(found - STATE_CHECKSUM_BYTES);
        if short::<STATE_CHECKSUM_BYTES>(body) != checksum {
            return Err(StateError::Checksum);
        }
        let mut reader = Reader::new(&body[head..]);
        let state = State {
            anchor: reader.array("anchor")?,
            root: read_root(&mut reader)?,
            floor: UnixTime(reader.u64("floor")?.cast_signed()),
            timestamp: read_accepted(&mut reader)?,
            snapshot: read_accepted(&mut reader)?,
            targets: read_accepted(&mut reader)?,
            listed: read_listed(&mut reader)?,
        };
        reader.end()?;
        Ok(state)
    }
}

fn read_root(reader: &mut Reader<'_>) -> Result<Root, CodingError> {
    let version = reader.u64("root version")?;
    let expires = UnixTime(reader.u64("root expiry")?.cast_signed());
    let content = reader.array("root content")?;
    let mut keys_left = KEYS_MAX;
    let mut role = || {
        let threshold = usize::from(reader.u8("threshold")?);
        if !(1..=THRESHOLD_MAX).contains(&threshold) {
            return Err(reader.bad("threshold", threshold as u64, "1 to 8"));
        }
        let count = usize::from(reader.u8("keys")?);
        CodingError::limit("keys", count, keys_left)?;
        keys_left -= count;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            keys.push(Key { label: reader.array("label")?, public: reader.array("key")? });
        }
        Ok(RoleKeys { threshold, keys })
    };
    let roles = [role()?, role()?, role()?, role()?];
    Ok(Root { version, expires, content, roles })
}

fn read_accepted(reader: &mut Reader<'_>) -> Result<Option<Accepted>, CodingError> {
    let count = usize::from(reader.u8("signers")?);
    CodingError::limit("signers", count, THRESHOLD_MAX)?;
    if count == 0 {
        return Ok(None);
    }
    let version = reader.u64("version")?;
    let content = reader.array("content")?;
    let mut signers = Vec::with_capacity(count);
    for _ in 0..count {
        signers.push(reader.array("signer")?);
    }
    Ok(Some(Accepted { version, content, signers }))
}

fn read_listed(reader: &mut Reader<'_>) -> Result<Vec<Listed>, CodingError> {
    let count = usize::from(reader.u8("roles")?);
    CodingError::limit("roles", count, ROLES_KEPT_MAX)?;
    let mut listed = Vec::with_capacity(count);
    for _ in 0..count {
        let (role, version) = (reader.array("role")?, reader.u64("version")?);
        let content: [u8; 16] = reader.array("content")?;
        listed.push(Listed { role, version, content: (content != [0; 16]).then_some(content) });
    }
    Ok(listed)
}
