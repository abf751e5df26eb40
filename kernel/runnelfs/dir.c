// SPDX-License-Identifier: GPL-2.0
/*
 * Directories: entries are sorted by the bytes of their names.
 */
#include <linux/fs.h>
#include <linux/stat.h>
#include <linux/string.h>

#include "runnelfs.h"

/* Places before the first entry: "." and "..". */
#define DOTS 2

static u32 entries_first(const struct rnl_info *info, const struct inode *dir)
{
	return rnl_get(info, RNL_INODE_ENTRY_FIRST, dir->i_ino - 1);
}

static u32 entries_end(const struct rnl_info *info, const struct inode *dir)
{
	return rnl_entries_end(info, dir->i_ino - 1);
}

struct dentry *rnl_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	struct rnl_info *info = rnl_info(dir->i_sb);
	u32 low = entries_first(info, dir), high = entries_end(info, dir);
	const struct qstr *name = &dentry->d_name;
	struct inode *inode = NULL;

	if (name->len > RNL_NAME_BYTES_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	while (low < high) {
		u32 middle = low + (high - low) / 2;
		u32 at = rnl_get(info, RNL_ENTRY_NAME, middle);
		u32 bytes = rnl_name_end(info, middle) - at;
		int order = memcmp(name->name, info->names + at, min(name->len, bytes));

		if (!order)
			order = (int)name->len - (int)bytes;
		if (!order) {
			inode = rnl_iget(dir->i_sb, rnl_get(info, RNL_ENTRY_INODE, middle));
			break;
		}
		if (order > 0)
			low = middle + 1;
		else
			high = middle;
	}
	return d_splice_alias(inode, dentry);
}

static int iterate(struct file *file, struct dir_context *context)
{
	struct inode *dir = file_inode(file);
	struct rnl_info *info = rnl_info(dir->i_sb);
	u32 first = entries_first(info, dir), end = entries_end(info, dir);

	if (!dir_emit_dots(file, context))
		return 0;
	while (context->pos - DOTS < end - first) {
		u32 entry = first + (u32)(context->pos - DOTS);
		u32 at = rnl_get(info, RNL_ENTRY_NAME, entry);
		u32 ino = rnl_get(info, RNL_ENTRY_INODE, entry);

		if (!dir_emit(context, info->names + at, rnl_name_end(info, entry) - at, ino,
			      fs_umode_to_dtype(rnl_get(info, RNL_INODE_MODE, ino - 1))))
			return 0;
		context->pos++;
	}
	return 0;
}

const struct file_operations rnl_dir_ops = {
	.llseek = generic_file_llseek,
	.read = generic_read_dir,
	.iterate_shared = iterate,
};
