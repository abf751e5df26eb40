// SPDX-License-Identifier: GPL-2.0
/*
 * BLAKE3 of bytes that lie in memory. The kernel has none.
 *
 * The specification is "BLAKE3: one function, fast everywhere", sections 2.1 to 2.5.
 */
#include <linux/bitops.h>
#include <linux/sched.h>

#include "hash.h"
#include "runnelfs.h"

/*
 * Chunks that are hashed at a time, in vectors if the processor has any. As long no other thread
 * runs: some microseconds.
 */
#define SLICE_CHUNKS 16
#define SLICE_BYTES (SLICE_CHUNKS * RNL_HASH_CHUNK)

/* Subtrees that wait for their right half: enough for 1 GiB. */
#define DEPTH_MAX 16

/* Slices between two looks at whether another thread should run: 1 MiB. */
#define RESCHED_SLICES 64

const u32 rnl_hash_iv[8] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/* Each round takes the words of the message as the round before it, permuted. */
const u8 rnl_hash_order[7][16] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
	{ 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8 },
	{ 3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1 },
	{ 10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6 },
	{ 12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4 },
	{ 9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7 },
	{ 11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13 },
};

/* One after the other. */
#define LANES 1
#define NAME rnl_hash_scalar
#include "hash_lanes.h"

/* The chaining value of one chunk of at most 1024 bytes. */
static void hash_chunk(const u8 *data, size_t bytes, u32 counter, u32 root, u32 *cv)
{
	u32 flags = RNL_HASH_START;
	u32 m[16];
	int i;

	memcpy(cv, rnl_hash_iv, sizeof(rnl_hash_iv));
	for (; bytes > RNL_HASH_BLOCK; data += RNL_HASH_BLOCK, bytes -= RNL_HASH_BLOCK) {
		for (i = 0; i < 16; i++)
			m[i] = get_unaligned_le32(data + 4 * i);
		compress(cv, m, counter, RNL_HASH_BLOCK, flags);
		flags = 0;
	}
	memset(m, 0, sizeof(m));
	memcpy(m, data, bytes);
	for (i = 0; i < 16; i++)
		m[i] = le32_to_cpu((__force __le32)m[i]);
	compress(cv, m, counter, bytes, flags | RNL_HASH_END | root);
}

/* Puts the chaining value of the two halves of a subtree into @right. */
static void hash_parent(const u32 *left, u32 *right, u32 root)
{
	u32 m[16];

	memcpy(m, left, 8 * sizeof(u32));
	memcpy(m + 8, right, 8 * sizeof(u32));
	memcpy(right, rnl_hash_iv, sizeof(rnl_hash_iv));
	compress(right, m, 0, RNL_HASH_BLOCK, RNL_HASH_PARENT | root);
}

/* The chaining value of at most 16 chunks, the last of which may be cut. */
static noinline_for_stack void hash_slice(const u8 *data, size_t bytes, u32 counter, u32 root,
					  u32 *cv)
{
	u32 count = DIV_ROUND_UP(bytes, RNL_HASH_CHUNK), whole = bytes / RNL_HASH_CHUNK;
	u32 cvs[SLICE_CHUNKS][8];
	rnl_hash_many *many;

	if (count <= 1) {
		hash_chunk(data, bytes, counter, root, cv);
		return;
	}
	many = rnl_hash_begin();
	many(data, RNL_HASH_CHUNK / RNL_HASH_BLOCK, whole, counter, 0, (u8 *)cvs);
	if (whole < count)
		hash_chunk(data + whole * RNL_HASH_CHUNK, bytes % RNL_HASH_CHUNK, counter + whole,
			   0, cvs[whole]);
	for (; count > 2; count = count / 2 + count % 2) {
		many((u8 *)cvs, 1, count / 2, 0, RNL_HASH_PARENT, (u8 *)cvs);
		/* Who is alone goes up as it is. */
		if (count % 2)
			memcpy(cvs[count / 2], cvs[count - 1], sizeof(cvs[0]));
	}
	rnl_hash_end(many);
	memcpy(cv, cvs[1], sizeof(cvs[1]));
	hash_parent(cvs[0], cv, root);
}

/**
 * rnl_hash() - BLAKE3, 32 bytes of it
 * @data: bytes
 * @bytes: how many; at most 1 GiB, which no section and no block exceeds
 * @out: 32 bytes
 */
void rnl_hash(const u8 *data, size_t bytes, u8 *out)
{
	u32 depth = 0, slices = 0, cv[8], whole, i;
	u32 stack[DEPTH_MAX][8];

	for (; bytes > SLICE_BYTES; data += SLICE_BYTES, bytes -= SLICE_BYTES) {
		hash_slice(data, SLICE_BYTES, slices++ * SLICE_CHUNKS, 0, cv);
		for (whole = slices; !(whole & 1) && depth; whole >>= 1)
			hash_parent(stack[--depth], cv, 0);
		memcpy(stack[depth++], cv, sizeof(cv));
		if (!(slices % RESCHED_SLICES))
			cond_resched();
	}
	hash_slice(data, bytes, slices * SLICE_CHUNKS, depth ? 0 : RNL_HASH_ROOT, cv);
	while (depth) {
		depth--;
		hash_parent(stack[depth], cv, depth ? 0 : RNL_HASH_ROOT);
	}
	for (i = 0; i < 8; i++)
		put_unaligned_le32(cv[i], out + 4 * i);
}
