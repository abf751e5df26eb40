// SPDX-License-Identifier: GPL-2.0
/*
 * The rules of the data: blocks, chunks in them, and extents of files, as in
 * crates/image/src/data.rs; and the two indexes that are derived on the way.
 *
 * A run of chunks is checked without walking it: the chunks that are shorter than a full one are
 * collected first, so an image cannot make this slow by naming long runs often.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/stat.h>

#include "runnelfs.h"

/* What one pass over the chunks leaves for the pass over the files. */
struct chunks {
	/* Numbers of chunks that are shorter than a full one, ascending. */
	u32 *is_short;
	u32 short_count;
};

static int check_coding(struct fs_context *fc, struct rnl_info *info, u32 index)
{
	const struct rnl_disk_block *block = &info->blocks[index];
	u32 dictionaries = block->codec == RNL_ZSTD ? info->dictionary_count : 0;

	if (block->codec >= RNL_CODECS || block->filter > RNL_FILTER_DEFLATE) {
		errorf(fc, "runnelfs: the image needs a newer runnelfs: block %u",
		       index);
		return -EOPNOTSUPP;
	}
	/* Deflate was refused with the features, so no block may use it. */
	if (block->filter && (block->filter == RNL_FILTER_DEFLATE ||
			      !(info->features & RNL_FEATURE_FILTERS)))
		return rnl_bad(fc, "the filter of block", index);
	if (block->dictionary > dictionaries)
		return rnl_bad(fc, "the dictionary of block", index);
	if (block->expansion_bytes || block->reserved)
		return rnl_bad(fc, "a field of block", index);
	info->codecs |= 1 << block->codec;
	return 0;
}

static int check_blocks(struct fs_context *fc, struct rnl_info *info, u64 blocks_end)
{
	u64 file_end = RNL_SUPER_BYTES, raw_end = 0;
	u32 i, largest = 0;
	int error;

	for (i = 0; i < info->block_count; i++) {
		const struct rnl_disk_block *block = &info->blocks[i];
		u32 stored = le32_to_cpu(block->stored_bytes), raw = le32_to_cpu(block->raw_bytes);

		if (le64_to_cpu(block->file_offset) != file_end ||
		    le64_to_cpu(block->raw_start) != raw_end)
			return rnl_bad(fc, "the place of block", i);
		if (!raw || raw > info->block_bytes)
			return rnl_bad(fc, "the raw size of block", i);
		if (block->codec ? !stored || stored >= raw : stored != raw)
			return rnl_bad(fc, "the stored size of block", i);
		error = check_coding(fc, info, i);
		if (error)
			return error;
		largest = max(largest, raw);
		file_end += stored;
		raw_end += raw;
	}
	if (raw_end > 1ULL << RNL_CHUNK_LENGTH_SHIFT || file_end != blocks_end)
		return rnl_bad(fc, "the end of the last of blocks", i);
	if (largest != info->block_bytes)
		return rnl_bad(fc, "the size of the largest of blocks", i);
	return 0;
}

static int by_position(const void *a, const void *b, const void *priv)
{
	u64 one = rnl_chunk_position(priv, *(const u32 *)a);
	u64 other = rnl_chunk_position(priv, *(const u32 *)b);

	return one < other ? -1 : one > other;
}

/* Sorts the chunks by position, unless they are. Chunks must not overlap. */
static int sort_chunks(struct fs_context *fc, struct rnl_info *info, bool is_sorted)
{
	u64 end = 0;
	u32 i, chunk;

	if (!is_sorted) {
		info->by_position = kvmalloc_array(info->chunk_count, sizeof(u32), GFP_KERNEL);
		if (!info->by_position)
			return -ENOMEM;
		for (i = 0; i < info->chunk_count; i++)
			info->by_position[i] = i;
		sort_r(info->by_position, info->chunk_count, sizeof(u32), by_position, NULL, info);
	}
	for (i = 0; i < info->chunk_count; i++) {
		chunk = rnl_chunk_at_rank(info, i);
		if (rnl_chunk_position(info, chunk) < end)
			return rnl_bad(fc, "the position of chunk", chunk);
		end = rnl_chunk_position(info, chunk) + rnl_chunk_bytes(info, chunk);
	}
	return 0;
}

static int check_chunks(struct fs_context *fc, struct rnl_info *info, struct chunks *chunks)
{
	u32 full = 1U << info->chunk_shift, i, block, found = 0;
	u64 start = 0, end = 0, before = 0;
	bool is_sorted = true;

	for (i = 0; i < info->chunk_count; i++) {
		u32 bytes = rnl_chunk_bytes(info, i);
		u64 position = rnl_chunk_position(info, i);

		if (!bytes || bytes > full)
			return rnl_bad(fc, "the length of chunk", i);
		/* Chunks mostly follow one another, so the block of the one before comes first. */
		if (position < start || position >= end) {
			block = rnl_block_at(info, position);
			if (block == info->block_count)
				return rnl_bad(fc, "the position of chunk", i);
			start = le64_to_cpu(info->blocks[block].raw_start);
			end = start + le32_to_cpu(info->blocks[block].raw_bytes);
		}
		if (position + bytes > end)
			return rnl_bad(fc, "the end of chunk", i);
		chunks->short_count += bytes < full;
		is_sorted &= position >= before;
		before = position;
	}
	chunks->is_short = kvmalloc_array(max(chunks->short_count, 1U), sizeof(u32), GFP_KERNEL);
	if (!chunks->is_short)
		return -ENOMEM;
	for (i = 0; i < info->chunk_count; i++)
		if (rnl_chunk_bytes(info, i) < full)
			chunks->is_short[found++] = i;
	return sort_chunks(fc, info, is_sorted);
}

/* The first short chunk at or behind @chunk; U32_MAX if there is none. */
static u32 next_short(const struct chunks *chunks, u32 chunk)
{
	u32 low = 0, high = chunks->short_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (chunks->is_short[middle] < chunk)
			low = middle + 1;
		else
			high = middle;
	}
	return low < chunks->short_count ? chunks->is_short[low] : U32_MAX;
}

/* Checks the extents of a file; @introduced is how many chunks those before refer to. */
static int check_file(struct fs_context *fc, struct rnl_info *info, const struct chunks *chunks,
		      u32 index, u32 *introduced)
{
	u32 i = le32_to_cpu(info->inodes[index].extent_first);
	u32 end = rnl_extents_end(info, index);
	u32 full = 1U << info->chunk_shift, at = 0, next, run, tail;
	u64 size = le64_to_cpu(info->inodes[index].size), count;

	count = (size >> info->chunk_shift) + !!(size & (full - 1));
	if (count > U32_MAX || (count && i == end) || (!count && i != end))
		return rnl_bad(fc, "the size of inode", index + 1);
	for (; i < end; i++, at = next) {
		u32 first = le32_to_cpu(info->extents[i].chunk_first);

		if (!(i % 64))
			info->introduced[info->introduced_count++] = *introduced;
		next = i + 1 < end ? le32_to_cpu(info->extents[i + 1].file_chunk) : count;
		if (le32_to_cpu(info->extents[i].file_chunk) != at || next <= at || next > count)
			return rnl_bad(fc, "the place of extent", i);
		if (first == RNL_HOLE)
			continue;
		run = next - at;
		if (first > *introduced || first > info->chunk_count ||
		    run > info->chunk_count - first)
			return rnl_bad(fc, "the chunks of extent", i);
		*introduced = max(*introduced, first + run);
		/* All chunks of a run are full, but the last of a file. */
		tail = i + 1 < end || !(size & (full - 1)) ? full : size & (full - 1);
		if (next_short(chunks, first) < first + run - 1 ||
		    rnl_chunk_bytes(info, first + run - 1) != tail)
			return rnl_bad(fc, "the lengths of the chunks of extent", i);
	}
	return 0;
}

static int check_files(struct fs_context *fc, struct rnl_info *info, const struct chunks *chunks)
{
	u32 i, introduced = 0;
	int error;

	info->introduced = kvmalloc_array(info->extent_count / 64 + 1, sizeof(u32), GFP_KERNEL);
	if (!info->introduced)
		return -ENOMEM;
	for (i = 0; i < info->inode_count; i++) {
		if (!S_ISREG(le16_to_cpu(info->inodes[i].mode)))
			continue;
		error = check_file(fc, info, chunks, i, &introduced);
		if (error)
			return error;
	}
	if (introduced != info->chunk_count)
		return rnl_bad(fc, "the number of chunks that files refer to,", introduced);
	return 0;
}

int rnl_check_data(struct fs_context *fc, struct rnl_info *info, u64 blocks_end)
{
	struct chunks chunks = {};
	int error;

	error = check_blocks(fc, info, blocks_end);
	if (!error)
		error = check_chunks(fc, info, &chunks);
	if (!error)
		error = check_files(fc, info, &chunks);
	kvfree(chunks.is_short);
	return error;
}
