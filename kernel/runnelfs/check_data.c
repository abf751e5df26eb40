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
#include <linux/stat.h>

#include "runnelfs.h"

static int check_coding(struct fs_context *fc, struct rnl_info *info, u32 index)
{
	u32 codec = rnl_get(info, RNL_BLOCK_CODEC, index);
	u32 filter = rnl_get(info, RNL_BLOCK_FILTER, index);
	u32 dictionaries = codec == RNL_ZSTD ? info->dictionary_count : 0;

	if (codec >= RNL_CODECS || filter > RNL_FILTER_DEFLATE)
		return rnl_too_new(fc, "block", index);
	/* Deflate was refused with the features, so no block may use it. */
	if (filter && (filter == RNL_FILTER_DEFLATE || !(info->features & RNL_FEATURE_FILTERS)))
		return rnl_bad(fc, "the filter of block", index);
	if (rnl_get(info, RNL_BLOCK_DICTIONARY, index) > dictionaries)
		return rnl_bad(fc, "the dictionary of block", index);
	if (rnl_get(info, RNL_BLOCK_EXPANSION, index) || rnl_get(info, RNL_BLOCK_RESERVED, index))
		return rnl_bad(fc, "a field of block", index);
	info->codecs |= 1 << codec;
	return 0;
}

/* Checks the blocks; where they end when decoded is put into *@raw_bytes. */
static int check_blocks(struct fs_context *fc, struct rnl_info *info, u64 blocks_end,
			u64 *raw_bytes)
{
	u64 file_end = RNL_SUPER_BYTES, raw_end = 0;
	u32 i, largest = 0;
	int error;

	for (i = 0; i < info->block_count; i++) {
		u32 stored = rnl_get(info, RNL_BLOCK_STORED_BYTES, i);
		u32 raw = rnl_get(info, RNL_BLOCK_RAW_BYTES, i);

		if (rnl_get64(info, RNL_BLOCK_FILE_OFFSET, i) != file_end ||
		    rnl_get64(info, RNL_BLOCK_RAW_START, i) != raw_end)
			return rnl_bad(fc, "the place of block", i);
		if (!raw || raw > info->block_bytes)
			return rnl_bad(fc, "the raw size of block", i);
		if (rnl_get(info, RNL_BLOCK_CODEC, i) ? !stored || stored >= raw : stored != raw)
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
	*raw_bytes = raw_end;
	return 0;
}

static u64 position_of(__le64 chunk)
{
	return le64_to_cpu(chunk) & ((1ULL << RNL_CHUNK_LENGTH_SHIFT) - 1);
}

/* Bits of positions that are sorted at once. */
#define DIGIT_BITS 11

static u32 digit_of(__le64 chunk, u32 shift)
{
	return position_of(chunk) >> shift & ((1U << DIGIT_BITS) - 1);
}

/*
 * Makes the column of chunks by their positions, which are below @end. Compares nothing: half the
 * time of a mount was that.
 */
static int sort_chunks(struct rnl_info *info, const __le64 *chunks, u64 end)
{
	u32 i, shift, start, count = info->chunk_count;
	__le32 *order = rnl_table(info, RNL_BY_POSITION, count);
	__le32 *other = rnl_alloc(sizeof(*other) * (size_t)count);
	u32 *starts = rnl_alloc(sizeof(*starts) << DIGIT_BITS);
	int error = order && other && starts ? 0 : -ENOMEM;

	if (error)
		goto out;
	for (i = 0; i < count; i++)
		order[i] = cpu_to_le32(i);
	for (shift = 0; end >> shift; shift += DIGIT_BITS) {
		memset(starts, 0, sizeof(*starts) << DIGIT_BITS);
		for (i = 0; i < count; i++)
			starts[digit_of(chunks[i], shift)]++;
		for (i = 0, start = 0; i < 1U << DIGIT_BITS; i++) {
			start += starts[i];
			starts[i] = start - starts[i];
		}
		for (i = 0; i < count; i++) {
			u32 digit = digit_of(chunks[le32_to_cpu(order[i])], shift);

			other[starts[digit]++] = order[i];
		}
		swap(order, other);
	}
	info->section[RNL_BY_POSITION] = order;
	error = rnl_pack(info, RNL_BY_POSITION);
out:
	kvfree(other);
	kvfree(starts);
	return error;
}

/* Each chunk lies in a block, and no two overlap. */
static int check_places(struct fs_context *fc, const struct rnl_info *info, const __le64 *chunks)
{
	u32 full = 1U << info->chunk_shift, rank, block = 0;
	u64 end = 0, block_end = 0;

	for (rank = 0; rank < info->chunk_count; rank++) {
		u32 chunk = rnl_chunk_at_rank(info, rank);
		u32 bytes = le64_to_cpu(chunks[chunk]) >> RNL_CHUNK_LENGTH_SHIFT;
		u64 position = position_of(chunks[chunk]);

		if (!bytes || bytes > full)
			return rnl_bad(fc, "the length of chunk", chunk);
		for (; block < info->block_count && position >= block_end; block++)
			block_end += rnl_get(info, RNL_BLOCK_RAW_BYTES, block);
		if (position < end || position >= block_end)
			return rnl_bad(fc, "the position of chunk", chunk);
		end = position + bytes;
		if (end > block_end)
			return rnl_bad(fc, "the end of chunk", chunk);
	}
	return 0;
}

/* Checks the chunks, of which there are no columns yet, and finds their order. */
static int check_chunks(struct fs_context *fc, struct rnl_info *info, u64 raw_end)
{
	const __le64 *chunks = info->section[RNL_CHUNKS];
	bool is_sorted = true;
	int error = 0;
	u32 i;

	for (i = 1; i < info->chunk_count; i++)
		is_sorted &= position_of(chunks[i - 1]) <= position_of(chunks[i]);
	if (!is_sorted)
		error = sort_chunks(info, chunks, raw_end);
	return error ? error : check_places(fc, info, chunks);
}

/* Checks the extents of a file; *@seen is how many chunks those before refer to. */
static int check_file(struct fs_context *fc, struct rnl_info *info, u32 index, u32 *seen)
{
	u32 i = rnl_get(info, RNL_INODE_EXTENT_FIRST, index);
	u32 end = rnl_end(info, RNL_INODE_EXTENT_FIRST, index);
	u32 full = 1U << info->chunk_shift, at = 0, next, run, tail, unused;
	u64 size = rnl_get64(info, RNL_INODE_SIZE, index), count;
	__le32 *introduced = info->section[RNL_INTRODUCED];

	count = (size >> info->chunk_shift) + !!(size & (full - 1));
	if (count > U32_MAX || (count && i == end) || (!count && i != end))
		return rnl_bad(fc, "the size of inode", index + 1);
	for (; i < end; i++, at = next) {
		u32 first = rnl_get(info, RNL_EXTENT_CHUNK_FIRST, i);

		introduced[i] = cpu_to_le32(*seen);
		next = i + 1 < end ? rnl_get(info, RNL_EXTENT_FILE_CHUNK, i + 1) : count;
		if (rnl_get(info, RNL_EXTENT_FILE_CHUNK, i) != at || next <= at || next > count)
			return rnl_bad(fc, "the place of extent", i);
		if (first == RNL_HOLE)
			continue;
		run = next - at;
		if (first > *seen || first > info->chunk_count ||
		    run > info->chunk_count - first)
			return rnl_bad(fc, "the chunks of extent", i);
		*seen = max(*seen, first + run);
		/* All chunks of a run are full, but the last of a file. */
		tail = i + 1 < end || !(size & (full - 1)) ? full : size & (full - 1);
		if (rnl_next_short(info, first, &unused) < first + run - 1 ||
		    rnl_chunk_bytes(info, first + run - 1) != tail)
			return rnl_bad(fc, "the lengths of the chunks of extent", i);
	}
	return 0;
}

/* Checks what files consist of. */
int rnl_check_files(struct fs_context *fc, struct rnl_info *info)
{
	int error = rnl_table(info, RNL_INTRODUCED, info->extent_count) ? 0 : -ENOMEM;
	u32 i, seen = 0;

	for (i = 0; i < info->inode_count && !error; i++)
		if (S_ISREG(rnl_get(info, RNL_INODE_MODE, i)))
			error = check_file(fc, info, i, &seen);
	if (!error && seen != info->chunk_count)
		error = rnl_bad(fc, "the number of chunks that files refer to,", seen);
	return error ? error : rnl_pack(info, RNL_INTRODUCED);
}

/* Checks the blocks, which have columns, and the chunks, which have none yet. */
int rnl_check_data(struct fs_context *fc, struct rnl_info *info, u64 blocks_end)
{
	u64 raw_bytes;
	int error = check_blocks(fc, info, blocks_end, &raw_bytes);

	return error ? error : check_chunks(fc, info, raw_bytes);
}
