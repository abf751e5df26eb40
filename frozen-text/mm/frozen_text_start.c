// SPDX-License-Identifier: GPL-2.0
/*
 * Frozen text when the kernel starts: pages are compressed while code that is only for the start is still there, which includes the
 * encoder, and unmapped when code has become read-only.
 */
#define pr_fmt(fmt) "frozen text: " fmt

#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/set_memory.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <linux/xxhash.h>
#include <asm/sections.h>
#include <asm/setup.h>
#include <asm/tlbflush.h>
#include "frozen_text.h"

/* The option of the command line: frozen_text=off, or settings with commas between them; false for off. */
static bool __init settings(void)
{
	static const char name[] __initconst = "frozen_text=";
	const char *option = boot_command_line;
	char text[64], *rest = text, *word;

	do {
		option = strstr(option, name);
		if (!option)
			return true;
		option += strlen(name);
	} while (option - strlen(name) != boot_command_line && option[-1 - (long)strlen(name)] != ' ');
	strscpy(text, option, min(sizeof(text), strcspn(option, " ") + 1));
	while ((word = strsep(&rest, ","))) {
		char *value = strchr(word, ':');
		unsigned int number = 0;

		if (value)
			*value++ = 0;
		if (!strcmp(word, "off") && !value)
			return false;
		if (!strcmp(word, "norefill") && !value)
			frozen_refill_is_off = true;
		else if (value && !kstrtouint(value, 0, &number) && !strcmp(word, "pool"))
			frozen_pool_target = clamp_t(unsigned int, number, POOL_MIN, POOL_MAX - POOL_SPARE);
		else if (value && !kstrtouint(value, 0, &number) && !strcmp(word, "idle"))
			frozen_idle_seconds = clamp_t(unsigned int, number, 1, 3600);
		else
			pr_warn("frozen_text: '%s' is not known\n", word);
	}
	return true;
}

static void __init compress(u8 *page, u8 *all)
{
	unsigned int index;

	for (index = 0; index < frozen_page_count; index++) {
		struct frozen_page *this = &frozen_pages[index];
		u32 address = frozen_code_address(index);
		void *from = (void *)frozen_address(index);
		u8 *to = all + frozen_store_size;
		size_t size;

		this->offset = frozen_store_size;
		this->hash = xxh64(from, PAGE_SIZE, 0);
		memcpy(page, from, PAGE_SIZE);
		size = frozen_text_encode(page, address, to, PAGE_SIZE);
		/* Tried before it is trusted. */
		if (size && frozen_text_decode(page, address, to, size, &frozen_dictionary) && !memcmp(page, from, PAGE_SIZE)) {
			frozen_store_size += size;
			this->state = COMPRESSED;
		}
		cond_resched();
	}
	frozen_pages[frozen_page_count].offset = frozen_store_size;
}

void __init frozen_text_compress(void)
{
	unsigned long end = (unsigned long)__frozen_text_dictionary_end;
	unsigned int count = (__frozen_text_end - __frozen_text_start) / PAGE_SIZE;
	struct frozen_page *pages;
	u8 *page, *all;

	if (!count || !settings())
		return;
	frozen_dictionary.size = min_t(size_t, end - (unsigned long)_stext, FROZEN_TEXT_DICTIONARY_MAX);
	frozen_dictionary.start = (void *)(end - frozen_dictionary.size);
	page = (u8 *)__get_free_page(GFP_KERNEL);
	pages = vzalloc(array_size(count + 1, sizeof(*pages)));
	/* A page that does not become smaller is written before that is seen. */
	all = vmalloc(array_size(count + 1, PAGE_SIZE));
	if (page && pages && all && !frozen_text_encoder_begin(&frozen_dictionary)) {
		frozen_page_count = count;
		/* From here on changes of code are seen. */
		frozen_pages = pages;
		compress(page, all);
		frozen_store = vmalloc(frozen_store_size);
		if (frozen_store)
			memcpy(frozen_store, all, frozen_store_size);
	}
	frozen_text_encoder_end();
	vfree(all);
	free_page((unsigned long)page);
	if (!frozen_store) {
		pr_warn("no memory to compress %u pages; they stay as they are\n", count);
		frozen_pages = NULL;
		vfree(pages);
	}
}

/* When code is read-only */

static int take_pte(pte_t *pte, unsigned long address, void *found)
{
	*(pte_t **)found = pte;
	return 0;
}

/* Finds the entries of the page tables, and makes one for the window. */
static bool prepare(void)
{
	unsigned long start = (unsigned long)__frozen_text_start, end = (unsigned long)__frozen_text_end, address;
	unsigned int count = (end >> PMD_SHIFT) - (start >> PMD_SHIFT) + 1;
	struct vm_struct *area = get_vm_area(PAGE_SIZE, VM_MAP);

	frozen_tables = kcalloc(count, sizeof(*frozen_tables), GFP_KERNEL);
	if (!area || !frozen_tables || !can_set_direct_map() || frozen_map_small(start, frozen_page_count))
		return false;
	if (apply_to_page_range(&init_mm, (unsigned long)area->addr, PAGE_SIZE, take_pte, &frozen_window_pte) || !frozen_window_pte)
		return false;
	frozen_window = area->addr;
	frozen_window_bits = frozen_writable();
	for (address = start; address < end; address = ALIGN_DOWN(address, PMD_SIZE) + PMD_SIZE) {
		pte_t *pte = NULL;

		/* Fails where a larger page is mapped. */
		if (apply_to_existing_page_range(&init_mm, address, PAGE_SIZE, take_pte, &pte) || !pte || !pte_present(*pte))
			return false;
		frozen_tables[(address >> PMD_SHIFT) - (start >> PMD_SHIFT)] = pte - ((address >> PAGE_SHIFT) & (PTRS_PER_PTE - 1));
		frozen_protection = pte_pgprot(*pte);
	}
	return true;
}

/* Pages that run meanwhile stay for now; frames of the others are freed, or put into the pool. */
unsigned int frozen_unmap(unsigned int first, unsigned int behind)
{
	unsigned int index, frozen = 0;

	for (index = first; index < behind; index++) {
		unsigned long flags = frozen_lock();

		if (frozen_pages[index].state == COMPRESSED)
			frozen_set_pte(frozen_pte(index), 0, 0);
		frozen_unlock(flags);
	}
	flush_tlb_kernel_range(frozen_address(first), frozen_address(behind));
	for (index = first; index < behind; index++) {
		struct page *frame = pfn_to_page(frozen_first_frame(index));
		unsigned long flags = frozen_lock();
		bool gone = frozen_pages[index].state == COMPRESSED && !pte_val(READ_ONCE(*frozen_pte(index)));

		if (gone)
			frozen_pages[index].state = FROZEN;
		frozen_unlock(flags);
		if (!gone)
			continue;
		frozen++;
		if (frozen_pool_count < frozen_pool_target && frozen_isolate(frame)) {
			ClearPageReserved(frame);
			init_page_count(frame);
			adjust_managed_page_count(frame, 1);
			flags = frozen_lock();
			frozen_pool[frozen_pool_count++] = frame;
			frozen_unlock(flags);
		} else if (!set_direct_map_default_noflush(frame)) {
			flush_tlb_kernel_range((unsigned long)page_address(frame), (unsigned long)page_address(frame) + PAGE_SIZE);
			free_reserved_page(frame);
		}
	}
	return frozen;
}

/* Pages that are unmapped at once: a few first, so that there is a pool. */
#define UNMAP_PAGES 32

void frozen_text_freeze(void)
{
	unsigned int index, frozen = 0;

	if (!frozen_pages)
		return;
	if (!prepare()) {
		pr_warn("the code cannot be mapped by small pages; it stays as it is\n");
		frozen_pages = NULL;
		return;
	}
	frozen_start_work();
	WRITE_ONCE(frozen_active, true);
	for (index = 0; index < frozen_page_count; index += UNMAP_PAGES)
		frozen += frozen_unmap(index, min(index + UNMAP_PAGES, frozen_page_count));
	frozen_statistics.pool_least = frozen_pool_count;
	/* What ran meanwhile is tried again. */
	local_irq_disable();
	frozen_wake();
	local_irq_enable();
	pr_info("%u of %u pages, %zu bytes compressed with %zu of dictionary, %zu of tables, %zu of decoder, pool of %u\n", frozen,
		frozen_page_count, frozen_store_size, frozen_dictionary.size, (frozen_page_count + 1) * sizeof(*frozen_pages),
		frozen_text_decoder_bytes(), frozen_pool_target);
}
