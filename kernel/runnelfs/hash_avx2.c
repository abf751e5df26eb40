// SPDX-License-Identifier: GPL-2.0
#define LANES 8
#define NAME rnl_hash_avx2
#include "hash_lanes.h"
