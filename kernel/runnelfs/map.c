// SPDX-License-Identifier: GPL-2.0
/*
 * From a place in a file to a chunk and its block, and from a chunk to the page that first refers
 * to it. All tables were checked when the image was mounted.
 */
#include "runnelfs.h"

/*
 * The first chunk at or behind @chunk that is shorter than a full one, with its length; U32_MAX if
 * there is none.
 */
u32 rnl_next_short(const struct rnl_info *info, u32 chunk, u32 *bytes)
{
	const struct rnl_column *shorts = &info->columns[RNL_SHORT_CHUNK];
	u32 at = chunk ? rnl_search(shorts, 0, shorts->count, chunk - 1) : 0;

	if (at == shorts->count)
		return U32_MAX;
	*bytes = rnl_get(info, RNL_SHORT_BYTES, at);
	return rnl_number(shorts, at);
}

u32 rnl_chunk_bytes(const struct rnl_info *info, u32 chunk)
{
	u32 bytes;

	return rnl_next_short(info, chunk, &bytes) == chunk ? bytes : 1U << info->chunk_shift;
}

/* The block in which @position lies; the number of blocks if none reaches that far. */
u32 rnl_block_at(const struct rnl_info *info, u64 position)
{
	u32 block = rnl_search(&info->columns[RNL_BLOCK_RAW_START], 0, info->block_count, position);

	if (!block--)
		return info->block_count;
	if (position - rnl_get64(info, RNL_BLOCK_RAW_START, block) >=
	    rnl_get(info, RNL_BLOCK_RAW_BYTES, block))
		return info->block_count;
	return block;
}

/**
 * rnl_map() - where a part of a file comes from
 * @info: the image
 * @ino: a file
 * @file_chunk: a place in it, below its end, in chunks
 * @chunk: the chunk there is put here
 * @run_end: where the extent ends is put here, in chunks of the file, unless it is NULL
 *
 * Return: whether there is a chunk; else there is a hole.
 */
bool rnl_map(const struct rnl_info *info, unsigned long ino, u32 file_chunk, u32 *chunk,
	     u32 *run_end)
{
	u32 first = rnl_get(info, RNL_INODE_EXTENT_FIRST, ino - 1);
	u32 end = rnl_end(info, RNL_INODE_EXTENT_FIRST, ino - 1);
	u32 next = rnl_search(&info->columns[RNL_EXTENT_FILE_CHUNK], first, end, file_chunk);
	u64 size = rnl_get64(info, RNL_INODE_SIZE, ino - 1);
	u32 chunk_first;

	if (run_end)
		*run_end = next < end ? rnl_get(info, RNL_EXTENT_FILE_CHUNK, next) :
					(size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
	if (next == first)
		return false;
	chunk_first = rnl_get(info, RNL_EXTENT_CHUNK_FIRST, next - 1);
	if (chunk_first == RNL_HOLE)
		return false;
	*chunk = chunk_first + (file_chunk - rnl_get(info, RNL_EXTENT_FILE_CHUNK, next - 1));
	return true;
}

/* The chunk that is the @rank-th by position. */
u32 rnl_chunk_at_rank(const struct rnl_info *info, u32 rank)
{
	return info->section[RNL_BY_POSITION] ? rnl_get(info, RNL_BY_POSITION_CHUNK, rank) : rank;
}

/* How many chunks have a lower position. */
u32 rnl_chunks_before(const struct rnl_info *info, u64 position)
{
	u32 low = 0, high = info->chunk_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_get64(info, RNL_CHUNK_POSITION, rnl_chunk_at_rank(info, middle)) < position)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/**
 * rnl_chunk_owner() - the file that first refers to a chunk, and where
 * @info: the image
 * @chunk: a chunk of the image
 * @ino: the file
 * @file_chunk: the place in it, in chunks
 *
 * Chunks are numbered in the order of first reference. So the extent that first refers to one is
 * the last before which there were no more chunks, and its file the last one whose extents start
 * there or before.
 */
void rnl_chunk_owner(const struct rnl_info *info, u32 chunk, u32 *ino, u32 *file_chunk)
{
	u32 extent = rnl_search(&info->columns[RNL_INTRODUCED_BEFORE], 0, info->extent_count,
				chunk) - 1;

	*ino = rnl_search(&info->columns[RNL_INODE_EXTENT_FIRST], 0, info->inode_count, extent);
	*file_chunk = rnl_get(info, RNL_EXTENT_FILE_CHUNK, extent) +
		      (chunk - rnl_get(info, RNL_EXTENT_CHUNK_FIRST, extent));
}
