/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that this builds against: Linux 6.1 and newer. In a kernel of
 * one version this file is not needed.
 */
#ifndef RUNNELFS_COMPAT_H
#define RUNNELFS_COMPAT_H

#include <linux/fs.h>
#include <linux/version.h>

#define RNL_SINCE(major, minor) (KERNEL_VERSION(major, minor, 0) <= LINUX_VERSION_CODE)

#if RNL_SINCE(6, 12)
#include <linux/hex.h>
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* Flags of an inode. */
#if RNL_SINCE(6, 19)
#define rnl_state(inode) inode_state_read_once(inode)
#else
#define rnl_state(inode) ((inode)->i_state)
#endif

/* Dictionaries for zstd are exported to modules. */
#define RNL_HAS_DICTIONARIES RNL_SINCE(6, 12)

/* The kernel asks for access control lists without a handler of attributes. */
#define RNL_NEEDS_ACL_HANDLERS (IS_ENABLED(CONFIG_FS_POSIX_ACL) && !RNL_SINCE(6, 3))

/* The function of an inode that gives a list, by its name of then. */
#if RNL_SINCE(6, 2)
#define rnl_get_acl_field get_inode_acl
#else
#define rnl_get_acl_field get_acl
#endif

#if !RNL_SINCE(6, 5)
#define filemap_splice_read generic_file_splice_read
#endif

static inline void rnl_set_times(struct inode *inode, struct timespec64 time)
{
#if RNL_SINCE(6, 7)
	inode_set_mtime_to_ts(inode, time);
	inode_set_atime_to_ts(inode, time);
	inode_set_ctime_to_ts(inode, time);
#else
	inode->i_mtime = time;
	inode->i_atime = time;
#if RNL_SINCE(6, 6)
	inode_set_ctime_to_ts(inode, time);
#else
	inode->i_ctime = time;
#endif
#endif
}

#endif
