// SPDX-License-Identifier: GPL-2.0
/*
 * Frames of frozen text: the pool is filled and emptied, pages that did not run for a while are frozen again, and what is written to by
 * text_poke() stays. All this may sleep, and may be frozen itself.
 */
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/set_memory.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <asm/tlbflush.h>
#include "frozen_text.h"

/* Scans without a run after which a page is frozen again. */
#define IDLE_SCANS 2
/* How often pages that ran while they were unmapped are tried again. */
#define UNMAP_RETRIES 2

unsigned int frozen_pool_target __ro_after_init = IS_ENABLED(CONFIG_SMP) ? 32 : 8;
unsigned int frozen_idle_seconds __ro_after_init = 30;
bool frozen_refill_is_off __ro_after_init;

static struct irq_work irq_work;
static void work_done(struct work_struct *work);
static DECLARE_DELAYED_WORK(work, work_done);
static bool work_waits;

static void work_soon(struct irq_work *unused)
{
	mod_delayed_work(system_unbound_wq, &work, 0);
}

/*
 * The work was asked for and has not begun. Nothing more is asked for until then: what the interrupt runs may be frozen, and would take the
 * frame of the page that came back before its instruction runs, again and again.
 */
static bool asked;

void notrace frozen_wake(void)
{
	if (READ_ONCE(asked) || (READ_ONCE(frozen_pool_count) >= frozen_pool_target / 2 && READ_ONCE(work_waits)))
		return;
	WRITE_ONCE(asked, true);
	WRITE_ONCE(work_waits, true);
	irq_work_queue(&irq_work);
}

bool frozen_isolate(struct page *frame)
{
	unsigned long address = (unsigned long)page_address(frame);

	if (set_direct_map_invalid_noflush(frame))
		return false;
	flush_tlb_kernel_range(address, address + PAGE_SIZE);
	return true;
}

static void release(struct page *frame)
{
	/* A frame that cannot be mapped again is lost, not used. */
	if (!WARN_ON_ONCE(set_direct_map_default_noflush(frame)))
		__free_page(frame);
}

static bool give(struct page *frame)
{
	unsigned long flags = frozen_lock();
	bool taken = frozen_pool_count < POOL_MAX;

	if (taken)
		frozen_pool[frozen_pool_count++] = frame;
	frozen_unlock(flags);
	return taken;
}

/* Fills the pool up, with frames that lie together: each 2 MiB in which one is isolated need a page table of their own. */
static void refill(void)
{
	while (!frozen_refill_is_off && READ_ONCE(frozen_pool_count) < frozen_pool_target) {
		unsigned int number, order = 3, given = 0;
		struct page *frames = alloc_pages(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY, order);

		if (!frames) {
			order = 0;
			frames = alloc_page(GFP_KERNEL | __GFP_NOWARN);
		}
		if (!frames)
			return;
		if (order)
			split_page(frames, order);
		for (number = 0; number < 1 << order; number++) {
			if (!frozen_isolate(frames + number))
				__free_page(frames + number);
			else if (give(frames + number))
				given++;
			else
				release(frames + number);
		}
		if (!given)
			return;
	}
}

/* What the pool has beyond `most` goes back. */
static void drain(unsigned int most)
{
	struct page *frame;

	do {
		unsigned long flags = frozen_lock();

		frame = frozen_pool_count > most ? frozen_pool[--frozen_pool_count] : NULL;
		frozen_unlock(flags);
		if (frame)
			release(frame);
	} while (frame);
}

/* Frames whose pages are unmapped, when all processors have forgotten them. */
static void settle(struct list_head *frames)
{
	flush_tlb_kernel_range((unsigned long)__frozen_text_start, (unsigned long)__frozen_text_end);
	while (!list_empty(frames)) {
		struct page *frame = list_first_entry(frames, struct page, lru);

		list_del(&frame->lru);
		if (READ_ONCE(frozen_pool_count) >= frozen_pool_target || !give(frame))
			release(frame);
	}
}

/* Frames that are neither in the pool nor of a page at once. */
#define SETTLE_MAX 16

/* A page that runs before its frame is settled comes back in another one, and is the same. */
unsigned int frozen_refreeze(unsigned int most, unsigned int scans)
{
	unsigned int frozen = 0, index = 0, waiting = 0;
	LIST_HEAD(frames);

	while (index < frozen_page_count && frozen < most) {
		struct frozen_page *page = &frozen_pages[index];
		pte_t *pte = frozen_pte(index);
		struct page *frame = NULL;
		unsigned long flags;
		bool enough;

		if (READ_ONCE(page->state) != THAWED) {
			index++;
			continue;
		}
		flags = frozen_lock();
		/* What comes back meanwhile must find a frame, or one to take away. */
		enough = frozen_pool_count + frozen_thawed_count > POOL_MIN;
		if (page->state != THAWED) {
			/* Written to, or taken away. */
		} else if (test_and_clear_bit(FROZEN_ACCESSED_BIT, (unsigned long *)&pte->pte) && scans) {
			page->idle = 0;
		} else if (page->idle + 1 < scans) {
			page->idle++;
		} else if (enough) {
			frame = frozen_frame(pte);
			frozen_set_pte(pte, 0, 0);
			page->state = FROZEN;
			frozen_thawed_count--;
			frozen_statistics.refrozen++;
		}
		frozen_unlock(flags);
		if (frame) {
			list_add(&frame->lru, &frames);
			frozen++;
			waiting++;
		}
		if (enough)
			index++;
		else if (!waiting)
			break;
		if (!enough || waiting == SETTLE_MAX) {
			settle(&frames);
			waiting = 0;
		}
	}
	/* Also where nothing was frozen: a translation that stays would hide that a page runs. */
	settle(&frames);
	return frozen;
}

static void work_done(struct work_struct *unused)
{
	static unsigned int retries = UNMAP_RETRIES;
	static unsigned long next;

	WRITE_ONCE(asked, false);
	smp_mb();
	if (READ_ONCE(frozen_pool_count) < frozen_pool_target / 2)
		refill();
	drain(frozen_pool_target + POOL_SPARE);
	if (!next)
		next = jiffies + frozen_idle_seconds * HZ;
	if (time_after_eq(jiffies, next)) {
		frozen_refreeze(UINT_MAX, IDLE_SCANS);
		if (retries) {
			retries--;
			frozen_unmap(0, frozen_page_count);
		}
		next = jiffies + frozen_idle_seconds * HZ;
	}
	if (READ_ONCE(frozen_thawed_count) || retries) {
		queue_delayed_work(system_unbound_wq, &work, frozen_idle_seconds * HZ);
		return;
	}
	drain(frozen_pool_target);
	next = 0;
	/* A page may have come back just now. */
	WRITE_ONCE(work_waits, false);
	smp_mb();
	if (READ_ONCE(frozen_thawed_count))
		mod_delayed_work(system_unbound_wq, &work, frozen_idle_seconds * HZ);
}

static unsigned long shrink_count(struct shrinker *shrinker, struct shrink_control *control)
{
	return READ_ONCE(frozen_thawed_count) ?: SHRINK_EMPTY;
}

static unsigned long shrink_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	unsigned int frozen = frozen_refreeze(control->nr_to_scan, 1);

	drain(frozen_pool_target);
	return frozen ?: SHRINK_STOP;
}

void frozen_start_work(void)
{
	init_irq_work(&irq_work, work_soon);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	struct shrinker *shrinker = shrinker_alloc(0, "frozen-text");

	if (shrinker) {
		shrinker->count_objects = shrink_count;
		shrinker->scan_objects = shrink_scan;
		shrinker_register(shrinker);
	}
#else
	static struct shrinker shrinker = {
		.count_objects = shrink_count,
		.scan_objects = shrink_scan,
		.seeks = DEFAULT_SEEKS,
	};

	if (register_shrinker(&shrinker, "frozen-text"))
		pr_warn("frozen text: no shrinker\n");
#endif
}

/* The page of code, or of constants, as it was loaded. */
static struct page *image_page(unsigned long address)
{
	return pfn_to_page(__pa_symbol(address) >> PAGE_SHIFT);
}

/* The dictionary is code too: before some of it changes, a copy takes its place for the pages that were compressed with it. */
static void keep_dictionary(unsigned long address)
{
	static DEFINE_MUTEX(keeping);
	static struct page **parts;
	unsigned long start = (unsigned long)__frozen_text_dictionary_end - frozen_dictionary.size, flags;
	unsigned int count, number;
	void *mapped, *before = NULL;
	struct page *copy;

	if (address < (start & PAGE_MASK) || address >= start + frozen_dictionary.size)
		return;
	count = PAGE_ALIGN(start + frozen_dictionary.size) / PAGE_SIZE - start / PAGE_SIZE;
	number = address / PAGE_SIZE - start / PAGE_SIZE;
	/* Who comes a second time may not sleep. */
	if (READ_ONCE(parts) && READ_ONCE(parts[number]) != image_page(address))
		return;
	mutex_lock(&keeping);
	if (!parts) {
		struct page **all = kcalloc(count, sizeof(*parts), GFP_KERNEL | __GFP_NOFAIL);
		unsigned int each;

		for (each = 0; each < count; each++)
			all[each] = image_page((start & PAGE_MASK) + each * PAGE_SIZE);
		smp_store_release(&parts, all);
	}
	if (parts[number] == image_page(address)) {
		copy = alloc_page(GFP_KERNEL | __GFP_NOFAIL);
		memcpy(page_address(copy), (void *)(address & PAGE_MASK), PAGE_SIZE);
		parts[number] = copy;
		while (!(mapped = vmap(parts, count, VM_MAP, PAGE_KERNEL_RO)))
			cond_resched();
		flags = frozen_lock();
		if ((unsigned long)frozen_dictionary.start != start)
			before = (void *)((unsigned long)frozen_dictionary.start & PAGE_MASK);
		frozen_dictionary.start = mapped + offset_in_page(start);
		frozen_statistics.copied++;
		frozen_unlock(flags);
		vunmap(before);
	}
	mutex_unlock(&keeping);
}

struct page *frozen_text_page(void *at)
{
	unsigned long address = (unsigned long)at;

	/* Stays in this state. */
	if (frozen_pages && is_frozen_text(address) && READ_ONCE(frozen_pages[frozen_index(address)].state) == CHANGED)
		return frozen_frame(frozen_pte(frozen_index(address)));
	return image_page(address);
}

struct page *frozen_text_poke(void *at)
{
	unsigned long address = (unsigned long)at, flags;
	unsigned int index = frozen_index(address);
	struct page *frame = image_page(address);
	enum thaw how;

	if (!frozen_pages)
		return frame;
	if (!is_frozen_text(address)) {
		keep_dictionary(address);
		return frame;
	}
	for (;;) {
		struct frozen_page *page = &frozen_pages[index];

		flags = frozen_lock();
		how = page->state == FROZEN ? frozen_thaw(index, index, offset_in_page(address)) : THAW_DONE;
		if (how == THAW_DONE) {
			frozen_statistics.changed += page->state == COMPRESSED || page->state == THAWED;
			if (page->state == THAWED) {
				page->state = CHANGED;
				frozen_thawed_count--;
			}
			if (page->state == CHANGED)
				frame = frozen_frame(frozen_pte(index));
			else
				page->state = LEFT;
		}
		frozen_unlock(flags);
		if (how == THAW_DONE)
			return frame;
		if (how == THAW_CORRUPT)
			frozen_fail(how, address);
		refill();
		cond_resched();
	}
}
