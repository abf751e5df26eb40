/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of runnelfs share: the mounted image, its tables, and the cache of decoded
 * blocks.
 */
#ifndef RUNNELFS_H
#define RUNNELFS_H

#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "columns.h"
#include "compat.h"
#include "format.h"

/* f_type of statfs: "RNL1". */
#define RNL_SUPER_MAGIC 0x314c4e52

/* A decoder: one thread at a time decodes with it. */
struct rnl_decoder {
	struct list_head link;
	/* Room for the stored bytes of the largest block, in whole sectors. */
	void *stored;
	void *zstd_workspace;
	struct xz_dec *xz;
};

/* A decoded block, or one that is being decoded. */
struct rnl_block {
	struct list_head link;
	u32 index;
	u32 bytes;
	u64 raw_start;
	/* As it was compressed: each chunk still has to go through the filter. */
	u8 *raw;
	u8 filter;
	/* Users; under the lock of the cache. */
	int users;
	/* Valid once @done. */
	int error;
	struct completion done;
	/* Bit 0: its pages were given to the page cache. */
	unsigned long spread;
};

/* Decoded blocks and decoders of a mount. */
struct rnl_cache {
	/* Guards all but decoder_wait and idle. */
	spinlock_t lock;
	/* Decoded blocks and those under way, last used first. */
	struct list_head blocks;
	u32 bytes;
	u32 count;
	/* Decoders that nobody uses, and how many there are in all. */
	struct list_head decoders;
	u32 decoder_count;
	u32 decoder_count_max;
	wait_queue_head_t decoder_wait;
	struct delayed_work idle;
};

/* Hot blocks that are read before anyone asks for them. */
struct rnl_ahead {
	/* Guards all but work. */
	spinlock_t lock;
	/* Where readers began to read one block after the other, and where to stop. */
	u32 first;
	u32 end;
	/* The next block to read, and how many are read ahead at once. */
	u32 next;
	u32 count;
	struct work_struct work;
};

/* A mounted image. Tables are constant once the mount is done, so reading them takes no lock. */
struct rnl_info {
	/* The image if it is a file; NULL if it is on sb->s_bdev. */
	struct file *file;
	u8 id[RNL_HASH_BYTES];
	u8 wanted[RNL_HASH_BYTES];
	bool is_wanted;

	u64 file_bytes;
	u32 features;
	u32 chunk_shift;
	u32 block_bytes;
	u32 hot_blocks;

	/* Decoded sections by kind, those of records as columns; and their sizes before. */
	void *section[RNL_TABLES];
	u32 section_bytes[RNL_TABLES];
	u32 inode_count;
	u32 entry_count;
	u32 set_count;
	u32 xattr_count;
	u32 extent_count;
	u32 chunk_count;
	u32 block_count;
	const u8 *names;
	const u8 *targets;
	const u8 *xattr_bytes;
	/* Of blocks. */
	const u8 (*hashes)[RNL_HASH_BYTES];
	struct rnl_column columns[RNL_COLUMN_COUNT];
	/* Dictionaries prepared for zstd. */
	void **dictionaries;
	u32 dictionary_count;
	/* Bits of codecs that blocks use. */
	u32 codecs;

	struct rnl_cache cache;
	struct rnl_ahead ahead;
	/* Of this mount alone: they may wait for those of the mount that the image lies in. */
	struct workqueue_struct *workers;
	/* Runs of pages that workers fill; they stop when the mount ends. */
	atomic_t handed;
	bool is_ending;
	struct super_block *sb;
};

static inline struct rnl_info *rnl_info(const struct super_block *sb)
{
	return sb->s_fs_info;
}

static inline u64 rnl_get64(const struct rnl_info *info, u32 column, u32 index)
{
	return rnl_number(&info->columns[column], index);
}

static inline u32 rnl_get(const struct rnl_info *info, u32 column, u32 index)
{
	return rnl_number(&info->columns[column], index);
}

/* Where the part ends that begins at a number of a column. */
static inline u32 rnl_end(const struct rnl_info *info, u32 column, u32 index)
{
	const struct rnl_column *places = &info->columns[column];

	return index + 1 < places->count ? rnl_number(places, index + 1) : places->end;
}

/* hash.c, simd.c */
void rnl_hash_init(void);
void rnl_hash(const u8 *data, size_t bytes, u8 *out);

/* io.c */
u64 rnl_size(struct super_block *sb);
size_t rnl_read_room(struct super_block *sb, size_t bytes);
void *rnl_read(struct super_block *sb, void *room, u64 offset, size_t bytes);

/* codec.c */
void *rnl_dictionary_new(const void *bytes, size_t count);
void rnl_dictionary_free(void *dictionary);
int rnl_codec_prepare(struct rnl_decoder *decoder, u8 codec);
void rnl_codec_free(struct rnl_decoder *decoder);
bool rnl_decode(struct rnl_decoder *decoder, u8 codec, const void *dictionary, const void *stored,
		size_t stored_bytes, void *raw, size_t raw_bytes);

/* filter.c */
void rnl_unfilter(u8 filter, u32 position, const u8 *from, u8 *to, u32 count);

/* metadata.c */
int rnl_load(struct fs_context *fc, struct super_block *sb);
void rnl_unload(struct rnl_info *info);
void *rnl_table(struct rnl_info *info, u32 kind, u32 count);
int rnl_pack(struct rnl_info *info, u32 kind);

/* records.c */
u32 rnl_last_filter(u32 kind);
void *rnl_records(u32 kind, u8 filter, const u8 *columns, u32 width, u32 count);

/* check.c, check_data.c */
int rnl_bad(struct fs_context *fc, const char *what, u32 index);
int rnl_too_new(struct fs_context *fc, const char *what, u32 found);
int rnl_check_tree(struct fs_context *fc, struct rnl_info *info);
int rnl_check_data(struct fs_context *fc, struct rnl_info *info, u64 blocks_end);
int rnl_check_files(struct fs_context *fc, struct rnl_info *info);

/* map.c */
u32 rnl_next_short(const struct rnl_info *info, u32 chunk, u32 *bytes);
u32 rnl_chunk_bytes(const struct rnl_info *info, u32 chunk);
u32 rnl_block_at(const struct rnl_info *info, u64 position);
bool rnl_map(const struct rnl_info *info, unsigned long ino, u32 file_chunk, u32 *chunk,
	     u32 *run_end);
u32 rnl_chunks_before(const struct rnl_info *info, u64 position);
u32 rnl_chunk_at_rank(const struct rnl_info *info, u32 rank);
void rnl_chunk_owner(const struct rnl_info *info, u32 chunk, u32 *ino, u32 *file_chunk);

/* block.c */
struct rnl_block *rnl_block_get(struct super_block *sb, u32 index);
void rnl_block_put(struct super_block *sb, struct rnl_block *block);
void rnl_cache_init(struct rnl_cache *cache);
int rnl_blocks_init(struct super_block *sb);
void rnl_blocks_exit(struct rnl_cache *cache);

/* ahead.c */
void rnl_ahead(struct super_block *sb, u32 index);
void rnl_ahead_init(struct rnl_ahead *ahead);

/* data.c */
bool rnl_has_room(void);
void rnl_spread(struct super_block *sb, struct inode *reader, struct rnl_block *block);
extern const struct address_space_operations rnl_aops;
extern const struct file_operations rnl_file_ops;

/* inode.c */
struct inode *rnl_iget(struct super_block *sb, u32 ino);

/* dir.c */
const u8 *rnl_name(const struct rnl_info *info, u32 kind, u32 index, u32 *bytes);
int rnl_compare(const struct rnl_info *info, u32 kind, u32 index, const void *other,
		u32 other_bytes);
u32 rnl_find(const struct rnl_info *info, u32 kind, u32 low, u32 high, const void *name, u32 bytes);
extern const struct file_operations rnl_dir_ops;
struct dentry *rnl_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags);

/* xattr.c */
extern const struct xattr_handler *const rnl_xattr_handlers[];
ssize_t rnl_listxattr(struct dentry *dentry, char *buffer, size_t size);
struct posix_acl *rnl_get_acl(struct inode *inode, int type, bool rcu);

#endif
