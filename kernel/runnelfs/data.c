// SPDX-License-Identifier: GPL-2.0
/*
 * Contents of files: from blocks into the page cache.
 *
 * A block is decoded once for all pages of a read that lie in it, whatever their order. Then it is
 * given to the page cache of whoever else has pages in it, as far as that is cheap: the same file
 * and files that are in memory; all files if the block is hot, since a program that starts will read
 * them, or while memory is free, since similar chunks of many files share a block.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/vmstat.h>

#include "runnelfs.h"

/* Pages of a read that are sorted by block at once: read-ahead is mostly 32. */
#define BATCH 64

/* Of all memory that must be free, so that a block goes to files that are not in memory. */
#define FREE_SHARE 16

static bool lies_in(const struct rnl_block *block, u64 position)
{
	return block && position >= block->raw_start && position - block->raw_start < block->bytes;
}

static void copy_in(struct folio *folio, size_t offset, const u8 *from, u32 bytes, u32 room)
{
	u8 *to = kmap_local_folio(folio, offset);

	memcpy(to, from, bytes);
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
	u32 full = 1U << info->chunk_shift, chunk, unused, bytes;
	loff_t start = folio_pos(folio), size = i_size_read(inode);
	const u8 *from;
	size_t offset;
	u64 position;

	for (offset = 0; offset < PAGE_SIZE; offset += full) {
		from = NULL;
		bytes = 0;
		if (start + offset < size &&
		    rnl_map(info, inode->i_ino, (start + offset) >> info->chunk_shift, &chunk,
			    &unused)) {
			position = rnl_chunk_position(info, chunk);
			if (!lies_in(*block, position)) {
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
			bytes = rnl_chunk_bytes(info, chunk);
			from = (*block)->raw + (position - (*block)->raw_start);
		}
		copy_in(folio, offset, from, bytes, full);
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
static bool has_room(void)
{
	return global_zone_page_state(NR_FREE_PAGES) > totalram_pages() / FREE_SHARE;
}

/* The inode of a page that a block could go to; NULL if it is not worth it. */
static struct inode *inode_to_fill(struct super_block *sb, u32 ino, bool is_wanted)
{
	struct inode *inode;

	if (!is_wanted)
		return ilookup(sb, ino);
	inode = rnl_iget(sb, ino);
	return IS_ERR(inode) ? NULL : inode;
}

/*
 * Gives the chunks of a block to the pages that first refer to them. Waits for no page: who holds
 * the lock of one may wait for a block.
 */
static void spread(struct inode *reader, struct rnl_block *block)
{
	struct super_block *sb = reader->i_sb;
	struct rnl_info *info = rnl_info(sb);
	bool is_wanted = block->index < info->hot_blocks || has_room();
	u32 rank = rnl_chunks_before(info, block->raw_start), ino, file_chunk, last = 0;
	struct inode *inode = NULL;
	pgoff_t before = 0;

	for (; rank < info->chunk_count; rank++) {
		u32 chunk = rnl_chunk_at_rank(info, rank);
		struct page *page;
		pgoff_t index;

		if (!lies_in(block, rnl_chunk_position(info, chunk)))
			break;
		if (!rnl_chunk_owner(info, chunk, &ino, &file_chunk))
			continue;
		if (ino != last) {
			iput(inode);
			inode = ino == reader->i_ino ? igrab(reader) :
						       inode_to_fill(sb, ino, is_wanted);
			last = ino;
			before = ULONG_MAX;
		}
		index = ((u64)file_chunk << info->chunk_shift) >> PAGE_SHIFT;
		/* A page may have several chunks. */
		if (!inode || index == before)
			continue;
		before = index;
		page = grab_cache_page_nowait(inode->i_mapping, index);
		if (!page)
			continue;
		if (!PageUptodate(page) && !fill(inode, page_folio(page), &block, true))
			SetPageUptodate(page);
		unlock_page(page);
		put_page(page);
	}
	iput(inode);
}

/* Fills locked pages of a file, and unlocks them. The first error is returned. */
static int fill_all(struct inode *inode, struct folio **folios, unsigned int count)
{
	struct rnl_block *block = NULL;
	unsigned int i, j, flags = memalloc_nofs_save();
	int error, first = 0;

	for (i = 0; i < count; i++) {
		if (!folios[i])
			continue;
		error = fill(inode, folios[i], &block, false);
		finish(folios[i], error);
		first = first ?: error;
		if (!block)
			continue;
		for (j = i + 1; j < count; j++) {
			if (folios[j] && !fill(inode, folios[j], &block, true)) {
				finish(folios[j], 0);
				folios[j] = NULL;
			}
		}
		if (!test_and_set_bit(0, &block->spread))
			spread(inode, block);
		rnl_block_put(inode->i_sb, block);
		block = NULL;
	}
	memalloc_nofs_restore(flags);
	return first;
}

static int read_folio(struct file *file, struct folio *folio)
{
	return fill_all(folio->mapping->host, &folio, 1);
}

static void readahead(struct readahead_control *rac)
{
	struct folio *folios[BATCH];
	unsigned int count;

	do {
		for (count = 0; count < BATCH; count++) {
			folios[count] = readahead_folio(rac);
			if (!folios[count])
				break;
		}
		fill_all(rac->mapping->host, folios, count);
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
