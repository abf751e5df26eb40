// SPDX-License-Identifier: GPL-2.0
/*
 * Decoded blocks: a block is read, verified and decoded once for all who want it at the same time,
 * and a few are kept for the next ones.
 *
 * Memory: the blocks that are kept have a limit and go when nobody read for a while. Whoever
 * decodes holds a decoder, and there are few of them, so the memory for blocks under way is bounded
 * too. The first decoder has everything that the blocks of the image need when the mount is done,
 * and is never freed.
 *
 * All of this runs with pages of files locked, so that no allocation may wait for a file system
 * (memalloc_nofs_save). Who decodes waits for the device and for nothing else.
 */
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "runnelfs.h"

/* Blocks that are kept: bytes, and how many, as the list is searched from its start. */
#define KEPT_BYTES_MAX SZ_1M
#define KEPT_COUNT_MAX 64U
/* Of large blocks so many are kept beyond that. */
#define KEPT_COUNT_MIN 2U

/*
 * Memory for decoders and the blocks under way, unless one alone takes more, and how many decoders
 * there are for blocks so small that it does not matter: with blocks of 64 KiB they take 3 MiB.
 */
#define DECODING_BYTES_MAX (8U << 20)
#define DECODERS_MAX 10U
/* What a decoder takes beside room for a stored and a decoded block, at most. */
#define DECODER_BYTES (160U << 10)

/* How long nobody reads before blocks and decoders go. */
#define IDLE_JIFFIES (5 * HZ)

static void decoder_free(struct rnl_decoder *decoder)
{
	rnl_codec_free(decoder);
	kvfree(decoder->stored);
	kfree(decoder);
}

static struct rnl_decoder *decoder_new(struct super_block *sb)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_decoder *decoder = kzalloc(sizeof(*decoder), GFP_KERNEL);
	u8 codec;
	int error = 0;

	if (!decoder)
		return NULL;
	decoder->stored = rnl_alloc(rnl_read_room(sb, info->block_bytes));
	for (codec = 0; codec < RNL_CODECS; codec++)
		if (info->codecs & 1 << codec && !error)
			error = rnl_codec_prepare(decoder, codec);
	if (decoder->stored && !error)
		return decoder;
	decoder_free(decoder);
	return NULL;
}

/*
 * Takes a decoder; waits for one if there are as many as may be, or no memory for another one. NULL
 * if this thread is being killed.
 */
static struct rnl_decoder *decoder_get(struct super_block *sb)
{
	struct rnl_cache *cache = &rnl_info(sb)->cache;
	struct rnl_decoder *decoder;
	bool may_grow;

	for (;;) {
		spin_lock(&cache->lock);
		decoder = list_first_entry_or_null(&cache->decoders, struct rnl_decoder, link);
		may_grow = !decoder && cache->decoder_count < cache->decoder_count_max;
		if (decoder)
			list_del(&decoder->link);
		cache->decoder_count += may_grow;
		spin_unlock(&cache->lock);
		if (may_grow) {
			decoder = decoder_new(sb);
			if (!decoder) {
				spin_lock(&cache->lock);
				cache->decoder_count--;
				spin_unlock(&cache->lock);
			}
		}
		if (decoder || wait_event_killable(cache->decoder_wait,
						   !list_empty_careful(&cache->decoders)))
			return decoder;
	}
}

static void decoder_put(struct rnl_cache *cache, struct rnl_decoder *decoder)
{
	spin_lock(&cache->lock);
	list_add(&decoder->link, &cache->decoders);
	spin_unlock(&cache->lock);
	wake_up(&cache->decoder_wait);
}

static int load_with(struct super_block *sb, struct rnl_block *block, struct rnl_decoder *decoder)
{
	struct rnl_info *info = rnl_info(sb);
	u32 stored_bytes = rnl_get(info, RNL_BLOCK_STORED_BYTES, block->index);
	u32 number = rnl_get(info, RNL_BLOCK_DICTIONARY, block->index);
	const void *dictionary = NULL;
	u8 hash[RNL_HASH_BYTES];
	void *stored;

	block->raw = kvmalloc(block->bytes, GFP_KERNEL);
	if (!block->raw)
		return -ENOMEM;
	stored = rnl_read(sb, decoder->stored,
			  rnl_get64(info, RNL_BLOCK_FILE_OFFSET, block->index), stored_bytes);
	if (IS_ERR(stored)) {
		/* This thread is being killed, which says nothing about the block. */
		if (PTR_ERR(stored) == -EINTR)
			return -EINTR;
		pr_err_ratelimited("runnelfs (%s): block %u cannot be read (%ld)\n", sb->s_id,
				   block->index, PTR_ERR(stored));
		return -EIO;
	}
	rnl_hash(stored, stored_bytes, hash);
	if (memcmp(hash, info->hashes[block->index], sizeof(hash))) {
		pr_err_ratelimited("runnelfs (%s): block %u is damaged\n", sb->s_id, block->index);
		return -EIO;
	}
	if (number)
		dictionary = info->dictionaries[number - 1];
	if (!rnl_decode(decoder, rnl_get(info, RNL_BLOCK_CODEC, block->index), dictionary, stored,
			stored_bytes, block->raw, block->bytes)) {
		pr_err_ratelimited("runnelfs (%s): block %u was written wrongly\n", sb->s_id,
				   block->index);
		return -EIO;
	}
	return 0;
}

static void block_free(struct rnl_block *block)
{
	kvfree(block->raw);
	kfree(block);
}

/* Moves blocks that nobody uses to @gone, last used ones last, until the rest is within limits. */
static void trim(struct rnl_cache *cache, u32 bytes_max, u32 count_min, struct list_head *gone)
{
	struct rnl_block *block, *next;

	list_for_each_entry_safe_reverse(block, next, &cache->blocks, link) {
		if (cache->count <= count_min ||
		    (cache->bytes <= bytes_max && cache->count <= KEPT_COUNT_MAX))
			return;
		if (block->users)
			continue;
		cache->bytes -= block->bytes;
		cache->count--;
		list_move(&block->link, gone);
	}
}

static void free_all(struct list_head *gone)
{
	struct rnl_block *block, *next;

	list_for_each_entry_safe(block, next, gone, link)
		block_free(block);
}

/* Drops a user. A block that could not be loaded goes at once: the next reader tries anew. */
void rnl_block_put(struct super_block *sb, struct rnl_block *block)
{
	struct rnl_cache *cache = &rnl_info(sb)->cache;
	LIST_HEAD(gone);

	spin_lock(&cache->lock);
	if (!--block->users && block->error) {
		cache->bytes -= block->bytes;
		cache->count--;
		list_move(&block->link, &gone);
	}
	trim(cache, KEPT_BYTES_MAX, KEPT_COUNT_MIN, &gone);
	spin_unlock(&cache->lock);
	free_all(&gone);
	mod_delayed_work(rnl_info(sb)->workers, &cache->idle, IDLE_JIFFIES);
}

static struct rnl_block *find(struct rnl_cache *cache, u32 index)
{
	struct rnl_block *block;

	list_for_each_entry(block, &cache->blocks, link) {
		if (block->index == index && READ_ONCE(block->error) != -EINTR) {
			block->users++;
			list_move(&block->link, &cache->blocks);
			return block;
		}
	}
	return NULL;
}

/**
 * rnl_block_get() - a decoded block
 * @sb: the mount
 * @index: its number
 *
 * Must be called within memalloc_nofs_save() if pages are locked. The caller holds no other block,
 * so that nobody keeps memory while waiting for a decoder. A thread that is being killed begins no
 * block, nor does a worker while the mount ends: a page may have parts of many large ones.
 *
 * Return: the block, for rnl_block_put(), or an error.
 */
struct rnl_block *rnl_block_get(struct super_block *sb, u32 index)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_cache *cache = &info->cache;
	struct rnl_block *block, *new;
	int error;

again:
	if (fatal_signal_pending(current) || READ_ONCE(info->is_ending))
		return ERR_PTR(-EINTR);
	spin_lock(&cache->lock);
	block = find(cache, index);
	spin_unlock(&cache->lock);
	if (block)
		goto wait;
	new = kzalloc(sizeof(*new), GFP_KERNEL);
	if (!new)
		return ERR_PTR(-ENOMEM);
	new->index = index;
	new->bytes = rnl_get(info, RNL_BLOCK_RAW_BYTES, index);
	new->raw_start = rnl_get64(info, RNL_BLOCK_RAW_START, index);
	new->filter = rnl_get(info, RNL_BLOCK_FILTER, index);
	new->users = 1;
	init_completion(&new->done);

	spin_lock(&cache->lock);
	block = find(cache, index);
	if (!block) {
		list_add(&new->link, &cache->blocks);
		cache->bytes += new->bytes;
		cache->count++;
	}
	spin_unlock(&cache->lock);
	if (!block) {
		struct rnl_decoder *decoder = decoder_get(sb);

		block = new;
		block->error = decoder ? load_with(sb, block, decoder) : -EINTR;
		if (decoder)
			decoder_put(cache, decoder);
		complete_all(&block->done);
	} else {
		kfree(new);
	}
wait:
	error = wait_for_completion_killable(&block->done) ? -EINTR : block->error;
	if (!error)
		return block;
	rnl_block_put(sb, block);
	/* Unless it is this thread that is being killed, it was the one that loaded the block. */
	if (error == -EINTR)
		goto again;
	return ERR_PTR(error);
}

/* Drops all blocks that nobody uses, and decoders but for so many. */
static void drop(struct rnl_cache *cache, u32 decoders_min)
{
	struct rnl_decoder *decoder, *next;
	LIST_HEAD(decoders);
	LIST_HEAD(gone);

	spin_lock(&cache->lock);
	trim(cache, 0, 0, &gone);
	list_for_each_entry_safe(decoder, next, &cache->decoders, link) {
		if (cache->decoder_count <= decoders_min)
			break;
		cache->decoder_count--;
		list_move(&decoder->link, &decoders);
	}
	spin_unlock(&cache->lock);
	free_all(&gone);
	list_for_each_entry_safe(decoder, next, &decoders, link)
		decoder_free(decoder);
}

/* Nobody read for a while. */
static void idle(struct work_struct *work)
{
	drop(container_of(to_delayed_work(work), struct rnl_cache, idle), 1);
}

void rnl_cache_init(struct rnl_cache *cache)
{
	spin_lock_init(&cache->lock);
	INIT_LIST_HEAD(&cache->blocks);
	INIT_LIST_HEAD(&cache->decoders);
	init_waitqueue_head(&cache->decoder_wait);
	INIT_DELAYED_WORK(&cache->idle, idle);
}

int rnl_blocks_init(struct super_block *sb)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_cache *cache = &info->cache;
	u32 most = DECODING_BYTES_MAX / (2 * info->block_bytes + DECODER_BYTES);
	struct rnl_decoder *decoder;

	most = min(most, DECODERS_MAX);
	cache->decoder_count_max = clamp(num_online_cpus(), 1U, max(most, 1U));
	decoder = decoder_new(sb);
	if (!decoder)
		return -ENOMEM;
	cache->decoder_count = 1;
	list_add(&decoder->link, &cache->decoders);
	return 0;
}

/* Frees everything; also after a mount that failed early. */
void rnl_blocks_exit(struct rnl_cache *cache)
{
	cancel_delayed_work_sync(&cache->idle);
	drop(cache, 0);
}
