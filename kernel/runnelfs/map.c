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
	u32 low = 0, high = info->short_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if ((u32)rnl_number(&info->shorts, middle) < chunk)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == info->short_count)
		return U32_MAX;
	*bytes = rnl_number(&info->short_bytes, low);
	return rnl_number(&info->shorts, low);
}

u32 rnl_chunk_bytes(const struct rnl_info *info, u32 chunk)
{
	u32 bytes;

	return rnl_next_short(info, chunk, &bytes) == chunk ? bytes : 1U << info->chunk_shift;
}

/* The block in which @position lies; the number of blocks if none reaches that far. */
u32 rnl_block_at(const struct rnl_info *info, u64 position)
{
	u32 low = 0, high = info->block_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_get64(info, RNL_BLOCK_RAW_START, middle) <= position)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return info->block_count;
	low--;
	if (position - rnl_get64(info, RNL_BLOCK_RAW_START, low) >=
	    rnl_get(info, RNL_BLOCK_RAW_BYTES, low))
		return info->block_count;
	return low;
}

/**
 * rnl_map() - where a part of a file comes from
 * @info: the image
 * @ino: a file
 * @file_chunk: a place in it, below its end, in chunks
 * @chunk: the chunk there is put here
 * @run_end: where the extent ends is put here, in chunks of the file
 *
 * Return: whether there is a chunk; else there is a hole.
 */
bool rnl_map(const struct rnl_info *info, unsigned long ino, u32 file_chunk, u32 *chunk,
	     u32 *run_end)
{
	u32 low = rnl_get(info, RNL_INODE_EXTENT_FIRST, ino - 1), first = low;
	u32 end = rnl_extents_end(info, ino - 1), high = end;
	u64 size = rnl_get64(info, RNL_INODE_SIZE, ino - 1);
	u32 chunk_first;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_get(info, RNL_EXTENT_FILE_CHUNK, middle) <= file_chunk)
			low = middle + 1;
		else
			high = middle;
	}
	*run_end = low < end ? rnl_get(info, RNL_EXTENT_FILE_CHUNK, low) :
			       (size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
	if (low == first)
		return false;
	chunk_first = rnl_get(info, RNL_EXTENT_CHUNK_FIRST, low - 1);
	if (chunk_first == RNL_HOLE)
		return false;
	*chunk = chunk_first + (file_chunk - rnl_get(info, RNL_EXTENT_FILE_CHUNK, low - 1));
	return true;
}

/* The chunk that is the @rank-th by position. */
u32 rnl_chunk_at_rank(const struct rnl_info *info, u32 rank)
{
	return info->is_sorted ? rank : rnl_number(&info->by_position, rank);
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

/* The last inode whose extents start at or before @extent. */
static u32 file_of_extent(const struct rnl_info *info, u32 extent)
{
	u32 low = 0, high = info->inode_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_get(info, RNL_INODE_EXTENT_FIRST, middle) <= extent)
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
 * the last before which there were no more chunks.
 */
void rnl_chunk_owner(const struct rnl_info *info, u32 chunk, u32 *ino, u32 *file_chunk)
{
	u32 low = 0, high = info->extent_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if ((u32)rnl_number(&info->introduced, middle) <= chunk)
			low = middle + 1;
		else
			high = middle;
	}
	low--;
	*ino = file_of_extent(info, low);
	*file_chunk = rnl_get(info, RNL_EXTENT_FILE_CHUNK, low) +
		      (chunk - rnl_get(info, RNL_EXTENT_CHUNK_FIRST, low));
}
