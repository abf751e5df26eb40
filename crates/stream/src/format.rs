//! Constants and layouts of the files that a volume keeps on a device; nothing else. Documented in
//! docs/formats/outbox.md, which stores the hash of this file. All numbers are little-endian.

/// First bytes of the file `device` of an outbox.
pub const DEVICE_MAGIC: [u8; 8] = *b"RNLDEV02";

/// The same of a device that drew its number itself, which is read too: magic, device (16), numbers
/// below may have been used (8), hash of all before (16).
pub const DEVICE_MAGIC_1: [u8; 8] = *b"RNLDEV01";

/// First bytes of a file of an outbox that has a key.
pub const SEALED_MAGIC: [u8; 8] = *b"RNLSEAL1";

/// Before the sealed bytes, which are bound to it: magic, kind (8), number (8), id of the key (16).
pub const SEALED_HEADER_BYTES: usize = 40;

/// Kinds of sealed files: the file `device`; its number is 0.
pub const SEALED_DEVICE: u64 = 1;
/// A transaction; its number is that by which those that follow know it.
pub const SEALED_TRANSACTION: u64 = 2;
/// Why a transaction was lost; its number is that of the transaction.
pub const SEALED_REASON: u64 = 3;

/// Bytes of the file `device`: magic, device (16), numbers below may have been used (8), secret
/// (32), earlier number of the device (16), hash of all before (16).
pub const DEVICE_BYTES: usize = 96;

/// First bytes of a transaction in an outbox.
pub const TRANSACTION_MAGIC: [u8; 8] = *b"RNLTXN01";

/// Before the changes of a transaction: magic, volume (16), time (8), base kind (1), base (16),
/// number of changes (4).
pub const TRANSACTION_HEADER_BYTES: usize = 53;

/// Behind the changes: hash of all before.
pub const HASH_BYTES: usize = 16;

/// Largest file of a transaction that is read: what a Commit may hold, twice over.
pub const TRANSACTION_BYTES_MAX: u64 = 4 << 20;

/// Kinds of base: none.
pub const BASE_FREE: u8 = 0;
/// File and version that the writer saw.
pub const BASE_KNOWN: u8 = 1;
/// What the transaction of this number leaves.
pub const BASE_AFTER: u8 = 2;

/// Kinds of change, as on the wire.
pub const CHANGE_WRITE: u8 = 1;
/// Writes at the end.
pub const CHANGE_APPEND: u8 = 2;
/// Cuts or extends.
pub const CHANGE_TRUNCATE: u8 = 3;
/// Makes a file.
pub const CHANGE_CREATE: u8 = 4;
/// Sets the time of the last change.
pub const CHANGE_SET_TIME: u8 = 9;
/// Sets the permission bits.
pub const CHANGE_SET_MODE: u8 = 10;
/// Sets user or group.
pub const CHANGE_SET_OWNER: u8 = 13;
/// Sets the time of the last access.
pub const CHANGE_SET_ACCESS_TIME: u8 = 14;
/// Gives a file or folder an extended attribute.
pub const CHANGE_SET_XATTR: u8 = 17;
/// Removes an extended attribute.
pub const CHANGE_REMOVE_XATTR: u8 = 18;
/// Makes a file with an owner; on the wire that is a field of the other one.
pub const CHANGE_CREATE_OWNED: u8 = 128;

/// In the place of a user or group that stays.
pub const OWNER_STAYS: u32 = u32::MAX;

/// First bytes of the file of a disk cache.
pub const CACHE_MAGIC: [u8; 8] = *b"RNLBLK01";

/// The same of one that has a key.
pub const CACHE_MAGIC_SEALED: [u8; 8] = *b"RNLBLK02";

/// Before the slots: magic, volume (16), bytes of a block (4), number of slots (4), id of the key
/// (16) if there is one, hash of all before (16), zeros.
pub const CACHE_HEADER_BYTES: usize = 64;

/// Before the block of a slot, which is sealed if there is a key and bound to the first 32 bytes of
/// this: file (8), version (8), index (4), length (4), zeros (8), hash of all
/// before and the block (16), hash of the first 32 bytes (16).
pub const SLOT_HEADER_BYTES: usize = 64;
