// SPDX-License-Identifier: GPL-2.0
/*
 * Extended attributes and access control lists. Sets are shared between inodes; within a set,
 * names ascend and carry their namespace.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/posix_acl_xattr.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/xattr.h>

#include "runnelfs.h"

/* The attributes of an inode; false if it has none. */
static bool set_of(const struct inode *inode, u32 *first, u32 *end)
{
	const struct rnl_info *info = rnl_info(inode->i_sb);
	u32 set = rnl_get(info, RNL_INODE_XATTR_SET, inode->i_ino - 1);

	if (!set)
		return false;
	*first = rnl_get(info, RNL_SET_FIRST, set - 1);
	*end = rnl_end(info, RNL_SET_FIRST, set - 1);
	return true;
}

/* Finds the value of an attribute, which may begin at any byte. Returns its size. */
static int find(const struct inode *inode, const char *name, const u8 **value)
{
	const struct rnl_info *info = rnl_info(inode->i_sb);
	u32 first, end, found = U32_MAX, at;

	if (set_of(inode, &first, &end))
		found = rnl_find(info, RNL_XATTRS, first, end, name, strlen(name));
	if (found == U32_MAX)
		return -ENODATA;
	at = rnl_get(info, RNL_XATTR_VALUE, found);
	*value = info->xattr_bytes + at;
	return rnl_end(info, RNL_XATTR_NAME, found) - at;
}

static int get(const struct xattr_handler *handler, struct dentry *unused, struct inode *inode,
	       const char *name, void *buffer, size_t size)
{
	const u8 *value;
	int bytes = find(inode, xattr_full_name(handler, name), &value);

	if (bytes < 0 || !buffer)
		return bytes;
	if (bytes > size)
		return -ERANGE;
	memcpy(buffer, value, bytes);
	return bytes;
}

static const struct xattr_handler user_handler = {
	.prefix = XATTR_USER_PREFIX,
	.get = get,
};

static const struct xattr_handler trusted_handler = {
	.prefix = XATTR_TRUSTED_PREFIX,
	.get = get,
};

static const struct xattr_handler security_handler = {
	.prefix = XATTR_SECURITY_PREFIX,
	.get = get,
};

const struct xattr_handler *const rnl_xattr_handlers[] = {
	&user_handler,
	&trusted_handler,
	&security_handler,
#if RNL_NEEDS_ACL_HANDLERS
	&posix_acl_access_xattr_handler,
	&posix_acl_default_xattr_handler,
#endif
	NULL
};

static bool begins(const u8 *name, u32 bytes, const char *prefix)
{
	return bytes > strlen(prefix) && !memcmp(name, prefix, strlen(prefix));
}

static bool is(const u8 *name, u32 bytes, const char *other)
{
	return bytes == strlen(other) && !memcmp(name, other, bytes);
}

static bool is_listed(const u8 *name, u32 bytes)
{
	if (begins(name, bytes, XATTR_TRUSTED_PREFIX))
		return capable(CAP_SYS_ADMIN);
	if (begins(name, bytes, XATTR_SYSTEM_PREFIX))
		return IS_ENABLED(CONFIG_FS_POSIX_ACL) &&
		       (is(name, bytes, XATTR_NAME_POSIX_ACL_ACCESS) ||
			is(name, bytes, XATTR_NAME_POSIX_ACL_DEFAULT));
	return begins(name, bytes, XATTR_USER_PREFIX) || begins(name, bytes, XATTR_SECURITY_PREFIX);
}

ssize_t rnl_listxattr(struct dentry *dentry, char *buffer, size_t size)
{
	const struct rnl_info *info = rnl_info(dentry->d_sb);
	size_t used = 0;
	u32 i, end;

	if (!set_of(d_inode(dentry), &i, &end))
		return 0;
	for (; i < end; i++) {
		u32 bytes;
		const u8 *name = rnl_name(info, RNL_XATTRS, i, &bytes);

		cond_resched();
		if (!is_listed(name, bytes))
			continue;
		if (buffer) {
			if (bytes + 1 > size - used)
				return -ERANGE;
			memcpy(buffer + used, name, bytes);
			buffer[used + bytes] = 0;
		}
		used += bytes + 1;
	}
	return used;
}

struct posix_acl *rnl_get_acl(struct inode *inode, int type, bool rcu)
{
	const char *name = type == ACL_TYPE_ACCESS ? XATTR_NAME_POSIX_ACL_ACCESS :
						     XATTR_NAME_POSIX_ACL_DEFAULT;
	struct posix_acl *acl;
	const u8 *value;
	int bytes;

	if (rcu)
		return ERR_PTR(-ECHILD);
	bytes = find(inode, name, &value);
	if (bytes == -ENODATA)
		return NULL;
	/* The kernel reads whole words of it. */
	value = kmemdup(value, bytes, GFP_KERNEL);
	if (!value)
		return ERR_PTR(-ENOMEM);
	acl = posix_acl_from_xattr(inode->i_sb->s_user_ns, value, bytes);
	kfree(value);
	return acl;
}
