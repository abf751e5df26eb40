/* Waits for a line, loads a library, tells so, waits for another line, reads a file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text, long number) {
    dprintf(1, "%s %ld\n", text, number);
}

static void wait_line(void) {
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n') continue;
}

static long descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    long count = 0;
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}

/* From now on a system call is answered so. */
static void filter(int number, unsigned answer) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) say("no filter", errno);
}

static void *load(void *path) {
    errno = 77;
    void *library = dlopen(path, RTLD_NOW);
    say("errno", errno);
    int (*answer)(void) = library ? (int (*)(void))dlsym(library, "answer") : 0;
    say("answer", answer ? answer() : -1);
    return 0;
}

int main(int count, char **words) {
    if (count != 4) return 9;
    char *mode = words[1], *library = words[2], *file = words[3];
    char *plain[] = {words[0], "plain", library, file, 0}, *nothing[] = {0};
    if (!strcmp(mode, "denied")) {
        filter(SYS_ptrace, SECCOMP_RET_ERRNO | EPERM);
        execv(library, (char *[]){library, "--exact", "role_launcher", "--ignored", "--nocapture", 0});
    }
    if (!strcmp(mode, "child")) {
        pid_t child = fork();
        if (!child) execv(words[0], plain);
        int status = -1;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    if (!strcmp(mode, "clean")) execve(words[0], plain, nothing);
    wait_line();
    if (!strcmp(mode, "closes")) {
        for (int number = 3; number < 1024; number++) close(number);
        /* All numbers that anybody may have had are now those of a file that must stay empty. */
        for (int number = 3; number < 300; number++) open(file, O_RDWR | O_CREAT, 0600);
    }
    if (!strcmp(mode, "filter")) filter(SYS_socket, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(mode, "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, load, library);
        pthread_join(thread, 0);
    } else {
        load(library);
    }
    say("descriptors", descriptors());
    say("loaded", 1);
    wait_line();
    struct stat found;
    say("size", stat(file, &found) ? -1 : (long)found.st_size);
    return 5;
}
