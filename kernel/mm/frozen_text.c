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

#include <linux/irqflags.h>
#include <linux/kprobes.h>
#include <linux/panic.h>
#include <linux/reboot.h>
#include <linux/smp.h>
#include <linux/xxhash.h>
#include <asm/apic.h>
#include <asm/invpcid.h>
#include <asm/tlbflush.h>
#include <asm/trap_pf.h>
#include <asm/tsc.h>
#include "frozen_text.h"

struct frozen_page *frozen_pages __ro_after_init;
unsigned int frozen_page_count __ro_after_init;
u8 *frozen_store __ro_after_init;
size_t frozen_store_size __ro_after_init;
/* The last level of the page tables, for each 2 MiB. */
pte_t **frozen_tables;
pgprot_t frozen_protection;
/* Where the frame that is being filled is mapped. */
void *frozen_window;
pte_t *frozen_window_pte;
bool frozen_active;

struct page *frozen_pool[POOL_MAX];
unsigned int frozen_pool_count, frozen_thawed_count;
struct frozen_text_dictionary frozen_dictionary;
struct frozen_statistics frozen_statistics;

static unsigned long lock;
/* Where the search for a page that loses its frame goes on. */
static unsigned int hand;

/* 1 while this processor holds the lock or waits for it, 2 if an NMI came meanwhile. */
static DEFINE_PER_CPU(u8, thawing);

/* NMIs to come that were answered before they came. */
static DEFINE_PER_CPU(u8, answered);

#ifdef CONFIG_SMP
/* Processors that have not forgotten yet. */
static struct cpumask forgetting;
#endif


void notrace frozen_unlock(unsigned long flags)
{
	clear_bit_unlock(0, &lock);
	if (raw_cpu_xchg(thawing, 0) == 2) {
		/* Several NMIs that come at once are one to the processor too. */
		frozen_statistics.nmis_put_off++;
		if (apic->send_IPI)
			apic->send_IPI(raw_smp_processor_id(), NMI_VECTOR);
	}
	if (flags & X86_EFLAGS_IF)
		native_irq_enable();
}
NOKPROBE_SYMBOL(frozen_unlock);

/* All translations of this processor, global ones and those of other address spaces too. */
static __always_inline void forget(void)
{
	unsigned long cr4;

	if (boot_cpu_has(X86_FEATURE_INVPCID)) {
		invpcid_flush_all();
		return;
	}
	cr4 = native_read_cr4();
	asm volatile("mov %0, %%cr4" : : "r" (cr4 ^ X86_CR4_PGE) : "memory");
	asm volatile("mov %0, %%cr4" : : "r" (cr4) : "memory");
}

/* Does what a processor that takes frames away from code waits for; whether there was something to do. */
static __always_inline bool answer(void)
{
#ifdef CONFIG_SMP
	int cpu = raw_smp_processor_id();

	if (arch_test_bit(cpu, cpumask_bits(&forgetting))) {
		forget();
		arch_clear_bit(cpu, cpumask_bits(&forgetting));
		return true;
	}
#endif
	return false;
}

unsigned long notrace frozen_lock(void)
{
	unsigned long flags = native_save_fl();

	native_irq_disable();
	raw_cpu_write(thawing, 1);
	/* A lock of its own: the slow ways of others may be frozen. */
	while (test_and_set_bit_lock(0, &lock)) {
		/* Who waits in an NMI gets no other one. */
		if (answer())
			raw_cpu_write(answered, raw_cpu_read(answered) + 1);
		cpu_relax();
	}
	return flags;
}
NOKPROBE_SYMBOL(frozen_lock);

/*
 * An NMI that asks to forget ends here: its usual handlers may be frozen, and would need the very frames that are sought. One of another
 * kind that comes together with it is lost; that can only be while the pool is empty.
 */
bool noinstr frozen_text_nmi(void)
{
	if (answer())
		return true;
	if (raw_cpu_read(answered)) {
		raw_cpu_write(answered, raw_cpu_read(answered) - 1);
		return true;
	}
	if (!raw_cpu_read(thawing))
		return false;
	raw_cpu_write(thawing, 2);
	return true;
}

/* All processors forget. Others do so in an NMI, because they may wait with interrupts off for a lock that our caller holds. */
static __always_inline void forget_everywhere(void)
{
	forget();
#ifdef CONFIG_SMP
	if (num_online_cpus() > 1) {
		unsigned int word;

		for (word = 0; word < BITS_TO_LONGS(NR_CPUS); word++)
			cpumask_bits(&forgetting)[word] = cpumask_bits(cpu_online_mask)[word];
		arch___clear_bit(raw_smp_processor_id(), cpumask_bits(&forgetting));
		frozen_statistics.shoot_downs++;
		apic->send_IPI_mask(&forgetting, NMI_VECTOR);
		for (word = 0; word < BITS_TO_LONGS(NR_CPUS); word++)
			while (READ_ONCE(cpumask_bits(&forgetting)[word]))
				cpu_relax();
	}
#endif
}

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
	forget_everywhere();
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
		all->met++;
		return THAW_DONE;
	}
	begin = rdtsc();
	if (!frozen_pool_count)
		evict(index, running);
	if (!frozen_pool_count)
		return THAW_NO_FRAME;
	frame = page_to_pfn(frozen_pool[frozen_pool_count - 1]);
	frozen_set_pte(frozen_window_pte, frame, __PAGE_KERNEL & ~_PAGE_GLOBAL & __supported_pte_mask);
	asm volatile("invlpg (%0)" : : "r" (frozen_window) : "memory");
	whole = frozen_text_decode(frozen_window, frozen_code_address(index), frozen_store + page->offset,
				   page[1].offset - page->offset, &frozen_dictionary) &&
		(u32)xxh64(frozen_window, PAGE_SIZE, 0) == page->hash;
	frozen_set_pte(frozen_window_pte, 0, 0);
	asm volatile("invlpg (%0)" : : "r" (frozen_window) : "memory");
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
	took = rdtsc() - begin;
	all->cycles += took;
	if (took > all->cycles_most)
		all->cycles_most = took;
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
	unsigned int running = frozen_index(is_frozen_text(regs->ip) ? regs->ip : address);
	unsigned long flags;
	enum thaw how;

	if (!READ_ONCE(frozen_active) || (error_code & (X86_PF_PROT | X86_PF_WRITE | X86_PF_USER | X86_PF_RSVD)))
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
