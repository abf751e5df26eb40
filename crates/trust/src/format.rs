//! Constants of the files and messages of this crate, and the limits of foreign metadata.
//!
//! `docs/formats/trust.md` describes the bytes.

/// First bytes of a state.
pub const STATE_MAGIC: [u8; 4] = *b"RnlT";

/// Version of the state's layout.
pub const STATE_VERSION: u8 = 1;

/// Bytes of a state: one block of flash.
pub const STATE_BYTES_MAX: usize = 4096;

/// Bytes of the checksum at a state's end: the start of a SHA-256.
pub const STATE_CHECKSUM_BYTES: usize = 8;

/// Version of the framing of stapled files, and of the cache.
pub const STAPLED_VERSION: u8 = 1;

/// Bytes of one answer's files. Usual are 1 to 3 KB, with a first open of an old device 10 KB.
pub const STAPLED_BYTES_MAX: usize = 512 << 10;

/// Bytes of a cache: what a signed start from flash may cost to read.
pub const CACHE_BYTES_MAX: usize = 64 << 10;

/// Files of a cache: timestamp, snapshot, targets, and the roles of some names.
pub const CACHE_FILES_MAX: usize = 16;

/// Files beside roots in one answer: timestamp, snapshot, targets, and the delegated roles on the
/// way to a name. A cache adds its own.
pub const FILES_MAX: usize = 2 + ROLES_VISITED_MAX + CACHE_FILES_MAX;

/// Roots in one answer. A device that missed more asks again: each answer takes it further.
pub const ROOTS_MAX: usize = 32;

/// Bytes of a name of a role. Names of hash bins are shorter than 40.
pub const ROLE_BYTES_MAX: usize = 128;

/// Bytes of `name:tag`, as on the wire.
pub const NAME_BYTES_MAX: usize = 256;

/// Bytes of a root: 32 keys with their signatures take 16 KB.
pub const ROOT_BYTES_MAX: usize = 32 << 10;

/// Bytes of a timestamp, which lists one file.
pub const TIMESTAMP_BYTES_MAX: usize = 8 << 10;

/// Bytes of a snapshot: about 1000 roles with hashes, 2500 without.
pub const SNAPSHOT_BYTES_MAX: usize = 128 << 10;

/// Bytes of a targets role: about 800 names. A publisher with more divides them by delegations.
pub const TARGETS_BYTES_MAX: usize = 256 << 10;

/// Values of one file, which bounds the memory of a parsed file at about 2 MB.
pub const VALUES_MAX: u32 = 32 << 10;

/// Levels of a file's arrays and objects; the specification needs seven.
pub const DEPTH_MAX: u32 = 16;

/// Signatures of one file. Each costs up to one verification, 0.1 ms on a slow core.
pub const SIGNATURES_MAX: usize = 32;

/// Keys of the four top-level roles together, which a state holds with 40 bytes each.
pub const KEYS_MAX: usize = 32;

/// Highest threshold of a role; a state remembers as many signers of a file.
pub const THRESHOLD_MAX: usize = 8;

/// Roles that are asked for one name, the top-level targets role included.
pub const ROLES_VISITED_MAX: usize = 8;

/// Delegated roles whose versions a state remembers.
pub const ROLES_KEPT_MAX: usize = 56;
