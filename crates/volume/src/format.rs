//! The two files of a journal folder, byte by byte: `table` and `journal`. docs/formats/volume.md
//! describes them. Only constants stand here; `record`, `journal` and `table` read and write by
//! them. All numbers are little-endian.

/// First bytes of a table.
pub const TABLE_MAGIC: [u8; 8] = *b"RNLVTBL3";
/// First bytes of a table whose devices drew their numbers themselves, which is read too.
pub const TABLE_MAGIC_2: [u8; 8] = *b"RNLVTBL2";
/// First bytes of a table without devices, which is read too.
pub const TABLE_MAGIC_1: [u8; 8] = *b"RNLVTBL1";
/// Magic, journal key (16), sequence, next file id, number of files.
pub const TABLE_HEADER_1_BYTES: usize = 8 + 16 + 8 + 8 + 8;
/// The same and the id of the volume (16). The devices follow the files up to the hash.
pub const TABLE_HEADER_2_BYTES: usize = TABLE_HEADER_1_BYTES + 16;
/// The same and the key of the devices' secrets.
pub const TABLE_HEADER_BYTES: usize = TABLE_HEADER_2_BYTES + SECRET_BYTES;
/// File id, inode, born, version, size, mtime, ctime, sequence of its last change.
pub const TABLE_FILE_BYTES: usize = 8 * 8;
/// The hash at the end of a table.
pub const TABLE_HASH_BYTES: usize = 16;

/// First bytes of a frame.
pub const FRAME_MAGIC: [u8; 8] = *b"RNLVJRN1";
/// Magic, sequence, bytes of the payload (u32), number of records (u32), hash of the payload (16),
/// hash of the 40 bytes before (16).
pub const FRAME_HEADER_BYTES: usize = 56;
/// Where in a frame's header the hash of the payload begins.
pub const FRAME_PAYLOAD_HASH_AT: usize = 24;
/// Where in a frame's header the hash of the header begins.
pub const FRAME_HEADER_HASH_AT: usize = 40;
/// Frames begin at multiples of this: a sector, the least that a disk writes at once.
pub const FRAME_ALIGN_BYTES: usize = 512;

/// Bytes of a hash: the first half of BLAKE3, over the journal key and what is covered.
pub const HASH_BYTES: usize = 16;
/// Bytes of the journal key.
pub const KEY_BYTES: usize = 16;
/// Bytes of a device's secret, and of the key that it is made with.
pub const SECRET_BYTES: usize = 32;

/// A file or folder that existed when the record was written.
pub const TAG_KNOWN: u8 = 1;
/// A file or folder is made.
pub const TAG_NEW: u8 = 2;
/// A rename.
pub const TAG_MOVE: u8 = 3;
/// A name is removed.
pub const TAG_GONE: u8 = 4;
/// Bytes are written.
pub const TAG_WRITE: u8 = 5;
/// A file is cut or extended.
pub const TAG_SIZE: u8 = 6;
/// The time of the last change is set.
pub const TAG_TIME: u8 = 7;
/// The permission bits are set.
pub const TAG_MODE: u8 = 8;
/// The version after the transaction.
pub const TAG_VERSION: u8 = 9;

/// What a device was answered to a transaction, without its peer; read, not written.
pub const TAG_ANSWER_1: u8 = 10;
/// What a device was answered to a transaction.
pub const TAG_ANSWER: u8 = 11;
/// A device goes on with the transactions of another number.
pub const TAG_INHERIT: u8 = 12;
/// A symbolic link is made.
pub const TAG_LINK: u8 = 13;

/// Owner, group and permission bits are set.
pub const TAG_OWNER: u8 = 14;
/// A special file is made.
pub const TAG_NODE: u8 = 15;
/// A symbolic link with an owner is made, in the place of what has its name.
pub const TAG_LINK_OWNED: u8 = 16;
/// The time of the last access is set.
pub const TAG_ACCESS_TIME: u8 = 17;
/// A file gets one more name.
pub const TAG_HARD_LINK: u8 = 18;
/// A name is removed of a file that has others.
pub const TAG_UNLINK: u8 = 19;
/// As [`TAG_KNOWN`], of a file that has other names, too.
pub const TAG_KNOWN_LINKED: u8 = 20;

/// A range becomes zeros.
pub const TAG_ZERO: u8 = 25;
/// Room is kept for a range.
pub const TAG_RESERVE: u8 = 26;
/// An extended attribute gets a value.
pub const TAG_SET_XATTR: u8 = 21;
/// An extended attribute is removed.
pub const TAG_REMOVE_XATTR: u8 = 22;

/// Kind of a file.
pub const KIND_FILE: u8 = 0;
/// Kind of a folder.
pub const KIND_FOLDER: u8 = 1;
/// Kind of a symbolic link.
pub const KIND_SYMLINK: u8 = 2;
/// Kind of a FIFO.
pub const KIND_FIFO: u8 = 3;
/// Kind of a socket.
pub const KIND_SOCKET: u8 = 4;
/// Kind of a character device.
pub const KIND_CHAR_DEVICE: u8 = 5;
/// Kind of a block device.
pub const KIND_BLOCK_DEVICE: u8 = 6;

/// Name of the extended attribute of a file of the volume that says what its file system cannot.
pub const INODE_NAME: &str = "user.runnel.inode";
/// Name of the one that has an access control list.
pub const ACL_ACCESS_STORED: &str = "user.runnel.acl";
/// Name of the one that has the list that files get which are made in a folder.
pub const ACL_DEFAULT_STORED: &str = "user.runnel.default";
/// First byte of the value of [`INODE_NAME`].
pub const INODE_VERSION: u8 = 1;
/// Bytes of its value: version, kind, permission bits (u16), user (u32), group (u32), device (u32).
pub const INODE_BYTES: usize = 16;

/// Bytes of a frame's payload, accepted. What is written is a fourth of the journal at most.
pub const PAYLOAD_BYTES_MAX: u32 = 256 << 20;
/// Bytes of all devices in a table, accepted: four times what is written.
pub const TABLE_DEVICES_BYTES_MAX: u64 = 64 << 20;
/// Files in a table, accepted: 4 GiB of table.
pub const TABLE_FILES_ACCEPTED_MAX: u64 = 64 << 20;
