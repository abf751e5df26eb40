// SPDX-License-Identifier: GPL-2.0
/*
 * Contents of files: from blocks into the page cache.
 *
 * A block is decoded once for all pages of a read that lie in it, whatever their order. Then it is
 * given to the page cache of whoever else has pages in it, as far as that is cheap: the same file
 * and files that are in memory; all files if the block is hot, since a program that starts will
 * read them, or while memory is free, since similar chunks of many files share a block.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmstat.h>
#include <linux/wait_bit.h>

#include "runnelfs.h"

/* Pages of a read that are sorted by block at once: read-ahead is mostly 32. */
#define BATCH 64

/* How far a block is given to a file whose chunks another file owns, in pages. */
#define FOLLOWING 256

/* Of all memory that must be free, so that a block goes to files that are not in memory. */
#define FREE_SHARE 16

static bool lies_in(const struct rnl_block *block, u64 position)
{
	return block && position >= block->raw_start && position - block->raw_start < block->bytes;
}

/*
 * Fills a part of a page from a chunk, or with zeros if @block is NULL. A chunk went through the
 * filter of its block by itself, at its place in the first file that has it.
 */
static void fill_part(struct rnl_info *info, struct folio *folio, size_t offset,
		      const struct rnl_block *block, u32 chunk)
{
	u32 room = 1U << info->chunk_shift, bytes = 0, ino, position = 0;
	u8 *to = kmap_local_folio(folio, offset);
	const u8 *from;

	if (block) {
		bytes = rnl_chunk_bytes(info, chunk);
		if (block->filter)
			rnl_chunk_owner(info, chunk, &ino, &position);
		from = block->raw + (rnl_get64(info, RNL_CHUNK_POSITION, chunk) - block->raw_start);
		rnl_unfilter(block->filter, position << info->chunk_shift, from, to, bytes);
	}
	memset(to + bytes, 0, room - bytes);
	kunmap_local(to);
}

/*
 * Fills a page, chunk by chunk. *@block is a block at hand or NULL; others are loaded, and the last
 * one is left there, unless @only: then a page that needs another one gives -EAGAIN.
 */
static int fill(struct inode *inode, struct folio *folio, struct rnl_block **block, bool only)
{
	struct rnl_info *info = rnl_info(inode->i_sb);
	u32 full = 1U << info->chunk_shift, chunk;
	loff_t start = folio_pos(folio), size = i_size_read(inode);
	size_t offset;
	u64 position;
	bool is_hole;

	for (offset = 0; offset < PAGE_SIZE; offset += full) {
		is_hole = start + offset >= size ||
			  !rnl_map(info, inode->i_ino, (start + offset) >> info->chunk_shift,
				   &chunk, NULL);
		position = is_hole ? 0 : rnl_get64(info, RNL_CHUNK_POSITION, chunk);
		if (!is_hole && !lies_in(*block, position)) {
			if (only)
				return -EAGAIN;
			if (*block)
				rnl_block_put(inode->i_sb, *block);
			*block = rnl_block_get(inode->i_sb, rnl_block_at(info, position));
			if (IS_ERR(*block)) {
				int error = PTR_ERR(*block);

				*block = NULL;
				return error;
			}
		}
		fill_part(info, folio, offset, is_hole ? NULL : *block, chunk);
	}
	flush_dcache_folio(folio);
	return 0;
}

static void finish(struct folio *folio, int error)
{
	if (!error)
		folio_mark_uptodate(folio);
	folio_unlock(folio);
}

/* Whether so much memory is free that pages which nobody asked for displace no others. */
bool rnl_has_room(void)
{
	return global_zone_page_state(NR_FREE_PAGES) > totalram_pages() / FREE_SHARE;
}

/* The first chunk of a page; false if a hole begins there, or the page lies behind the end. */
static bool chunk_of(struct inode *inode, pgoff_t index, u32 *chunk)
{
	const struct rnl_info *info = rnl_info(inode->i_sb);
	u64 start = (u64)index << PAGE_SHIFT;

	return start < i_size_read(inode) &&
	       rnl_map(info, inode->i_ino, start >> info->chunk_shift, chunk, NULL);
}

/* Fills a page from a block, if it is not there and nobody has it. Waits for nobody. */
static void fill_unasked(struct inode *inode, pgoff_t index, struct rnl_block *block)
{
	struct page *page = grab_cache_page_nowait(inode->i_mapping, index);

	if (!page)
		return;
	if (!PageUptodate(page) && !fill(inode, page_folio(page), &block, true))
		SetPageUptodate(page);
	unlock_page(page);
	put_page(page);
}

/**
 * rnl_spread() - gives the chunks of a block to the pages that first refer to them, once
 * @sb: the mount
 * @reader: a file whose pages are wanted, or NULL
 * @block: the block
 *
 * Waits for no page: who holds the lock of one may wait for a block.
 */
void rnl_spread(struct super_block *sb, struct inode *reader, struct rnl_block *block)
{
	struct rnl_info *info = rnl_info(sb);
	bool is_wanted = block->index < info->hot_blocks || rnl_has_room();
	u32 rank = rnl_chunks_before(info, block->raw_start), ino, file_chunk, last = 0;
	struct inode *inode = NULL;
	pgoff_t before = 0;
	/* A block of tiny files would make an inode and a page of each. */
	u32 inodes = 0, most = max(block->bytes >> PAGE_SHIFT, 64U);

	if (test_and_set_bit(0, &block->spread))
		return;
	for (; rank < info->chunk_count; rank++) {
		u32 chunk = rnl_chunk_at_rank(info, rank);
		pgoff_t index;

		if (!lies_in(block, rnl_get64(info, RNL_CHUNK_POSITION, chunk)))
			break;
		rnl_chunk_owner(info, chunk, &ino, &file_chunk);
		if (ino != last) {
			if (fatal_signal_pending(current) || ++inodes > most)
				break;
			cond_resched();
			iput(inode);
			inode = is_wanted || (reader && ino == reader->i_ino) ?
				rnl_iget(sb, ino) : ilookup(sb, ino);
			if (IS_ERR(inode))
				inode = NULL;
			last = ino;
			before = ULONG_MAX;
		}
		index = ((u64)file_chunk << info->chunk_shift) >> PAGE_SHIFT;
		/* A page may have several chunks. */
		if (!inode || index == before)
			continue;
		before = index;
		fill_unasked(inode, index, block);
	}
	iput(inode);
}

/*
 * Gives a block to the pages behind @index of a file that has chunks there which another file owns:
 * rnl_spread() does not reach them.
 */
static void fill_following(struct inode *inode, pgoff_t index, struct rnl_block *block)
{
	struct rnl_info *info = rnl_info(inode->i_sb);
	pgoff_t end = index + FOLLOWING;
	u32 chunk, owner, unused;

	for (; index < end; index++) {
		if (!chunk_of(inode, index, &chunk))
			continue;
		rnl_chunk_owner(info, chunk, &owner, &unused);
		if (owner == inode->i_ino)
			break;
		if (lies_in(block, rnl_get64(info, RNL_CHUNK_POSITION, chunk)))
			fill_unasked(inode, index, block);
	}
}

/* The block of the first chunk of a page; the number of blocks if there is none. */
static u32 block_of(struct inode *inode, pgoff_t index)
{
	struct rnl_info *info = rnl_info(inode->i_sb);
	u32 chunk;

	if (!chunk_of(inode, index, &chunk))
		return info->block_count;
	return rnl_block_at(info, rnl_get64(info, RNL_CHUNK_POSITION, chunk));
}

/* Locked pages of a file that somebody else fills. */
struct handed {
	struct work_struct work;
	struct inode *inode;
	unsigned int count;
	struct folio *folios[];
};

static int fill_all(struct inode *inode, struct folio **folios, unsigned int count);

static void fill_handed(struct work_struct *work)
{
	struct handed *handed = container_of(work, struct handed, work);
	atomic_t *count = &rnl_info(handed->inode->i_sb)->handed;

	fill_all(handed->inode, handed->folios, handed->count);
	iput(handed->inode);
	kfree(handed);
	if (atomic_dec_and_test(count))
		wake_up_var(count);
}

/*
 * Hands over the pages that lie in other blocks than the first one does, if another processor may
 * have time for them. Returns how many are left.
 */
static unsigned int hand_over(struct inode *inode, struct folio **folios, unsigned int count)
{
	struct handed *handed;
	unsigned int i, kept = 0;
	u32 first;

	if (count == 1 || num_online_cpus() == 1)
		return count;
	handed = kmalloc(struct_size(handed, folios, count - 1), GFP_NOWAIT | __GFP_NOWARN);
	if (!handed)
		return count;
	handed->count = 0;
	first = block_of(inode, folios[0]->index);
	for (i = 0; i < count; i++) {
		if (block_of(inode, folios[i]->index) == first)
			folios[kept++] = folios[i];
		else
			handed->folios[handed->count++] = folios[i];
	}
	if (!handed->count) {
		kfree(handed);
		return kept;
	}
	ihold(inode);
	atomic_inc(&rnl_info(inode->i_sb)->handed);
	handed->inode = inode;
	INIT_WORK(&handed->work, fill_handed);
	queue_work(rnl_info(inode->i_sb)->workers, &handed->work);
	return kept;
}

/* Fails the pages that need the block of page @index: it is not read again for each of them. */
static void fail_same(struct inode *inode, pgoff_t index, struct folio **folios,
		      unsigned int count, int error)
{
	u32 bad = block_of(inode, index);
	unsigned int i;

	for (i = 0; i < count; i++) {
		if (folios[i] && block_of(inode, folios[i]->index) == bad) {
			finish(folios[i], error);
			folios[i] = NULL;
		}
	}
}

/* Fills locked pages of a file, and unlocks them. The first error is returned. */
static int fill_all(struct inode *inode, struct folio **folios, unsigned int count)
{
	struct rnl_block *block = NULL;
	unsigned int i, j, flags = memalloc_nofs_save();
	int error, first = 0;
	pgoff_t index;

	count = hand_over(inode, folios, count);
	for (i = 0; i < count; i++) {
		if (!folios[i])
			continue;
		index = folios[i]->index;
		error = fill(inode, folios[i], &block, false);
		finish(folios[i], error);
		first = first ?: error;
		if (error == -EIO)
			fail_same(inode, index, folios + i + 1, count - i - 1, error);
		if (!block)
			continue;
		for (j = i + 1; j < count; j++) {
			if (folios[j] && !fill(inode, folios[j], &block, true)) {
				finish(folios[j], 0);
				folios[j] = NULL;
			}
		}
		if (block->index < rnl_info(inode->i_sb)->hot_blocks)
			rnl_ahead(inode->i_sb, block->index);
		rnl_spread(inode->i_sb, inode, block);
		fill_following(inode, index, block);
		rnl_block_put(inode->i_sb, block);
		block = NULL;
	}
	memalloc_nofs_restore(flags);
	return first;
}

/*
 * Leaves pages in cold blocks to whoever wants them, if others of a run or beside it are in hot
 * ones: a program that starts wants what is hot, and what lies between would be read in vain.
 */
static unsigned int drop_cold(struct inode *inode, struct folio **folios, unsigned int count)
{
	u32 hot = rnl_info(inode->i_sb)->hot_blocks;
	bool is_hot[BATCH], is_any = false;
	unsigned int i, kept = 0;

	if (!hot || !count)
		return count;
	for (i = 0; i < count; i++) {
		is_hot[i] = block_of(inode, folios[i]->index) < hot;
		is_any |= is_hot[i];
	}
	if (!is_any && block_of(inode, folios[0]->index - 1) >= hot &&
	    block_of(inode, folio_next_index(folios[count - 1])) >= hot)
		return count;
	for (i = 0; i < count; i++) {
		if (is_hot[i])
			folios[kept++] = folios[i];
		else
			folio_unlock(folios[i]);
	}
	return kept;
}

static int read_folio(struct file *file, struct folio *folio)
{
	return fill_all(folio->mapping->host, &folio, 1);
}

static void readahead(struct readahead_control *rac)
{
	struct inode *inode = rac->mapping->host;
	struct folio *folios[BATCH];
	unsigned int count, wanted;

	do {
		for (count = 0; count < BATCH; count++) {
			folios[count] = readahead_folio(rac);
			if (!folios[count])
				break;
		}
		wanted = drop_cold(inode, folios, count);
		if (wanted)
			fill_all(inode, folios, wanted);
	} while (count == BATCH);
}

const struct address_space_operations rnl_aops = {
	.read_folio = read_folio,
	.readahead = readahead,
};

/* The next place at or behind @offset that is data, or that is a hole. */
static loff_t seek_extent(struct inode *inode, loff_t offset, bool to_data)
{
	struct rnl_info *info = rnl_info(inode->i_sb);
	loff_t size = i_size_read(inode);
	u32 chunk, run_end;

	if (offset < 0 || offset >= size)
		return -ENXIO;
	while (offset < size) {
		bool is_data = rnl_map(info, inode->i_ino, offset >> info->chunk_shift, &chunk,
				       &run_end);

		if (is_data == to_data)
			return offset;
		offset = (loff_t)run_end << info->chunk_shift;
		cond_resched();
	}
	return to_data ? -ENXIO : size;
}

static loff_t file_llseek(struct file *file, loff_t offset, int whence)
{
	struct inode *inode = file_inode(file);

	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return generic_file_llseek(file, offset, whence);
	offset = seek_extent(inode, offset, whence == SEEK_DATA);
	return offset < 0 ? offset : vfs_setpos(file, offset, inode->i_sb->s_maxbytes);
}

const struct file_operations rnl_file_ops = {
	.llseek = file_llseek,
	.read_iter = generic_file_read_iter,
	.mmap = generic_file_readonly_mmap,
	.splice_read = filemap_splice_read,
};
