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

#define COLUMN(kind, type, member) { kind, offsetof(type, member), sizeof_field(type, member) }

static const struct {
	u8 kind;
	u8 offset;
	u8 bytes;
} fields[RNL_COLUMN_COUNT] = {
#define FIELD(name, kind, record, member) \
	[RNL_##name] = COLUMN(RNL_##kind, struct rnl_disk_##record, member)
#include "fields.h"
#undef FIELD
};

/* Memory for kvfree(). Unlike that of kvmalloc() it is what was asked for, in whole pages. */
void *rnl_alloc(size_t bytes)
{
	return bytes > PAGE_SIZE ? vmalloc(bytes) : kmalloc(max_t(size_t, bytes, 1), GFP_KERNEL);
}

/*
 * A number of a record. One of 32 bits gets a sign, so that RNL_HOLE and RNL_NO_ENTRY lie beside
 * the others; rnl_number() drops the upper half.
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
		return column->least & column->mask;
	number = get_unaligned_le64(at) >> shift;
	if (column->bits + shift > 64)
		number |= (u64)at[8] << (64 - shift);
	number &= GENMASK_ULL(column->bits - 1, 0);
	return (column->least + number) & column->mask;
}

/* The first of the records from @low on, below @high, with more than @number. Numbers ascend. */
u32 rnl_search(const struct rnl_column *column, u32 low, u32 high, u64 number)
{
	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_number(column, middle) <= number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Finds out what a column of records of @width bytes must hold. Returns its size. */
static size_t measure(struct rnl_column *column, u32 field, const u8 *records, u32 width)
{
	const u8 *at = records + fields[field].offset;
	u32 bytes = fields[field].bytes, i;
	s64 least = column->count ? number_at(at, bytes) : 0, most = least;

	for (i = 0; i < column->count; i++, at += width) {
		s64 number = number_at(at, bytes);

		least = min(least, number);
		most = max(most, number);
	}
	column->least = least;
	column->mask = GENMASK_ULL(8 * bytes - 1, 0);
	column->bits = fls64((u64)most - (u64)least);
	return DIV_ROUND_UP_ULL((u64)column->count * column->bits, 8);
}

static void fill(struct rnl_column *column, u32 field, const u8 *records, u32 width, u8 *data)
{
	const u8 *at = records + fields[field].offset;
	u32 i;

	column->data = data;
	for (i = 0; column->bits && i < column->count; i++, at += width)
		put(data, (u64)i * column->bits,
		    (u64)number_at(at, fields[field].bytes) - column->least);
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
	size_t size[RNL_COLUMN_COUNT] = {}, all = PADDING;
	u8 *data, *at;
	u32 i;

	for (i = 0; i < RNL_COLUMN_COUNT; i++) {
		if (fields[i].kind != kind)
			continue;
		info->columns[i].count = count;
		size[i] = measure(&info->columns[i], i, records, width);
		all += size[i];
	}
	data = rnl_alloc(all);
	if (!data)
		return NULL;
	memset(data, 0, all);
	for (i = 0, at = data; i < RNL_COLUMN_COUNT; at += size[i++])
		if (fields[i].kind == kind)
			fill(&info->columns[i], i, records, width, at);
	return data;
}
