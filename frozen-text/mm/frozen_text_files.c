// SPDX-License-Identifier: GPL-2.0
/*
 * What can be asked of frozen text: files in debugfs, or in /proc where the kernel has none.
 *
 *   statistics  numbers, a line each
 *   thawed      pages that came back: address, times, state, and the function at which they were entered last
 *   control     "refreeze": all that came back is frozen again
 *   coverage    a byte for each block of an instrumented kernel, 1 if it ran; a write sets all to zero
 */
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include "frozen_text.h"

extern char specialise_coverage[] __weak, specialise_coverage_end[] __weak;

static int statistics_show(struct seq_file *file, void *unused)
{
	struct frozen_statistics *all = &frozen_statistics;
	unsigned int states[CHANGED + 1] = { }, index;

	for (index = 0; index < frozen_page_count; index++)
		states[frozen_pages[index].state]++;
	seq_printf(file, "pages %u\nfrozen %u\nthawed %u\nchanged %u\nleft %u\n", frozen_page_count, states[FROZEN], states[THAWED],
		   states[CHANGED], states[LEFT] + states[COMPRESSED]);
	seq_printf(file, "store_bytes %zu\ntable_bytes %zu\npool %u\npool_target %u\npool_least %u\n", frozen_store_size,
		   (frozen_page_count + 1) * sizeof(*frozen_pages), frozen_pool_count, frozen_pool_target, all->pool_least);
	seq_printf(file, "thaws %lu\nthawed_most %u\nthawed_meanwhile %lu\nrefrozen %lu\nevicted %lu\nshoot_downs %lu\n", all->thaws,
		   all->thawed_most, all->met, all->refrozen, all->evicted, all->shoot_downs);
	seq_printf(file, "pokes_into_pages %lu\ndictionary_copies %u\nnmis_put_off %lu\n", all->changed, all->copied, all->nmis_put_off);
	seq_printf(file, "thaw_ns %llu\nthaw_most_ns %llu\n", frozen_nanoseconds(all->thaws ? div64_ul(all->ticks, all->thaws) : 0),
		   frozen_nanoseconds(all->ticks_most));
	return 0;
}

static const char *const states[] = { "left", "left", "frozen", "thawed", "changed" };

static int thawed_show(struct seq_file *file, void *unused)
{
	unsigned int index;

	for (index = 0; index < frozen_page_count; index++) {
		struct frozen_page *page = &frozen_pages[index];
		unsigned long address = frozen_address(index);

		if (page->thaws)
			seq_printf(file, "%px %u %s %pS\n", (void *)address, page->thaws, states[page->state],
				   (void *)(address + page->entered));
	}
	return 0;
}

static ssize_t control_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char text[16] = "";

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	if (strcmp(strim(text), "refreeze"))
		return -EINVAL;
	if (frozen_active)
		frozen_refreeze(UINT_MAX, 0);
	return size;
}

static ssize_t coverage_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	return simple_read_from_buffer(to, size, at, specialise_coverage, specialise_coverage_end - specialise_coverage);
}

static ssize_t coverage_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	memset(specialise_coverage, 0, specialise_coverage_end - specialise_coverage);
	return size;
}

static int statistics_open(struct inode *inode, struct file *file)
{
	return single_open(file, statistics_show, NULL);
}

static int thawed_open(struct inode *inode, struct file *file)
{
	return single_open(file, thawed_show, NULL);
}

#ifdef CONFIG_DEBUG_FS
#define OPERATIONS(name, ...) static const struct file_operations name = { .owner = THIS_MODULE, __VA_ARGS__ }
#define OF(name) .name
#define OF_SEEK .llseek
#define FOLDER struct dentry
#define MAKE_FOLDER() debugfs_create_dir("frozen_text", NULL)
#define MAKE(name, mode, folder, operations) debugfs_create_file(name, mode, folder, NULL, operations)
#else
#define OPERATIONS(name, ...) static const struct proc_ops name = { __VA_ARGS__ }
#define OF(name) .proc_##name
#define OF_SEEK .proc_lseek
#define FOLDER struct proc_dir_entry
#define MAKE_FOLDER() proc_mkdir("frozen_text", NULL)
#define MAKE(name, mode, folder, operations) proc_create(name, mode, folder, operations)
#endif

OPERATIONS(statistics_operations, OF(open) = statistics_open, OF(read) = seq_read, OF_SEEK = seq_lseek, OF(release) = single_release);
OPERATIONS(thawed_operations, OF(open) = thawed_open, OF(read) = seq_read, OF_SEEK = seq_lseek, OF(release) = single_release);
OPERATIONS(control_operations, OF(write) = control_write);
OPERATIONS(coverage_operations, OF(read) = coverage_read, OF(write) = coverage_write, OF_SEEK = default_llseek);

static int __init frozen_text_files(void)
{
	FOLDER *folder;

	if (!(__frozen_text_end - __frozen_text_start) && !specialise_coverage)
		return 0;
	folder = MAKE_FOLDER();
	if (IS_ERR_OR_NULL(folder))
		return -ENOMEM;
	MAKE("statistics", 0400, folder, &statistics_operations);
	MAKE("thawed", 0400, folder, &thawed_operations);
	MAKE("control", 0200, folder, &control_operations);
	if (specialise_coverage)
		MAKE("coverage", 0600, folder, &coverage_operations);
	return 0;
}
late_initcall(frozen_text_files);
