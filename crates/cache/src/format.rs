//! The bytes of a log. docs/formats/cache.md describes them.

use encryption::{KEY_ID_BYTES, KeyId, OVERHEAD_BYTES};

/// Starts a log.
const MAGIC: [u8; 8] = *b"RNLCACH1";
/// Starts a log of a pinned image.
const MAGIC_PINNED: [u8; 8] = *b"RNLPINN1";
/// Starts a log that is sealed, and one of a pinned image.
const MAGIC_SEALED: [u8; 8] = *b"RNLCACH2";
const MAGIC_SEALED_PINNED: [u8; 8] = *b"RNLPINN2";
/// Starts a record.
const RECORD_MAGIC: [u8; 4] = *b"RcRd";
/// Starts a slot of a pinned name.
const NAME_MAGIC: [u8; 8] = *b"RNLNAME1";
/// Starts one that is sealed.
const NAME_MAGIC_SEALED: [u8; 8] = *b"RNLNAME2";
/// Starts the trailer, which ends a log that nobody is writing.
const TRAILER_MAGIC: [u8; 8] = *b"RNLINDEX";

/// Size of the header of a log.
pub(crate) const HEADER_BYTES: usize = 64;
/// Size of the header of a log that is sealed.
pub(crate) const SEALED_HEADER_BYTES: usize = 128;
/// Size of its sealed owner.
pub(crate) const OWNER_BYTES: usize = HASH_BYTES + OVERHEAD_BYTES;
/// What the check of such a header covers.
const SEALED_HEADER_FIELD_BYTES: usize = 8 + KEY_ID_BYTES + OWNER_BYTES;
/// Size of the head of a record.
pub(crate) const HEAD_BYTES: usize = 96;
/// Size of the trailer.
pub(crate) const TRAILER_BYTES: usize = 64;
/// What an entry of the index has before the head of a record: where the record is.
pub(crate) const ENTRY_BYTES: usize = 8 + HEAD_BYTES;

/// Longest label of a record: 64 pages of 8 bytes, twice as many as a push has.
pub const LABEL_BYTES_MAX: usize = 512;
/// Largest payload of a record: metadata of a large image, in parts of this.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Size of a slot of a pinned name: no write of one touches a sector or a page of another one.
pub(crate) const SLOT_BYTES: usize = 4096;
/// Longest address of a pinned name; those of servers and images are bounded by less.
pub const TARGET_BYTES_MAX: usize = 512;
/// Versions that a name is remembered not to stand for.
pub const BAD_MAX: usize = 16;
/// An image and a number of bytes.
const VERSION_BYTES: usize = HASH_BYTES + 8;
/// Where the versions of a name are in a slot, then those that are bad, then its address.
const VERSIONS_OFFSET: usize = 24;
const BAD_OFFSET: usize = VERSIONS_OFFSET + 3 * VERSION_BYTES;
const TARGET_OFFSET: usize = BAD_OFFSET + BAD_MAX * HASH_BYTES;

/// What is used of a slot before its check.
const NAME_FIELD_BYTES: usize = TARGET_OFFSET + TARGET_BYTES_MAX;
/// What is sealed in a slot: the key of the name, and what the slot has without a key.
const NAME_BYTES: usize = HASH_BYTES + NAME_FIELD_BYTES + CHECK_BYTES;
pub(crate) const SEALED_NAME_BYTES: usize = NAME_BYTES + OVERHEAD_BYTES;

const HASH_BYTES: usize = 32;
/// Of the hash that a header, a head (with its label) and a trailer have over themselves.
const CHECK_BYTES: usize = 8;

/// What a record belongs to: an image, or nothing in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub [u8; 32]);

/// The name of a record among those of its kind: mostly a hash of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Which image a name stands for.
    Name,
    /// The start of an image file: what a mount needs.
    Metadata,
    /// Chunk hashes, with a proof.
    Proof,
    /// A block as it lies in an image.
    Block,
    /// Pages of an image, encoded as in a push.
    Pages,
    /// What was learned of an image.
    Actions,
    /// Pages that a program touched first, in order, for a server that does not know of it yet.
    Run,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Name, Kind::Metadata, Kind::Proof, Kind::Block, Kind::Pages, Kind::Actions, Kind::Run];

    fn number(self) -> u16 {
        match self {
            Kind::Name => 1,
            Kind::Metadata => 2,
            Kind::Proof => 3,
            Kind::Block => 4,
            Kind::Pages => 5,
            Kind::Actions => 6,
            Kind::Run => 7,
        }
    }

    fn of(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// What a log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    /// Whose its records are.
    pub owner: Owner,
    /// It stays, whatever needs its room.
    pub is_pinned: bool,
}

/// The header of a log that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedHeader {
    pub is_pinned: bool,
    pub key: KeyId,
    pub owner: [u8; OWNER_BYTES],
}

/// A slot of a pinned name that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedSlot {
    pub key: KeyId,
    pub bytes: [u8; SEALED_NAME_BYTES],
}

/// The head of a record, without its label and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: Kind,
    pub label_bytes: u16,
    pub payload_bytes: u32,
    /// Of two records of one name the one with the larger number counts.
    pub written: u64,
    pub key: Key,
    /// Over the payload.
    pub hash: [u8; HASH_BYTES],
}

/// Where the index of a log lies that nobody is writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub index_offset: u64,
    pub index_bytes: u32,
    pub count: u32,
    pub hash: [u8; HASH_BYTES],
}

/// A version of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The image.
    pub owner: Owner,
    /// Payloads of its pinned records; of one that is not complete, of its blocks and metadata.
    pub bytes: u64,
}

/// What a name stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedName {
    /// Its address, for people.
    pub target: String,
    /// The version that programs start from.
    pub current: Option<Version>,
    /// The one before, which is complete, too.
    pub previous: Option<Version>,
    /// The one that is being fetched.
    pub next: Option<Version>,
    /// Versions that it is not to stand for, the newest last.
    pub bad: Vec<Owner>,
    /// The present version was to be checked, and that did not end.
    pub is_unchecked: bool,
}

/// The bytes of a slot. The address and the bad versions must not be longer than they may be.
pub(crate) fn slot(generation: u64, name: &PinnedName) -> [u8; SLOT_BYTES] {
    let mut out = [0; SLOT_BYTES];
    out[..8].copy_from_slice(&NAME_MAGIC);
    out[8..16].copy_from_slice(&generation.to_le_bytes());
    out[16] = u8::from(name.is_unchecked);
    out[18..20].copy_from_slice(&(name.bad.len() as u16).to_le_bytes());
    out[20..22].copy_from_slice(&(name.target.len() as u16).to_le_bytes());
    let versions = [&name.current, &name.previous, &name.next];
    for (out, version) in out[VERSIONS_OFFSET..].chunks_exact_mut(VERSION_BYTES).zip(versions) {
        if let Some(version) = version {
            out[..HASH_BYTES].copy_from_slice(&version.owner.0);
            out[HASH_BYTES..].copy_from_slice(&version.bytes.to_le_bytes());
        }
    }
    for (out, bad) in out[BAD_OFFSET..].chunks_exact_mut(HASH_BYTES).zip(&name.bad) {
        out.copy_from_slice(&bad.0);
    }
    out[TARGET_OFFSET..TARGET_OFFSET + name.target.len()].copy_from_slice(name.target.as_bytes());
    let check = check(&[&out[..SLOT_BYTES - CHECK_BYTES]]);
    out[SLOT_BYTES - CHECK_BYTES..].copy_from_slice(&check);
    out
}

/// The generation of a slot and what is in it, if it is whole.
pub(crate) fn parse_slot(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, PinnedName)> {
    let half = |at: usize| usize::from(u16::from_le_bytes(array(&bytes[at..at + 2])));
    let generation = u64::from_le_bytes(array(&bytes[8..16]));
    let (bad_count, target_bytes) = (half(18), half(20));
    if bad_count > BAD_MAX || target_bytes > TARGET_BYTES_MAX {
        return None;
    }
    let version = |index: usize| {
        let (owner, bytes) = bytes[VERSIONS_OFFSET + index * VERSION_BYTES..].split_at(HASH_BYTES);
        let owner = Owner(array(owner));
        (owner.0 != [0; HASH_BYTES]).then(|| Version { owner, bytes: u64::from_le_bytes(array(&bytes[..8])) })
    };
    let bad = bytes[BAD_OFFSET..].chunks_exact(HASH_BYTES).take(bad_count);
    let found = PinnedName {
        target: std::str::from_utf8(&bytes[TARGET_OFFSET..TARGET_OFFSET + target_bytes]).ok()?.into(),
        current: version(0),
        previous: version(1),
        next: version(2),
        bad: bad.map(|owner| Owner(array(owner))).collect(),
        is_unchecked: bytes[16] == 1,
    };
    (slot(generation, &found) == *bytes).then_some((generation, found))
}

/// The bytes of a header.
pub(crate) fn header(header: &Header) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(if header.is_pinned { &MAGIC_PINNED } else { &MAGIC });
    out[8..40].copy_from_slice(&header.owner.0);
    let check = check(&[&out[..40]]);
    out[56..].copy_from_slice(&check);
    out
}

/// A header, if it is whole.
pub(crate) fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
    let found = Header { owner: Owner(array(&bytes[8..40])), is_pinned: bytes[..8] == MAGIC_PINNED };
    (header(&found) == *bytes).then_some(found)
}

/// The bytes of a header of a log that is sealed.
pub(crate) fn sealed_header(header: &SealedHeader) -> [u8; SEALED_HEADER_BYTES] {
    let mut out = [0; SEALED_HEADER_BYTES];
    out[..8].copy_from_slice(if header.is_pinned { &MAGIC_SEALED_PINNED } else { &MAGIC_SEALED });
    out[8..24].copy_from_slice(&header.key.0);
    out[24..SEALED_HEADER_FIELD_BYTES].copy_from_slice(&header.owner);
    let check = check(&[&out[..SEALED_HEADER_FIELD_BYTES]]);
    out[SEALED_HEADER_BYTES - CHECK_BYTES..].copy_from_slice(&check);
    out
}

/// Such a header, if it is whole.
pub(crate) fn parse_sealed_header(bytes: &[u8; SEALED_HEADER_BYTES]) -> Option<SealedHeader> {
    let found = SealedHeader {
        is_pinned: bytes[..8] == MAGIC_SEALED_PINNED,
        key: KeyId(array(&bytes[8..24])),
        owner: array(&bytes[24..SEALED_HEADER_FIELD_BYTES]),
    };
    (sealed_header(&found) == *bytes).then_some(found)
}

/// What is sealed in a slot: the key of the name, and the slot without its zeros.
pub(crate) fn name_bytes(key: &Key, slot: &[u8; SLOT_BYTES]) -> Vec<u8> {
    [&key.0, &slot[..NAME_FIELD_BYTES], &slot[SLOT_BYTES - CHECK_BYTES..]].concat()
}

/// The key of a name and the slot that was sealed.
pub(crate) fn parse_name_bytes(bytes: &[u8]) -> Option<(Key, [u8; SLOT_BYTES])> {
    let bytes: &[u8; NAME_BYTES] = bytes.try_into().ok()?;
    let (key, slot) = bytes.split_at(HASH_BYTES);
    let (fields, check) = slot.split_at(NAME_FIELD_BYTES);
    let mut slot = [0; SLOT_BYTES];
    slot[..NAME_FIELD_BYTES].copy_from_slice(fields);
    slot[SLOT_BYTES - CHECK_BYTES..].copy_from_slice(check);
    Some((Key(array(key)), slot))
}

/// The bytes of a slot that is sealed. What is in it has a tag of its own.
pub(crate) fn sealed_slot(slot: &SealedSlot) -> [u8; SLOT_BYTES] {
    let mut out = [0; SLOT_BYTES];
    out[..8].copy_from_slice(&NAME_MAGIC_SEALED);
    out[8..24].copy_from_slice(&slot.key.0);
    out[24..24 + SEALED_NAME_BYTES].copy_from_slice(&slot.bytes);
    out
}

/// Such a slot.
pub(crate) fn parse_sealed_slot(bytes: &[u8; SLOT_BYTES]) -> Option<SealedSlot> {
    let key = KeyId(array(&bytes[8..24]));
    let found = SealedSlot { key, bytes: array(&bytes[24..24 + SEALED_NAME_BYTES]) };
    (sealed_slot(&found) == *bytes).then_some(found)
}

/// The bytes of a head, with a check over them and the label.
pub(crate) fn head(head: &Head, label: &[u8]) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[..4].copy_from_slice(&RECORD_MAGIC);
    out[4..6].copy_from_slice(&head.kind.number().to_le_bytes());
    out[6..8].copy_from_slice(&head.label_bytes.to_le_bytes());
    out[8..12].copy_from_slice(&head.payload_bytes.to_le_bytes());
    // 12..16 are zeros.
    out[16..24].copy_from_slice(&head.written.to_le_bytes());
    out[24..56].copy_from_slice(&head.key.0);
    out[56..88].copy_from_slice(&head.hash);
    let check = check(&[&out[..88], label]);
    out[88..].copy_from_slice(&check);
    out
}

/// A head, if it is whole. Its label follows it, if that is whole too: the check is over both.
pub(crate) fn parse_head(bytes: &[u8; HEAD_BYTES]) -> Option<Head> {
    let word = |at: usize| u32::from_le_bytes(array(&bytes[at..at + 4]));
    let half = |at: usize| u16::from_le_bytes(array(&bytes[at..at + 2]));
    let found = Head {
        kind: Kind::of(half(4))?,
        label_bytes: half(6),
        payload_bytes: word(8),
        written: u64::from_le_bytes(array(&bytes[16..24])),
        key: Key(array(&bytes[24..56])),
        hash: array(&bytes[56..88]),
    };
    let fits = usize::from(found.label_bytes) <= LABEL_BYTES_MAX && found.payload_bytes as usize <= PAYLOAD_BYTES_MAX;
    (bytes[..4] == RECORD_MAGIC && fits).then_some(found)
}

/// The bytes of a trailer.
pub(crate) fn trailer(trailer: &Trailer) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(&TRAILER_MAGIC);
    out[8..16].copy_from_slice(&trailer.index_offset.to_le_bytes());
    out[16..20].copy_from_slice(&trailer.index_bytes.to_le_bytes());
    out[20..24].copy_from_slice(&trailer.count.to_le_bytes());
    out[24..56].copy_from_slice(&trailer.hash);
    let check = check(&[&out[..56]]);
    out[56..].copy_from_slice(&check);
    out
}

/// A trailer, if it is whole.
pub(crate) fn parse_trailer(bytes: &[u8; TRAILER_BYTES]) -> Option<Trailer> {
    let found = Trailer {
        index_offset: u64::from_le_bytes(array(&bytes[8..16])),
        index_bytes: u32::from_le_bytes(array(&bytes[16..20])),
        count: u32::from_le_bytes(array(&bytes[20..24])),
        hash: array(&bytes[24..56]),
    };
    (trailer(&found) == *bytes).then_some(found)
}

/// The hash of a payload.
pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    *blake3::hash(bytes).as_bytes()
}

fn check(parts: &[&[u8]]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    array(&hasher.finalize().as_bytes()[..CHECK_BYTES])
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}
