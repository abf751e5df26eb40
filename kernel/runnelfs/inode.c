// SPDX-License-Identifier: GPL-2.0
/*
 * Inodes, made from their records.
 */
#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/posix_acl.h>
#include <linux/slab.h>

#include "runnelfs.h"

static const struct inode_operations file_inode_ops = {
	.listxattr = rnl_listxattr,
	.rnl_get_acl_field = rnl_get_acl,
};

static const struct inode_operations dir_inode_ops = {
	.lookup = rnl_lookup,
	.listxattr = rnl_listxattr,
	.rnl_get_acl_field = rnl_get_acl,
};

static const struct inode_operations link_inode_ops = {
	.get_link = simple_get_link,
	.listxattr = rnl_listxattr,
};

static void set_times(struct inode *inode, const struct rnl_disk_inode *record)
{
	struct timespec64 time = {
		.tv_sec = (s64)le64_to_cpu(record->mtime_sec),
		.tv_nsec = le32_to_cpu(record->mtime_ns),
	};

	/* The image keeps no times of access and of change. */
	rnl_set_times(inode, time);
}

/* Sectors of a file that are no holes. */
static blkcnt_t sectors_of(const struct rnl_info *info, u32 ino, u64 size)
{
	u32 i = le32_to_cpu(info->inodes[ino - 1].extent_first);
	u32 end = rnl_extents_end(info, ino - 1);
	u32 at, next, count = (size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
	u64 chunks = 0;

	for (; i < end; i++) {
		at = le32_to_cpu(info->extents[i].file_chunk);
		next = i + 1 < end ? le32_to_cpu(info->extents[i + 1].file_chunk) : count;
		if (le32_to_cpu(info->extents[i].chunk_first) != RNL_HOLE)
			chunks += next - at;
	}
	return ((chunks << info->chunk_shift) + SECTOR_SIZE - 1) >> SECTOR_SHIFT;
}

static int set_link(struct inode *inode, const struct rnl_info *info,
		    const struct rnl_disk_inode *record)
{
	inode->i_link = kmemdup_nul(info->targets + le32_to_cpu(record->payload), inode->i_size,
				    GFP_KERNEL);
	if (!inode->i_link)
		return -ENOMEM;
	inode->i_op = &link_inode_ops;
	return 0;
}

static int fill_inode(struct inode *inode)
{
	const struct rnl_disk_inode *record = rnl_record(inode);
	struct super_block *sb = inode->i_sb;
	u64 size = le64_to_cpu(record->size);

	if (size > sb->s_maxbytes)
		return -EFBIG;
	inode->i_mode = le16_to_cpu(record->mode);
	i_uid_write(inode, le32_to_cpu(record->uid));
	i_gid_write(inode, le32_to_cpu(record->gid));
	set_nlink(inode, le32_to_cpu(record->nlink));
	inode->i_size = size;
	set_times(inode, record);
	if (!record->xattr_set) {
		inode->i_flags |= S_NOSEC;
		cache_no_acl(inode);
	}
	switch (inode->i_mode & S_IFMT) {
	case S_IFREG:
		inode->i_op = &file_inode_ops;
		inode->i_fop = &rnl_file_ops;
		inode->i_mapping->a_ops = &rnl_aops;
		inode->i_blocks = sectors_of(rnl_info(sb), inode->i_ino, size);
		return 0;
	case S_IFDIR:
		inode->i_op = &dir_inode_ops;
		inode->i_fop = &rnl_dir_ops;
		return 0;
	case S_IFLNK:
		return set_link(inode, rnl_info(sb), record);
	default:
		inode->i_op = &file_inode_ops;
		init_special_inode(inode, inode->i_mode,
				   new_decode_dev(le32_to_cpu(record->payload)));
		return 0;
	}
}

/* The inode with a number, which must be one of the image's. */
struct inode *rnl_iget(struct super_block *sb, u32 ino)
{
	struct inode *inode = iget_locked(sb, ino);
	int error;

	if (!inode)
		return ERR_PTR(-ENOMEM);
	if (!(inode->i_state & I_NEW))
		return inode;
	error = fill_inode(inode);
	if (error) {
		iget_failed(inode);
		return ERR_PTR(error);
	}
	unlock_new_inode(inode);
	return inode;
}
