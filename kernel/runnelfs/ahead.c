// SPDX-License-Identifier: GPL-2.0
/*
 * Hot blocks ahead of their readers: those of one program stand behind one another in the order in
 * which a start of it wants them. Who reads one of them has the next ones read and decoded while it
 * runs on, so that neither the device nor a second processor is idle meanwhile. Their number grows
 * while readers follow: behind the blocks of one program are those of others.
 */
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "runnelfs.h"

/* Decoded bytes that are read ahead of a block, in whole blocks, at most. */
#define AHEAD_BYTES (4U << 20)

/* Whether a block was given to the page cache, by the page of its first chunk. */
static bool is_cached(struct super_block *sb, u32 index)
{
	struct rnl_info *info = rnl_info(sb);
	u32 rank = rnl_chunks_before(info, rnl_get64(info, RNL_BLOCK_RAW_START, index));
	u32 ino, file_chunk;
	struct inode *inode;
	bool is_there;
	loff_t at;

	if (rank >= info->chunk_count)
		return true;
	rnl_chunk_owner(info, rnl_chunk_at_rank(info, rank), &ino, &file_chunk);
	inode = ilookup(sb, ino);
	if (!inode)
		return false;
	at = (loff_t)file_chunk << info->chunk_shift;
	is_there = filemap_range_has_page(inode->i_mapping, at, at);
	iput(inode);
	return is_there;
}

static bool take_next(struct rnl_ahead *ahead, u32 *index)
{
	bool is_one;

	spin_lock(&ahead->lock);
	is_one = ahead->next < ahead->end;
	*index = ahead->next;
	ahead->next += is_one;
	spin_unlock(&ahead->lock);
	return is_one;
}

static void read_ahead(struct work_struct *work)
{
	struct rnl_info *info = container_of(work, struct rnl_info, ahead.work);
	unsigned int flags = memalloc_nofs_save();
	struct rnl_block *block;
	u32 index;

	while (rnl_has_room() && take_next(&info->ahead, &index)) {
		if (is_cached(info->sb, index))
			continue;
		block = rnl_block_get(info->sb, index);
		/* Who needs it will see the error. */
		if (IS_ERR(block))
			break;
		rnl_spread(info->sb, NULL, block);
		rnl_block_put(info->sb, block);
		cond_resched();
	}
	memalloc_nofs_restore(flags);
}

/*
 * Somebody reads the hot block @index. If it is the one behind those that were read ahead, their
 * readers follow: twice as many are read now. If it lies elsewhere, nobody knows what is next.
 */
void rnl_ahead(struct super_block *sb, u32 index)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_ahead *ahead = &info->ahead;
	u32 count_max = max(AHEAD_BYTES / info->block_bytes, 1U);

	spin_lock(&ahead->lock);
	if (index < ahead->first || index >= ahead->end) {
		if (index == ahead->end) {
			ahead->count = clamp(2 * ahead->count, 1U, count_max);
		} else {
			ahead->count = 0;
			ahead->first = index;
		}
		ahead->next = index + 1;
		ahead->end = min(index + 1 + ahead->count, info->hot_blocks);
		if (ahead->next < ahead->end)
			queue_work(info->workers, &ahead->work);
	}
	spin_unlock(&ahead->lock);
}

void rnl_ahead_init(struct rnl_ahead *ahead)
{
	spin_lock_init(&ahead->lock);
	INIT_WORK(&ahead->work, read_ahead);
}
