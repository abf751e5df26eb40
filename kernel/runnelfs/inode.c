// SPDX-License-Identifier: GPL-2.0
/*
 * Inodes, made from their records.
 */
#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/lockdep.h>
#include <linux/posix_acl.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "runnelfs.h"

static struct lock_class_key invalidate_locks[FILESYSTEM_MAX_STACK_DEPTH + 1];

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

/* Sectors of a file that are no holes. */
static blkcnt_t sectors_of(const struct rnl_info *info, u32 ino, u64 size)
{
	u32 i = rnl_get(info, RNL_INODE_EXTENT_FIRST, ino - 1);
	u32 end = rnl_end(info, RNL_INODE_EXTENT_FIRST, ino - 1);
	u32 at, next, count = (size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
	u64 chunks = 0;

	for (; i < end; i++) {
		at = rnl_get(info, RNL_EXTENT_FILE_CHUNK, i);
		next = i + 1 < end ? rnl_get(info, RNL_EXTENT_FILE_CHUNK, i + 1) : count;
		if (rnl_get(info, RNL_EXTENT_CHUNK_FIRST, i) != RNL_HOLE)
			chunks += next - at;
		cond_resched();
	}
	return ((chunks << info->chunk_shift) + SECTOR_SIZE - 1) >> SECTOR_SHIFT;
}

static int set_link(struct inode *inode, const struct rnl_info *info, u32 index)
{
	const u8 *target = info->targets + rnl_get(info, RNL_INODE_PAYLOAD, index);

	inode->i_link = kmemdup_nul(target, inode->i_size, GFP_KERNEL);
	if (!inode->i_link)
		return -ENOMEM;
	inode->i_op = &link_inode_ops;
	return 0;
}

static int fill_inode(struct inode *inode)
{
	const struct rnl_info *info = rnl_info(inode->i_sb);
	u32 index = inode->i_ino - 1;
	u64 size = rnl_get64(info, RNL_INODE_SIZE, index);

	if (size > inode->i_sb->s_maxbytes)
		return -EFBIG;
	inode->i_mode = rnl_get(info, RNL_INODE_MODE, index);
	i_uid_write(inode, rnl_get(info, RNL_INODE_UID, index));
	i_gid_write(inode, rnl_get(info, RNL_INODE_GID, index));
	set_nlink(inode, rnl_get(info, RNL_INODE_NLINK, index));
	inode->i_size = size;
	/* The image keeps no times of access and of change. */
	rnl_set_times(inode, (struct timespec64){
		.tv_sec = (s64)rnl_get64(info, RNL_INODE_MTIME_SEC, index),
		.tv_nsec = rnl_get(info, RNL_INODE_MTIME_NS, index),
	});
	if (!rnl_get(info, RNL_INODE_XATTR_SET, index)) {
		inode->i_flags |= S_NOSEC;
		cache_no_acl(inode);
	}
	switch (inode->i_mode & S_IFMT) {
	case S_IFREG:
		inode->i_op = &file_inode_ops;
		inode->i_fop = &rnl_file_ops;
		inode->i_mapping->a_ops = &rnl_aops;
		inode->i_blocks = sectors_of(info, inode->i_ino, size);
		/* An image may lie in the file of another mount of ours. */
		lockdep_set_class(&inode->i_mapping->invalidate_lock,
				  &invalidate_locks[inode->i_sb->s_stack_depth]);
		return 0;
	case S_IFDIR:
		inode->i_op = &dir_inode_ops;
		inode->i_fop = &rnl_dir_ops;
		return 0;
	case S_IFLNK:
		return set_link(inode, info, index);
	default:
		inode->i_op = &file_inode_ops;
		init_special_inode(inode, inode->i_mode,
				   new_decode_dev(rnl_get(info, RNL_INODE_PAYLOAD, index)));
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
	if (!(rnl_state(inode) & I_NEW))
		return inode;
	error = fill_inode(inode);
	if (error) {
		iget_failed(inode);
		return ERR_PTR(error);
	}
	unlock_new_inode(inode);
	return inode;
}
