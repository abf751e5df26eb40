/* SPDX-License-Identifier: GPL-2.0 */
/*
 * BLAKE3 of several chunks, or parents, side by side: each lane of a vector has a word of another
 * one. Included by files that are compiled for vectors, with LANES and the function's name; and
 * with one lane, which is no vector.
 */
#include "hash.h"

/* Vectors mean nothing to sparse. */
#if LANES == 1 || !defined(__CHECKER__)

#if LANES == 1
typedef u32 words;
/* Parents are read as they were written, chunks are little-endian. */
#define LOAD(from) (flags ? get_unaligned((const u32 *)(from)) : get_unaligned_le32(from))
#define STORE(number, to) put_unaligned(number, (u32 *)(to))
#define COMPRESS static noinline void
#else
typedef u32 words __attribute__((vector_size(4 * LANES)));
/* Where no vector need begin. */
typedef u32 unaligned_words __attribute__((vector_size(4 * LANES), aligned(1)));
#define LOAD(from) (*(const unaligned_words *)(from))
#define STORE(vector, to) (*(unaligned_words *)(to) = (vector))
#define COMPRESS static __always_inline void
#endif

#if LANES == 8
#define EACH(a, b, c, d) { a, b, c, d, a, b, c, d }
#define LOW_1 0, 8, 1, 9, 4, 12, 5, 13
#define HIGH_1 2, 10, 3, 11, 6, 14, 7, 15
#define LOW_2 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_2 2, 3, 10, 11, 6, 7, 14, 15
#define LOW_4 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_4 4, 5, 6, 7, 12, 13, 14, 15
#elif LANES == 4
#define EACH(a, b, c, d) { a, b, c, d }
#define LOW_1 0, 4, 1, 5
#define HIGH_1 2, 6, 3, 7
#define LOW_2 0, 1, 4, 5
#define HIGH_2 2, 3, 6, 7
#endif

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (words){ __VA_ARGS__ })
#endif

/* Rotates by whole bytes are one instruction on x86-64. */
#if LANES > 1 && defined(__SSSE3__)
typedef char octets __attribute__((vector_size(4 * LANES)));
#if LANES == 8
#define MOVE_BYTES __builtin_ia32_pshufb256
#else
#define MOVE_BYTES __builtin_ia32_pshufb128
#endif
#define RIGHT_16(x) ((words)MOVE_BYTES((octets)(x), \
	(octets)(words)EACH(0x01000302, 0x05040706, 0x09080b0a, 0x0d0c0f0e)))
#define RIGHT_8(x) ((words)MOVE_BYTES((octets)(x), \
	(octets)(words)EACH(0x00030201, 0x04070605, 0x080b0a09, 0x0c0f0e0d)))
#else
#define RIGHT_16(x) RIGHT(x, 16)
#define RIGHT_8(x) RIGHT(x, 8)
#endif
#define ALL(x) ((x) - (words){ 0 })
#define RIGHT(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

/* Row i of the square gets what was column i. */
static __always_inline void transpose(words *row)
{
#if LANES > 1
	int i;

#pragma GCC unroll 2
	for (i = 0; i < LANES; i += 4) {
		words a = SHUFFLE(row[i], row[i + 1], LOW_1);
		words b = SHUFFLE(row[i], row[i + 1], HIGH_1);
		words c = SHUFFLE(row[i + 2], row[i + 3], LOW_1);
		words d = SHUFFLE(row[i + 2], row[i + 3], HIGH_1);

		row[i] = SHUFFLE(a, c, LOW_2);
		row[i + 1] = SHUFFLE(a, c, HIGH_2);
		row[i + 2] = SHUFFLE(b, d, LOW_2);
		row[i + 3] = SHUFFLE(b, d, HIGH_2);
	}
#if LANES == 8
#pragma GCC unroll 4
	for (i = 0; i < 4; i++) {
		words a = row[i], b = row[i + 4];

		row[i] = SHUFFLE(a, b, LOW_4);
		row[i + 4] = SHUFFLE(a, b, HIGH_4);
	}
#endif
#endif
}

static __always_inline void mix(words *v, int a, int b, int c, int d, words x, words y)
{
	v[a] += v[b] + x;
	v[d] = RIGHT_16(v[d] ^ v[a]);
	v[c] += v[d];
	v[b] = RIGHT(v[b] ^ v[c], 12);
	v[a] += v[b] + y;
	v[d] = RIGHT_8(v[d] ^ v[a]);
	v[c] += v[d];
	v[b] = RIGHT(v[b] ^ v[c], 7);
}

/* Word @i of the message in a round. */
#define WORD(i) m[order[i]]

COMPRESS compress(words *cv, const words *m, words counter, u32 bytes, u32 flags)
{
	words v[16] = {
		cv[0], cv[1], cv[2], cv[3], cv[4], cv[5], cv[6], cv[7],
		ALL(rnl_hash_iv[0]), ALL(rnl_hash_iv[1]), ALL(rnl_hash_iv[2]), ALL(rnl_hash_iv[3]),
		counter, ALL(0), ALL(bytes), ALL(flags),
	};
	int i;

	/* Not unrolled: it would take seven times the room. */
#pragma GCC unroll 1
	for (i = 0; i < 7; i++) {
		const u8 *order = rnl_hash_order[i];

		mix(v, 0, 4, 8, 12, WORD(0), WORD(1));
		mix(v, 1, 5, 9, 13, WORD(2), WORD(3));
		mix(v, 2, 6, 10, 14, WORD(4), WORD(5));
		mix(v, 3, 7, 11, 15, WORD(6), WORD(7));
		mix(v, 0, 5, 10, 15, WORD(8), WORD(9));
		mix(v, 1, 6, 11, 12, WORD(10), WORD(11));
		mix(v, 2, 7, 8, 13, WORD(12), WORD(13));
		mix(v, 3, 4, 9, 14, WORD(14), WORD(15));
	}
#pragma GCC unroll 8
	for (i = 0; i < 8; i++)
		cv[i] = v[i] ^ v[i + 8];
}

/* As many as there are lanes; if there are fewer, the last one is in all lanes that are left. */
static void hash_group(const u8 *data, u32 blocks, u32 count, u32 counter, u32 flags, u8 *out)
{
	u32 at[LANES], numbers[LANES], lane, block, i;
	words cv[8], m[16], counters;

	for (lane = 0; lane < LANES; lane++) {
		at[lane] = min(lane, count - 1) * blocks * RNL_HASH_BLOCK;
		numbers[lane] = flags ? 0 : counter + lane;
	}
	memcpy(&counters, numbers, sizeof(counters));
#pragma GCC unroll 8
	for (i = 0; i < 8; i++)
		cv[i] = ALL(rnl_hash_iv[i]);
	for (block = 0; block < blocks; block++) {
		u32 now = flags;

#pragma GCC unroll 4
		for (i = 0; i < 16; i += LANES) {
#pragma GCC unroll 8
			for (lane = 0; lane < LANES; lane++)
				m[i + lane] = LOAD(data + at[lane] + 4 * i);
			transpose(m + i);
		}
		data += RNL_HASH_BLOCK;
		if (!flags && !block)
			now |= RNL_HASH_START;
		if (!flags && block + 1 == blocks)
			now |= RNL_HASH_END;
		compress(cv, m, counters, RNL_HASH_BLOCK, now);
	}
#pragma GCC unroll 2
	for (i = 0; i < 8; i += LANES)
		transpose(cv + i);
	for (lane = 0; lane < count; lane++)
		for (i = 0; i < 8; i += LANES)
			STORE(cv[i + lane], out + 32 * lane + 4 * i);
}

void NAME(const u8 *data, u32 blocks, u32 count, u32 counter, u32 flags, u8 *out)
{
	u32 done, now;

	for (done = 0; done < count; done += now) {
		now = min(count - done, (u32)LANES);
		hash_group(data, blocks, now, counter + done, flags, out + 32 * done);
		data += now * blocks * RNL_HASH_BLOCK;
	}
}
#endif
