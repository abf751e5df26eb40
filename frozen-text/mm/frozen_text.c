// SPDX-License-Identifier: GPL-2.0
/*
 * Frozen text: pages of kernel code that hardly ever run are kept compressed.
 *
 * The linker puts functions that never ran in the runs of a device into .text..frozen, whole pages. When the start is over each of them
 * is compressed, unmapped and freed. An instruction fetch (or a read) from one of them faults; the handler takes a frame from a pool,
 * decompresses into it, and maps it at the page's own address, so that return addresses, unwinder, exception and bug tables and names stay
 * valid. The compressed copy stays: a page that did not run for a while is unmapped again, and its frame goes back.
 *
 * The idea of frozen code is in Chanet et al., "Automated reduction of the memory footprint of the Linux kernel", ACM TECS 6(4), 2007, for
 * regions of code with stubs at their entries; here it is done by pages and the memory management unit.
 *
 * Rules:
 *  - Thawing happens in any context: it takes one lock with interrupts off, allocates nothing, and calls nothing that may be frozen or traced
 *    (the rewriter keeps all that frozen_text_thaw() reaches out of .text..frozen). An NMI that comes meanwhile is put off.
 *  - No page is writable and executable: frames of the pool are in no other mapping, are written through one of their own that only the holder
 *    of the lock uses, and mapped for execution afterwards.
 *  - What was decompressed is what was compressed, or the kernel panics and names the code.
 */

#include <linux/kprobes.h>
#include <linux/panic.h>
#include <linux/reboot.h>
#include <linux/xxhash.h>
#include "frozen_text.h"

/* NULL if nothing is frozen. */
struct frozen_page *frozen_pages;
unsigned int frozen_page_count __ro_after_init;
u8 *frozen_store __ro_after_init;
size_t frozen_store_size __ro_after_init;
/* The last level of the page tables, for each 2 MiB. */
pte_t **frozen_tables;
pgprot_t frozen_protection;
/* Where the frame that is being filled is mapped. */
void *frozen_window;
pte_t *frozen_window_pte;
unsigned long frozen_window_bits;
bool frozen_active;

struct page *frozen_pool[POOL_MAX];
unsigned int frozen_pool_count, frozen_thawed_count;
struct frozen_text_dictionary frozen_dictionary;
struct frozen_statistics frozen_statistics;

static unsigned long lock;
/* Where the search for a page that loses its frame goes on. */
static unsigned int hand;

void notrace frozen_unlock(unsigned long flags)
{
	clear_bit_unlock(0, &lock);
	frozen_end();
	frozen_interrupts_restore(flags);
}
NOKPROBE_SYMBOL(frozen_unlock);

unsigned long notrace frozen_lock(void)
{
	unsigned long flags = frozen_interrupts_off();

	frozen_begin();
	/* A lock of its own: the slow ways of others may be frozen. */
	while (test_and_set_bit_lock(0, &lock))
		frozen_wait();
	return flags;
}
NOKPROBE_SYMBOL(frozen_lock);

/*
 * The pool is empty: pages that are there lose their frames, in turn, but those next to the page that is wanted and to the instruction
 * that wants it.
 */
static __always_inline void evict(unsigned int wanted, unsigned int running)
{
	unsigned int tried;
	unsigned int taken = 0;

	for (tried = 0; tried < frozen_page_count && taken < EVICT_MAX && 2 * taken <= frozen_thawed_count; tried++) {
		unsigned int index = hand;
		pte_t *pte = frozen_pte(index);

		hand = hand + 1 < frozen_page_count ? hand + 1 : 0;
		if (frozen_pages[index].state != THAWED || index - wanted + 1 < 3 || index - running + 1 < 3)
			continue;
		frozen_pool[taken++] = frozen_frame(pte);
		frozen_set_pte(pte, 0, 0);
		frozen_pages[index].state = FROZEN;
	}
	if (!taken)
		return;
	frozen_forget_everywhere();
	frozen_pool_count = taken;
	frozen_thawed_count -= taken;
	frozen_statistics.evicted += taken;
}

enum thaw notrace frozen_thaw(unsigned int index, unsigned int running, unsigned int entered)
{
	struct frozen_page *page = &frozen_pages[index];
	struct frozen_statistics *all = &frozen_statistics;
	pte_t *pte = frozen_pte(index);
	unsigned long frame;
	u64 begin, took;
	bool whole;

	if (page->state != FROZEN) {
		/* Another processor was faster, or it is being unmapped and ran once more. */
		if (page->state == COMPRESSED)
			frozen_set_pte(pte, frozen_first_frame(index), frozen_bits(index));
		else
			frozen_set_accessed(pte);
		all->met++;
		return THAW_DONE;
	}
	begin = frozen_ticks();
	if (!frozen_pool_count)
		evict(index, running);
	if (!frozen_pool_count)
		return THAW_NO_FRAME;
	frame = page_to_pfn(frozen_pool[frozen_pool_count - 1]);
	frozen_set_pte(frozen_window_pte, frame, frozen_window_bits);
	frozen_window_opened(frozen_window);
	whole = frozen_text_decode(frozen_window, frozen_code_address(index), frozen_store + page->offset,
				   page[1].offset - page->offset, &frozen_dictionary) &&
		(u32)xxh64(frozen_window, PAGE_SIZE, 0) == page->hash;
	frozen_code_written(frozen_window);
	frozen_set_pte(frozen_window_pte, 0, 0);
	frozen_window_closed(frozen_window);
	if (!whole)
		return THAW_CORRUPT;
	frozen_pool_count--;
	if (frozen_pool_count < all->pool_least)
		all->pool_least = frozen_pool_count;
	frozen_set_pte(pte, frame, frozen_bits(index));
	page->state = THAWED;
	page->idle = 0;
	page->entered = entered;
	page->thaws += page->thaws < U16_MAX;
	frozen_thawed_count++;
	if (frozen_thawed_count > all->thawed_most)
		all->thawed_most = frozen_thawed_count;
	all->thaws++;
	took = frozen_ticks() - begin;
	all->ticks += took;
	if (took > all->ticks_most)
		all->ticks_most = took;
	return THAW_DONE;
}
NOKPROBE_SYMBOL(frozen_thaw);

/* May be frozen: the lock is not held any more. */
void __noreturn frozen_fail(enum thaw how, unsigned long address)
{
	static unsigned long failed;

	/* What panic() itself needs may be what cannot be had. */
	if (test_and_set_bit(0, &failed))
		emergency_restart();
	if (how == THAW_CORRUPT)
		panic("frozen text: the compressed page of %pS (%px) is corrupt", (void *)address, (void *)address);
	panic("frozen text: no frame for %pS (%px); give it more (frozen_text=pool:N)", (void *)address, (void *)address);
}

bool notrace frozen_text_fault(struct pt_regs *regs, unsigned long error_code, unsigned long address)
{
	unsigned int running = frozen_index(is_frozen_text(instruction_pointer(regs)) ? instruction_pointer(regs) : address);
	unsigned long flags;
	enum thaw how;

	if (!READ_ONCE(frozen_active) || !frozen_is_absent(regs, error_code))
		return false;
	flags = frozen_lock();
	how = frozen_thaw(frozen_index(address), running, offset_in_page(address));
	frozen_unlock(flags);
	if (unlikely(how != THAW_DONE))
		frozen_fail(how, address);
	/* What follows may fault in its turn, and thaw. */
	frozen_wake();
	return true;
}
NOKPROBE_SYMBOL(frozen_text_fault);
