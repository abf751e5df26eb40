/* Loads a kernel with its initial file system and command line, and starts it: kexec load KERNEL INITRAMFS TEXT, kexec go. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

/* In place, so that an analysis of this program sees the numbers. */
static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d, long e)
{
#ifdef __aarch64__
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
#else
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return result;
#endif
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
