/* SPDX-License-Identifier: GPL-2.0 */
/* The numbers of an image in memory. */
#ifndef RUNNELFS_COLUMNS_H
#define RUNNELFS_COLUMNS_H

#include "format.h"

struct rnl_info;

/* Kinds of records that no section has: they are made when an image is mounted. */
enum {
	/* Chunks that are not as long as a full one, ascending, and their lengths. */
	RNL_SHORTS = RNL_KINDS,
	/* Of each extent, how many chunks those before it refer to. */
	RNL_INTRODUCED,
	/* Chunks by position, if that is not the order of their numbers. */
	RNL_BY_POSITION,
	RNL_TABLES
};

struct rnl_disk_short {
	__le32 chunk;
	__le32 bytes;
};

/* Fields of records. */
enum {
#define FIELD(name, ...) RNL_##name
#include "fields.h"
#undef FIELD
	RNL_COLUMN_COUNT
};

/* Numbers of records: what each is more than the least one, in so many bits. */
struct rnl_column {
	const u8 *data;
	u64 least;
	/* Bits that a number may have. */
	u64 mask;
	u32 count;
	/* Of places of parts that lie behind one another: where the last part ends. */
	u32 end;
	u8 bits;
};

u64 rnl_number(const struct rnl_column *column, u32 index);
u32 rnl_search(const struct rnl_column *column, u32 low, u32 high, u64 number);
void *rnl_alloc(size_t bytes);
void *rnl_columns(struct rnl_info *info, u32 kind, const u8 *records, u32 width, u32 count);

#endif
