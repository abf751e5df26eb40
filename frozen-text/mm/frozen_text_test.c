// SPDX-License-Identifier: GPL-2.0
/*
 * Enters frozen code where it is hardest, by words that are written to frozen_text/test:
 *
 *   irq, softirq  in an interrupt that a processor takes, and in a tasklet
 *   together      on all processors at once, the same page and different ones
 *   empty         more pages than the pool has frames, with interrupts off
 *   poke          code of a frozen page is changed
 *   dictionary    code that is the dictionary is changed, and everything thawed with what it was
 *   nmi           (x86) while other processors are interrupted by NMIs, whose handler is frozen
 *   corrupt       a byte of the store is changed, and its page entered: the kernel panics
 *
 * A write fails with EIO if what was found is not what is expected.
 */
#define pr_fmt(fmt) "frozen text test: " fmt

#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/linkage.h>
#include <linux/memory.h>
#include <linux/proc_fs.h>
#include <linux/smp.h>
#include <linux/uaccess.h>
#ifdef CONFIG_ARM64
#include <asm/patching.h>
#else
#include <asm/apic.h>
#include <asm/nmi.h>
#include <asm/text-patching.h>
#endif
#include "frozen_text.h"

#define TEST_PAGES 64

#ifdef CONFIG_ARM64
#define FILLER "0"
/* A landing for indirect branches first. */
#define FUNCTION(number) "hint #34\n movz w0, #" number "\n ret\n"
#else
#define FILLER "0xcc"
#define FUNCTION(number) "endbr64\n movl $" number ", %eax\n" ASM_RET "\n"
#endif

/* Pages of their own, each with a function that returns its number; and one that is in the dictionary. */
asm(".pushsection .text..frozen, \"ax\"\n"
    ".balign 4096, " FILLER "\n"
    ".globl frozen_text_test_pages\n"
    ".type frozen_text_test_pages, %function\n"
    "frozen_text_test_pages:\n"
    ".set number, 0\n"
    ".rept 64\n"
    ".balign 4096, " FILLER "\n"
    FUNCTION("number")
    ".set number, number + 1\n"
    ".endr\n"
    ".balign 4096, " FILLER "\n"
    ".size frozen_text_test_pages, . - frozen_text_test_pages\n"
    ".popsection\n"
    ".pushsection .text.hot.frozen_text_test, \"ax\"\n"
    ".globl frozen_text_test_hot\n"
    ".type frozen_text_test_hot, %function\n"
    "frozen_text_test_hot:\n"
    FUNCTION("7")
    ".size frozen_text_test_hot, . - frozen_text_test_hot\n"
    ".popsection\n");

extern char frozen_text_test_pages[];
int frozen_text_test_hot(void);

static atomic_t wrong;

static void check(bool right, const char *what)
{
	if (!right) {
		atomic_inc(&wrong);
		pr_err("%s\n", what);
	}
}

#ifdef CONFIG_ARM64
/* The function becomes one that returns this number. */
static void write_number(char *code, u32 number)
{
	check(!aarch64_insn_patch_text_nosync(code + 4, 0x52800000 | number << 5), "code cannot be changed");
	kick_all_cpus_sync();
}
#else
/* Of the functions above: where their number is. */
#define NUMBER_AT 5

static void write_number(char *code, u32 number)
{
	mutex_lock(&text_mutex);
	text_poke(code + NUMBER_AT, &number, sizeof(number));
	text_poke_sync();
	mutex_unlock(&text_mutex);
}
#endif

static int enter(unsigned int number)
{
	int (*function)(void) = (void *)(frozen_text_test_pages + number * PAGE_SIZE);

	OPTIMIZER_HIDE_VAR(function);
	return function();
}

static unsigned int page_of(unsigned int number)
{
	return frozen_index((unsigned long)frozen_text_test_pages) + number;
}

static bool is_frozen(unsigned int number)
{
	return READ_ONCE(frozen_pages[page_of(number)].state) == FROZEN;
}

/* What was entered where nobody waits for an answer. */
static int entered;

static void in_interrupt_context(struct irq_work *work)
{
	check(in_hardirq(), "not in an interrupt");
	entered = enter(1);
}

static void try_irq(void)
{
	struct irq_work work = IRQ_WORK_INIT_HARD(in_interrupt_context);

	check(is_frozen(1), "page 1 is not frozen");
	irq_work_queue(&work);
	irq_work_sync(&work);
	check(entered == 1, "there was no interrupt");
}

static void in_tasklet(struct tasklet_struct *tasklet)
{
	check(in_softirq(), "not in a softirq");
	WRITE_ONCE(entered, enter(2));
}

static void try_softirq(void)
{
	struct tasklet_struct tasklet;

	check(is_frozen(2), "page 2 is not frozen");
	tasklet_setup(&tasklet, in_tasklet);
	tasklet_schedule(&tasklet);
	/* Waits until it has run. */
	tasklet_kill(&tasklet);
	check(entered == 2, "there was no softirq");
}

static atomic_t arrived;

static void all_enter(void *round)
{
	unsigned int number = (unsigned long)round, each;

	/* As close together as can be. */
	atomic_inc(&arrived);
	while (atomic_read(&arrived) < num_online_cpus())
		cpu_relax();
	check(enter(number) == number, "the same page at once");
	for (each = 0; each < 3; each++) {
		unsigned int own = 8 + (smp_processor_id() * 3 + each) % (TEST_PAGES - 8);

		check(enter(own) == own, "different pages at once");
	}
}

static void try_together(void)
{
	unsigned long round;

	for (round = 0; round < 200; round++) {
		frozen_refreeze(UINT_MAX, 0);
		cpus_read_lock();
		atomic_set(&arrived, 0);
		on_each_cpu(all_enter, (void *)(round % 8), true);
		cpus_read_unlock();
	}
}

static void try_empty(void)
{
	unsigned long before = frozen_statistics.evicted;
	unsigned int number, turn;

	for (turn = 0; turn < 3; turn++) {
		local_irq_disable();
		for (number = 0; number < TEST_PAGES; number++)
			check(enter(number) == number, "with an empty pool");
		local_irq_enable();
	}
	check(frozen_statistics.evicted > before, "the pool was never empty");
}

static void try_poke(void)
{
	char *code = frozen_text_test_pages + 5 * PAGE_SIZE;

	check(is_frozen(5), "page 5 is not frozen");
	write_number(code, 1005);
	check(enter(5) == 1005, "after a change");
	frozen_refreeze(UINT_MAX, 0);
	check(!is_frozen(5) && enter(5) == 1005, "a change was lost");
	write_number(code, 5);
	check(enter(5) == 5, "after a change back");
}

static void try_dictionary(void)
{
	unsigned int before = frozen_statistics.copied, index;
	unsigned long sum = 0;

	check(frozen_text_test_hot() == 7, "hot code");
	write_number((char *)frozen_text_test_hot, 8);
	check(frozen_text_test_hot() == 8, "hot code was not changed");
	check(frozen_statistics.copied == before + 1, "the dictionary was not kept");
	write_number((char *)frozen_text_test_hot, 7);
	check(frozen_statistics.copied == before + 1, "the dictionary was kept twice");
	/* Whatever was compressed with the dictionary. */
	frozen_refreeze(UINT_MAX, 0);
	for (index = 0; index < frozen_page_count; index++) {
		sum += *(volatile u8 *)frozen_address(index);
		cond_resched();
	}
	pr_info("sum %lu\n", sum);
}

#ifdef CONFIG_X86
static int __frozen_text frozen_nmi(unsigned int reason, struct pt_regs *regs)
{
	int found = enter(6);

	return found == 6 ? NMI_HANDLED : NMI_DONE;
}

static int send_nmis(void *unused)
{
	while (!kthread_should_stop()) {
		preempt_disable();
		apic->send_IPI_allbutself(NMI_VECTOR);
		preempt_enable();
		udelay(20);
		cond_resched();
	}
	return 0;
}

static void try_nmi(void)
{
	struct task_struct *sender;
	unsigned int round, number;

	if (num_online_cpus() < 2) {
		pr_info("one processor sends itself no NMI while it thaws\n");
		return;
	}
	if (register_nmi_handler(NMI_LOCAL, frozen_nmi, 0, "frozen text test"))
		return;
	sender = kthread_run(send_nmis, NULL, "nmis");
	for (round = 0; round < 300; round++) {
		frozen_refreeze(UINT_MAX, 0);
		for (number = 8; number < 24; number++)
			check(enter(number) == number, "while NMIs come");
		cond_resched();
	}
	kthread_stop(sender);
	msleep(10);
	unregister_nmi_handler(NMI_LOCAL, "frozen text test");
	pr_info("%lu NMIs put off\n", frozen_statistics.nmis_put_off);
}
#endif

static void try_corrupt(void)
{
	frozen_refreeze(UINT_MAX, 0);
	frozen_store[frozen_pages[page_of(9)].offset + 3] ^= 0x55;
	enter(9);
	check(false, "damaged code ran");
}

static const struct {
	const char *name;
	void (*try)(void);
} tests[] = {
	{ "irq", try_irq }, { "softirq", try_softirq }, { "together", try_together }, { "empty", try_empty }, { "poke", try_poke },
	{ "dictionary", try_dictionary }, { "corrupt", try_corrupt },
#ifdef CONFIG_X86
	{ "nmi", try_nmi },
#endif
};

static ssize_t test_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char text[16] = "";
	unsigned int number;

	if (size >= sizeof(text) || !frozen_active)
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	for (number = 0; number < ARRAY_SIZE(tests); number++) {
		if (strcmp(strim(text), tests[number].name))
			continue;
		atomic_set(&wrong, 0);
		frozen_refreeze(UINT_MAX, 0);
		tests[number].try();
		return atomic_read(&wrong) ? -EIO : size;
	}
	return -EINVAL;
}

static const struct proc_ops test_operations = { .proc_write = test_write };

static int __init frozen_text_test(void)
{
	return proc_create("frozen_text_test", 0200, NULL, &test_operations) ? 0 : -ENOMEM;
}
late_initcall(frozen_text_test);
