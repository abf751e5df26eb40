// SPDX-License-Identifier: GPL-2.0
#define LANES 4
#define NAME rnl_hash_neon
#include "hash_lanes.h"
