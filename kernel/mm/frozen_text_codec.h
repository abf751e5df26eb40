/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How a page of code is compressed: calls and jumps to absolute addresses first, so that two calls of one function look the same, then
 * LZ4 or Zstandard with hot code, which is in memory anyway, as the dictionary.
 */
#ifndef _MM_FROZEN_TEXT_CODEC_H
#define _MM_FROZEN_TEXT_CODEC_H

#include <linux/mm.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

struct frozen_text_dictionary {
	const void *start;
	size_t size;
};

/* Bytes of the dictionary at most: as far as matches reach. */
#ifdef CONFIG_FROZEN_TEXT_ZSTD
#define FROZEN_TEXT_DICTIONARY_MAX (512 << 10)
#else
#define FROZEN_TEXT_DICTIONARY_MAX (64 << 10)
#endif

/* Near calls and jumps (e8, e9): their distance becomes an address (sign 1), or again a distance (sign -1). */
static __always_inline void frozen_text_targets(u8 *code, u32 address, int sign)
{
	const u64 ones = 0x0101010101010101ULL;
	unsigned int at = 0;

	while (at + 5 <= PAGE_SIZE) {
		/* Eight bytes without any of the two go by at once: zero bytes of `same` are found as in strlen(). */
		if (at + 8 <= PAGE_SIZE) {
			u64 same = (get_unaligned_le64(code + at) & ~ones) ^ (ones * 0xe8);
			u64 found = (same - ones) & ~same & (ones << 7);

			if (!found) {
				at += 8;
				continue;
			}
			at += __builtin_ctzll(found) / 8;
			if (at + 5 > PAGE_SIZE)
				return;
		} else if ((code[at] & 0xfe) != 0xe8) {
			at++;
			continue;
		}
		put_unaligned_le32(get_unaligned_le32(code + at + 1) + sign * (address + at + 5), code + at + 1);
		at += 5;
	}
}

/* Decompresses a page of code for address, or of constants (0); false if it cannot be. Allocates nothing, takes no lock; one caller at a time. */
bool frozen_text_decode(u8 *page, u32 address, const u8 *from, size_t size, const struct frozen_text_dictionary *dictionary);

/* Memory of the decoder, in bytes. */
size_t frozen_text_decoder_bytes(void);

/* The encoder, for the time of the start. */
int frozen_text_encoder_begin(const struct frozen_text_dictionary *dictionary);
/* Compresses a page, which is changed; bytes, or 0 if they are not fewer. */
size_t frozen_text_encode(u8 *page, u32 address, u8 *to, size_t room);
void frozen_text_encoder_end(void);

#endif
