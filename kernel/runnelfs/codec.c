// SPDX-License-Identifier: GPL-2.0
/*
 * The codecs of sections and blocks, by the kernel's own decoders.
 *
 * The table of blocks says how many bytes must come out: more or fewer are an error, and so is
 * anything behind the end of the compressed data.
 */
#include <linux/lz4.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/xz.h>
#include <linux/zstd.h>

#include "runnelfs.h"

#if RNL_HAS_DICTIONARIES
static void *dictionary_alloc(void *is_out, size_t bytes)
{
	void *memory = kvmalloc(bytes, GFP_KERNEL);

	*(bool *)is_out |= !memory;
	return memory;
}

/* What is_out was has ended by now. */
static void dictionary_free(void *is_out, void *address)
{
	kvfree(address);
}

/* Prepares a dictionary, whose bytes must stay; or an error, -EUCLEAN if it is none. */
void *rnl_dictionary_new(const void *bytes, size_t count)
{
	bool is_out = false;
	zstd_custom_mem memory = { dictionary_alloc, dictionary_free, &is_out };
	void *dictionary = zstd_create_ddict_byreference(bytes, count, memory);

	return dictionary ? dictionary : ERR_PTR(is_out ? -ENOMEM : -EUCLEAN);
}

void rnl_dictionary_free(void *dictionary)
{
	zstd_free_ddict(dictionary);
}
#else
void *rnl_dictionary_new(const void *bytes, size_t count)
{
	return ERR_PTR(-EOPNOTSUPP);
}

void rnl_dictionary_free(void *dictionary)
{
}

static size_t zstd_decompress_using_ddict(zstd_dctx *context, void *raw, size_t raw_bytes,
					  const void *stored, size_t stored_bytes,
					  const void *dictionary)
{
	return zstd_decompress_dctx(context, raw, raw_bytes, stored, stored_bytes);
}
#endif

/* Allocates what @codec needs beside its input and output, unless it is there. */
int rnl_codec_prepare(struct rnl_decoder *decoder, u8 codec)
{
	if (codec == RNL_ZSTD && !decoder->zstd_workspace)
		decoder->zstd_workspace = rnl_alloc(zstd_dctx_workspace_bound());
	if (codec == RNL_XZ && !decoder->xz)
		decoder->xz = xz_dec_init(XZ_SINGLE, 0);
	if ((codec == RNL_ZSTD && !decoder->zstd_workspace) || (codec == RNL_XZ && !decoder->xz))
		return -ENOMEM;
	return 0;
}

void rnl_codec_free(struct rnl_decoder *decoder)
{
	kvfree(decoder->zstd_workspace);
	xz_dec_end(decoder->xz);
}

static bool decode_zstd(struct rnl_decoder *decoder, const void *dictionary, const u8 *stored,
			size_t stored_bytes, void *raw, size_t raw_bytes)
{
	static const u8 magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
	zstd_dctx *context;
	size_t found;

	/* One frame of data: neither one to skip, nor anything behind it. */
	if (stored_bytes < sizeof(magic) || memcmp(stored, magic, sizeof(magic)) ||
	    zstd_find_frame_compressed_size(stored, stored_bytes) != stored_bytes)
		return false;
	context = zstd_init_dctx(decoder->zstd_workspace, zstd_dctx_workspace_bound());
	if (!context)
		return false;
	found = zstd_decompress_using_ddict(context, raw, raw_bytes, stored, stored_bytes,
					    dictionary);
	return !zstd_is_error(found) && found == raw_bytes;
}

/* The output is the dictionary, so no size that the data announce takes memory. */
static bool decode_xz(struct rnl_decoder *decoder, const u8 *stored, size_t stored_bytes, u8 *raw,
		      size_t raw_bytes)
{
	struct xz_buf buffer = {
		.in = stored,
		.in_size = stored_bytes,
		.out = raw,
		.out_size = raw_bytes,
	};

	return xz_dec_run(decoder->xz, &buffer) == XZ_STREAM_END &&
	       buffer.in_pos == stored_bytes && buffer.out_pos == raw_bytes;
}

/**
 * rnl_decode() - decodes a section or a block
 * @decoder: prepared for @codec
 * @codec: a known one
 * @dictionary: what it was compressed with, or NULL
 * @stored: verified bytes
 * @stored_bytes: how many
 * @raw: where to
 * @raw_bytes: how many must come out
 *
 * Return: whether exactly these came out.
 */
bool rnl_decode(struct rnl_decoder *decoder, u8 codec, const void *dictionary, const void *stored,
		size_t stored_bytes, void *raw, size_t raw_bytes)
{
	switch (codec) {
	case RNL_STORED:
		if (stored_bytes != raw_bytes)
			return false;
		memcpy(raw, stored, raw_bytes);
		return true;
	case RNL_ZSTD:
		return decode_zstd(decoder, dictionary, stored, stored_bytes, raw, raw_bytes);
	case RNL_LZ4:
		return LZ4_decompress_safe(stored, raw, stored_bytes, raw_bytes) == raw_bytes;
	case RNL_XZ:
		return decode_xz(decoder, stored, stored_bytes, raw, raw_bytes);
	}
	return false;
}
