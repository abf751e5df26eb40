// Does what its arguments say, so that a test knows what must be recorded. Numbers of pages are of 4096 bytes.
//   map FILE PAGE...          maps FILE at an address that is a multiple of 64 KiB and reads a byte of each page
//   thread FILE PAGE...       the same in a second thread
//   fork FILE PAGE...         the same in a child
//   pread FILE OFFSET BYTES   reads by pread
//   read FILE OFFSET BYTES    seeks, then reads by read
//   fread FILE OFFSET BYTES   the same of a stream
//   open PATH...              opens each and closes it
//   cat FILE...               reads each to its end and closes it
//   write FILE                appends a byte
//   exec PROGRAM ...          becomes another program
//   sandbox ...               the same as the rest says, under a filter that kills whoever calls userfaultfd
//   raise SIGNAL              kills itself
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char sink;
static char **arguments;

static void *map(void *unused) {
    (void)unused;
    int fd = open(arguments[0], O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) exit(90);
    size_t window = 64 << 10;
    char *room = mmap(0, status.st_size + window, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *at = (char *)(((uintptr_t)room + window - 1) & ~(uintptr_t)(window - 1));
    if (mmap(at, status.st_size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != at) exit(91);
    for (char **page = arguments + 1; *page; page++) sink = at[4096L * atol(*page)];
    close(fd);
    return 0;
}

static int sandbox(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **given) {
    if (count < 3) return 99;
    if (!strcmp(given[1], "sandbox")) {
        if (sandbox()) return 98;
        given++;
    }
    char *what = given[1];
    arguments = given + 2;
    static char buffer[1 << 20];
    if (!strcmp(what, "map")) {
        map(0);
    } else if (!strcmp(what, "thread")) {
        pthread_t thread;
        if (pthread_create(&thread, 0, map, 0)) return 92;
        pthread_join(thread, 0);
    } else if (!strcmp(what, "fork")) {
        pid_t child = fork();
        if (child == 0) { map(0); _exit(0); }
        waitpid(child, 0, 0);
    } else if (!strcmp(what, "pread")) {
        int fd = open(arguments[0], O_RDONLY);
        if (pread(fd, buffer, atol(arguments[2]), atol(arguments[1])) != atol(arguments[2])) return 93;
    } else if (!strcmp(what, "read")) {
        int fd = open(arguments[0], O_RDONLY);
        lseek(fd, atol(arguments[1]), SEEK_SET);
        if (read(fd, buffer, atol(arguments[2])) != atol(arguments[2])) return 94;
    } else if (!strcmp(what, "fread")) {
        FILE *stream = fopen(arguments[0], "r");
        fseek(stream, atol(arguments[1]), SEEK_SET);
        if (fread(buffer, 1, atol(arguments[2]), stream) != (size_t)atol(arguments[2])) return 95;
        fclose(stream);
    } else if (!strcmp(what, "open")) {
        for (char **path = arguments; *path; path++) {
            DIR *directory = opendir(*path);
            if (directory) closedir(directory);
            else { int fd = open(*path, O_RDONLY); if (fd >= 0) close(fd); }
        }
    } else if (!strcmp(what, "cat")) {
        for (char **path = arguments; *path; path++) {
            int fd = open(*path, O_RDONLY);
            while (read(fd, buffer, sizeof buffer) > 0) {}
            close(fd);
        }
    } else if (!strcmp(what, "write")) {
        int fd = open(arguments[0], O_RDWR | O_APPEND);
        if (read(fd, buffer, 1) != 1 || write(fd, "x", 1) != 1) return 96;
    } else if (!strcmp(what, "exec")) {
        execv(arguments[0], arguments);
        return 97;
    } else if (!strcmp(what, "raise")) {
        raise(atoi(arguments[0]));
    }
    return 0;
}
