// SPDX-License-Identifier: GPL-2.0
/* Records of a section from their columns, and from their differences. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "runnelfs.h"

/* Numbers of 32 bits that are stored as what each is more than that of the record before. */
static const struct {
	u8 kind;
	u8 offset;
} growing[] = {
	{ RNL_INODES, offsetof(struct rnl_disk_inode, extent_first) },
	{ RNL_INODES, offsetof(struct rnl_disk_inode, entry_first) },
	{ RNL_INODES, offsetof(struct rnl_disk_inode, entry) },
	{ RNL_ENTRIES, offsetof(struct rnl_disk_entry, name) },
	{ RNL_ENTRIES, offsetof(struct rnl_disk_entry, inode) },
	{ RNL_EXTENTS, offsetof(struct rnl_disk_extent, file_chunk) },
	{ RNL_EXTENTS, offsetof(struct rnl_disk_extent, chunk_first) },
};

/* The last filter that a section of records of this kind may have. */
u32 rnl_last_filter(u32 kind)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(growing); i++)
		if (growing[i].kind == kind)
			return RNL_DIFFERENCES;
	return kind == RNL_CHUNKS ? RNL_DIFFERENCES : RNL_COLUMNS;
}

static void add_up(u8 *number, u32 width, u32 count)
{
	u32 sum = 0;

	for (; count; count--, number += width) {
		sum += get_unaligned_le32(number);
		put_unaligned_le32(sum, number);
	}
}

/* The position of a chunk is stored as how far it lies behind the end of the one before. */
static void add_up_chunks(__le64 *chunks, u32 count)
{
	const u64 position_mask = (1ULL << RNL_CHUNK_LENGTH_SHIFT) - 1;
	u64 end = 0;

	for (; count; count--, chunks++) {
		u64 stored = le64_to_cpu(*chunks), position = (end + stored) & position_mask;

		*chunks = cpu_to_le64(position | (stored & ~position_mask));
		end = position + (stored >> RNL_CHUNK_LENGTH_SHIFT);
	}
}

/* Makes @count records of @width bytes of their columns; NULL without memory. */
void *rnl_records(u32 kind, u8 filter, const u8 *columns, u32 width, u32 count)
{
	u8 *records = rnl_alloc((size_t)width * count);
	u32 i, column;

	if (!records)
		return NULL;
	for (column = 0; column < width; column++)
		for (i = 0; i < count; i++)
			records[(size_t)i * width + column] = *columns++;
	if (filter != RNL_DIFFERENCES)
		return records;
	for (i = 0; i < ARRAY_SIZE(growing); i++)
		if (growing[i].kind == kind)
			add_up(records + growing[i].offset, width, count);
	if (kind == RNL_CHUNKS)
		add_up_chunks((__le64 *)records, count);
	return records;
}
