//! The module's columns, compiled as a program that checks its own accesses: each number that went
//! in comes out, whatever its neighbours are.

use super::hashes::Program;

/// Makes columns of random records, whose fields have random sizes in bits.
const PROGRAM: &str = r#"
#define RUNNELFS_H
#include <linux/kernel.h>
#include "format.h"
#include "columns.h"
struct rnl_info {
	struct rnl_column columns[RNL_COLUMN_COUNT];
};
#include "columns.c"
#include <stdio.h>

static u64 state = 24;

static u64 any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static const u8 widths[RNL_TABLES] = {
	[RNL_INODES] = sizeof(struct rnl_disk_inode),
	[RNL_ENTRIES] = sizeof(struct rnl_disk_entry),
	[RNL_XATTR_SETS] = sizeof(struct rnl_disk_number),
	[RNL_XATTRS] = sizeof(struct rnl_disk_xattr),
	[RNL_EXTENTS] = sizeof(struct rnl_disk_extent),
	[RNL_CHUNKS] = sizeof(__le64),
	[RNL_BLOCKS] = sizeof(struct rnl_disk_block),
	[RNL_SHORTS] = sizeof(struct rnl_disk_short),
	[RNL_INTRODUCED] = sizeof(struct rnl_disk_number),
	[RNL_BY_POSITION] = sizeof(struct rnl_disk_number),
};

/* Numbers of one field: from zero or from anywhere, with so many bits; now and then all ones. */
static void set_field(u8 *at, u32 bytes, u32 width, u32 count)
{
	u64 least = any() % 2 ? any() : 0, mask = ~0ULL >> any() % 64;

	if (any() % 8 == 0)
		mask = 0;
	for (; count; count--, at += width) {
		u64 number = any() % 16 ? least + (any() & mask) : ~0ULL;

		memcpy(at, &number, bytes);
	}
}

static int differs(const struct rnl_column *column, const u8 *at, u32 bytes, u32 width, u32 count)
{
	for (u32 i = 0; i < count; i++, at += width) {
		u64 number = 0, found = rnl_number(column, i);

		memcpy(&number, at, bytes);
		if (bytes < 8)
			found &= (1ULL << 8 * bytes) - 1;
		if (found != number)
			return 1;
	}
	return 0;
}

int main(void)
{
	u32 compared = 0;

	for (int round = 0; round < 300; round++) {
		for (u32 kind = 0; kind < RNL_TABLES; kind++) {
			struct rnl_info info = {};
			u32 count = any() % 200, width = widths[kind];
			u8 *records = calloc(count + 1, width + 1);
			void *data;

			for (u32 i = 0; i < RNL_COLUMN_COUNT; i++)
				if (fields[i].kind == kind)
					set_field(records + fields[i].offset, fields[i].bytes, width, count);
			data = rnl_columns(&info, kind, records, width, count);
			for (u32 i = 0; i < RNL_COLUMN_COUNT; i++) {
				if (fields[i].kind != kind)
					continue;
				compared += count;
				if (differs(&info.columns[i], records + fields[i].offset, fields[i].bytes, width, count)) {
					fprintf(stderr, "round %d, column %u of %u records\n", round, i, count);
					return 1;
				}
			}
			free(data);
			free(records);
		}
	}
	printf("%u\n", compared);
	return 0;
}
"#;

#[test]
fn numbers_come_out_of_columns_as_they_went_in() -> anyhow::Result<()> {
    let program = Program::new("columns", PROGRAM)?;
    program.compile_checked()?;
    let compared: u32 = String::from_utf8(program.run(&mut program.command())?)?.trim().parse()?;
    anyhow::ensure!(compared > 500_000, "only {compared} numbers were compared");
    Ok(())
}
