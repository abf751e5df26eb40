/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the parts of frozen text share: the pages with their states, the lock, the pool of frames.
 */
#ifndef _MM_FROZEN_TEXT_H
#define _MM_FROZEN_TEXT_H

#include <linux/frozen_text.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/shrinker.h>
#include <linux/workqueue.h>
#include <asm/frozen_text.h>
#include "frozen_text_codec.h"

enum {
	/* Stays as it is: it did not become smaller, or changed before it was unmapped. */
	LEFT,
	/* In the store, and still in the frame in which the kernel was loaded: not yet unmapped, or it ran meanwhile. */
	COMPRESSED,
	/* In the store only. */
	FROZEN,
	/* There, in a frame of the pool, and in the store. */
	THAWED,
	/* There, in a frame of the pool, and changed since: what is in the store is not it. */
	CHANGED,
};

struct frozen_page {
	/* Where its compressed bytes begin in the store; they end where the next page's begin. */
	u32 offset;
	/* Of its bytes. */
	u32 hash;
	/* Byte at which it was entered, or read, when it last came back. */
	u16 entered;
	/* How often it came back; stops at the largest number. */
	u16 thaws;
	u8 state;
	/* Scans since it last ran. */
	u8 idle;
};

/* Frames that are kept at hand, at most. */
#define POOL_MAX 128
/* Pages that are taken away from code at once when the pool is empty: many where other processors must be told. */
#define EVICT_MAX (IS_ENABLED(CONFIG_SMP) ? 32 : 4)
/* A page that is in use, and its neighbours into which an instruction may reach, are not taken away; so many must be there. */
#define POOL_MIN 6
/* Frames by which the pool may be larger than wanted before some go back. */
#define POOL_SPARE 8

/* Set while the kernel starts. */
extern struct frozen_page *frozen_pages;
extern unsigned int frozen_page_count;
extern u8 *frozen_store;
extern size_t frozen_store_size;
extern unsigned int frozen_pool_target, frozen_idle_seconds;
extern bool frozen_refill_is_off;

/* Set when the pages are unmapped. */
extern pte_t **frozen_tables;
extern pgprot_t frozen_protection;
extern void *frozen_window;
extern pte_t *frozen_window_pte;
extern unsigned long frozen_window_bits;
extern bool frozen_active;

/* Guarded by the lock. */
extern struct page *frozen_pool[POOL_MAX];
extern unsigned int frozen_pool_count, frozen_thawed_count;
extern struct frozen_text_dictionary frozen_dictionary;

struct frozen_statistics {
	unsigned long thaws, met, refrozen, evicted, shoot_downs, changed, nmis_put_off;
	unsigned int pool_least, thawed_most, copied;
	u64 ticks, ticks_most;
};
extern struct frozen_statistics frozen_statistics;

enum thaw { THAW_DONE, THAW_NO_FRAME, THAW_CORRUPT };

/*
 * Interrupts are off while the lock is held, and it is never held for longer than it takes to thaw a page. Functions that call
 * frozen_lock() are not frozen, as the rewriter sees to; what they call while they hold it must be inline, or named there.
 */
unsigned long frozen_lock(void);
void frozen_unlock(unsigned long flags);
/* Brings a page back; the lock is held. */
enum thaw frozen_thaw(unsigned int index, unsigned int running, unsigned int entered);
/* Ends the kernel, and says at which code. */
void __noreturn frozen_fail(enum thaw how, unsigned long address);

/* Work that was asked for by a thaw. */
void frozen_wake(void);
void frozen_start_work(void);
/* A frame is in no other mapping than that of its code from here on; false if it cannot be. */
bool frozen_isolate(struct page *frame);
/* Unmaps what is in the store and still in the frame in which it was loaded; returns how many pages. */
unsigned int frozen_unmap(unsigned int first, unsigned int behind);
/* Freezes pages that did not run since so many scans, at most `most` of them; returns how many. */
unsigned int frozen_refreeze(unsigned int most, unsigned int scans);

static __always_inline unsigned long frozen_address(unsigned int index)
{
	return (unsigned long)__frozen_text_start + ((unsigned long)index << PAGE_SHIFT);
}

/* What its calls are made absolute for; 0 for constants, which have none. */
static __always_inline u32 frozen_code_address(unsigned int index)
{
	return frozen_address(index) < (unsigned long)__frozen_text_data ? frozen_address(index) : 0;
}

static __always_inline unsigned int frozen_index(unsigned long address)
{
	return (address - (unsigned long)__frozen_text_start) >> PAGE_SHIFT;
}

static __always_inline pte_t *frozen_pte(unsigned int index)
{
	unsigned long address = frozen_address(index);
	unsigned long table = (address >> PMD_SHIFT) - ((unsigned long)__frozen_text_start >> PMD_SHIFT);

	return frozen_tables[table] + ((address >> PAGE_SHIFT) & (PTRS_PER_PTE - 1));
}

static __always_inline struct page *frozen_frame(pte_t *pte)
{
	return pfn_to_page(frozen_pte_frame(pte));
}

/* Constants are not executed. */
static __always_inline unsigned long frozen_bits(unsigned int index)
{
	unsigned long bits = pgprot_val(frozen_protection);

	return frozen_code_address(index) ? bits : frozen_not_executable(bits);
}

/* The frame in which the kernel was loaded. */
static __always_inline unsigned long frozen_first_frame(unsigned int index)
{
	return __pa_symbol(frozen_address(index)) >> PAGE_SHIFT;
}

#endif
