/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the ways to compute BLAKE3 share: one chunk after the other, or several side by side in
 * vectors.
 */
#ifndef RUNNELFS_HASH_H
#define RUNNELFS_HASH_H

#include <linux/kernel.h>
#include <linux/string.h>

#define RNL_HASH_CHUNK 1024
#define RNL_HASH_BLOCK 64
#define RNL_HASH_START 1
#define RNL_HASH_END 2
#define RNL_HASH_PARENT 4
#define RNL_HASH_ROOT 8

extern const u32 rnl_hash_iv[8];
extern const u8 rnl_hash_order[7][16];

/*
 * Chaining values of @count chunks (16 @blocks, no @flags) from number @counter on, or of as many
 * parents (one block that holds the children's values, RNL_HASH_PARENT). @out may be @data.
 */
typedef void rnl_hash_many(const u8 *data, u32 blocks, u32 count, u32 counter, u32 flags, u8 *out);

rnl_hash_many rnl_hash_scalar, rnl_hash_avx2, rnl_hash_ssse3, rnl_hash_neon;

/* Until the end, nothing may wait. */
rnl_hash_many *rnl_hash_begin(void);
void rnl_hash_end(rnl_hash_many *many);

#endif
