// SPDX-License-Identifier: GPL-2.0
/*
 * From a place in a file to a chunk and its block, and from a chunk to the page that first refers
 * to it. All tables were checked when the image was mounted.
 */
#include "runnelfs.h"

/* Extents between two samples of rnl_info.introduced. */
#define SAMPLE_EXTENTS 64

/* The block in which @position lies; the number of blocks if none reaches that far. */
u32 rnl_block_at(const struct rnl_info *info, u64 position)
{
	const struct rnl_disk_block *block;
	u32 low = 0, high = info->block_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (le64_to_cpu(info->blocks[middle].raw_start) <= position)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return info->block_count;
	block = &info->blocks[low - 1];
	if (position - le64_to_cpu(block->raw_start) >= le32_to_cpu(block->raw_bytes))
		return info->block_count;
	return low - 1;
}

/* Where an extent of a file ends, in chunks of the file. */
static u32 extent_end(const struct rnl_info *info, u32 ino, u32 extent)
{
	u64 size = le64_to_cpu(info->inodes[ino - 1].size);

	if (extent + 1 < rnl_extents_end(info, ino - 1))
		return le32_to_cpu(info->extents[extent + 1].file_chunk);
	return (size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
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
	const struct rnl_disk_inode *inode = &info->inodes[ino - 1];
	u32 low = le32_to_cpu(inode->extent_first), first = low;
	u32 end = rnl_extents_end(info, ino - 1), high = end;
	const struct rnl_disk_extent *extent;
	u64 size = le64_to_cpu(inode->size);

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (le32_to_cpu(info->extents[middle].file_chunk) <= file_chunk)
			low = middle + 1;
		else
			high = middle;
	}
	*run_end = low < end ? le32_to_cpu(info->extents[low].file_chunk) :
			       (size + (1U << info->chunk_shift) - 1) >> info->chunk_shift;
	if (low == first)
		return false;
	extent = &info->extents[low - 1];
	if (le32_to_cpu(extent->chunk_first) == RNL_HOLE)
		return false;
	*chunk = le32_to_cpu(extent->chunk_first) + (file_chunk - le32_to_cpu(extent->file_chunk));
	return true;
}

/* The chunk that is the @rank-th by position. */
u32 rnl_chunk_at_rank(const struct rnl_info *info, u32 rank)
{
	return info->by_position ? info->by_position[rank] : rank;
}

/* How many chunks have a lower position. */
u32 rnl_chunks_before(const struct rnl_info *info, u64 position)
{
	u32 low = 0, high = info->chunk_count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (rnl_chunk_position(info, rnl_chunk_at_rank(info, middle)) < position)
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

		if (le32_to_cpu(info->inodes[middle].extent_first) <= extent)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/**
 * rnl_chunk_owner() - the file that first refers to a chunk, and where
 * @info: the image
 * @chunk: a chunk
 * @ino: the file
 * @file_chunk: the place in it, in chunks
 *
 * Chunks are numbered in the order of first reference. So the extent that first refers to one is
 * the first whose run goes beyond it: a search in the samples and a scan of at most 64 extents.
 *
 * Return: whether it was found, which is always so in an image that was checked.
 */
bool rnl_chunk_owner(const struct rnl_info *info, u32 chunk, u32 *ino, u32 *file_chunk)
{
	u32 low = 0, high = info->introduced_count, extent, end, run;

	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (info->introduced[middle] <= chunk)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return false;
	extent = (low - 1) * SAMPLE_EXTENTS;
	end = min(extent + SAMPLE_EXTENTS, info->extent_count);
	*ino = file_of_extent(info, extent);
	for (; extent < end; extent++) {
		u32 first = le32_to_cpu(info->extents[extent].chunk_first);

		while (*ino < info->inode_count &&
		       le32_to_cpu(info->inodes[*ino].extent_first) <= extent)
			(*ino)++;
		if (first == RNL_HOLE || chunk < first)
			continue;
		run = extent_end(info, *ino, extent) - le32_to_cpu(info->extents[extent].file_chunk);
		if (chunk - first < run) {
			*file_chunk = le32_to_cpu(info->extents[extent].file_chunk) + (chunk - first);
			return true;
		}
	}
	return false;
}
