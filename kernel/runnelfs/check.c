// SPDX-License-Identifier: GPL-2.0
/*
 * The rules of the tree: inodes, directories, names, link targets and extended attributes.
 * Once they hold, nothing that reads these tables has to check an index. The rules are those of
 * crates/image/src/tree.rs. Temporary memory: 6 bytes an inode.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/stat.h>
#include <linux/string.h>

#include "runnelfs.h"

/* Says what is wrong with an image whose hashes are right. */
int rnl_bad(struct fs_context *fc, const char *what, u32 index)
{
	errorf(fc, "runnelfs: the image was written wrongly: %s %u", what, index);
	return -EUCLEAN;
}

int rnl_too_new(struct fs_context *fc, const char *what, u32 found)
{
	errorf(fc, "runnelfs: the image needs a newer runnelfs: %s %u", what, found);
	return -EOPNOTSUPP;
}

/* Whether the name of a record comes behind that of the one before. */
static bool ascends(const struct rnl_info *info, u32 kind, u32 index)
{
	u32 bytes;
	const u8 *name = rnl_name(info, kind, index, &bytes);

	return rnl_compare(info, kind, index - 1, name, bytes) < 0;
}

static int check_xattr_sets(struct fs_context *fc, const struct rnl_info *info)
{
	u32 set, i, start = 0, end;

	for (set = 0; set < info->set_count; set++) {
		end = rnl_end(info, RNL_SET_FIRST, set);
		if (rnl_get(info, RNL_SET_FIRST, set) != start || end <= start ||
		    end > info->xattr_count)
			return rnl_bad(fc, "the attributes of set", set);
		for (i = start + 1; i < end; i++)
			if (!ascends(info, RNL_XATTRS, i))
				return rnl_bad(fc, "the order of attribute", i);
		start = end;
	}
	if (start != info->xattr_count)
		return rnl_bad(fc, "the end of the last of sets", set);
	return 0;
}

static int check_xattrs(struct fs_context *fc, const struct rnl_info *info)
{
	u32 i, start = 0;

	for (i = 0; i < info->xattr_count; i++) {
		u32 name = rnl_get(info, RNL_XATTR_NAME, i);
		u32 value = rnl_get(info, RNL_XATTR_VALUE, i);
		u32 end = rnl_end(info, RNL_XATTR_NAME, i);

		if (name != start || value < name || end < value ||
		    end > info->section_bytes[RNL_XATTR_BYTES])
			return rnl_bad(fc, "the place of attribute", i);
		if (value == name || value - name > RNL_XATTR_NAME_BYTES_MAX ||
		    memchr(info->xattr_bytes + name, 0, value - name))
			return rnl_bad(fc, "the name of attribute", i);
		if (end - value > RNL_XATTR_VALUE_BYTES_MAX)
			return rnl_bad(fc, "the size of attribute", i);
		start = end;
	}
	if (start != info->section_bytes[RNL_XATTR_BYTES])
		return rnl_bad(fc, "the end of the last of attributes", i);
	return check_xattr_sets(fc, info);
}

static int check_target(struct fs_context *fc, const struct rnl_info *info, u32 index)
{
	u64 size = rnl_get64(info, RNL_INODE_SIZE, index);
	u32 start = rnl_get(info, RNL_INODE_PAYLOAD, index);

	if (!size || size > RNL_TARGET_BYTES_MAX || start > info->section_bytes[RNL_TARGETS] ||
	    size > info->section_bytes[RNL_TARGETS] - start ||
	    memchr(info->targets + start, 0, size))
		return rnl_bad(fc, "the target of link", index + 1);
	return 0;
}

/* Checks the fields of one inode that do not depend on its neighbours. */
static int check_inode(struct fs_context *fc, const struct rnl_info *info, u32 index)
{
	u16 mode = rnl_get(info, RNL_INODE_MODE, index);
	bool is_device = S_ISCHR(mode) || S_ISBLK(mode);

	if (rnl_get(info, RNL_INODE_RESERVED, index) ||
	    rnl_get(info, RNL_INODE_MTIME_NS, index) >= NSEC_PER_SEC)
		return rnl_bad(fc, "a field of inode", index + 1);
	if (rnl_get(info, RNL_INODE_XATTR_SET, index) > info->set_count)
		return rnl_bad(fc, "the attributes of inode", index + 1);
	if (S_ISLNK(mode))
		return check_target(fc, info, index);
	if (!is_device && !S_ISREG(mode) && !S_ISDIR(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode))
		return rnl_bad(fc, "the type of inode", index + 1);
	if (!S_ISREG(mode) && rnl_get64(info, RNL_INODE_SIZE, index))
		return rnl_bad(fc, "the size of inode", index + 1);
	if (!is_device && rnl_get(info, RNL_INODE_PAYLOAD, index))
		return rnl_bad(fc, "the payload of inode", index + 1);
	return 0;
}

static int check_inodes(struct fs_context *fc, const struct rnl_info *info)
{
	u32 i, entry = 0, extent = 0;
	int error;

	if (!info->inode_count || !S_ISDIR(rnl_get(info, RNL_INODE_MODE, 0)))
		return rnl_bad(fc, "the root, inode", 1);
	for (i = 0; i < info->inode_count; i++) {
		u16 mode = rnl_get(info, RNL_INODE_MODE, i);
		u32 entry_end = rnl_end(info, RNL_INODE_ENTRY_FIRST, i);
		u32 extent_end = rnl_end(info, RNL_INODE_EXTENT_FIRST, i);

		error = check_inode(fc, info, i);
		if (error)
			return error;
		if (rnl_get(info, RNL_INODE_ENTRY_FIRST, i) != entry || entry_end < entry ||
		    entry_end > info->entry_count || (!S_ISDIR(mode) && entry_end != entry))
			return rnl_bad(fc, "the entries of inode", i + 1);
		if (rnl_get(info, RNL_INODE_EXTENT_FIRST, i) != extent || extent_end < extent ||
		    extent_end > info->extent_count || (!S_ISREG(mode) && extent_end != extent))
			return rnl_bad(fc, "the extents of inode", i + 1);
		entry = entry_end;
		extent = extent_end;
	}
	return 0;
}

static int check_names(struct fs_context *fc, const struct rnl_info *info)
{
	u32 i, start = 0, bytes;
	const u8 *name;

	for (i = 0; i < info->entry_count; i++) {
		u32 end = rnl_end(info, RNL_ENTRY_NAME, i);

		bytes = end - start;
		if (rnl_get(info, RNL_ENTRY_NAME, i) != start || end <= start ||
		    end > info->section_bytes[RNL_NAMES] || bytes > RNL_NAME_BYTES_MAX)
			return rnl_bad(fc, "the place of the name of entry", i);
		name = info->names + start;
		if (memchr(name, 0, bytes) || memchr(name, '/', bytes) ||
		    (name[0] == '.' && (bytes == 1 || (bytes == 2 && name[1] == '.'))))
			return rnl_bad(fc, "the name of entry", i);
		start = end;
	}
	if (start != info->section_bytes[RNL_NAMES])
		return rnl_bad(fc, "the end of the last name of entries", i);
	return 0;
}

/* Checks the entries of a directory, and counts what they name in @links and @depth. */
static int check_directory(struct fs_context *fc, const struct rnl_info *info, u32 dir, u32 *links,
			   u16 *depth)
{
	u32 first = rnl_get(info, RNL_INODE_ENTRY_FIRST, dir), i;
	u32 end = rnl_end(info, RNL_INODE_ENTRY_FIRST, dir);

	for (i = first; i < end; i++) {
		u32 child = rnl_get(info, RNL_ENTRY_INODE, i) - 1;
		bool is_dir, is_first;

		if (i > first && !ascends(info, RNL_ENTRIES, i))
			return rnl_bad(fc, "the order of entry", i);
		if (child >= info->inode_count)
			return rnl_bad(fc, "the inode of entry", i);
		is_dir = S_ISDIR(rnl_get(info, RNL_INODE_MODE, child));
		is_first = is_dir ? !depth[child] : !links[child];
		if (is_dir && (child <= dir || !is_first))
			return rnl_bad(fc, "the directory of entry", i);
		if (is_first && rnl_get(info, RNL_INODE_ENTRY, child) != i)
			return rnl_bad(fc, "the first entry of inode", child + 1);
		if (is_dir) {
			if (depth[dir] >= RNL_DEPTH_MAX)
				return rnl_bad(fc, "the depth of inode", child + 1);
			depth[child] = depth[dir] + 1;
			links[dir]++;
		} else {
			links[child]++;
		}
	}
	return 0;
}

/*
 * Directories form a tree: each is named once, by one with a lower number. All else is named as
 * often as its link count says, and at least once.
 */
static int check_shape(struct fs_context *fc, const struct rnl_info *info, u32 *links, u16 *depth)
{
	u32 i;
	int error;

	for (i = 0; i < info->inode_count; i++) {
		if (!S_ISDIR(rnl_get(info, RNL_INODE_MODE, i)))
			continue;
		links[i] += 2;
		error = check_directory(fc, info, i, links, depth);
		if (error)
			return error;
		cond_resched();
	}
	if (rnl_get(info, RNL_INODE_ENTRY, 0) != RNL_NO_ENTRY)
		return rnl_bad(fc, "the entry of the root, inode", 1);
	for (i = 0; i < info->inode_count; i++) {
		bool is_dir = S_ISDIR(rnl_get(info, RNL_INODE_MODE, i));

		if (i && (!links[i] || (is_dir && !depth[i])))
			return rnl_bad(fc, "no entry names inode", i + 1);
		if (rnl_get(info, RNL_INODE_NLINK, i) != links[i])
			return rnl_bad(fc, "the link count of inode", i + 1);
	}
	return 0;
}

int rnl_check_tree(struct fs_context *fc, struct rnl_info *info)
{
	u32 *links;
	u16 *depth;
	int error;

	error = check_xattrs(fc, info);
	if (!error)
		error = check_inodes(fc, info);
	if (!error)
		error = check_names(fc, info);
	if (error)
		return error;
	links = kvcalloc(info->inode_count, sizeof(*links), GFP_KERNEL);
	depth = kvcalloc(info->inode_count, sizeof(*depth), GFP_KERNEL);
	error = links && depth ? check_shape(fc, info, links, depth) : -ENOMEM;
	kvfree(links);
	kvfree(depth);
	return error;
}
