// SPDX-License-Identifier: GPL-2.0
/*
 * Directories, and names: those of the entries of a directory and of the attributes of a set are
 * sorted by their bytes.
 */
#include <linux/fs.h>
#include <linux/stat.h>
#include <linux/string.h>

#include "runnelfs.h"

/* Places before the first entry: "." and "..". */
#define DOTS 2

/* The name of an entry or of an extended attribute; its size is put into *@bytes. */
const u8 *rnl_name(const struct rnl_info *info, u32 kind, u32 index, u32 *bytes)
{
	bool is_entry = kind == RNL_ENTRIES;
	u32 at = rnl_get(info, is_entry ? RNL_ENTRY_NAME : RNL_XATTR_NAME, index);
	u32 end = is_entry ? rnl_end(info, RNL_ENTRY_NAME, index) :
			     rnl_get(info, RNL_XATTR_VALUE, index);

	*bytes = end - at;
	return (is_entry ? info->names : info->xattr_bytes) + at;
}

/* Compares the name of a record with another one, as bytes, a prefix before what it begins. */
int rnl_compare(const struct rnl_info *info, u32 kind, u32 index, const void *other,
		u32 other_bytes)
{
	u32 bytes;
	const u8 *name = rnl_name(info, kind, index, &bytes);
	int order = memcmp(name, other, min(bytes, other_bytes));

	return order ? order : (int)bytes - (int)other_bytes;
}

/* The record from @low on, below @high, that has a name; U32_MAX if there is none. */
u32 rnl_find(const struct rnl_info *info, u32 kind, u32 low, u32 high, const void *name, u32 bytes)
{
	while (low < high) {
		u32 middle = low + (high - low) / 2;
		int order = rnl_compare(info, kind, middle, name, bytes);

		if (!order)
			return middle;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return U32_MAX;
}

struct dentry *rnl_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	struct rnl_info *info = rnl_info(dir->i_sb);
	u32 first = rnl_get(info, RNL_INODE_ENTRY_FIRST, dir->i_ino - 1);
	u32 end = rnl_end(info, RNL_INODE_ENTRY_FIRST, dir->i_ino - 1), entry;
	const struct qstr *name = &dentry->d_name;
	struct inode *inode = NULL;

	if (name->len > RNL_NAME_BYTES_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	entry = rnl_find(info, RNL_ENTRIES, first, end, name->name, name->len);
	if (entry != U32_MAX)
		inode = rnl_iget(dir->i_sb, rnl_get(info, RNL_ENTRY_INODE, entry));
	return d_splice_alias(inode, dentry);
}

static int iterate(struct file *file, struct dir_context *context)
{
	struct inode *dir = file_inode(file);
	struct rnl_info *info = rnl_info(dir->i_sb);
	u32 first = rnl_get(info, RNL_INODE_ENTRY_FIRST, dir->i_ino - 1);
	u32 end = rnl_end(info, RNL_INODE_ENTRY_FIRST, dir->i_ino - 1);

	if (!dir_emit_dots(file, context))
		return 0;
	while (context->pos - DOTS < end - first) {
		u32 entry = first + (u32)(context->pos - DOTS);
		u32 ino = rnl_get(info, RNL_ENTRY_INODE, entry), bytes;
		const u8 *name = rnl_name(info, RNL_ENTRIES, entry, &bytes);

		if (!dir_emit(context, name, bytes, ino,
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
