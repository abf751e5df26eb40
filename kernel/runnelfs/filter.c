// SPDX-License-Identifier: GPL-2.0
/*
 * Undoes what made machine code and tables of records compress better, chunk by chunk.
 * crates/codec/src/filter says what each filter does and why. Every input decodes to something.
 */
#include <linux/string.h>

#include "runnelfs.h"

/* What follows an opcode. */
enum follows {
	NOTHING,
	/* Immediates of one, two, three, four and eight bytes. FULL are two behind a prefix. */
	BYTE,
	WORD,
	ENTER,
	FULL,
	OFFSET,
	/* ModRM and what that says, then as above. */
	OPERAND,
	OPERAND_BYTE,
	OPERAND_FULL,
	/* An immediate only if the register field of ModRM is 0 or 1. */
	TEST_BYTE,
	TEST_FULL,
	/* Four bytes of distance to the target of a jump or a call. */
	TARGET,
	/* FULL, but eight bytes behind REX.W. */
	WIDE,
	/* More bytes of opcode. */
	ESCAPE,
	PREFIX,
	FOLLOWS_COUNT,
};

#define CALL 0xe8

#define ARITHMETIC(first) \
	[first ... (first) + 3] = OPERAND, [(first) + 4] = BYTE, [(first) + 5] = FULL

/* One-byte opcodes; nothing follows those that are left out. */
static const u8 map0[256] = {
	ARITHMETIC(0x00), ARITHMETIC(0x08), ARITHMETIC(0x10), ARITHMETIC(0x18),
	ARITHMETIC(0x20), ARITHMETIC(0x28), ARITHMETIC(0x30), ARITHMETIC(0x38),
	[0x0f] = ESCAPE,			[0x26] = PREFIX,
	[0x2e] = PREFIX,			[0x36] = PREFIX,
	[0x3e] = PREFIX,
	[0x62] = ESCAPE,			[0x63] = OPERAND,
	[0x64 ... 0x67] = PREFIX,		[0x68] = FULL,
	[0x69] = OPERAND_FULL,			[0x6a] = BYTE,
	[0x6b] = OPERAND_BYTE,			[0x70 ... 0x7f] = BYTE,
	[0x80] = OPERAND_BYTE,			[0x81] = OPERAND_FULL,
	[0x83] = OPERAND_BYTE,			[0x84 ... 0x8f] = OPERAND,
	[0xa0 ... 0xa3] = OFFSET,		[0xa8] = BYTE,
	[0xa9] = FULL,				[0xb0 ... 0xb7] = BYTE,
	[0xb8 ... 0xbf] = WIDE,			[0xc0 ... 0xc1] = OPERAND_BYTE,
	[0xc2] = WORD,				[0xc4 ... 0xc5] = ESCAPE,
	[0xc6] = OPERAND_BYTE,			[0xc7] = OPERAND_FULL,
	[0xc8] = ENTER,				[0xca] = WORD,
	[0xcd] = BYTE,				[0xd0 ... 0xd3] = OPERAND,
	[0xd8 ... 0xdf] = OPERAND,		[0xe0 ... 0xe7] = BYTE,
	[0xe8 ... 0xe9] = TARGET,		[0xeb] = BYTE,
	[0xf0] = PREFIX,			[0xf2 ... 0xf3] = PREFIX,
	[0xf6] = TEST_BYTE,			[0xf7] = TEST_FULL,
	[0xfe ... 0xff] = OPERAND,
};

/* Opcodes behind 0F. */
static const u8 map1[256] = {
	[0x00 ... 0x04] = OPERAND,		[0x0d] = OPERAND,
	[0x0f ... 0x2f] = OPERAND,		[0x38 ... 0x6f] = OPERAND,
	[0x70 ... 0x73] = OPERAND_BYTE,		[0x74 ... 0x76] = OPERAND,
	[0x78 ... 0x7f] = OPERAND,		[0x80 ... 0x8f] = TARGET,
	[0x90 ... 0x9f] = OPERAND,		[0xa3] = OPERAND,
	[0xa4] = OPERAND_BYTE,			[0xa5 ... 0xa7] = OPERAND,
	[0xab] = OPERAND,			[0xac] = OPERAND_BYTE,
	[0xad ... 0xb9] = OPERAND,		[0xba] = OPERAND_BYTE,
	[0xbb ... 0xc1] = OPERAND,		[0xc2] = OPERAND_BYTE,
	[0xc3] = OPERAND,			[0xc4 ... 0xc6] = OPERAND_BYTE,
	[0xc7] = OPERAND,			[0xd0 ... 0xff] = OPERAND,
};

/* Bytes of an instruction from the last of its opcode on, by ModRM, and what else is to do. */
#define LENGTH 0x0f
/* Four bytes of displacement follow if a SIB byte says so. */
#define SIB 0x10
/* The displacement is a distance from the next instruction. */
#define DISTANCE 0x20
/* It is not that simple. */
#define SPECIAL 0x40
#define BASES(other, sib, none) other, other, other, other, sib, none, other, other
#define MODE(tested, more, other, sib, none) \
	BASES((tested) + (other), (tested) + (sib), (tested) + (none)), \
	BASES((tested) + (other), (tested) + (sib), (tested) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none)), \
	BASES((more) + (other), (more) + (sib), (more) + (none))
/* With @tested bytes of immediate if the register field is 0 or 1, else @more. */
#define BY_MODRM(tested, more) { \
	MODE(tested, more, 2, 3 | SIB, 6 | DISTANCE), MODE(tested, more, 3, 4, 3), \
	MODE(tested, more, 6, 7, 6), MODE(tested, more, 2, 2, 2) }

static const u8 lengths[FOLLOWS_COUNT][256] = {
	[NOTHING] = { [0 ... 255] = 1 },
	[BYTE] = { [0 ... 255] = 2 },
	[WORD] = { [0 ... 255] = 3 },
	[ENTER] = { [0 ... 255] = 4 },
	[FULL] = { [0 ... 255] = 5 },
	[OFFSET] = { [0 ... 255] = 9 },
	[OPERAND] = BY_MODRM(0, 0),
	[OPERAND_BYTE] = BY_MODRM(1, 1),
	[OPERAND_FULL] = BY_MODRM(4, 4),
	[TEST_BYTE] = BY_MODRM(1, 0),
	[TEST_FULL] = BY_MODRM(4, 0),
	[TARGET ... PREFIX] = { [0 ... 255] = SPECIAL },
};

static __always_inline bool is_rex(u8 byte)
{
	return (u8)(byte - 0x40) < 0x10;
}

/* What follows the opcode at *@opcode, which is set to its last byte; @code is it or REX. */
static u8 what_follows(const u8 *code, const u8 **opcode)
{
	const u8 *at = *opcode;
	u8 follows = map0[*at], map = 1;

	switch (follows) {
	case PREFIX:
		/* Behind REX. */
		return NOTHING;
	case WIDE:
		return at != code && *code & 8 ? OFFSET : FULL;
	default:
		return follows;
	case ESCAPE:
		break;
	}
	switch (*at++) {
	case 0x0f:
		*opcode = at;
		if (*at != 0x38 && *at != 0x3a)
			return map1[*at];
		*opcode = at + 1;
		return *at == 0x38 ? OPERAND : OPERAND_BYTE;
	/* VEX and EVEX: the map stands in the low bits of the second byte, or is map 1. */
	case 0xc5:
		at++;
		break;
	case 0xc4:
		map = *at & 7;
		at += 2;
		break;
	default:
		map = *at & 7;
		at += 3;
	}
	*opcode = at;
	if (map == 1)
		return map1[*at];
	return map == 3 ? OPERAND_BYTE : OPERAND;
}

/*
 * An instruction and what is asked about it take no more bytes, prefixes apart: REX, EVEX with its
 * opcode, ModRM and SIB.
 */
#define AHEAD 16

struct instruction {
	/* Where its distance of four bytes stands; NULL if it has none. */
	const u8 *field;
	/* NULL if the bytes end before its length is known. */
	const u8 *end;
	bool is_jump;
};

/* Whether what follows the prefixes from @at on may be shorter for them: two bytes for four. */
static bool may_shorten(const u8 *at)
{
	const u8 *opcode = at + 1 + is_rex(at[1]);
	u8 follows = map0[*opcode];

	return *at == 0x66 && follows != OPERAND && follows != OPERAND_BYTE && follows != NOTHING &&
	       *opcode != 0x0f;
}

/*
 * Goes from instruction to instruction while they begin before @stop and are of the usual ones.
 * Returns where it got, and the instruction there if it has a distance. Has few branches that
 * nobody could foretell.
 */
static __always_inline const u8 *skip_usual(const u8 *at, const u8 *stop, struct instruction *found)
{
	while (at < stop) {
		const u8 *opcode = at + is_rex(*at);
		u32 follows = map0[*opcode], length = lengths[follows][opcode[1]];

		if (unlikely(length >= SPECIAL)) {
			if (*opcode == 0x0f && (opcode[1] | 2) != 0x3a) {
				opcode++;
				follows = map1[*opcode];
				length = lengths[follows][opcode[1]];
			} else if (follows == PREFIX && at == opcode && !may_shorten(at)) {
				at++;
				continue;
			} else if (follows == WIDE && !(*at & 8 && at != opcode)) {
				at = opcode + 5;
				continue;
			}
			if (follows == TARGET) {
				found->field = opcode + 1;
				found->end = opcode + 5;
				found->is_jump = *opcode != CALL;
				return at;
			}
			if (length >= SPECIAL)
				return at;
		}
		if (unlikely(length >= SIB)) {
			if (length >= DISTANCE) {
				found->field = opcode + 2;
				found->end = opcode + length - DISTANCE;
				return at;
			}
			length -= (opcode[2] & 7) == 5 ? SIB - 4 : SIB;
		}
		at = opcode + length;
	}
	return at;
}

/* Any instruction of @left bytes. */
static noinline struct instruction decode(const u8 *code, u32 left, bool is_short)
{
	struct instruction found = {};
	const u8 *opcode = code + is_rex(*code);
	u8 follows = what_follows(code, &opcode), length = 5;
	u32 known = opcode - code + 1;

	if (follows != TARGET)
		length = lengths[follows][opcode[1]];
	if (follows >= OPERAND && follows <= TEST_FULL)
		known += 1 + (opcode[1] < 0xc0 && (opcode[1] & 7) == 4);
	if (known > left)
		return found;
	found.end = opcode + (length & LENGTH);
	if (length & SIB && (opcode[2] & 7) == 5)
		found.end += 4;
	if (is_short && (follows == FULL || follows == OPERAND_FULL ||
			 (follows == TEST_FULL && (opcode[1] >> 3 & 7) < 2)))
		found.end -= 2;
	found.is_jump = follows == TARGET && *opcode != CALL;
	if (follows == TARGET || length & DISTANCE)
		found.field = opcode + 1 + (follows != TARGET);
	return found;
}

/* Copies two words at once if @in_words: as many bytes lie behind both places. */
static __always_inline void copy_run(u8 *to, const u8 *from, u32 bytes, bool in_words)
{
	u8 *end = to + bytes;

	if (unlikely(!in_words)) {
		memcpy(to, from, bytes);
		return;
	}
	do {
		u64 first = get_unaligned((const u64 *)from);
		u64 second = get_unaligned((const u64 *)(from + 8));

		put_unaligned(first, (u64 *)to);
		put_unaligned(second, (u64 *)(to + 8));
		to += 16;
		from += 16;
	} while (unlikely(to < end));
}

/*
 * Stops at the instruction that the chunk cuts before its length is known. Jumps before a place
 * took four bytes each out of the stream of instructions, to its tail. So what is left of it always
 * fits behind @to, and no more is written.
 */
static void undo_x86_64(u32 position, const u8 *source, u8 *out, u32 count)
{
	const u8 *at = source, *from = source, *tail = source + count;
	bool is_short = false;
	u8 *to = out, last[2 * AHEAD] = {};

	while (at < tail) {
		struct instruction found = {};
		const u8 *target;
		u32 here;

		if (tail - at > AHEAD && !is_short)
			at = skip_usual(at, tail - AHEAD, &found);
		if (!found.end) {
			const u8 *code = at;
			u32 left = tail - at;

			if (map0[*at] == PREFIX) {
				is_short |= *at == 0x66;
				at++;
				continue;
			}
			if (left < AHEAD)
				code = memcpy(last, at, left);
			found = decode(code, left, is_short);
			is_short = false;
			if (!found.end)
				break;
			found.end = at + (found.end - code);
			if (!found.field) {
				at = found.end;
				continue;
			}
			found.field = at + (found.field - code);
		}
		at = found.end;
		if (tail - found.field < 4)
			continue;
		copy_run(to, from, found.field - from, tail - found.field >= AHEAD);
		to += found.field - from;
		from = found.field + 4;
		target = found.field;
		if (found.is_jump) {
			at = found.field;
			from = found.field;
			tail -= 4;
			target = tail;
		}
		here = position + (u32)(to - out) + (u32)(found.end - found.field);
		put_unaligned_le32(get_unaligned_be32(target) - here, to);
		to += 4;
	}
	memcpy(to, from, tail - from);
}

#define BL 0x94000000U
#define BL_MASK 0xfc000000U
#define ADRP 0x90000000U
#define ADRP_MASK 0x9f000000U

static u32 undo_aarch64(u32 position, u32 word)
{
	u32 pages;

	if ((word & BL_MASK) == BL)
		return BL | ((word - (position >> 2)) & ~BL_MASK);
	if ((word & ADRP_MASK) != ADRP)
		return word;
	pages = (word >> 29 & 3) | (word >> 3 & 0x1ffffc);
	pages = (pages - (position >> 12)) & 0x1fffff;
	return (word & (ADRP_MASK | 0x1f)) | (pages & 3) << 29 | (pages >> 2) << 5;
}

/**
 * rnl_unfilter() - undoes the filter of a chunk
 * @filter: a known one of chunks, or none
 * @position: where the chunk stands in its owner, a multiple of 256; its low 32 bits
 * @from: the chunk as it was compressed
 * @to: where it goes
 * @count: its bytes
 */
void rnl_unfilter(u8 filter, u32 position, const u8 *from, u8 *to, u32 count)
{
	u32 stride = filter == RNL_FILTER_RECORDS24 ? 24 : 8, at;

	if (filter == RNL_FILTER_X86_64) {
		undo_x86_64(position, from, to, count);
		return;
	}
	memcpy(to, from, count);
	if (filter == RNL_FILTER_AARCH64)
		for (at = 0; at + 4 <= count; at += 4)
			put_unaligned_le32(undo_aarch64(position + at, get_unaligned_le32(to + at)),
					   to + at);
	else if (filter)
		for (at = stride; at + 4 <= count; at += 4)
			put_unaligned_le32(get_unaligned_le32(to + at) +
					   get_unaligned_le32(to + at - stride), to + at);
}
