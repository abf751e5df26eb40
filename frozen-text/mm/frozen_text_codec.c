// SPDX-License-Identifier: GPL-2.0
#include <linux/init.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <asm/frozen_text.h>
#include "frozen_text_codec.h"

#ifdef CONFIG_FROZEN_TEXT_ZSTD
#include <linux/zstd.h>
/* The library's own interface has blocks without headers, and dictionaries. */
#define ZSTD_STATIC_LINKING_ONLY
#include <linux/zstd_lib.h>
#include "../lib/zstd/decompress/zstd_decompress_internal.h"

#define LEVEL 19

/* Is as large as its structure: blocks of a page need no more. */
static ZSTD_DCtx frozen_text_decoder __aligned(8);

static ZSTD_CCtx *encoder __initdata;
static const ZSTD_CDict *prepared __initdata;
static void *encoder_memory __initdata, *prepared_memory __initdata;

bool notrace frozen_text_decode(u8 *page, u32 address, const u8 *from, size_t size, const struct frozen_text_dictionary *dictionary)
{
	ZSTD_DCtx *decoder = &frozen_text_decoder;

	if (ZSTD_isError(ZSTD_decompressBegin_usingDict(decoder, dictionary->start, dictionary->size)) ||
	    ZSTD_decompressBlock(decoder, page, PAGE_SIZE, from, size) != PAGE_SIZE)
		return false;
	if (address)
		frozen_text_targets(page, address, -1);
	return true;
}

size_t frozen_text_decoder_bytes(void)
{
	return sizeof(frozen_text_decoder);
}

int __init frozen_text_encoder_begin(const struct frozen_text_dictionary *dictionary)
{
	ZSTD_compressionParameters parameters = ZSTD_getCParams(LEVEL, PAGE_SIZE, dictionary->size);
	size_t prepared_size = ZSTD_estimateCDictSize_advanced(dictionary->size, parameters, ZSTD_dlm_byRef);
	size_t encoder_size = ZSTD_estimateCCtxSize_usingCParams(parameters);

	if (!ZSTD_initStaticDCtx(&frozen_text_decoder, sizeof(frozen_text_decoder)))
		return -EINVAL;
	prepared_memory = vmalloc(prepared_size);
	encoder_memory = vmalloc(encoder_size);
	if (!prepared_memory || !encoder_memory)
		return -ENOMEM;
	prepared = ZSTD_initStaticCDict(prepared_memory, prepared_size, dictionary->start, dictionary->size, ZSTD_dlm_byRef,
					ZSTD_dct_rawContent, parameters);
	encoder = ZSTD_initStaticCCtx(encoder_memory, encoder_size);
	return prepared && encoder ? 0 : -EINVAL;
}

size_t __init frozen_text_encode(u8 *page, u32 address, u8 *to, size_t room)
{
	size_t size;

	if (address)
		frozen_text_targets(page, address, 1);
	if (ZSTD_isError(ZSTD_compressBegin_usingCDict(encoder, prepared)))
		return 0;
	size = ZSTD_compressBlock(encoder, to, room, page, PAGE_SIZE);
	return ZSTD_isError(size) || size >= PAGE_SIZE ? 0 : size;
}

void __init frozen_text_encoder_end(void)
{
	vfree(encoder_memory);
	vfree(prepared_memory);
}

#else
#include <linux/lz4.h>

static LZ4_streamHC_t *prepared __initdata, *encoder __initdata;

bool notrace frozen_text_decode(u8 *page, u32 address, const u8 *from, size_t size, const struct frozen_text_dictionary *dictionary)
{
	if (LZ4_decompress_safe_usingDict(from, page, size, PAGE_SIZE, dictionary->start, dictionary->size) != PAGE_SIZE)
		return false;
	if (address)
		frozen_text_targets(page, address, -1);
	return true;
}

size_t frozen_text_decoder_bytes(void)
{
	return 0;
}

int __init frozen_text_encoder_begin(const struct frozen_text_dictionary *dictionary)
{
	prepared = vmalloc(sizeof(*prepared));
	encoder = vmalloc(sizeof(*encoder));
	if (!prepared || !encoder)
		return -ENOMEM;
	LZ4_resetStreamHC(prepared, LZ4HC_MAX_CLEVEL);
	LZ4_loadDictHC(prepared, dictionary->start, dictionary->size);
	return 0;
}

size_t __init frozen_text_encode(u8 *page, u32 address, u8 *to, size_t room)
{
	int size;

	if (address)
		frozen_text_targets(page, address, 1);
	/* Every page begins with the dictionary and nothing else. */
	memcpy(encoder, prepared, sizeof(*encoder));
	size = LZ4_compress_HC_continue(encoder, page, to, PAGE_SIZE, room);
	return size > 0 && size < PAGE_SIZE ? size : 0;
}

void __init frozen_text_encoder_end(void)
{
	vfree(encoder);
	vfree(prepared);
}
#endif
