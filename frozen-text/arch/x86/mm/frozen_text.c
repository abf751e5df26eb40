// SPDX-License-Identifier: GPL-2.0
/*
 * Frozen text on x86-64: NMIs are put off while a processor thaws, and other processors are told in an NMI that frames were taken away
 * from code, because they may wait with interrupts off for a lock that the one that tells them holds.
 */
#include <linux/kprobes.h>
#include <linux/panic.h>
#include <linux/smp.h>
#include <asm/apic.h>
#include <asm/invpcid.h>
#include <asm/tlbflush.h>
#include "../../../mm/frozen_text.h"

/* 0; while this processor holds the lock or waits for it 1, and one more for each NMI that came meanwhile. */
static DEFINE_PER_CPU(u8, thawing);

#ifdef CONFIG_SMP
/* Processors that have not forgotten yet, and those to which an NMI of ours is on its way. */
static struct cpumask forgetting, told;

/* Turns of waiting after which an NMI counts as lost: about a second. */
#define TURNS_MAX (1U << 24)
#endif

void notrace frozen_begin(void)
{
	raw_cpu_write(thawing, 1);
}
NOKPROBE_SYMBOL(frozen_begin);

void notrace frozen_end(void)
{
	u8 came = raw_cpu_xchg(thawing, 0);

	/* Each by itself, so that one of ours and one of another kind are two again. */
	for (; came > 1; came--) {
		frozen_statistics.nmis_put_off++;
		if (apic->send_IPI)
			apic->send_IPI(raw_smp_processor_id(), NMI_VECTOR);
	}
}
NOKPROBE_SYMBOL(frozen_end);

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

/*
 * Does what a processor that takes frames away from code waits for. Not interrupted by itself: an NMI does this only where its processor is
 * not waiting for the lock, and else leaves it to frozen_wait(), which looks again until whoever asks is done.
 */
static __always_inline void answer(void)
{
#ifdef CONFIG_SMP
	int cpu = raw_smp_processor_id();

	if (arch_test_bit(cpu, cpumask_bits(&forgetting))) {
		forget();
		arch_clear_bit(cpu, cpumask_bits(&forgetting));
	}
#endif
}

void notrace frozen_wait(void)
{
	/* Who waits in an NMI gets no other one. */
	answer();
	cpu_relax();
}
NOKPROBE_SYMBOL(frozen_wait);

/*
 * An NMI that asks to forget ends here: its usual handlers may be frozen, and would need the very frames that are sought. One of another
 * kind that comes together with it is lost; that can only be while the pool is empty.
 */
bool noinstr frozen_text_nmi(void)
{
	u8 came = raw_cpu_read(thawing);

	if (came) {
		raw_cpu_write(thawing, came + (came < U8_MAX));
		return true;
	}
#ifdef CONFIG_SMP
	/* Before the answer: from here on another one is sent. */
	if (arch_test_and_clear_bit(raw_smp_processor_id(), cpumask_bits(&told))) {
		answer();
		return true;
	}
#endif
	return false;
}

#ifdef CONFIG_SMP
/* NMIs to those that have not forgotten, but for those that get one already: so each that comes is one that was sent. */
static __always_inline void tell(bool again)
{
	static struct cpumask now;
	unsigned int cpu, count = 0;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		arch___clear_bit(cpu, cpumask_bits(&now));
		if (!arch_test_bit(cpu, cpumask_bits(&forgetting)))
			continue;
		if (arch_test_and_set_bit(cpu, cpumask_bits(&told)) && !again)
			continue;
		arch___set_bit(cpu, cpumask_bits(&now));
		count++;
	}
	if (count)
		apic->send_IPI_mask(&now, NMI_VECTOR);
}
#endif

void notrace frozen_forget_everywhere(void)
{
	forget();
#ifdef CONFIG_SMP
	if (num_online_cpus() > 1) {
		unsigned int word, turns = 0;

		for (word = 0; word < BITS_TO_LONGS(NR_CPUS); word++)
			cpumask_bits(&forgetting)[word] = cpumask_bits(cpu_online_mask)[word];
		arch___clear_bit(raw_smp_processor_id(), cpumask_bits(&forgetting));
		frozen_statistics.shoot_downs++;
		tell(false);
		for (word = 0; word < BITS_TO_LONGS(NR_CPUS); word++) {
			while (READ_ONCE(cpumask_bits(&forgetting)[word])) {
				cpu_relax();
				if (++turns < TURNS_MAX)
					continue;
				/* The kernel ends, and others were stopped where no NMI comes: they run nothing any more. */
				if (atomic_read(&panic_cpu) != PANIC_CPU_INVALID)
					return;
				tell(true);
				turns = 0;
			}
		}
	}
#endif
}
NOKPROBE_SYMBOL(frozen_forget_everywhere);
