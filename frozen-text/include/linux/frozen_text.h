/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Frozen text: pages of kernel code that hardly ever run, and of constants that hardly ever are read, are kept compressed and come back, at
 * the same addresses, when they are used. See mm/frozen_text.c.
 */
#ifndef _LINUX_FROZEN_TEXT_H
#define _LINUX_FROZEN_TEXT_H

#include <linux/types.h>

struct page;
struct pt_regs;

/* Code that is placed among the pages that are frozen. */
#define __frozen_text __section(".text..frozen")

#ifdef CONFIG_FROZEN_TEXT

/* Code, then constants. */
extern char __frozen_text_start[], __frozen_text_data[], __frozen_text_end[], __frozen_text_dictionary_end[];

static inline bool is_frozen_text(unsigned long address)
{
	return address - (unsigned long)__frozen_text_start <
	       (unsigned long)__frozen_text_end - (unsigned long)__frozen_text_start;
}

/* Compresses the pages; called once, when nothing but the rest of the start may still change code. */
void frozen_text_compress(void);

/* Unmaps and frees what was compressed; called once, when code is read-only. */
void frozen_text_freeze(void);

/* A fault of the kernel at address: true if the page is there now and the instruction can run again. */
bool frozen_text_fault(struct pt_regs *regs, unsigned long error_code, unsigned long address);

/*
 * What text_poke() is about to write to at address: the page, which is there then and stays. May sleep, and never fails: what
 * it lacks memory for it waits for.
 */
struct page *frozen_text_poke(void *address);

/* The page that is at address now, after frozen_text_poke(); does not sleep. */
struct page *frozen_text_page(void *address);

/* An NMI came: true if it is to be left alone, because this processor is thawing; it is raised again afterwards. */
bool frozen_text_nmi(void);

#else

static inline bool is_frozen_text(unsigned long address) { return false; }
static inline void frozen_text_compress(void) { }
static inline void frozen_text_freeze(void) { }
static inline bool frozen_text_fault(struct pt_regs *regs, unsigned long error_code, unsigned long address)
{
	return false;
}
#define frozen_text_poke(address) virt_to_page(address)
#define frozen_text_page(address) pfn_to_page(__pa_symbol(address) >> PAGE_SHIFT)
static __always_inline bool frozen_text_nmi(void) { return false; }

#endif

#endif
