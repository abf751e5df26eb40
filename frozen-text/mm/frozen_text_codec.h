/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How a page of code is compressed: calls and jumps to absolute addresses first, so that two calls of one function look the same, then
 * LZ4 or Zstandard with hot code, which is in memory anyway, as the dictionary.
 */
#ifndef _MM_FROZEN_TEXT_CODEC_H
#define _MM_FROZEN_TEXT_CODEC_H

#include <linux/types.h>

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
