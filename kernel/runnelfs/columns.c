// SPDX-License-Identifier: GPL-2.0
/*
 * The numbers of an image in memory. Each field of a kind of record is a column: what its numbers
 * are more than the least of them, in as many bits as the largest needs. That is less than half of
 * what the records take as they are stored, and a number is still found without a search.
 */
#include <linux/bitops.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "runnelfs.h"

/* rnl_number() may read so many bytes from the one where a number begins. */
#define PADDING 9

#define FIELD(kind, type, member) { kind, offsetof(type, member), sizeof_field(type, member) }

static const struct {
	u8 kind;
	u8 offset;
	u8 bytes;
} fields[RNL_COLUMN_COUNT] = {
	[RNL_INODE_MODE] = FIELD(RNL_INODES, struct rnl_disk_inode, mode),
	[RNL_INODE_RESERVED] = FIELD(RNL_INODES, struct rnl_disk_inode, reserved),
	[RNL_INODE_UID] = FIELD(RNL_INODES, struct rnl_disk_inode, uid),
	[RNL_INODE_GID] = FIELD(RNL_INODES, struct rnl_disk_inode, gid),
	[RNL_INODE_NLINK] = FIELD(RNL_INODES, struct rnl_disk_inode, nlink),
	[RNL_INODE_SIZE] = FIELD(RNL_INODES, struct rnl_disk_inode, size),
	[RNL_INODE_MTIME_SEC] = FIELD(RNL_INODES, struct rnl_disk_inode, mtime_sec),
	[RNL_INODE_MTIME_NS] = FIELD(RNL_INODES, struct rnl_disk_inode, mtime_ns),
	[RNL_INODE_XATTR_SET] = FIELD(RNL_INODES, struct rnl_disk_inode, xattr_set),
	[RNL_INODE_EXTENT_FIRST] = FIELD(RNL_INODES, struct rnl_disk_inode, extent_first),
	[RNL_INODE_ENTRY_FIRST] = FIELD(RNL_INODES, struct rnl_disk_inode, entry_first),
	[RNL_INODE_ENTRY] = FIELD(RNL_INODES, struct rnl_disk_inode, entry),
	[RNL_INODE_PAYLOAD] = FIELD(RNL_INODES, struct rnl_disk_inode, payload),
	[RNL_ENTRY_NAME] = FIELD(RNL_ENTRIES, struct rnl_disk_entry, name),
	[RNL_ENTRY_INODE] = FIELD(RNL_ENTRIES, struct rnl_disk_entry, inode),
	[RNL_SET_FIRST] = { RNL_XATTR_SETS, 0, sizeof(__le32) },
	[RNL_XATTR_NAME] = FIELD(RNL_XATTRS, struct rnl_disk_xattr, name),
	[RNL_XATTR_VALUE] = FIELD(RNL_XATTRS, struct rnl_disk_xattr, value),
	[RNL_EXTENT_FILE_CHUNK] = FIELD(RNL_EXTENTS, struct rnl_disk_extent, file_chunk),
	[RNL_EXTENT_CHUNK_FIRST] = FIELD(RNL_EXTENTS, struct rnl_disk_extent, chunk_first),
	[RNL_CHUNK_POSITION] = { RNL_CHUNKS, 0, RNL_CHUNK_LENGTH_SHIFT / 8 },
	[RNL_BLOCK_FILE_OFFSET] = FIELD(RNL_BLOCKS, struct rnl_disk_block, file_offset),
	[RNL_BLOCK_RAW_START] = FIELD(RNL_BLOCKS, struct rnl_disk_block, raw_start),
	[RNL_BLOCK_STORED_BYTES] = FIELD(RNL_BLOCKS, struct rnl_disk_block, stored_bytes),
	[RNL_BLOCK_RAW_BYTES] = FIELD(RNL_BLOCKS, struct rnl_disk_block, raw_bytes),
	[RNL_BLOCK_CODEC] = FIELD(RNL_BLOCKS, struct rnl_disk_block, codec),
	[RNL_BLOCK_FILTER] = FIELD(RNL_BLOCKS, struct rnl_disk_block, filter),
	[RNL_BLOCK_DICTIONARY] = FIELD(RNL_BLOCKS, struct rnl_disk_block, dictionary),
	[RNL_BLOCK_RESERVED] = FIELD(RNL_BLOCKS, struct rnl_disk_block, reserved),
	[RNL_BLOCK_EXPANSION] = FIELD(RNL_BLOCKS, struct rnl_disk_block, expansion_bytes),
};

/* Memory for kvfree(). Unlike that of kvmalloc() it is what was asked for, in whole pages. */
void *rnl_alloc(size_t bytes)
{
	return bytes > PAGE_SIZE ? vmalloc(bytes) : kmalloc(max_t(size_t, bytes, 1), GFP_KERNEL);
}

/*
 * A number of a record. One of 32 bits gets a sign, so that RNL_HOLE and RNL_NO_ENTRY lie beside
 * the others; its reader drops the upper half.
 */
static s64 number_at(const u8 *field, u32 bytes)
{
	switch (bytes) {
	case 1:
		return *field;
	case 2:
		return get_unaligned_le16(field);
	case 4:
		return (s32)get_unaligned_le32(field);
	case 6:
		return get_unaligned_le32(field) | (u64)get_unaligned_le16(field + 4) << 32;
	default:
		return get_unaligned_le64(field);
	}
}

static void put(u8 *data, u64 bit, u64 number)
{
	u8 *at = data + bit / 8;
	u32 shift = bit % 8;

	put_unaligned_le64(get_unaligned_le64(at) | number << shift, at);
	if (shift)
		at[8] |= number >> (64 - shift);
}

/* A number of a column. */
u64 rnl_number(const struct rnl_column *column, u32 index)
{
	u64 bit = (u64)index * column->bits, number;
	const u8 *at = column->data + bit / 8;
	u32 shift = bit % 8;

	if (!column->bits)
		return column->least;
	number = get_unaligned_le64(at) >> shift;
	if (column->bits + shift > 64)
		number |= (u64)at[8] << (64 - shift);
	return column->least + (number & GENMASK_ULL(column->bits - 1, 0));
}

/* Numbers of records: that of the first one, its size, and from one record to the next. */
struct numbers {
	const u8 *first;
	u32 bytes;
	u32 width;
	u32 count;
};

/* Finds out what a column of @numbers must hold. Returns its size. */
static size_t measure(struct rnl_column *column, const struct numbers *numbers)
{
	s64 least = numbers->count ? number_at(numbers->first, numbers->bytes) : 0, most = least;
	const u8 *at = numbers->first;
	u32 i;

	for (i = 0; i < numbers->count; i++, at += numbers->width) {
		s64 number = number_at(at, numbers->bytes);

		least = min(least, number);
		most = max(most, number);
	}
	column->least = least;
	column->bits = fls64((u64)most - (u64)least);
	return DIV_ROUND_UP_ULL((u64)numbers->count * column->bits, 8);
}

static void fill(struct rnl_column *column, const struct numbers *numbers, u8 *data)
{
	const u8 *at = numbers->first;
	u32 i;

	column->data = data;
	if (!column->bits)
		return;
	for (i = 0; i < numbers->count; i++, at += numbers->width)
		put(data, (u64)i * column->bits,
		    (u64)number_at(at, numbers->bytes) - column->least);
}

/* Makes a column of numbers in memory; its data are for kvfree(). Returns 0 or -ENOMEM. */
int rnl_column(struct rnl_column *column, const u32 *from, u32 count)
{
	struct numbers numbers = { (const u8 *)from, sizeof(*from), sizeof(*from), count };
	size_t size = measure(column, &numbers) + PADDING;
	u8 *data = rnl_alloc(size);

	if (!data)
		return -ENOMEM;
	memset(data, 0, size);
	fill(column, &numbers, data);
	return 0;
}

/**
 * rnl_columns() - makes the columns of a kind of record
 * @info: has the columns
 * @kind: the kind
 * @records: the records
 * @width: their size
 * @count: how many there are
 *
 * Return: the memory that the columns lie in, for kvfree(), or NULL if there is none.
 */
void *rnl_columns(struct rnl_info *info, u32 kind, const u8 *records, u32 width, u32 count)
{
	struct numbers numbers = { .width = width, .count = count };
	size_t size[RNL_COLUMN_COUNT] = {}, all = PADDING;
	u8 *data, *at;
	u32 i;

	for (i = 0; i < RNL_COLUMN_COUNT; i++) {
		if (fields[i].kind != kind)
			continue;
		numbers.first = records + fields[i].offset;
		numbers.bytes = fields[i].bytes;
		size[i] = measure(&info->columns[i], &numbers);
		all += size[i];
	}
	data = rnl_alloc(all);
	if (!data)
		return NULL;
	memset(data, 0, all);
	for (i = 0, at = data; i < RNL_COLUMN_COUNT; at += size[i++]) {
		if (fields[i].kind != kind)
			continue;
		numbers.first = records + fields[i].offset;
		numbers.bytes = fields[i].bytes;
		fill(&info->columns[i], &numbers, at);
	}
	return data;
}
