/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Frozen text on x86-64. What is inline here runs while a page is thawed.
 */
#ifndef _ASM_X86_FROZEN_TEXT_H
#define _ASM_X86_FROZEN_TEXT_H

#include <linux/irqflags.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/version.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif
#include <asm/set_memory.h>
#include <asm/trap_pf.h>
#include <asm/tsc.h>

/* The bit of a page table's entry that the processor sets when the page is used. */
#define FROZEN_ACCESSED_BIT _PAGE_BIT_ACCESSED

static __always_inline unsigned long frozen_interrupts_off(void)
{
	unsigned long flags = native_save_fl();

	native_irq_disable();
	return flags;
}

static __always_inline void frozen_interrupts_restore(unsigned long flags)
{
	if (flags & X86_EFLAGS_IF)
		native_irq_enable();
}

/* Whether a fault of this kind is one of a page that is not there, by the kernel, and not to write. */
static __always_inline bool frozen_is_absent(struct pt_regs *regs, unsigned long error_code)
{
	return !(error_code & (X86_PF_PROT | X86_PF_WRITE | X86_PF_USER | X86_PF_RSVD));
}

static __always_inline u64 frozen_ticks(void)
{
	return rdtsc();
}

static inline u64 frozen_nanoseconds(u64 ticks)
{
	return tsc_khz ? mul_u64_u64_div_u64(ticks, 1000000, tsc_khz) : 0;
}

/* Entries of page tables are written as they are: nothing that might be frozen is in between. */
static __always_inline void frozen_set_pte(pte_t *pte, unsigned long frame, unsigned long bits)
{
	WRITE_ONCE(pte->pte, bits ? (frame << PAGE_SHIFT) | bits : 0);
}

static __always_inline unsigned long frozen_pte_frame(pte_t *pte)
{
	return (READ_ONCE(pte->pte) & PTE_PFN_MASK) >> PAGE_SHIFT;
}

/* Of an entry that the processor faulted on though the page is there: it always sets the bit itself. */
static __always_inline void frozen_set_accessed(pte_t *pte)
{
}

/* Bits of an entry for constants, from that for code. */
static __always_inline unsigned long frozen_not_executable(unsigned long bits)
{
	return bits | (_PAGE_NX & __supported_pte_mask);
}

static inline unsigned long frozen_writable(void)
{
	return __PAGE_KERNEL & ~_PAGE_GLOBAL & __supported_pte_mask;
}

/* The window was mapped: whatever this processor knows of it is old. */
static __always_inline void frozen_window_opened(void *window)
{
	asm volatile("invlpg (%0)" : : "r" (window) : "memory");
}

/* The window was unmapped. */
static __always_inline void frozen_window_closed(void *window)
{
	asm volatile("invlpg (%0)" : : "r" (window) : "memory");
}

/* A page of code was written, through the window. */
static __always_inline void frozen_code_written(void *window)
{
}

/* Code in the pages is mapped by small pages from here on. */
static inline int frozen_map_small(unsigned long start, int pages)
{
	return set_memory_4k(start, pages);
}

/* Around the time in which this processor holds the lock or waits for it: NMIs are put off. */
void frozen_begin(void);
void frozen_wait(void);
void frozen_end(void);

/* All processors forget what was taken out of page tables; the lock is held. */
void frozen_forget_everywhere(void);

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

#endif
