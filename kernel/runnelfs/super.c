// SPDX-License-Identifier: GPL-2.0
/*
 * runnelfs: mounts images of Runnel (.rnl), read-only.
 *
 *	mount -t runnelfs image.rnl /mnt
 *	mount -t runnelfs -o id=HEX /dev/sdb1 /mnt
 *
 * Everything that reaches a reader was verified: the superblock has the hashes of the sections, the
 * block table has those of the blocks, and id= names the hash of the superblock.
 */
#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/fs_parser.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/pagemap.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/statfs.h>
#include <linux/wait_bit.h>

#include "runnelfs.h"

enum { OPTION_ID };

static const struct fs_parameter_spec parameters[] = {
	fsparam_string("id", OPTION_ID),
	{}
};

static int parse_param(struct fs_context *fc, struct fs_parameter *param)
{
	struct rnl_info *info = fc->s_fs_info;
	struct fs_parse_result result;
	int option = fs_parse(fc, parameters, param, &result);
	u8 id[RNL_HASH_BYTES];

	if (option < 0)
		return option;
	if (strlen(param->string) != 2 * RNL_HASH_BYTES ||
	    hex2bin(id, param->string, RNL_HASH_BYTES))
		return invalf(fc, "runnelfs: id= needs 64 hexadecimal digits");
	if (fc->purpose == FS_CONTEXT_FOR_RECONFIGURE) {
		/* A remount repeats what the mount said. */
		if (memcmp(id, rnl_info(fc->root->d_sb)->id, sizeof(id)))
			return invalf(fc, "runnelfs: id= cannot be changed");
		return 0;
	}
	memcpy(info->wanted, id, sizeof(id));
	info->is_wanted = true;
	return 0;
}

/* Decode beside those who read, so many at once; a page that is locked may wait for them. */
#define WORKERS_MAX 16

static void info_free(struct rnl_info *info)
{
	if (!info)
		return;
	rnl_blocks_exit(&info->cache);
	if (info->workers)
		destroy_workqueue(info->workers);
	rnl_unload(info);
	if (info->file)
		fput(info->file);
	kfree(info);
}

/* Links own the memory of their target. */
static void free_inode(struct inode *inode)
{
	if (S_ISLNK(inode->i_mode))
		kfree(inode->i_link);
	free_inode_nonrcu(inode);
}

static int statfs(struct dentry *dentry, struct kstatfs *buffer)
{
	struct rnl_info *info = rnl_info(dentry->d_sb);

	buffer->f_type = RNL_SUPER_MAGIC;
	buffer->f_bsize = dentry->d_sb->s_blocksize;
	buffer->f_blocks = DIV_ROUND_UP_ULL(info->file_bytes, dentry->d_sb->s_blocksize);
	buffer->f_files = info->inode_count;
	buffer->f_namelen = RNL_NAME_BYTES_MAX;
	memcpy(&buffer->f_fsid, info->id, sizeof(buffer->f_fsid));
	return 0;
}

static int show_options(struct seq_file *file, struct dentry *root)
{
	struct rnl_info *info = rnl_info(root->d_sb);

	if (info->is_wanted)
		seq_printf(file, ",id=%32phN", info->wanted);
	return 0;
}

static const struct super_operations super_ops = {
	.free_inode = free_inode,
	.statfs = statfs,
	.show_options = show_options,
};

static int fill_super(struct super_block *sb, struct fs_context *fc)
{
	struct rnl_info *info = rnl_info(sb);
	struct inode *root;
	int error;

	/* The size of a page of a file; devices are read in sectors of their own. */
	sb->s_blocksize = 4096;
	sb->s_blocksize_bits = 12;
	sb->s_flags |= SB_RDONLY | SB_NOATIME | SB_POSIXACL;
	sb->s_magic = RNL_SUPER_MAGIC;
	sb->s_maxbytes = MAX_LFS_FILESIZE;
	sb->s_time_gran = 1;
	sb->s_op = &super_ops;
	/* The type changed in 6.6. */
	sb->s_xattr = (void *)rnl_xattr_handlers;
	if (info->file) {
		error = super_setup_bdi(sb);
		if (error)
			return error;
		sb->s_bdi->ra_pages = VM_READAHEAD_PAGES;
		/* Messages name the mount by it. */
		snprintf(sb->s_id, sizeof(sb->s_id), "%pD", info->file);
		sb->s_stack_depth = file_inode(info->file)->i_sb->s_stack_depth + 1;
		if (sb->s_stack_depth > FILESYSTEM_MAX_STACK_DEPTH)
			return invalf(fc, "runnelfs: too many file systems on one another");
	}
	info->sb = sb;
	info->workers = alloc_workqueue("runnelfs/%u:%u", WQ_UNBOUND | WQ_MEM_RECLAIM, WORKERS_MAX,
					MAJOR(sb->s_dev), MINOR(sb->s_dev));
	if (!info->workers)
		return -ENOMEM;
	error = rnl_load(fc, sb);
	if (!error)
		error = rnl_blocks_init(sb);
	if (error)
		return error;
	root = rnl_iget(sb, 1);
	if (IS_ERR(root))
		return PTR_ERR(root);
	sb->s_root = d_make_root(root);
	return sb->s_root ? 0 : -ENOMEM;
}

/* A device that is mounted already is not read again, so its image may be another one. */
static int check_shared(struct fs_context *fc, const struct rnl_info *wanted)
{
	struct super_block *sb = fc->root->d_sb;

	if (!wanted || !wanted->is_wanted ||
	    !memcmp(rnl_info(sb)->id, wanted->wanted, RNL_HASH_BYTES))
		return 0;
	errorf(fc, "runnelfs: the device is mounted, and is not the image that id= names");
	dput(fc->root);
	fc->root = NULL;
	deactivate_locked_super(sb);
	return -EBADMSG;
}

static int get_tree(struct fs_context *fc)
{
	struct rnl_info *info = fc->s_fs_info;
	struct file *file;
	struct path path;
	bool is_file;
	int error;

	if (!fc->source)
		return invalf(fc, "runnelfs: no image is named");
	/* Else a second mount of a device would have to say so itself. */
	fc->sb_flags |= SB_RDONLY;
	error = kern_path(fc->source, LOOKUP_FOLLOW, &path);
	if (error)
		return error;
	is_file = d_is_reg(path.dentry);
	path_put(&path);
	if (is_file) {
		file = filp_open(fc->source, O_RDONLY | O_LARGEFILE, 0);
		if (IS_ERR(file))
			return PTR_ERR(file);
		info->file = file;
		if (!S_ISREG(file_inode(file)->i_mode))
			return -EINVAL;
		return get_tree_nodev(fc, fill_super);
	}
	error = get_tree_bdev(fc, fill_super);
	/* What is left in the context was not needed: the superblock was there. */
	return error ? error : check_shared(fc, fc->s_fs_info);
}

static int reconfigure(struct fs_context *fc)
{
	if (!(fc->sb_flags & SB_RDONLY)) {
		errorf(fc, "runnelfs: images are read-only");
		return -EROFS;
	}
	return 0;
}

static void context_free(struct fs_context *fc)
{
	if (fc->purpose != FS_CONTEXT_FOR_RECONFIGURE)
		info_free(fc->s_fs_info);
}

static const struct fs_context_operations context_ops = {
	.parse_param = parse_param,
	.get_tree = get_tree,
	.reconfigure = reconfigure,
	.free = context_free,
};

static int init_context(struct fs_context *fc)
{
	struct rnl_info *info;

	fc->ops = &context_ops;
	if (fc->purpose == FS_CONTEXT_FOR_RECONFIGURE)
		return 0;
	info = kzalloc(sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	rnl_cache_init(&info->cache);
	rnl_ahead_init(&info->ahead);
	fc->s_fs_info = info;
	return 0;
}

static void kill_sb(struct super_block *sb)
{
	struct rnl_info *info = rnl_info(sb);

	/*
	 * Workers have inodes in use, which must not be while a mount ends. One that fills pages
	 * may hand over others and ask for hot blocks.
	 */
	WRITE_ONCE(info->is_ending, true);
	wait_var_event(&info->handed, !atomic_read(&info->handed));
	cancel_work_sync(&info->ahead.work);
	/* Not by s_bdev: the device may have refused to open. */
	if (info->file)
		kill_anon_super(sb);
	else
		kill_block_super(sb);
	info_free(info);
}

static struct file_system_type runnelfs = {
	.owner = THIS_MODULE,
	.name = "runnelfs",
	.init_fs_context = init_context,
	.parameters = parameters,
	.kill_sb = kill_sb,
	.fs_flags = FS_REQUIRES_DEV,
};
MODULE_ALIAS_FS("runnelfs");

static int __init runnelfs_init(void)
{
	rnl_hash_init();
	return register_filesystem(&runnelfs);
}

static void __exit runnelfs_exit(void)
{
	unregister_filesystem(&runnelfs);
	/* Links free their memory after a grace period. */
	rcu_barrier();
}

module_init(runnelfs_init);
module_exit(runnelfs_exit);
MODULE_DESCRIPTION("Read-only file system for images of Runnel");
MODULE_LICENSE("GPL");
