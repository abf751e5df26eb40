/*
 * What the dispatcher of system calls jumps to instead of a handler that was removed: logs program and number, once for each number,
 * so that no program can fill the log, and answers ENOSYS as the kernel does for numbers that it never had.
 *
 * Compiled as the beginning of kernel/sys_ni.c, so that it gets the flags and checks of the kernel's own code. Without a removed call
 * nothing refers to it, and it goes like other unused code.
 */
#include <linux/bitmap.h>
#include <linux/errno.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <asm/ptrace.h>
#include <asm/unistd.h>

static DECLARE_BITMAP(specialise_removed_logged, NR_syscalls);

static const char specialise_removed_text[] = KERN_WARNING "%s[%d]: system call %lu is not in this kernel\n";

long __x64_sys_specialise_removed(const struct pt_regs *regs);
long __x64_sys_specialise_removed(const struct pt_regs *regs)
{
	unsigned long number = regs->orig_ax;

	if (number < NR_syscalls && !test_and_set_bit(number, specialise_removed_logged))
		_printk(specialise_removed_text, current->comm, current->pid, number);
	return -ENOSYS;
}
