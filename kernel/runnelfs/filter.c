// SPDX-License-Identifier: GPL-2.0
/*
 * Undoes what made machine code and tables of records compress better, chunk by chunk.
 * crates/codec/src/filter says what each filter does and why. Every input decodes to something.
 */
#include <linux/string.h>

#include "runnelfs.h"

/* What follows an opcode: bytes of immediate in the low bits, or one of the cases below. */
#define IMMEDIATE_MASK 0x0f
#define MODRM 0x10
/* More than the low bits decides how many bytes they are, or there is a target. */
#define SPECIAL 0x80
/* Four bytes, or two behind an operand-size prefix. */
#define FULL 5
/* Like FULL, but eight behind REX.W. */
#define WIDE (6 | SPECIAL)
/* Four bytes of distance to a jump target. */
#define TARGET (7 | SPECIAL)
/* An immediate if the register field of ModRM is 0 or 1. */
#define TEST_BYTE (9 | SPECIAL)
#define TEST_FULL (10 | SPECIAL)
#define CALL 0xe8
#define PREFIX 0x20
/* More bytes of opcode follow. */
#define ESCAPE 0x40

/* One-byte opcodes; all others have no operand. */
static const u8 map0[256] = {
	[0x00 ... 0x03] = MODRM,	[0x04] = 1,		[0x05] = FULL,
	[0x08 ... 0x0b] = MODRM,	[0x0c] = 1,		[0x0d] = FULL,
	[0x0f] = ESCAPE,
	[0x10 ... 0x13] = MODRM,	[0x14] = 1,		[0x15] = FULL,
	[0x18 ... 0x1b] = MODRM,	[0x1c] = 1,		[0x1d] = FULL,
	[0x20 ... 0x23] = MODRM,	[0x24] = 1,		[0x25] = FULL,
	[0x26] = PREFIX,
	[0x28 ... 0x2b] = MODRM,	[0x2c] = 1,		[0x2d] = FULL,
	[0x2e] = PREFIX,
	[0x30 ... 0x33] = MODRM,	[0x34] = 1,		[0x35] = FULL,
	[0x36] = PREFIX,
	[0x38 ... 0x3b] = MODRM,	[0x3c] = 1,		[0x3d] = FULL,
	[0x3e] = PREFIX,
	[0x62] = ESCAPE,
	[0x63] = MODRM,			[0x64 ... 0x67] = PREFIX,
	[0x68] = FULL,			[0x69] = MODRM | FULL,
	[0x6a] = 1,			[0x6b] = MODRM | 1,
	[0x70 ... 0x7f] = 1,		[0x80] = MODRM | 1,
	[0x81] = MODRM | FULL,		[0x83] = MODRM | 1,
	[0x84 ... 0x8f] = MODRM,	[0xa0 ... 0xa3] = 8,
	[0xa8] = 1,			[0xa9] = FULL,
	[0xb0 ... 0xb7] = 1,		[0xb8 ... 0xbf] = WIDE,
	[0xc0 ... 0xc1] = MODRM | 1,	[0xc2] = 2,
	[0xc4 ... 0xc5] = ESCAPE,
	[0xc6] = MODRM | 1,		[0xc7] = MODRM | FULL,
	[0xc8] = 3,			[0xca] = 2,
	[0xcd] = 1,			[0xd0 ... 0xd3] = MODRM,
	[0xd8 ... 0xdf] = MODRM,	[0xe0 ... 0xe7] = 1,
	[0xe8 ... 0xe9] = TARGET,	[0xeb] = 1,
	[0xf0] = PREFIX,		[0xf2 ... 0xf3] = PREFIX,
	[0xf6] = MODRM | TEST_BYTE,	[0xf7] = MODRM | TEST_FULL,
	[0xfe ... 0xff] = MODRM,
};

/* Opcodes behind 0F; those that are left out have no operand. */
static const u8 map1[256] = {
	[0x00 ... 0x04] = MODRM,	[0x0d] = MODRM,
	[0x0f ... 0x2f] = MODRM,	[0x38 ... 0x6f] = MODRM,
	[0x70 ... 0x73] = MODRM | 1,	[0x74 ... 0x76] = MODRM,
	[0x78 ... 0x7f] = MODRM,	[0x80 ... 0x8f] = TARGET,
	[0x90 ... 0x9f] = MODRM,	[0xa3] = MODRM,
	[0xa4] = MODRM | 1,		[0xa5 ... 0xa7] = MODRM,
	[0xab] = MODRM,			[0xac] = MODRM | 1,
	[0xad ... 0xb9] = MODRM,	[0xba] = MODRM | 1,
	[0xbb ... 0xc1] = MODRM,	[0xc2] = MODRM | 1,
	[0xc3] = MODRM,			[0xc4 ... 0xc6] = MODRM | 1,
	[0xc7] = MODRM,			[0xd0 ... 0xff] = MODRM,
};

/* What the walk needs to know of an instruction. */
struct instruction {
	/* Where its distance of four bytes stands; 0 if it has none. */
	u32 field;
	bool is_jump;
	/* Where the next one begins; past the chunk if this one is cut. */
	u32 end;
};

/* Bytes of ModRM, SIB and displacement by ModRM, and what else follows from it. */
#define SIB 0x08
#define DISTANCE 0x10
#define BASES(other, sib, none) other, other, other, other, sib, none, other, other
#define MODE(other, sib, none) \
	BASES(other, sib, none), BASES(other, sib, none), BASES(other, sib, none), \
	BASES(other, sib, none), BASES(other, sib, none), BASES(other, sib, none), \
	BASES(other, sib, none), BASES(other, sib, none)

static const u8 operands[256] = {
	MODE(1, 2 | SIB, 5 | DISTANCE), MODE(2, 3 | SIB, 2), MODE(5, 6 | SIB, 5), MODE(1, 1, 1)
};

/* Bytes of immediate by the low bits of what follows, without and with the prefix. */
static const u8 immediates[2][16] = {
	{ 0, 1, 2, 3, 0, 4, 4, 4, 8, 1, 4 },
	{ 0, 1, 2, 3, 0, 2, 2, 4, 8, 1, 2 },
};

/* What follows an opcode of several bytes, the first of which is before *@at. */
static u8 escaped(const u8 *bytes, u8 *opcode, u32 *at)
{
	u32 start = *at;
	u8 map = bytes[start] & 7;

	switch (*opcode) {
	case 0x0f:
		*opcode = bytes[start];
		*at = start + 1;
		if (*opcode != 0x38 && *opcode != 0x3a)
			return map1[*opcode];
		*at = start + 2;
		return *opcode == 0x38 ? MODRM : MODRM | 1;
	/* VEX and EVEX: the map stands in the low bits of the second byte, or is map 1. */
	case 0xc5:
		map = 1;
		*at = start + 2;
		break;
	default:
		*at = start + (*opcode == 0xc4 ? 3 : 4);
	}
	if (map == 1)
		return map1[bytes[*at - 1]];
	return map == 3 ? MODRM | 1 : MODRM;
}

/*
 * The instruction at @at; false when the chunk ends before its length is known, for which bytes
 * behind the end are read (RNL_FILTER_BEHIND).
 */
static __always_inline bool instruction_at(const u8 *bytes, u32 count, u32 at,
					   struct instruction *found)
{
	u32 rex, known, has_modrm;
	u8 opcode, kind, modrm, operand;
	const u8 *immediate = immediates[0];

	if (at >= count)
		return false;
	while (unlikely((kind = map0[opcode = bytes[at]]) == PREFIX)) {
		if (opcode == 0x66)
			immediate = immediates[1];
		if (++at >= count)
			return false;
	}
	/* Without branches as far as nobody could foretell them. */
	rex = (opcode & 0xf0) == 0x40;
	at += rex;
	rex &= opcode >> 3;
	opcode = bytes[at++];
	kind = map0[opcode];
	if (unlikely(kind == ESCAPE))
		kind = escaped(bytes, &opcode, &at);
	has_modrm = kind / MODRM & 1;
	modrm = bytes[at];
	operand = operands[modrm] & -has_modrm;
	known = at + has_modrm + (operand / SIB & 1);
	found->field = operand & DISTANCE ? at + 1 : kind == TARGET ? at : 0;
	if (unlikely(operand & SIB && modrm < 0x40 && (bytes[at + 1] & 7) == 5))
		at += 4;
	at += operand & 7;
	if (unlikely(known > count))
		return false;
	kind &= ~MODRM;
	at += immediate[kind & IMMEDIATE_MASK];
	if (unlikely(kind & SPECIAL)) {
		if (kind == WIDE && rex)
			at += 8 - immediate[WIDE & IMMEDIATE_MASK];
		else if (kind != WIDE && kind != TARGET && (modrm >> 3 & 7) >= 2)
			at -= immediate[kind & IMMEDIATE_MASK];
	}
	found->is_jump = kind == TARGET && opcode != CALL;
	found->end = at;
	return true;
}

/*
 * What @source[from..] holds goes to @out[to..]; @source[tail..] are targets of jumps. Always
 * to - from == count - tail, so nothing is written behind the end of @out.
 */
static void undo_x86_64(u32 position, u8 *source, u8 *out, u32 count)
{
	u32 at = 0, from = 0, to = 0, tail = count;
	struct instruction found;

	while (instruction_at(source, tail, at, &found)) {
		u32 field = found.field, end, run;

		at = found.end;
		if (!field || field + 4 > tail)
			continue;
		/* Jumps before this place took four bytes each out of the stream. */
		end = position + found.end + count - tail;
		if (!found.is_jump) {
			put_unaligned_le32(get_unaligned_be32(source + field) - end,
					   source + field);
			continue;
		}
		run = field - from;
		memcpy(out + to, source + from, run);
		at = field;
		from = field;
		to += run + 4;
		tail -= 4;
		put_unaligned_le32(get_unaligned_be32(source + tail) - end, out + to - 4);
	}
	memcpy(out + to, source + from, tail - from);
}

#define BL 0x94000000U
#define BL_MASK 0xfc000000U
#define ADRP 0x90000000U
#define ADRP_MASK 0x9f000000U

static void undo_aarch64(u32 position, u8 *bytes, u32 count)
{
	u32 at;

	for (at = 0; at + 4 <= count; at += 4) {
		u32 word = get_unaligned_le32(bytes + at), pages;

		if ((word & BL_MASK) == BL) {
			word = BL | ((word - ((position + at) >> 2)) & ~BL_MASK);
		} else if ((word & ADRP_MASK) == ADRP) {
			pages = (word >> 29 & 3) | (word >> 3 & 0x1ffffc);
			pages = (pages - ((position + at) >> 12)) & 0x1fffff;
			word = (word & (ADRP_MASK | 0x1f)) | (pages & 3) << 29 | (pages >> 2) << 5;
		} else {
			continue;
		}
		put_unaligned_le32(word, bytes + at);
	}
}

static void undo_records(u32 stride, u8 *bytes, u32 count)
{
	u32 at;

	for (at = stride; at + 4 <= count; at += 4)
		put_unaligned_le32(get_unaligned_le32(bytes + at) +
				   get_unaligned_le32(bytes + at - stride), bytes + at);
}

/**
 * rnl_unfilter() - undoes the filter of a chunk
 * @filter: a known one
 * @position: where the chunk stands in its owner, a multiple of 256; its low 32 bits
 * @bytes: the chunk
 * @count: its bytes
 * @scratch: room for as many and RNL_FILTER_BEHIND
 */
void rnl_unfilter(u8 filter, u32 position, u8 *bytes, u32 count, u8 *scratch)
{
	switch (filter) {
	case RNL_FILTER_X86_64:
		memcpy(scratch, bytes, count);
		undo_x86_64(position, scratch, bytes, count);
		break;
	case RNL_FILTER_AARCH64:
		undo_aarch64(position, bytes, count);
		break;
	case RNL_FILTER_RECORDS24:
		undo_records(24, bytes, count);
		break;
	case RNL_FILTER_RECORDS8:
		undo_records(8, bytes, count);
		break;
	}
}
