/* SPDX-License-Identifier: GPL-2.0 */
/* The numbers of an image in memory. */
#ifndef RUNNELFS_COLUMNS_H
#define RUNNELFS_COLUMNS_H

#include <linux/types.h>

struct rnl_info;

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
	u8 bits;
};

u64 rnl_number(const struct rnl_column *column, u32 index);
u32 rnl_search(const struct rnl_column *column, u32 low, u32 high, u64 number);
void *rnl_alloc(size_t bytes);
int rnl_column(struct rnl_column *column, const u32 *from, u32 count);
void *rnl_columns(struct rnl_info *info, u32 kind, const u8 *records, u32 width, u32 count);

#endif
