/* Loads a kernel with its initial file system and command line, and starts it: kexec load KERNEL INITRAMFS TEXT, kexec go. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

/* In place, so that an analysis of this program sees the numbers. */
static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d, long e)
{
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = e;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth) : "rcx", "r11", "memory");
	return result;
}

int main(int count, char **words)
{
	long failed = -1;

	if (count == 5 && !strcmp(words[1], "load")) {
		int kernel = open(words[2], O_RDONLY), initramfs = open(words[3], O_RDONLY);

		failed = call(SYS_kexec_file_load, kernel, initramfs, strlen(words[4]) + 1, (long)words[4], 0);
	} else if (count == 2 && !strcmp(words[1], "go")) {
		/* LINUX_REBOOT_CMD_KEXEC */
		failed = call(SYS_reboot, 0xfee1dead, 672274793, 0x45584543, 0, 0);
	}
	printf("kexec %s: %ld\n", count > 1 ? words[1] : "", failed);
	return failed != 0;
}
