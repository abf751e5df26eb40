/* SPDX-License-Identifier: GPL-2.0 */
/* The numbers of an image in memory. */
#ifndef RUNNELFS_COLUMNS_H
#define RUNNELFS_COLUMNS_H

#include <linux/types.h>

struct rnl_info;

/* Fields of records. */
enum {
	RNL_INODE_MODE,
	RNL_INODE_RESERVED,
	RNL_INODE_UID,
	RNL_INODE_GID,
	RNL_INODE_NLINK,
	RNL_INODE_SIZE,
	RNL_INODE_MTIME_SEC,
	RNL_INODE_MTIME_NS,
	RNL_INODE_XATTR_SET,
	RNL_INODE_EXTENT_FIRST,
	RNL_INODE_ENTRY_FIRST,
	RNL_INODE_ENTRY,
	RNL_INODE_PAYLOAD,
	RNL_ENTRY_NAME,
	RNL_ENTRY_INODE,
	RNL_SET_FIRST,
	RNL_XATTR_NAME,
	RNL_XATTR_VALUE,
	RNL_EXTENT_FILE_CHUNK,
	RNL_EXTENT_CHUNK_FIRST,
	RNL_CHUNK_POSITION,
	RNL_BLOCK_FILE_OFFSET,
	RNL_BLOCK_RAW_START,
	RNL_BLOCK_STORED_BYTES,
	RNL_BLOCK_RAW_BYTES,
	RNL_BLOCK_CODEC,
	RNL_BLOCK_FILTER,
	RNL_BLOCK_DICTIONARY,
	RNL_BLOCK_RESERVED,
	RNL_BLOCK_EXPANSION,
	RNL_COLUMN_COUNT
};

/* Numbers of records: what each is more than the least one, in so many bits. */
struct rnl_column {
	const u8 *data;
	u64 least;
	u8 bits;
};

u64 rnl_number(const struct rnl_column *column, u32 index);
void *rnl_alloc(size_t bytes);
int rnl_column(struct rnl_column *column, const u32 *from, u32 count);
void *rnl_columns(struct rnl_info *info, u32 kind, const u8 *records, u32 width, u32 count);

#endif
