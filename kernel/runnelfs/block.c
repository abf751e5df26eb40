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
#include <linux/slab.h>

#include "runnelfs.h"

/* Blocks that are kept: bytes, and how many, as the list is searched from its start. */
#define KEPT_BYTES_MAX (512U << 10)
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
	kfree(decoder->chunk);
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
	decoder->stored = kvmalloc(rnl_read_room(sb, info->block_bytes), GFP_KERNEL);
	decoder->chunk = kzalloc((1U << info->chunk_shift) + RNL_FILTER_BEHIND, GFP_KERNEL);
	for (codec = 0; codec < RNL_CODECS; codec++)
		if (info->codecs & 1 << codec && !error)
			error = rnl_codec_prepare(decoder, codec);
	if (decoder->stored && decoder->chunk && !error)
		return decoder;
	decoder_free(decoder);
	return NULL;
}

/* Takes a decoder; waits for one if there are as many as may be, or no memory for another one. */
static struct rnl_decoder *decoder_get(struct super_block *sb)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_decoder *decoder;
	bool may_grow;

	for (;;) {
		spin_lock(&info->lock);
		decoder = list_first_entry_or_null(&info->decoders, struct rnl_decoder, link);
		may_grow = !decoder && info->decoder_count < info->decoder_count_max;
		if (decoder)
			list_del(&decoder->link);
		info->decoder_count += may_grow;
		spin_unlock(&info->lock);
		if (may_grow) {
			decoder = decoder_new(sb);
			if (!decoder) {
				spin_lock(&info->lock);
				info->decoder_count--;
				spin_unlock(&info->lock);
			}
		}
		if (decoder)
			return decoder;
		wait_event(info->decoder_wait, !list_empty_careful(&info->decoders));
	}
}

static void decoder_put(struct rnl_info *info, struct rnl_decoder *decoder)
{
	spin_lock(&info->lock);
	list_add(&decoder->link, &info->decoders);
	spin_unlock(&info->lock);
	wake_up(&info->decoder_wait);
}

/* Each chunk went through the filter by itself, at its place in the first file that has it. */
static void unfilter(struct rnl_info *info, struct rnl_block *block, u8 filter, u8 *scratch)
{
	u32 rank = rnl_chunks_before(info, block->raw_start), ino, file_chunk;

	for (; rank < info->chunk_count; rank++) {
		u32 chunk = rnl_chunk_at_rank(info, rank);
		u64 at = rnl_chunk_position(info, chunk) - block->raw_start;

		if (at >= block->bytes)
			return;
		if (rnl_chunk_owner(info, chunk, &ino, &file_chunk))
			rnl_unfilter(filter, file_chunk << info->chunk_shift, block->raw + at,
				     rnl_chunk_bytes(info, chunk), scratch);
	}
}

static int load_with(struct super_block *sb, struct rnl_block *block, struct rnl_decoder *decoder)
{
	struct rnl_info *info = rnl_info(sb);
	const struct rnl_disk_block *entry = &info->blocks[block->index];
	u32 stored_bytes = le32_to_cpu(entry->stored_bytes);
	const void *dictionary = NULL;
	u8 hash[RNL_HASH_BYTES];
	void *stored;

	block->raw = kvmalloc(block->bytes, GFP_KERNEL);
	if (!block->raw)
		return -ENOMEM;
	stored = rnl_read(sb, decoder->stored, le64_to_cpu(entry->file_offset), stored_bytes);
	if (IS_ERR(stored)) {
		pr_err_ratelimited("runnelfs (%s): block %u cannot be read (%ld)\n", sb->s_id,
				   block->index, PTR_ERR(stored));
		return -EIO;
	}
	rnl_hash(stored, stored_bytes, hash);
	if (memcmp(hash, entry->hash, sizeof(hash))) {
		pr_err_ratelimited("runnelfs (%s): block %u is damaged\n", sb->s_id, block->index);
		return -EIO;
	}
	if (entry->dictionary)
		dictionary = info->dictionaries[entry->dictionary - 1];
	if (!rnl_decode(decoder, entry->codec, dictionary, stored, stored_bytes, block->raw,
			block->bytes)) {
		pr_err_ratelimited("runnelfs (%s): block %u was written wrongly\n", sb->s_id,
				   block->index);
		return -EIO;
	}
	if (entry->filter)
		unfilter(info, block, entry->filter, decoder->chunk);
	return 0;
}

static void block_free(struct rnl_block *block)
{
	kvfree(block->raw);
	kfree(block);
}

/* Moves blocks that nobody uses to @gone, last used ones last, until the rest is within limits. */
static void trim(struct rnl_info *info, u32 bytes_max, u32 count_min, struct list_head *gone)
{
	struct rnl_block *block, *next;

	list_for_each_entry_safe_reverse(block, next, &info->blocks_kept, link) {
		if (info->kept_count <= count_min ||
		    (info->kept_bytes <= bytes_max && info->kept_count <= KEPT_COUNT_MAX))
			return;
		if (block->users)
			continue;
		info->kept_bytes -= block->bytes;
		info->kept_count--;
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
	struct rnl_info *info = rnl_info(sb);
	LIST_HEAD(gone);

	spin_lock(&info->lock);
	if (!--block->users && block->error) {
		info->kept_bytes -= block->bytes;
		info->kept_count--;
		list_move(&block->link, &gone);
	}
	trim(info, KEPT_BYTES_MAX, KEPT_COUNT_MIN, &gone);
	spin_unlock(&info->lock);
	free_all(&gone);
	mod_delayed_work(system_unbound_wq, &info->idle, IDLE_JIFFIES);
}

static struct rnl_block *find(struct rnl_info *info, u32 index)
{
	struct rnl_block *block;

	list_for_each_entry(block, &info->blocks_kept, link) {
		if (block->index == index) {
			block->users++;
			list_move(&block->link, &info->blocks_kept);
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
 * so that nobody keeps memory while waiting for a decoder.
 *
 * Return: the block, for rnl_block_put(), or an error.
 */
struct rnl_block *rnl_block_get(struct super_block *sb, u32 index)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_block *block, *new;
	int error;

	spin_lock(&info->lock);
	block = find(info, index);
	spin_unlock(&info->lock);
	if (block)
		goto wait;
	new = kzalloc(sizeof(*new), GFP_KERNEL);
	if (!new)
		return ERR_PTR(-ENOMEM);
	new->index = index;
	new->bytes = le32_to_cpu(info->blocks[index].raw_bytes);
	new->raw_start = le64_to_cpu(info->blocks[index].raw_start);
	new->users = 1;
	init_completion(&new->done);

	spin_lock(&info->lock);
	block = find(info, index);
	if (!block) {
		list_add(&new->link, &info->blocks_kept);
		info->kept_bytes += new->bytes;
		info->kept_count++;
	}
	spin_unlock(&info->lock);
	if (!block) {
		struct rnl_decoder *decoder = decoder_get(sb);

		block = new;
		block->error = load_with(sb, block, decoder);
		decoder_put(info, decoder);
		complete_all(&block->done);
	} else {
		kfree(new);
	}
wait:
	wait_for_completion(&block->done);
	if (!block->error)
		return block;
	error = block->error;
	rnl_block_put(sb, block);
	return ERR_PTR(error);
}

/* Nobody read for a while: drops what is kept, and all decoders but one. */
static void idle(struct work_struct *work)
{
	struct rnl_info *info = container_of(to_delayed_work(work), struct rnl_info, idle);
	struct rnl_decoder *decoder, *next;
	LIST_HEAD(decoders);
	LIST_HEAD(gone);

	spin_lock(&info->lock);
	trim(info, 0, 0, &gone);
	list_for_each_entry_safe(decoder, next, &info->decoders, link) {
		if (info->decoder_count <= 1)
			break;
		info->decoder_count--;
		list_move(&decoder->link, &decoders);
	}
	spin_unlock(&info->lock);
	free_all(&gone);
	list_for_each_entry_safe(decoder, next, &decoders, link)
		decoder_free(decoder);
}

int rnl_blocks_init(struct super_block *sb)
{
	struct rnl_info *info = rnl_info(sb);
	u32 most = DECODING_BYTES_MAX / (2 * info->block_bytes + DECODER_BYTES);
	struct rnl_decoder *decoder;

	INIT_DELAYED_WORK(&info->idle, idle);
	most = min(most, DECODERS_MAX);
	info->decoder_count_max = clamp(num_online_cpus(), 1U, max(most, 1U));
	decoder = decoder_new(sb);
	if (!decoder)
		return -ENOMEM;
	info->decoder_count = 1;
	list_add(&decoder->link, &info->decoders);
	return 0;
}

/* Frees everything; also after a mount that failed early. */
void rnl_blocks_exit(struct rnl_info *info)
{
	struct rnl_decoder *decoder, *next;

	if (info->idle.work.func)
		cancel_delayed_work_sync(&info->idle);
	free_all(&info->blocks_kept);
	list_for_each_entry_safe(decoder, next, &info->decoders, link)
		decoder_free(decoder);
}
