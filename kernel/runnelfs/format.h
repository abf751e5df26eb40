/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The image format, version 1, as docs/formats/image.md describes it. All integers are
 * little-endian; every structure is a multiple of its alignment.
 */
#ifndef RUNNELFS_FORMAT_H
#define RUNNELFS_FORMAT_H

#include <linux/build_bug.h>
#include <linux/types.h>

#define RNL_MAGIC "\x89RUNNEL\n"
#define RNL_VERSION 1
#define RNL_SUPER_BYTES 4096
#define RNL_SECTIONS_MAX 62
#define RNL_HASH_BYTES 32

#define RNL_FEATURE_FILTERS 1
#define RNL_FEATURE_DICTIONARIES 2
#define RNL_FEATURE_HOT 4
#define RNL_FEATURE_DERIVED_HASHES 8
#define RNL_FEATURE_DEFLATE 16
#define RNL_FEATURE_BLOCK_HASHES 32
#define RNL_FEATURES_KNOWN 63

enum rnl_section_kind {
	RNL_INODES = 1,
	RNL_ENTRIES,
	RNL_NAMES,
	RNL_TARGETS,
	RNL_XATTR_SETS,
	RNL_XATTRS,
	RNL_XATTR_BYTES,
	RNL_EXTENTS,
	RNL_CHUNKS,
	RNL_BLOCKS,
	RNL_CHUNK_HASHES,
	RNL_DICTIONARIES,
	RNL_BLOCK_HASHES,
	RNL_KINDS
};

#define RNL_SECTION_OPTIONAL 1
#define RNL_SECTION_DERIVED 2

enum rnl_codec { RNL_STORED, RNL_ZSTD, RNL_LZ4, RNL_XZ, RNL_CODECS };

enum rnl_filter {
	RNL_FILTER_NONE,
	RNL_FILTER_X86_64,
	RNL_FILTER_AARCH64,
	RNL_FILTER_RECORDS24,
	RNL_FILTER_RECORDS8,
	RNL_FILTER_DEFLATE
};

/* Filters of a section: its decoded bytes are columns of records, or of their differences. */
#define RNL_COLUMNS 1
#define RNL_DIFFERENCES 2

#define RNL_HOLE 0xffffffffU
#define RNL_NO_ENTRY 0xffffffffU
#define RNL_CHUNK_LENGTH_SHIFT 48
#define RNL_CHUNK_HASH_BYTES 16
#define RNL_DICTIONARIES_MAX 255
#define RNL_DICTIONARY_BYTES_MIN 8
#define RNL_DICTIONARY_BYTES_MAX 1048576

/* What is accepted; the reasons stand in crates/image/src/limits.rs. */
#define RNL_METADATA_BYTES_MAX (64ULL << 20)
#define RNL_INODES_MAX 1048576
#define RNL_ENTRIES_MAX 2097152
#define RNL_CHUNKS_MAX 4194304
#define RNL_BLOCKS_MAX 4194304
#define RNL_BLOCK_BYTES_MAX 4194304
#define RNL_DEPTH_MAX 4096
#define RNL_CHUNK_SHIFT_MIN 8
#define RNL_CHUNK_SHIFT_MAX 12
#define RNL_NAME_BYTES_MAX 255
#define RNL_TARGET_BYTES_MAX 4095
#define RNL_XATTR_NAME_BYTES_MAX 255
#define RNL_XATTR_VALUE_BYTES_MAX 65536

struct rnl_disk_section {
	__le32 kind;
	u8 codec;
	u8 flags;
	u8 filter;
	u8 reserved;
	__le64 offset;
	__le64 stored_bytes;
	__le64 raw_bytes;
	u8 hash[RNL_HASH_BYTES];
};

struct rnl_disk_super {
	u8 magic[8];
	__le16 version;
	u8 chunk_shift;
	u8 reserved_a;
	__le32 features;
	__le64 file_bytes;
	__le64 metadata_offset;
	__le64 metadata_bytes;
	__le32 block_bytes;
	__le32 inode_count;
	__le32 entry_count;
	__le32 extent_count;
	__le32 chunk_count;
	__le32 block_count;
	__le32 section_count;
	__le32 reserved_b;
	__le32 hot_blocks;
	u8 reserved_c[20];
	u8 check[RNL_HASH_BYTES];
	struct rnl_disk_section sections[RNL_SECTIONS_MAX];
};

struct rnl_disk_inode {
	__le16 mode;
	__le16 reserved;
	__le32 uid;
	__le32 gid;
	__le32 nlink;
	__le64 size;
	__le64 mtime_sec;
	__le32 mtime_ns;
	__le32 xattr_set;
	__le32 extent_first;
	__le32 entry_first;
	__le32 entry;
	__le32 payload;
};

struct rnl_disk_entry {
	__le32 name;
	__le32 inode;
};

struct rnl_disk_xattr {
	__le32 name;
	__le32 value;
};

/* A set of extended attributes: the first of them. */
struct rnl_disk_number {
	__le32 number;
};

struct rnl_disk_chunk {
	u8 position[6];
	__le16 bytes;
};

struct rnl_disk_extent {
	__le32 file_chunk;
	__le32 chunk_first;
};

/* With RNL_FEATURE_BLOCK_HASHES: places are sums of sizes, hashes have a section of their own. */
struct rnl_disk_block_sizes {
	__le32 stored_bytes;
	__le32 raw_bytes;
	u8 codec;
	u8 filter;
	u8 dictionary;
	u8 reserved;
	__le32 expansion_bytes;
};

struct rnl_disk_block {
	__le64 file_offset;
	__le64 raw_start;
	struct rnl_disk_block_sizes sizes;
	u8 hash[RNL_HASH_BYTES];
};

static_assert(sizeof(struct rnl_disk_section) == 64);
static_assert(sizeof(struct rnl_disk_super) == RNL_SUPER_BYTES);
static_assert(sizeof(struct rnl_disk_inode) == 56);
static_assert(sizeof(struct rnl_disk_block) == 64);
static_assert(sizeof(struct rnl_disk_block_sizes) == 16);

#endif
