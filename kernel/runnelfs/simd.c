// SPDX-License-Identifier: GPL-2.0
/*
 * Which vectors there are for hashes, and when they may be used.
 */
#include <linux/module.h>

#include "hash.h"
#include "runnelfs.h"

#ifdef CONFIG_X86_64
#include <asm/cpufeature.h>
#include <asm/fpu/api.h>
#include <asm/simd.h>
#define vectors_begin kernel_fpu_begin
#define vectors_end kernel_fpu_end
#elif defined(CONFIG_KERNEL_MODE_NEON) && !defined(CONFIG_CPU_BIG_ENDIAN)
#include <asm/neon.h>
#include <asm/simd.h>
#define HAS_NEON
#if RNL_SINCE(6, 12)
#include <asm/fpu.h>
#define vectors_begin kernel_fpu_begin
#define vectors_end kernel_fpu_end
#else
#define vectors_begin kernel_neon_begin
#define vectors_end kernel_neon_end
#endif
#else
#define may_use_simd() false
#define vectors_begin()
#define vectors_end()
#endif

static unsigned int hash_lanes = 8;
module_param(hash_lanes, uint, 0444);
MODULE_PARM_DESC(hash_lanes, "Chunks that are hashed side by side, at most; 1 without vectors");

static rnl_hash_many *in_vectors;

/* Says in @hash_lanes what it found. */
void __init rnl_hash_init(void)
{
	unsigned int most = hash_lanes;

	hash_lanes = 1;
#ifdef CONFIG_X86_64
	if (most >= 4 && boot_cpu_has(X86_FEATURE_SSSE3)) {
		in_vectors = rnl_hash_ssse3;
		hash_lanes = 4;
	}
	if (most >= 8 && boot_cpu_has(X86_FEATURE_AVX2) &&
	    cpu_has_xfeatures(XFEATURE_MASK_SSE | XFEATURE_MASK_YMM, NULL)) {
		in_vectors = rnl_hash_avx2;
		hash_lanes = 8;
	}
#elif defined(HAS_NEON)
	if (most >= 4 && cpu_has_neon()) {
		in_vectors = rnl_hash_neon;
		hash_lanes = 4;
	}
#endif
}

rnl_hash_many *rnl_hash_begin(void)
{
	if (!in_vectors || !may_use_simd())
		return rnl_hash_scalar;
	vectors_begin();
	return in_vectors;
}

void rnl_hash_end(rnl_hash_many *many)
{
	if (many != rnl_hash_scalar)
		vectors_end();
}
