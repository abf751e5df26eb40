// SPDX-License-Identifier: GPL-2.0
/*
 * Frozen text on x86-64: NMIs are put off while a processor thaws, and other processors are told in an NMI that frames were taken away
 * from code, because they may wait with interrupts off for a lock that the one that tells them holds.
 */
#include <linux/kprobes.h>
#include <linux/smp.h>
#include <asm/apic.h>
#include <asm/invpcid.h>
#include <asm/tlbflush.h>
#include "../../../mm/frozen_text.h"

/* 1 while this processor holds the lock or waits for it, 2 if an NMI came meanwhile. */
static DEFINE_PER_CPU(u8, thawing);

/* NMIs to come that were answered before they came. */
static DEFINE_PER_CPU(u8, answered);

#ifdef CONFIG_SMP
/* Processors that have not forgotten yet. */
static struct cpumask forgetting;
#endif

void notrace frozen_begin(void)
{
	raw_cpu_write(thawing, 1);
}
NOKPROBE_SYMBOL(frozen_begin);

void notrace frozen_end(void)
{
	if (raw_cpu_xchg(thawing, 0) != 2)
		return;
	/* Several NMIs that come at once are one to the processor too. */
	frozen_statistics.nmis_put_off++;
	if (apic->send_IPI)
		apic->send_IPI(raw_smp_processor_id(), NMI_VECTOR);
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

void notrace frozen_wait(void)
{
	/* Who waits in an NMI gets no other one. */
	if (answer())
		raw_cpu_write(answered, raw_cpu_read(answered) + 1);
	cpu_relax();
}
NOKPROBE_SYMBOL(frozen_wait);

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

void notrace frozen_forget_everywhere(void)
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
NOKPROBE_SYMBOL(frozen_forget_everywhere);
