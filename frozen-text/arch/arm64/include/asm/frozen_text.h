/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Frozen text on AArch64. Other processors are told of changes of page tables by the hardware, and there are no NMIs (see Kconfig). What is
 * inline here runs while a page is thawed.
 */
#ifndef _ASM_ARM64_FROZEN_TEXT_H
#define _ASM_ARM64_FROZEN_TEXT_H

#include <linux/irqflags.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <asm/barrier.h>
#include <asm/cacheflush.h>
#include <asm/esr.h>
#include <asm/ptrace.h>
#include <asm/sysreg.h>
#include <asm/tlbflush.h>

/* The access flag: set by the processor, or in a fault where it cannot. */
#define FROZEN_ACCESSED_BIT 10

static __always_inline unsigned long frozen_interrupts_off(void)
{
	return arch_local_irq_save();
}

static __always_inline void frozen_interrupts_restore(unsigned long flags)
{
	arch_local_irq_restore(flags);
}

/* Whether a fault of this kind is one of a page that is not there, or not yet marked as accessed, by the kernel, and not to write. */
static __always_inline bool frozen_is_absent(struct pt_regs *regs, unsigned long esr)
{
	unsigned long class = ESR_ELx_EC(esr), type = esr & ESR_ELx_FSC_TYPE;

	if (user_mode(regs) || (type != ESR_ELx_FSC_FAULT && type != ESR_ELx_FSC_ACCESS))
		return false;
	return class == ESR_ELx_EC_IABT_CUR || (class == ESR_ELx_EC_DABT_CUR && !(esr & ESR_ELx_WNR));
}

static __always_inline u64 frozen_ticks(void)
{
	isb();
	return read_sysreg(cntvct_el0);
}

static inline u64 frozen_nanoseconds(u64 ticks)
{
	return mul_u64_u64_div_u64(ticks, NSEC_PER_SEC, read_sysreg(cntfrq_el0));
}

/* Entries of page tables are written as they are: nothing that might be frozen is in between. */
static __always_inline void frozen_set_pte(pte_t *pte, unsigned long frame, unsigned long bits)
{
	WRITE_ONCE(pte_val(*pte), bits ? __phys_to_pte_val(PFN_PHYS(frame)) | bits : 0);
	if (bits) {
		dsb(ishst);
		isb();
	}
}

static __always_inline unsigned long frozen_pte_frame(pte_t *pte)
{
	return PHYS_PFN(__pte_to_phys(READ_ONCE(*pte)));
}

/* Of an entry that the processor faulted on though the page is there. */
static __always_inline void frozen_set_accessed(pte_t *pte)
{
	/* An atomic operation: other processors may do the same. */
	if (pte_val(READ_ONCE(*pte)) & PTE_VALID)
		arch_set_bit(FROZEN_ACCESSED_BIT, (unsigned long *)pte);
	dsb(ishst);
	isb();
}

/* Bits of an entry for constants, from that for code. */
static __always_inline unsigned long frozen_not_executable(unsigned long bits)
{
	return (bits | PTE_PXN | PTE_UXN) & ~PTE_GP;
}

static inline unsigned long frozen_writable(void)
{
	return pgprot_val(PAGE_KERNEL);
}

/* The window was mapped: when it was unmapped all processors forgot it. */
static __always_inline void frozen_window_opened(void *window)
{
}

/* The window was unmapped. */
static __always_inline void frozen_window_closed(void *window)
{
	dsb(ishst);
	__tlbi(vaale1is, __TLBI_VADDR((unsigned long)window, 0));
	dsb(ish);
	isb();
}

/* A page of code was written, through the window: instruction caches of all processors forget what they have. */
static __always_inline void frozen_code_written(void *window)
{
	dcache_clean_pou((unsigned long)window, (unsigned long)window + PAGE_SIZE);
	icache_inval_all_pou();
}

/* The start has mapped it so (see arch/arm64/kernel/pi/map_kernel.c). */
static inline int frozen_map_small(unsigned long start, int pages)
{
	return 0;
}

static __always_inline void frozen_begin(void)
{
}

static __always_inline void frozen_wait(void)
{
	cpu_relax();
}

static __always_inline void frozen_end(void)
{
}

/* All processors forget what was taken out of page tables. */
static __always_inline void frozen_forget_everywhere(void)
{
	dsb(ishst);
	__tlbi(vmalle1is);
	dsb(ish);
	isb();
}

/*
 * Calls (BL), whose distance in words becomes a place in words, and ADRP, whose distance in pages becomes a page (sign 1); or back (sign -1).
 */
static __always_inline void frozen_text_targets(u8 *code, u32 address, int sign)
{
	unsigned int at;

	for (at = 0; at < PAGE_SIZE; at += 4) {
		u32 *place = (u32 *)(code + at), word = *place;

		if (word >> 26 == 0x25) {
			u32 distance = (word + sign * ((address + at) >> 2)) & 0x03ffffff;

			*place = (word & 0xfc000000) | distance;
		} else if ((word & 0x9f000000) == 0x90000000) {
			u32 distance = (word >> 29 & 3) | (word >> 3 & 0x1ffffc);

			distance += sign * ((address + at) >> PAGE_SHIFT);
			*place = (word & 0x9f00001f) | (distance & 3) << 29 | (distance & 0x1ffffc) << 3;
		}
	}
}

#endif
