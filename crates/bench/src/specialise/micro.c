/*
 * The first program of a guest whose processor counts instructions: prints for each operation of the kernel how many instructions one takes, user
 * space and kernel together, and powers off. Uses no system call that BusyBox does not use too.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#define STATES 8

static int ends[2], back[2], pair[2], file;
static char *area;
static volatile sig_atomic_t signals;

static void must(int holds, const char *what) {
    if (!holds) {
        printf("@@failed %s\n", what);
        fflush(stdout);
    }
}

static void null(void) { syscall(SYS_getppid); }
static void read_byte(void) { char byte; must(pread(file, &byte, 1, 0) == 1, "read"); }
static void write_byte(void) { must(pwrite(file, "x", 1, 0) == 1, "write"); }
static void status(void) { struct stat about; must(stat("/tmp/file", &about) == 0, "stat"); }
static void open_close(void) { close(open("/tmp/file", O_RDONLY)); }
static void fork_exit(void) {
    if (fork() == 0) _exit(0);
    wait(NULL);
}
static void fork_exec(void) {
    if (vfork() == 0) {
        execl("/init", "init", "exit", NULL);
        _exit(1);
    }
    wait(NULL);
}
static void pipe_self(void) {
    char byte = 0;
    must(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1, "pipe");
}
static void pipe_other(void) {
    char byte = 0;
    must(write(ends[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1, "pipe");
}
static void sockets(void) {
    char byte = 0;
    must(write(pair[1], &byte, 1) == 1 && read(pair[0], &byte, 1) == 1, "socket");
}
static void yield(void) { sched_yield(); }
static void map(void) { munmap(mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, file, 0), 65536); }
static void fault(void) {
    for (int page = 0; page < 16; page++) area[page << 12] = 1;
    must(madvise(area, 65536, MADV_DONTNEED) == 0, "madvise");
}
static void on_signal(int number) { signals += number; }
static void handle(void) { raise(SIGUSR1); }
static void create_remove(void) {
    close(open("/tmp/other", O_CREAT | O_WRONLY, 0600));
    must(unlink("/tmp/other") == 0, "unlink");
}

/*
 * The least of states that differ in what the kernel's caches of objects hold: where one is just full, each operation gets a page for it and
 * gives it back, in whatever kernel that happens to be.
 */
static void measure(const char *name, void (*work)(void), int rounds) {
    unsigned long long least = ~0ull;
    int held[STATES][2];
    for (int i = 0; i < 8; i++) work();
    for (int state = 0; state < STATES; state++) {
        unsigned long long start = __rdtsc();
        for (int i = 0; i < rounds; i++) work();
        unsigned long long found = (__rdtsc() - start) / rounds;
        if (found < least) least = found;
        /* 64 buffers are an object of 4 KiB, as a path is. */
        must(pipe(held[state]) == 0 && fcntl(held[state][0], F_SETPIPE_SZ, 64 << 12) >= 0, "hold");
    }
    for (int state = 0; state < STATES; state++) {
        close(held[state][0]);
        close(held[state][1]);
    }
    printf("@@micro %s %llu\n", name, least);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "exit")) _exit(0);
    mkdir("/tmp", 0755);
    must(mount("tmp", "/tmp", "tmpfs", 0, NULL) == 0, "mount");
    file = open("/tmp/file", O_RDWR | O_CREAT, 0644);
    must(ftruncate(file, 65536) == 0, "truncate");
    area = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, on_signal);
    must(pipe(ends) == 0 && pipe(back) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "pipes");
    measure("null", null, 400);
    measure("read", read_byte, 400);
    measure("write", write_byte, 400);
    measure("stat", status, 400);
    measure("open-close", open_close, 200);
    measure("create-remove", create_remove, 100);
    measure("pipe", pipe_self, 200);
    measure("socket", sockets, 200);
    measure("yield", yield, 400);
    measure("mmap", map, 200);
    measure("fault-16", fault, 100);
    measure("signal", handle, 200);
    measure("fork-exit", fork_exit, 20);
    measure("fork-exec", fork_exec, 20);
    pid_t other = fork();
    if (other == 0) {
        char byte;
        while (read(ends[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1) {}
        _exit(0);
    }
    measure("switch", pipe_other, 200);
    printf("@@done\n");
    fflush(stdout);
    kill(other, SIGKILL);
    reboot(RB_POWER_OFF);
    return 0;
}
