// SPDX-License-Identifier: GPL-2.0
/*
 * BLAKE3 of bytes that lie in memory. The kernel has none.
 *
 * The specification is "BLAKE3: one function, fast everywhere", sections 2.1 to 2.5.
 */
#include <linux/bitops.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "runnelfs.h"

#define CHUNK_BYTES 1024
#define BLOCK_BYTES 64
#define CHUNK_START 1
#define CHUNK_END 2
#define PARENT 4
#define ROOT 8

/* Subtrees that wait for their right half: enough for 1 GiB. */
#define DEPTH_MAX 20

/* Chunks between two looks at whether another thread should run: 1 MiB. */
#define RESCHED_CHUNKS 1024

static const u32 iv[8] = {
	0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static __always_inline void mix(u32 *v, int a, int b, int c, int d, u32 x, u32 y)
{
	v[a] += v[b] + x;
	v[d] = ror32(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = ror32(v[b] ^ v[c], 12);
	v[a] += v[b] + y;
	v[d] = ror32(v[d] ^ v[a], 8);
	v[c] += v[d];
	v[b] = ror32(v[b] ^ v[c], 7);
}

static __always_inline void mix_all(u32 *v, const u32 *m, int m0, int m1, int m2, int m3, int m4,
				    int m5, int m6, int m7, int m8, int m9, int m10, int m11,
				    int m12, int m13, int m14, int m15)
{
	mix(v, 0, 4, 8, 12, m[m0], m[m1]);
	mix(v, 1, 5, 9, 13, m[m2], m[m3]);
	mix(v, 2, 6, 10, 14, m[m4], m[m5]);
	mix(v, 3, 7, 11, 15, m[m6], m[m7]);
	mix(v, 0, 5, 10, 15, m[m8], m[m9]);
	mix(v, 1, 6, 11, 12, m[m10], m[m11]);
	mix(v, 2, 7, 8, 13, m[m12], m[m13]);
	mix(v, 3, 4, 9, 14, m[m14], m[m15]);
}

/* Each round takes the words of the message as the round before it, permuted. */
static void compress(u32 *cv, const u32 *m, u64 counter, u32 bytes, u32 flags)
{
	u32 v[16];
	int i;

	memcpy(v, cv, 8 * sizeof(u32));
	memcpy(v + 8, iv, 4 * sizeof(u32));
	v[12] = (u32)counter;
	v[13] = (u32)(counter >> 32);
	v[14] = bytes;
	v[15] = flags;
	mix_all(v, m, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	mix_all(v, m, 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8);
	mix_all(v, m, 3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1);
	mix_all(v, m, 10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6);
	mix_all(v, m, 12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4);
	mix_all(v, m, 9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7);
	mix_all(v, m, 11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13);
	for (i = 0; i < 8; i++)
		cv[i] = v[i] ^ v[i + 8];
}

/* The chaining value of one chunk of at most 1024 bytes. */
static void hash_chunk(const u8 *data, size_t bytes, u64 counter, u32 root, u32 *cv)
{
	u32 flags = CHUNK_START;
	u32 m[16];
	int i;

	memcpy(cv, iv, sizeof(iv));
	for (; bytes > BLOCK_BYTES; data += BLOCK_BYTES, bytes -= BLOCK_BYTES) {
		for (i = 0; i < 16; i++)
			m[i] = get_unaligned_le32(data + 4 * i);
		compress(cv, m, counter, BLOCK_BYTES, flags);
		flags = 0;
	}
	memset(m, 0, sizeof(m));
	memcpy(m, data, bytes);
	for (i = 0; i < 16; i++)
		m[i] = le32_to_cpu((__force __le32)m[i]);
	compress(cv, m, counter, bytes, flags | CHUNK_END | root);
}

/* Puts the chaining value of the two halves of a subtree into @right. */
static void hash_parent(const u32 *left, u32 *right, u32 root)
{
	u32 m[16];

	memcpy(m, left, 8 * sizeof(u32));
	memcpy(m + 8, right, 8 * sizeof(u32));
	memcpy(right, iv, sizeof(iv));
	compress(right, m, 0, BLOCK_BYTES, PARENT | root);
}

/**
 * rnl_hash() - BLAKE3, 32 bytes of it
 * @data: bytes
 * @bytes: how many; at most 1 GiB, which no section and no block exceeds
 * @out: 32 bytes
 */
void rnl_hash(const u8 *data, size_t bytes, u8 *out)
{
	u32 stack[DEPTH_MAX][8];
	u32 depth = 0, cv[8];
	u64 chunks = 0, whole;
	int i;

	for (; bytes > CHUNK_BYTES; data += CHUNK_BYTES, bytes -= CHUNK_BYTES) {
		hash_chunk(data, CHUNK_BYTES, chunks++, 0, cv);
		for (whole = chunks; !(whole & 1) && depth; whole >>= 1)
			hash_parent(stack[--depth], cv, 0);
		memcpy(stack[depth++], cv, sizeof(cv));
		if (!(chunks % RESCHED_CHUNKS))
			cond_resched();
	}
	hash_chunk(data, bytes, chunks, depth ? 0 : ROOT, cv);
	while (depth) {
		depth--;
		hash_parent(stack[depth], cv, depth ? 0 : ROOT);
	}
	for (i = 0; i < 8; i++)
		put_unaligned_le32(cv[i], out + 4 * i);
}
